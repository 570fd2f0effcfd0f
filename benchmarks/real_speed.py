r"""Learner and engine against transformers with torch at a real model's shape: same weights and rows, one table.

Run:    PYTHON_WITH_TORCH benchmarks/real_speed.py --model MODEL --transcripts ROWS [--threads 1,2] [--clock cpu]
        MODEL: a Hugging Face folder; ROWS: transcripts of one turn in a recipe's format (ragrl demonstrate).
Expect: benchmarks/LOG.md.

  equal    8 sequences of 256 tokens, 128 of them trained: nothing to pack, nothing shared.
  packed   groups of 8 replies to one prompt, cut from the transcripts: ours computes a prompt once per row.
  sft      32 transcripts; ours computes the instructions, which are the same, once per row. At the current policy, the
           clipped surrogate's gradient with equal advantages is that of the log-likelihood, so both sides run the step
           of benchmarks/learner.py.
  generate one reply for each row of `packed`, as long as its own reply.
  whole    generate and packed together: a GRPO step without rewards, which are equal for both.
Each count of threads has its own process, and each side of a learner's step too (benchmarks/learner.py). Rounds
alternate, with two steps of a learner each, and each side's best counts. torch generates in batches of 16 and of 64
rows; the better one counts.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

import busy
import learner
import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
GROUP, BATCH = learner.GROUP, 32
# Thirty layers in float32: our rows with and without shared prompts differ by 2e-5, either from torch by 1e-4.
TOLERANCE = 3e-4
CONDITIONS = dict(
  equal=(1.0, 1.2), packed=(2.5, 4.0), sft=(1.5, 2.0), generate=(2.0, 3.0), whole=(2.0, 3.0)
)  # and aims


def transcripts(args):
  """(ids of the prompt, ids of the reply) of each transcript."""
  from ragrl_jax import config as config_lib
  from ragrl_jax.data import readers
  from ragrl_jax.jobs import sft
  from ragrl_jax.run import prepared

  file, _, variant = args.config.partition(":")
  config = config_lib.load(ROOT / file, variant)
  config.model.path, config.switches.instructions = args.model, "short"
  built = config_lib.validate(config, training=False)
  recipe = prepared.recipe(built)
  tokenizer = prepared.tokenizer(built, recipe)
  pairs = []
  for example in readers.read_examples(args.transcripts, max_examples=512):
    ids, weights = sft.tokenised(recipe, example, tokenizer, 0.0)
    prompt = weights.index(1.0)
    if 0.0 in weights[prompt:] or 0 in ids:  # benchmarks/learner_sides.py pads with id 0
      sys.exit(f"--transcripts={args.transcripts}: {example.id!r} has several turns, or the token 0: name others.")
    pairs.append((ids[:prompt], ids[prompt:]))
  return pairs


def workloads(pairs, groups):
  """Name → (episodes, whether prompts are shared)."""
  draw = np.random.default_rng(0)
  chosen = draw.choice(len(pairs), groups, replace=False)
  others = draw.integers(0, len(pairs), (groups, GROUP))
  said = lambda prompt, reply, group: dict(prompt=pairs[prompt][0], completion=pairs[reply][1], group=int(group))
  ids = lambda: draw.integers(2, 4096, 128).tolist()
  return dict(
    equal=([dict(prompt=ids(), completion=ids(), group=group) for group in range(GROUP)], False),
    packed=([said(prompt, reply, g) for g, prompt in enumerate(chosen) for reply in others[g]], True),
    sft=([said(row, row, 0) for row in draw.choice(len(pairs), BATCH, replace=False)], True),
  )


def lengths(episodes, shares, rows):
  """The row lengths that a run of these episodes chooses."""
  from ragrl_jax.learner import packing, row_layout

  items = []
  for e in episodes:
    tokens = np.asarray(e["prompt"] + e["completion"], np.int32)
    zeros = np.zeros(len(tokens), np.float32)
    items.append(packing.Item(tokens, np.arange(len(tokens)) >= len(e["prompt"]), zeros, zeros, e["group"]))
  sharing = row_layout.Sharing() if shares else None
  chosen = row_layout.choose([items], rows=rows, sharing=sharing)
  blocks = packing.pack_items(items, rows=rows, lengths=chosen, sharing=sharing).blocks
  full = lambda b: b.segment_ids > 0 if b.until is None else b.until > 0
  tokens, places = sum(int(full(b).sum()) for b in blocks), sum(b.tokens.size for b in blocks)
  return list(chosen), tokens, places


def generate(episodes, args):
  """(ours, torch's) seconds for one reply to each episode's prompt, all of the reply's own length."""
  import jax
  import rollout
  import torch
  from flax import nnx

  from ragrl_jax.models import weights

  rollout.CLOCK = dict(wall=rollout.time.perf_counter, cpu=rollout.time.process_time)[args.clock]
  torch.set_num_threads(args.threads)
  model, config = weights.load_pretrained(args.model)
  rollout.V = rollout.Ids.vocab_size = config.vocab_size
  theirs = rollout.Theirs(args.model)
  jax.block_until_ready(nnx.state(model))
  starts = [e["prompt"] for e in episodes[::GROUP]]
  turns = np.asarray([[len(e["completion"])] for e in episodes])
  room = 64 * -(-(max(map(len, starts)) + int(turns.max())) // 64)
  ours = rollout.Ours(*nnx.split(model), lanes=64, rows=128, context=room, chunk=16, prefill=256, page=64)
  seconds = rollout.best(
    args.rounds,
    ours=lambda: ours.play(starts, turns),
    theirs_16=lambda: theirs.play(starts, turns, 16),
    theirs_64=lambda: theirs.play(starts, turns, 64),
  )
  return seconds["ours"], min(seconds["theirs_16"], seconds["theirs_64"])


def measured(args, folder):
  """The table of one count of threads: (name, tokens, seconds of ours, of torch, note) each."""
  (folder / "model").symlink_to(pathlib.Path(args.model).resolve())
  built, pythons = workloads(transcripts(args), args.groups), dict(ours=sys.executable, torch=sys.executable)
  table = []
  for name, (episodes, shares) in built.items():
    if args.only and name not in args.only.split(","):
      continue
    rows = GROUP // 2 if name == "equal" else args.micro_rows
    chosen, tokens, places = ([256], 2048, 2048) if name == "equal" else lengths(episodes, shares, rows)
    work = dict(packing=dict(rows=rows, lengths=chosen), shares=shares)
    result = learner.workload(name, episodes, work, folder, args, pythons)
    seconds = [result["sides"][side]["best_s"] for side in ("ours", "torch")]
    note = f"rows of {chosen}, {tokens / places:.2f} full; gradients differ by {result['gradient_gap']:.1e}"
    table.append((name, result["tokens"], *seconds, note))
    if result["gradient_gap"] > TOLERANCE:
      sys.exit(f"{name}: {note}, more than {TOLERANCE}: the sides do not compute the same thing.")
  if not args.only or "generate" in args.only:
    episodes = built["packed"][0]
    said = sum(len(e["completion"]) for e in episodes)
    table.append(("generate", said, *generate(episodes, args), f"{len(episodes)} replies, {said} tokens"))
  by_name = {row[0]: row for row in table}
  if by_name.keys() >= {"packed", "generate"}:
    sums = [by_name["packed"][side] + by_name["generate"][side] for side in (2, 3)]
    table.append(("whole", by_name["packed"][1], *sums, "generate and packed"))
  return table


def show(threads, table, args):
  print(f"{threads} threads, {args.clock} time, best of {args.rounds} rounds, load {os.getloadavg()[0]:.1f}")
  print(f"  {'':9s}{'tokens':>8s}{'ours s':>9s}{'torch s':>9s}{'ratio':>8s}{'needed':>8s}{'aim':>6s}")
  for name, tokens, ours, theirs, note in table:
    needed, aim = CONDITIONS[name]
    word = "met" if theirs / ours >= needed else "MISSED"
    print(
      f"  {name:9s}{tokens:8d}{ours:9.2f}{theirs:9.2f}{theirs / ours:7.2f}x{needed:8.1f}{aim:6.1f}  {word:6s} {note}",
      flush=True,
    )


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--model", required=True)
  cli.add_argument("--transcripts", required=True)
  cli.add_argument("--config", default="configs/arena.py:sft", help="of the recipe that the transcripts are in")
  cli.add_argument("--groups", type=int, default=8)
  cli.add_argument("--micro_rows", type=int, default=1)  # as configs/small.py has it on CPUs
  cli.add_argument("--rounds", type=int, default=1 if busy.NOW else 2)
  cli.add_argument("--threads", default="1,2")
  cli.add_argument("--clock", choices=("wall", "cpu"), default="wall")
  cli.add_argument("--only", default="", help="rows of the table, joined by commas")
  cli.add_argument("--json", default="", help="where one process writes its table (set by the parent process)")
  args = cli.parse_args()
  if args.json:
    args.threads = int(args.threads)
    with tempfile.TemporaryDirectory() as folder:
      pathlib.Path(args.json).write_text(json.dumps(measured(args, pathlib.Path(folder))))
    return
  for threads in map(int, args.threads.split(",")):
    with tempfile.TemporaryDirectory() as folder:
      out = pathlib.Path(folder) / "table.json"
      given = {**vars(args), "threads": threads, "json": out}
      # XLA takes as many threads as it may use cores, and huge pages are set before Python starts.
      env = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "OMP_NUM_THREADS": str(threads)}
      cores = sorted(os.sched_getaffinity(0))[:threads]
      subprocess.run(
        [sys.executable, __file__, *(f"--{name}={value}" for name, value in given.items())],
        env=env | dict(JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT)),
        preexec_fn=lambda cores=cores: os.sched_setaffinity(0, cores),
        check=True,
      )
      show(threads, json.loads(out.read_text()), types.SimpleNamespace(**vars(args)))


if __name__ == "__main__":
  main()
