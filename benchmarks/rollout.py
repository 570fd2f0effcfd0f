r"""The engine against transformers' `generate`, in one run: three ratios.

Run:    make bench        (or: PYTHON_WITH_TORCH benchmarks/rollout.py [--rounds 3] [--threads 2] [--clock cpu])

One random decoder (4 layers, d 256, V 4096, float32), saved by us and loaded by transformers, so that weights are
equal.
  generate   16 rows, 128 prompt tokens and 128 new tokens each: equal lengths, nothing shared.
  rl         8 prompts × 8 samples, three turns of 8 to 96 tokens, observations of 24 tokens. transformers runs the same
             loop over `generate`, which ends with the slowest row and prefills the whole conversation in every turn. It
             gets the better of two batch sizes.
  retriever  turns of 64 to 128 tokens on 16 lanes and 32 rows: a search of 200 ms against a search of 0 ms.
Rounds alternate between the two sides, and each side's best round counts. Both sample at temperature 1 from the whole
vocabulary; ours also records log-probabilities. On a busy machine the benchmark says so and makes one round; then
compare CPU seconds of one thread (taskset -c 0 … --threads 1 --clock cpu).
"""

import argparse
import asyncio
import dataclasses
import os
import tempfile
import time

import busy
import jax
import numpy as np
import torch
import transformers
from flax import nnx

from ragrl_jax import structs
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.engine.stops import Stops
from ragrl_jax.models import weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.rollout import collect
from ragrl_jax.settings import Rollout

V = 4096
CONFIG = DecoderConfig(
  vocab_size=V, d_model=256, num_layers=4, num_heads=8, num_kv_heads=4, head_dim=32, d_ff=1024, rope_theta=1e4
)
PROMPT, NEW = 128, 128
OBSERVATION = 24
CLOCK = time.perf_counter


class Ids:
  """A tokenizer whose texts are numbers of tokens, since only lengths matter here."""

  vocab_size, pad_id, eos_ids = V, 0, ()

  def encode(self, text):
    return [7] * int(text)

  def decode(self, ids):
    return ""

  def token_bytes(self, token):
    return b""

  def render(self, messages):
    return self.encode(messages[0]["content"])


class Waiting:
  """Searches that take a fixed time without using the CPU, like a retriever on another machine."""

  def __init__(self, seconds):
    self.seconds = seconds

  async def search(self, query, k=None):
    if self.seconds:
      await asyncio.sleep(self.seconds)
    return ()


def lengths(episodes, turns, low, high, seed=0):
  """Tokens of every turn, [episodes, turns], log-uniform, so that a few turns are long."""
  return np.exp(np.random.default_rng(seed).uniform(np.log(low), np.log(high), (episodes, turns))).astype(int)


def prompts(number, seed=1):
  return np.random.default_rng(seed).integers(0, V, (number, PROMPT)).tolist()


