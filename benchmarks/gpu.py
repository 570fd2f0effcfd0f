r"""Speed on a GPU, in one call: adds to docs/performance.jsonl, and writes docs/performance.md.

Run:    python benchmarks/gpu.py [--only decode,learn,switch,search] [--python_torch PYTHON] [--rounds 3]
                                 [--minutes 12] [--part_minutes 3]
        python benchmarks/gpu.py --compile     without a GPU: compiles the same programs for an H200 (gpu_compiled.py)

  decode   64 conversations with 512 prompt tokens and 512 sampled tokens, random weights in bfloat16: the engine's
           tokens per second, and the bound set by reading all weights and the mean cache per token.
  learn    GRPO steps on 16 rows of 4,096 tokens, half of each sequence trained, with remat: all parameters (float32
           master weights), and LoRA of rank 16 on 7B; one sequence per row and four. MFU counts the operations that
           the step needs (learner/flops.py), without remat's second pass.
  switch   the seconds from updated parameters in the learner to an engine that samples with them.
  search   exact search, 64 queries over 21,000,000 random rows of 768 bfloat16 numbers, ten results each.
Decoding and the step are also measured in transformers and torch, if --python_torch has torch with CUDA. Every
measurement has its own process and the whole GPU, and its figures are written before the next one starts. Needs a GPU
of 80 GB (jax[cuda13]). Without one nothing is measured. The page has the last figures of every measurement, and what
compiling showed (docs/performance.json).
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import time

import gpu_compiled

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
KEPT = ROOT / "docs" / "performance.jsonl"
NONE, UNCOMPILED = "not measured", "not compiled"
MISSING = f"{UNCOMPILED} | | |"  # three columns
SMALLER, LARGER = "qwen2.5-1.5b", "qwen2.5-7b"
SMALL = ("smollm2-135m", "qwen3-0.6b", "qwen3.5-0.8b")
LEARNS = {SMALLER: "all parameters", f"{LARGER}+lora": "LoRA"} | dict.fromkeys(SMALL, "all parameters")
# (side, part, shape) of every process, the most telling ones first; the suffix "+lora" trains adapters.
WORK = [
  *(("ours", "decode", shape) for shape in (SMALLER, LARGER)),
  *(("ours", "learn", shape) for shape in (SMALLER, f"{LARGER}+lora")),
  ("ours", "search", ""),
  *(("ours", part, shape) for shape in SMALL for part in ("decode", "learn")),
  ("ours", "switch", SMALLER),
  ("ours", "switch", f"{LARGER}+lora"),
  *(("torch", "learn", shape) for shape in LEARNS),
  *(("torch", "decode", shape) for shape in (SMALLER, LARGER, *SMALL)),
]
Found = dict[tuple[str, ...], dict]
ASKS = """
import json, jax
print(json.dumps(dict(platform=jax.default_backend(), card=jax.devices()[0].device_kind)))
"""


def read() -> Found:
  """(side, part, shape) → the last figures that are stored, or the reason why there are none."""
  result: Found = {}
  for line in KEPT.read_text().splitlines() if KEPT.is_file() else []:
    row = json.loads(line)
    key = row["side"], row["part"], row["shape"]
    if "error" not in row or key not in result:
      result[key] = row
  return result


def page(results: Found, counted: Found | None = None) -> str:
  """The text of the page.

  Args:
    results: see `read`.
    counted: (part, shape) → what compiling showed, see gpu_compiled.py.
  """
  counted = counted or {}

  def value(side, part, shape, *path):
    at = results.get((side, part, shape), {})
    for name in path:
      at = at.get(name) if isinstance(at, dict) else None
    return at

  def shown(number, form, unit=""):
    return NONE if number is None else f"{number:{form}}{unit}"

  lines = [
    "# Performance on a GPU",
    "",
    "Written by `python benchmarks/gpu.py`; its docstring explains the measurements.",
    *measured_with(results),
    *compiled_with(counted),
    "",
    "| Decoding, batch 64 | tokens/s | HBM bound | share (aim 70 %) | transformers + torch, tokens/s | "
    "compiled: kernels a token | loops the host reads | bytes over weights + cache |",
    "|---|---|---|---|---|---|---|---|",
  ]
  for shape in (*SMALL, SMALLER, LARGER):
    ours = lambda name, shape=shape: value("ours", "decode", shape, name)
    count = counted.get(("decode", shape))
    lines.append(
      f"| {shape} | {shown(ours('tokens_per_s'), ',.0f')} | {shown(ours('bound'), ',.0f')} | "
      f"{shown(ours('share'), '.1%')} | {shown(value('torch', 'decode', shape, 'tokens_per_s'), ',.0f')} | "
      + (f"{count['kernels']} | {count['host_loops']} | {count['moved'] / count['least']:.2f} |" if count else MISSING)
    )
  lines += [
    "",
    "| Training step | tokens/s | MFU (aim 50 %) | transformers + torch, tokens/s | "
    "compiled: kernels a layer, there and back | loops the host reads | temporaries |",
    "|---|---|---|---|---|---|---|",
  ]
  for shape in (*SMALL, SMALLER, f"{LARGER}+lora"):
    what = LEARNS[shape]
    count = counted.get(("learn", shape))
    for kind, rows in (("single", "one sequence per row"), ("packed", "four sequences per row")):
      ours = lambda name, shape=shape, kind=kind: value("ours", "learn", shape, kind, name)
      theirs = value("torch", "learn", shape, "single", "tokens_per_s") if kind == "single" else None
      lines.append(
        f"| {shape.removesuffix('+lora')}, {what}, {rows} | {shown(ours('tokens_per_s'), ',.0f')} | "
        f"{shown(ours('mfu'), '.1%')} | {shown(theirs, ',.0f') if kind == 'single' else '–'} | "
        + (
          f"{count['kernels'] / count['layers']:.0f} | {count['host_loops']} | {gib(count['temporaries'])} |"
          if count
          else MISSING
        )
      )
  lines += ["", "| | | compiled: temporaries |", "|---|---|---|"]
  for shape, what in ((SMALLER, "1.5B, all parameters"), (f"{LARGER}+lora", "7B, LoRA")):
    seconds, count = value("ours", "switch", shape, "seconds"), counted.get(("switch", shape))
    room = f"{gib(count['temporaries'])}, beside weights of {gib(count['weights'])}" if count else UNCOMPILED
    lines.append(f"| Learner → engine, {what} | {shown(seconds and 1e3 * seconds, '.1f', ' ms')} | {room} |")
  taken, bound = (value("ours", "search", "", name) for name in ("ms", "bound_ms"))
  count = counted.get(("search", ""))
  room = UNCOMPILED
  if count:
    times = count["moved"] / count["rows"]
    room = f"{gib(count['temporaries'])}, {count['kernels']} kernels, {times:.2f} × the rows' bytes"
  lines.append(
    f"| Exact search, 21M × 768 bfloat16, a batch of 64 (aim 10 ms) | {shown(taken, '.1f', ' ms')} | {room} |"
  )
  lines.append(f"| … reading all rows once from HBM | {shown(bound, '.1f', ' ms')} | |")
  if errors := [(key, result["error"]) for key, result in results.items() if "error" in result]:
    lines += ["", "Not measured, with the reason:", ""]
    lines += [f"- {' '.join(key).strip()}: {error}" for key, error in errors]
  lines += ["", *DECODING, "", *ATTENTION, "", *HOST, ""]
  return "\n".join(lines)


def measured_with(results: Found) -> list[str]:
  """Lines that say when, where and with which versions the figures were measured."""
  when = "{card}, {versions}, commit {commit}, {day}, best of {rounds} after a warm-up"
  named = sorted({when.format(**row) for row in results.values() if "error" not in row})
  if not named:
    return [f'No GPU has run it yet: every time is "{NONE}". For speeds on CPU see the [README](../README.md#speed).']
  return [
    "Measured on one GPU (the last figure of each kind; `performance.jsonl` has all):",
    "",
    *(f"- {one}" for one in named),
  ]


def compiled_with(counted: Found) -> list[str]:
  """Lines that say what the compiled columns are."""
  if not counted:
    return []
  named = sorted({f"jax-cuda12-plugin {row['plugin']}, commit {row['commit']}" for row in counted.values()})
  says = (
    "Columns called *compiled* are counts of the same programs, compiled for one H200 without a GPU (`python "
    f"benchmarks/gpu.py --compile`; {'; '.join(named)}). They are not times. *Bytes* are all bytes that the kernels "
    "read and write, each operand once, divided by the bytes of all weights and of the cached tokens."
  )
  return ["", *textwrap.wrap(says, 118, break_on_hyphens=False)]


def gib(size: float) -> str:
  """Bytes as GiB."""
  return f"{size / 2**30:.2f} GiB"


DECODING = (
  "At commit 7d1ca43 one program read a sequence's cache: 24,745 tokens/s at 1.5B and 11,508 at 7B, with 339 and 395",
  "kernels a token (11 and 13 a layer) and 1.31 and 1.06 times the bytes. Now several programs share a sequence, and a",
  "layer has 10 and 11 kernels, with the merge of the programs' results. 1.5B gained 17 %, 7B lost 4 %.",
  "",
  "A hybrid's delta layers (`models/delta.py`) have no kernel of their own: a token reads a conversation's memory (19",
  "MB at 0.8B) twice and writes it once. The bytes beside weights and cache count it read once and written once.",
)
ATTENTION = (
  "On GPUs, attention in 16 bits is cuDNN's, through `jax.nn.dot_product_attention` (`models/cudnn.py`), in packed",
  "rows and with beginnings that samples share (`learner.share_prompts`). It needs JAX 0.11.2. Older JAX, float32 and",
  "rows of more than 8,192 tokens fall back on this library's kernels in Triton (`models/flash.py`). With those, the",
  "step at 1.5B took in 33,950 tokens/s in rows of one sequence and 41,406 in rows of four (7d1ca43). cuDNN computes",
  "and masks the blocks of other sequences, so rows of four gain less. On an H200 it agrees with the formula for heads",
  "of 64, 128 and 256. JAX is going to drop Pallas' Triton backend (0.12 warns when it compiles such a kernel).",
  "Decoding on GPUs uses it (`models/paged_gpu.py`, `models/residual.py`); a JAX without it decodes in plain JAX.",
  "",
  "With `model.remat` on one GPU, layers are compiled apart, and the head takes up to 8,192 tokens at once. Three",
  "eighths of the free memory keep activations, kind by kind and layer by layer; what does not fit is computed again.",
  "A gated MLP's activation and both of its gradients are one pass. A matrix and its LoRA adapter are one matmul, [x,",
  "x A] [W; B], and frozen matrices are cut out of their stack inside the layer. Compiled, not run, with cuDNN and",
  "the memory that an H200 has free: at 1.5B 1,506 kernels and 279 GB (b345f646: 2,199 and 312; f812552: 3,434 and",
  "461 as counted then), at 7B with adapters 3,259 and 741 GB (4,748 and 1,034; 6,113 and 1,208 as counted then). A",
  "hybrid's delta layers carry their states through a row's 64 chunks in eight groups side by side",
  "(`models/recurrence.py`): at 0.8B 6,682 kernels, 1,106 GB and 17 GiB of temporaries, where one chunk after the",
  "other took 28,605, 1,021 and 34.",
)

HOST = (
  "The host's part of a step of 512 short episodes is measured without a GPU (`python benchmarks/host.py --cpu`): CPU",
  "seconds of the main thread, which count no waiting. At commit 1cbc9c6 scoring took .26, and .18 were outside of",
  "every phase. Now that episodes are scored and written in another thread beside the rollout, scoring takes .12, of",
  "which nearly all is packing; metrics, writing and all else .02; nothing is outside.",
)


def run(python: str, side: str, part: str, shape: str, *flags: str, seconds: float | None = None) -> dict:
  """Runs one measurement in its own process, for at most `seconds`. Returns its result, or dict(error=…)."""
  script = pathlib.Path(__file__).with_name("gpu_parts.py")
  command = [python, str(script), side, part, *([shape] if shape else []), *flags]
  env = os.environ | dict(PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
  try:
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=seconds)
  except subprocess.TimeoutExpired:
    return dict(error=f"stopped after {seconds:.0f} seconds")
  if done.returncode:
    return dict(error=(done.stderr.strip().splitlines() or ["no message"])[-1][:300])
  return json.loads(done.stdout.splitlines()[-1])


def measure(work: list[tuple[str, ...]], pythons: dict[str, str], rounds: int, minutes: float, each: float, **said):
  """Runs these measurements one after the other, and yields each one's row for KEPT as soon as it has ended.

  Args:
    work: entries of WORK.
    pythons: side → its interpreter.
    rounds: of which the best counts.
    minutes: for all together; what does not start in time is left out.
    each: minutes for one.
    said: more columns of the rows.
  """
  end = time.monotonic() + 60 * minutes
  for side, part, shape in work:
    if (left := end - time.monotonic()) > 0:
      seconds = min(left, 60 * each)
      result = run(pythons[side], side, part, shape, f"--rounds={rounds}", seconds=seconds)
      yield dict(side=side, part=part, shape=shape) | result | said | dict(rounds=rounds)


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--only", default="decode,learn,switch,search")
  cli.add_argument("--python_torch", default=sys.executable, help="a Python with torch for CUDA, transformers and peft")
  cli.add_argument("--rounds", type=int, default=3, help="after a warm-up; the best counts")
  cli.add_argument("--minutes", type=float, default=float("inf"), help="for all measurements together")
  cli.add_argument("--part_minutes", type=float, default=10.0, help="for one measurement, its compilation included")
  cli.add_argument("--compile", action="store_true", help="compiles what docs/performance.json lacks; measures nothing")
  args = cli.parse_args()
  work = [one for one in WORK if one[1] in args.only.split(",")]
  if args.compile:
    gpu_compiled.play([(part, shape) for side, part, shape in work if side == "ours"])
  else:
    asked = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, check=True)
    device = json.loads(asked.stdout.splitlines()[-1])
    if device["platform"] != "gpu":
      sys.exit(f"no GPU here (JAX finds {device['platform']}): nothing was measured.")
    said = dict(card=device["card"], commit=gpu_compiled.commit(), day=str(datetime.date.today()))
    pythons = dict(ours=sys.executable, torch=args.python_torch)
    for row in measure(work, pythons, args.rounds, args.minutes, args.part_minutes, **said):
      with KEPT.open("a") as kept:
        kept.write(json.dumps(row) + "\n")
      print(json.dumps(row), flush=True)
      PAGE.write_text(page(read(), gpu_compiled.read()))
  PAGE.write_text(page(read(), gpu_compiled.read()))


if __name__ == "__main__":
  main()
