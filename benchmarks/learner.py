r"""One optimiser step of GRPO: ours, transformers with torch, and google-tunix where it is installed.

Run:    make bench        (or: PYTHON_WITH_TORCH benchmarks/learner.py [--rounds 3] [--threads 2] [--clock cpu]
                           [--tunix_python …] [--json OUT] [--shape qwen3.5-0.8b --layers 4 --sides ours,torch])

One random Qwen3 (4 layers, d 256, d_ff 1024, V 4096, float32), or a published shape with fewer layers and V 4096,
with the same weights, loss and sequences on every side:
  equal    16 sequences of 128 prompt and 128 completion tokens: nothing to pack, nothing shared.
  real     2 HotpotQA questions × 8 completions. A prompt is the question behind its ten passages; a completion quotes
           0 to 7 sentences of them, then the supporting ones, then the answer. Text and lengths are the set's, the
           tokenizer (byte-level BPE, V 4096) is trained on it here. Without the data (RAGRL_DATA, or ../shared/data)
           lengths are log-normal: prompts around 1300 tokens (sigma .25), completions around 150 (sigma .6).
           Ours packs, and computes a group's prompt once per row ("apart": once per sequence). torch pads each group
           of 8 to its longest sequence. tunix pads the whole batch to its longest, as in its own training.
Every side runs in its own process, with huge pages and the same number of threads. Rounds alternate, with
two steps a side, and each side's best step counts (one whose steps take over 60 s has one round). Tokens are those of
all sequences, without padding. Compile time is the first step minus the best one; memory is the process's growth during
the steps, at its peak. The gradients of ours and torch must agree. On a busy machine the benchmark says so and makes
one round; then compare CPU seconds of one thread (taskset -c 0 … --threads 1 --clock cpu).
"""

import argparse
import dataclasses
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import busy
import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
V, PAD, EOS = 4096, 0, 1
GROUP = 8
TOLERANCE = 1e-4  # of gradients, relative norm a tensor
SHAPE = dict(
  vocab_size=V, d_model=256, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=64, d_ff=1024, rope_theta=1e6
)