class Ours:
  def __init__(self, graphdef, params, **sizes):
    self.engine = Engine(graphdef, Ids(), Stops(Ids(), [], rows=V), Sizes(**sizes))
    self.engine.load(params, version=0)
    self.step = 0

  def play(self, starts, turns, seconds=0.0):
    """One episode for each row of `turns`; consecutive rows share a beginning. Returns seconds."""

    async def play(example, policy, tools):
      conversation = policy.start(starts[example.meta["start"]])
      for turn, tokens in enumerate(turns[example.meta["row"]]):
        if turn:
          await tools.search("")
          conversation.observe(str(OBSERVATION))
        await conversation.generate(max_new_tokens=int(tokens))
      return conversation.end()

    samples = len(turns) // len(starts)
    requests = [
      collect.Request(
        structs.Example(str(row), "", (), meta=dict(start=row // samples, row=row)), row // samples, row % samples
      )
      for row in range(len(turns))
    ]
    rollout = collect.Rollout(
      self.engine,
      play,
      Waiting(seconds),
      seed=0,
      reserve=1,
      sampling=dataclasses.replace(Rollout().sampling, max_new_tokens=int(turns.max())),
    )
    self.step += 1
    begin = CLOCK()
    episodes = rollout.run(requests, step=self.step)
    seconds = CLOCK() - begin
    said = sum(len(s.ids) for e in episodes for s in e.segments if s.owner == structs.MODEL)
    assert said == turns.sum(), (said, turns.sum())
    self.report = rollout.report
    rollout.close()
    return seconds


class Theirs:
  def __init__(self, folder):
    self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

  def generate(self, rows, new):
    """Left-padded rows of ids → each with `new` more ids."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    with torch.no_grad():
      out = self.model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=int(new),
        min_new_tokens=int(new),
        eos_token_id=None,
        pad_token_id=0,
      )
    return out[:, width:].tolist()

  def play(self, starts, turns, batch):
    begin = CLOCK()
    samples = len(turns) // len(starts)
    for first in range(0, len(turns), batch):
      mine = turns[first : first + batch]
      rows = [list(starts[(first + i) // samples]) for i in range(len(mine))]
      for turn in range(turns.shape[1]):
        if turn:
          rows = [row + [7] * OBSERVATION for row in rows]
        new = self.generate(rows, mine[:, turn].max())
        rows = [row + said[:n] for row, said, n in zip(rows, new, mine[:, turn])]
    return CLOCK() - begin


def best(rounds, **sides):
  """Seconds of each side's best round; the rounds alternate."""
  seconds = {name: [] for name in sides}
  for number in range(rounds + 1):
    for name, side in sides.items():
      took = side()
      if number:  # the first round warms up
        seconds[name].append(took)
  return {name: min(took) for name, took in seconds.items()}


def same_model(model, theirs):
  tokens = np.random.default_rng(3).integers(0, V, (2, 32))
  with torch.no_grad():
    want = theirs.model(torch.tensor(tokens)).logits.numpy()
  return float(np.abs(np.asarray(jax.jit(model)(tokens)) - want).max())


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--rounds", type=int, default=1 if busy.NOW else 3)
  cli.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
  cli.add_argument("--clock", choices=("wall", "cpu"), default="wall")
  cli.add_argument("--only", choices=("generate", "rl", "retriever"))
  args = cli.parse_args()
  if args.clock == "cpu":
    global CLOCK
    CLOCK = time.process_time
  torch.set_num_threads(args.threads)
  transformers.logging.set_verbosity_error()
  model = Decoder(CONFIG, rngs=nnx.Rngs(0))
  with tempfile.TemporaryDirectory() as folder:
    weights.save_pretrained(model, CONFIG, folder)
    theirs = Theirs(folder)
  graphdef, params = nnx.split(model)
  print(f"{args.threads} threads, load {os.getloadavg()[0]:.1f}; logits differ by {same_model(model, theirs):.1e}")

  for name, part in dict(generate=generate, rl=rl, retriever=retriever).items():
    if args.only in (None, name):
      part(graphdef, params, theirs, args.rounds)


def generate(graphdef, params, theirs, rounds):
  turns, starts = np.full((16, 1), NEW), prompts(16)
  ours = Ours(graphdef, params, lanes=16, rows=16, context=PROMPT + NEW, chunk=32, prefill=PROMPT, page=64)
  seconds = best(rounds, ours=lambda: ours.play(starts, turns), theirs=lambda: theirs.play(starts, turns, 16))
  show("generate", turns.sum(), seconds, "aim 1.2")


def rl(graphdef, params, theirs, rounds):
  turns, starts = lengths(64, 3, 8, 96), prompts(8)
  ours = Ours(graphdef, params, lanes=16, rows=32, context=512, chunk=16, prefill=PROMPT, page=128)
  seconds = best(
    rounds,
    ours=lambda: ours.play(starts, turns),
    theirs_16=lambda: theirs.play(starts, turns, 16),
    theirs_64=lambda: theirs.play(starts, turns, 64),
  )
  show("rl", turns.sum(), seconds, "aim 3")


def retriever(graphdef, params, theirs, rounds):
  turns, starts = lengths(96, 3, 64, 128), prompts(12)
  ours = Ours(graphdef, params, lanes=16, rows=32, context=640, chunk=16, prefill=PROMPT, page=128)
  reports = {}

  def side(name, seconds):
    elapsed = ours.play(starts, turns, seconds)
    reports[name] = ours.report
    return elapsed

  elapsed = best(rounds, ours=lambda: side("ours", 0.2), instant=lambda: side("instant", 0.0))
  show("retriever", turns.sum(), elapsed, "aim 0.9")
  # Measures that other work on the machine hardly affects: the number of steps, and the time without a lane to decode.
  for name, report in reports.items():
    print(f"  {name}: lanes full {report.engine.occupancy:.3f}, idle {report.wait_s:.2f} of {report.seconds:.1f} s")


def show(name, tokens, took, aim):
  theirs = min(seconds for side, seconds in took.items() if side != "ours")
  rates = ", ".join(f"{side} {tokens / seconds:.0f}" for side, seconds in took.items())
  print(
    f"{name:10s} {theirs / took['ours']:.2f}x ({aim})   tokens/s: {rates}   load {os.getloadavg()[0]:.1f}", flush=True
  )


if __name__ == "__main__":
  main()