def equal(draw):
  """16 × (128 + 128) random tokens, two groups."""
  ids = lambda n: draw.integers(2, V, n).tolist()
  prompts = [ids(128) for _ in range(2)]
  return [dict(prompt=prompts[i // GROUP], completion=ids(128), group=i // GROUP) for i in range(2 * GROUP)]


def real(draw, questions):
  """(episodes, a description of their source)."""
  location = os.environ.get("RAGRL_DATA")
  file = (pathlib.Path(location) if location else ROOT.parent / "shared" / "data") / "qa" / "hotpotqa_train.jsonl.gz"
  if not file.is_file():
    return log_normal(draw, questions), f"log-normal lengths, for {file.name} is not there"
  with gzip.open(file, "rt", encoding="utf-8") as lines:
    rows = [json.loads(line) for line in lines]
  passages = lambda row: [f"{p['title']}: {p['text']}" for p in row["passages"]]
  encode = tokenizer(text for row in rows for text in passages(row))
  episodes = []
  for group, which in enumerate(draw.choice(len(rows), questions, replace=False)):
    row = rows[which]
    prompt = encode("\n".join([*passages(row), f"Question: {row['question']}\nAnswer:"]))
    sentences = [s + "." for p in row["passages"] for s in p["text"].split(". ")]
    support = [s for _, s in row["meta"].get("evidence", [])]
    for sample in range(GROUP):
      quoted = draw.choice(sentences, min(sample, len(sentences)), replace=False).tolist()
      text = " ".join([*quoted, *support, row["answers"][0]])
      episodes.append(dict(prompt=prompt, completion=[*encode(text), EOS], group=group))
  return episodes, f"{questions} of {len(rows)} questions of {file.name}"


def log_normal(draw, questions):
  length = lambda middle, sigma: max(8, int(draw.lognormal(np.log(middle), sigma)))
  episodes = []
  for group in range(questions):
    prompt = draw.integers(2, V, length(1300, 0.25)).tolist()
    episodes += [
      dict(prompt=prompt, completion=draw.integers(2, V, length(150, 0.6)).tolist(), group=group) for _ in range(GROUP)
    ]
  return episodes


def tokenizer(texts):
  """text → ids of 2 and above, from a tokenizer trained in memory."""
  import tokenizers

  bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
  bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  bpe.train_from_iterator(
    texts,
    tokenizers.trainers.BpeTrainer(
      vocab_size=V,
      special_tokens=["<pad>", "<eos>"],
      show_progress=False,
      initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    ),
  )
  return lambda text: bpe.encode(text).ids


class Side:
  """A process that answers each command with one line."""

  def __init__(self, name, python, folder, threads, clock):
    env = {
      **os.environ,
      "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
      "JAX_PLATFORMS": "cpu",
      "OMP_NUM_THREADS": str(threads),
      "TOKENIZERS_PARALLELISM": "false",
    }
    if name in ("ours", "apart"):
      env["PYTHONPATH"] = str(ROOT)
    self.name, self.steps = name, []
    self.process = subprocess.Popen(
      [python, str(ROOT / "benchmarks" / "learner_sides.py"), name, str(folder), str(threads), clock],
      env=env,
      text=True,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
    )
    self.start_mb = self._answer()["peak_mb"]

  def __call__(self, command):
    print(command, file=self.process.stdin, flush=True)
    return self._answer()

  def _answer(self):
    line = self.process.stdout.readline()
    if not line:
      raise RuntimeError(f"{self.name} ended with {self.process.wait()}; its error stands above.")
    return json.loads(line)

  def end(self):
    self.process.stdin.close()
    self.process.wait()


def workload(name, episodes, work, folder, args, pythons):
  """Runs every side on the episodes; `work` says how ours packs them. Returns the results for `show`."""
  draw = np.random.default_rng(5)
  advantages = draw.normal(size=len(episodes))
  episodes = [dict(e, advantage=float(a)) for e, a in zip(episodes, advantages)]
  (folder / "workload.json").write_text(json.dumps(dict(work, episodes=episodes, micro_batch=GROUP)))
  sides = [Side(side, python, folder, args.threads, args.clock) for side, python in pythons.items()]
  for side in sides:
    side.steps.append(side("step"))
  for _ in range(args.rounds):
    for side in sides:
      if len(side.steps) < 2 or side.steps[1]["seconds"] < 60:
        # Two, as in a run: after another side's turn the system has taken free pages back, and the first one pays.
        side.steps += [side("step"), side("step")]
  sizes = [len(e["prompt"]) + len(e["completion"]) for e in episodes]
  tokens, rows = sum(sizes), {}
  for side in sides:
    best = min(step["seconds"] for step in side.steps[1:])
    first = side.steps[0]
    rows[side.name] = dict(
      tokens_per_s=tokens / best,
      best_s=best,
      compile_s=first["seconds"] - best,
      step_mb=side.steps[-1]["peak_mb"] - side.start_mb,
      loss=first["loss"],
      grad_norm=first["grad_norm"],
    )
  by_name = {side.name: side for side in sides}
  gap = None
  if "torch" in by_name:
    paths = {side: str(folder / f"gradient_{name}_{side}") for side in ("ours", "torch")}
    for side, path in paths.items():
      by_name[side](f"check {path}")
    gap = distance(*paths.values())
  for side in sides:
    side.end()
  return dict(
    workload=name,
    sequences=len(sizes),
    tokens=tokens,
    shortest=min(sizes),
    longest=max(sizes),
    gradient_gap=gap,
    sides=rows,
  )


def distance(mine, theirs):
  """The largest relative difference between two sides' gradients of a tensor."""
  from safetensors.numpy import load_file

  mine, theirs = (load_file(pathlib.Path(path) / "model.safetensors") for path in (mine, theirs))
  if mine.keys() != theirs.keys():
    raise ValueError(f"the gradients name different tensors: {sorted(mine.keys() ^ theirs.keys())}")
  return max(float(np.linalg.norm(mine[k] - theirs[k]) / np.linalg.norm(theirs[k])) for k in mine)


def save_model(folder, shape, layers):
  from flax import nnx

  from ragrl_jax.models import weights
  from ragrl_jax.models.config import DecoderConfig
  from ragrl_jax.models.decoder import Decoder
  from ragrl_jax.models.shapes import SHAPES

  cut = dict(num_layers=layers, vocab_size=V)
  config = dataclasses.replace(SHAPES[shape], **cut) if shape else DecoderConfig(**SHAPE)
  weights.save_pretrained(Decoder(config, rngs=nnx.Rngs(0)), config, folder)


def show(found, where):
  print(
    f"\n{found['workload']}: {found['sequences']} sequences of {found['shortest']} to {found['longest']} tokens, "
    f"{found['tokens']} together ({where})"
  )
  print(
    f"  {'':8s}{'tokens/s':>10s}{'s a step':>10s}{'compile s':>11s}{'memory MB':>11s}{'ours is':>9s}{'grad norm':>12s}"
  )
  ours = found["sides"]["ours"]["tokens_per_s"]
  for name, row in found["sides"].items():
    print(
      f"  {name:8s}{row['tokens_per_s']:10.0f}{row['best_s']:10.3f}{row['compile_s']:11.1f}{row['step_mb']:11.0f}"
      f"{ours / row['tokens_per_s']:8.2f}x{row['grad_norm']:12.6f}"
    )
  if "tunix" not in found["sides"]:
    print("  tunix   not measured: --tunix_python names no Python that has google-tunix")
  if found["gradient_gap"] is not None:
    print(
      f"  gradients of ours and torch differ by {found['gradient_gap']:.1e} at most (relative norm of a tensor)",
      flush=True,
    )


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--rounds", type=int, default=1 if busy.NOW else 3)
  cli.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))))
  cli.add_argument("--clock", choices=("wall", "cpu"), default="wall")
  cli.add_argument("--questions", type=int, default=2)
  cli.add_argument("--only", choices=("equal", "real"))
  cli.add_argument("--sides", default="ours,apart,torch,tunix")
  cli.add_argument("--shape", default="", help="a name in models/shapes.py; empty: the small one")
  cli.add_argument("--layers", type=int, default=4, help="of --shape; all sides are in memory together")
  cli.add_argument("--tunix_python", default="", help="a Python that has google-tunix 0.1.7; none: left out")
  cli.add_argument("--json", default="", help="where to write the figures")
  args = cli.parse_args()
  # XLA takes as many threads as it may use cores; children inherit this.
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
  pythons = dict(ours=sys.executable, apart=sys.executable, torch=sys.executable, tunix=args.tunix_python)
  pythons = {name: pythons[name] for name in args.sides.split(",") if pythons[name]}
  print(f"{args.threads} threads, {args.clock} time, {args.rounds} rounds, load {os.getloadavg()[0]:.1f}")
  result = []
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    save_model(folder / "model", args.shape, args.layers)
    if args.only in (None, "equal"):
      episodes = equal(np.random.default_rng(3))
      once = {name: python for name, python in pythons.items() if name != "apart"}
      work = dict(packing=dict(rows=GROUP, lengths=[256]), shares=False)  # the micro-batch of the other sides
      result.append(workload("equal", episodes, work, folder, args, once))
      show(result[-1], "random tokens; aim 1.0 of torch")
    if args.only in (None, "real"):
      episodes, where = real(np.random.default_rng(4), args.questions)
      work = dict(packing=dict(rows=1, lengths=[4096, 3072, 2048]), shares=True)
      result.append(workload("real", episodes, work, folder, args, pythons))
      show(result[-1], f"{where}; aims 2 of torch, 3 of tunix")
  if args.json:
    pathlib.Path(args.json).write_text(json.dumps(dict(threads=args.threads, workloads=result), indent=2) + "\n")
  gaps = [f["gradient_gap"] for f in result if f["gradient_gap"] is not None]
  if any(gap > TOLERANCE for gap in gaps):
    sys.exit(f"gradients differ by {max(gaps):.1e}, more than {TOLERANCE}: the sides do not compute the same thing.")


if __name__ == "__main__":
  main()
