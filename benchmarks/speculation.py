r"""Drafts from the conversation's own text: the decoding steps that they save, and the cost of a step with them.

Run:    python benchmarks/speculation.py [--drafts 2,4,8] [--questions 200] [--rounds 5] [--clock cpu]

tokens   A policy that writes the scripted demonstrations of the made-up world word for word, over search_r1's, arena's,
         care's and lear's formats: the tokens that a lane draws in a step, and the share of the drafted tokens that it
         draws. The drafts are the engine's own (engine/drafts.py), the text is the demonstrations', and no model runs.
         A policy that samples departs from what it has seen more often, and gains less.
steps    The time of one decoding step of the engine, with drafts over without. A decoder of random weights in the shape
         of configs/quickstart.py, prompts of 100 tokens, float32. No figure depends on what it writes.
speed    tokens / steps: tokens per second with drafts over without, if all lanes draw all the time. Above 1 it pays.

A step of k + 1 places computes k + 1 times as much, and reads weights and cache once. An accelerator with few lanes
waits for the reading: there `tokens` is the limit that speed comes near. A CPU waits for the computing, and so does an
accelerator with many lanes. --clock cpu counts CPU seconds, which other work on the machine disturbs less.
"""

import argparse
import pathlib
import random
import tempfile
import time

import base_reader
import jax
import numpy as np
from flax import nnx
from papers import arena, care, lear, miniature, primed

from ragrl_jax import config as config_lib
from ragrl_jax import recipes, retrieval, sft
from ragrl_jax.cli import quickstart
from ragrl_jax.data import synthetic, writers
from ragrl_jax.engine import drafts, lanes
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.engine.stops import Stops
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.prompting.bytes import ByteTokenizer
from ragrl_jax.recipes.search_r1 import demonstrate

ROOT = pathlib.Path(__file__).parents[1]
ENTITIES = 4_000  # of the world: as many texts as a tokenizer needs to learn its pieces
PAPERS = dict(
  arena=(arena.PAPER, arena.MIX, arena.PASSAGES),
  care=(care.PAPER, care.MIX, care.PASSAGES),
  lear=(lear.PAPER, lear.MIX, lear.GIVEN),
)
LANES, PROMPT = 32, 100
CLOCKS = dict(wall=time.perf_counter, cpu=time.process_time)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def of_search_r1(count: int):
  """(recipe, questions, their turns, world, marks, pieces) of the quickstart."""
  world = synthetic.build(synthetic.Settings(seed=0))
  asked = synthetic.questions(world, count, seed=0, distinct=False)
  with tempfile.TemporaryDirectory() as folder:
    writers.write_passages(pathlib.Path(folder) / "corpus.jsonl.gz", world.passages)
    retrieval.build_index(pathlib.Path(folder) / "corpus.jsonl.gz", "hashing", pathlib.Path(folder) / "index")
    turns = quickstart.demonstrations(world, asked, retrieval.load_index(pathlib.Path(folder) / "index"), 0)
  config = config_lib.load(ROOT / "configs" / "quickstart.py")
  return config, asked, turns, world, demonstrate.MARKS, 506


def of_paper(name: str, count: int):
  """The same of a paper's miniature, in a smaller world."""
  paper, mix, passages = PAPERS[name]
  world = synthetic.build(synthetic.Settings(seed=0, **(miniature.WORLD | dict(paper.world) | dict(entities=ENTITIES))))
  asked = synthetic.questions(world, count, mix=mix, seed=0, passages=passages, distinct=False)
  rng = random.Random(name)
  turns = [paper.demonstrate(example, world, None, rng) for example in asked]
  config = config_lib.default_config()
  config.recipe, config.switches = name, recipes.switches(name)
  config.update(paper.base)
  config.prompting.chat = False
  return config, asked, turns, world, base_reader.MARKS, base_reader.VOCAB


def transcripts(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
  """(token ids [N, C], whether the policy writes each of them [N, C])."""
  config, asked, turns, world, marks, pieces = of_search_r1(count) if name == "search_r1" else of_paper(name, count)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "tokenizer.model"
    lines = [*(" " + line for line in synthetic.lines(world)), *(text for said in turns for _, text in said)]
    sentencepiece.train(lines, vocab_size=pieces, marks=marks, path=path, threads=1)
    tokenizer = sentencepiece.SentencePieceTokenizer(path)
  recipe = recipes.get(config.recipe, config.preset, **{k: v for k, v in config.switches.items() if v is not None})
  rows = []
  for example, said in zip(asked, turns):
    example.meta["turns"] = said
    rows.append(sft.tokenised(recipe, example, tokenizer, 0.0))
  ids = np.zeros((len(rows), max(len(row) for row, _ in rows)), np.int32)
  written = np.zeros(ids.shape, bool)
  for n, (row, weights) in enumerate(rows):
    ids[n, : len(row)], written[n, : len(row)] = row, np.array(weights) > 0
  return ids, written


def replayed(ids: np.ndarray, written: np.ndarray, size: int) -> tuple[int, int, int, int]:
  """(tokens, steps, drafted, kept) of a policy that writes what is `written`, with drafts of `size` tokens."""
  look_up = jax.jit(drafts.look_up, static_argnums=2)
  # Turn after turn: the newest token stands before the next one that is to be written.
  ends = [np.flatnonzero(np.diff(np.append(row, False).astype(int)) == -1) for row in written]
  at = np.array([np.flatnonzero(row)[0] - 1 for row in written])
  tokens = steps = drafted = kept = 0
  while (live := np.array([at[n] < ends[n][-1] for n in range(len(at))])).any():
    draft, found = (np.asarray(x) for x in look_up(ids, at.astype(np.int32), size))
    for n in np.flatnonzero(live):
      left = ends[n][np.searchsorted(ends[n], at[n] + 1)] - at[n]  # tokens of the turn
      same = 0
      while found[n] and same < min(size, left) and draft[n, same] == ids[n, at[n] + 1 + same]:
        same += 1
      new = min(same + 1, left)  # a draft's token may end the turn
      tokens, steps, drafted, kept = tokens + new, steps + 1, drafted + size * int(found[n]), kept + same
      at[n] += new
      if new == left and at[n] < ends[n][-1]:  # the environment writes until the next turn
        at[n] += np.flatnonzero(written[n, at[n] + 1 :])[0]
  assert tokens == written.sum()
  return tokens, steps, drafted, kept


# ---- steps -----------------------------------------------------------------------------------------------------------


class Steps:
  """Decoding steps of an engine whose lanes all draw."""

  def __init__(self, speculate: int):
    config, tokenizer = DecoderConfig(vocab_size=512, **primed.SHAPE), ByteTokenizer()
    self.sizes = Sizes(lanes=LANES, rows=LANES, context=256, chunk=16, page=64, speculate=speculate)
    graphdef, params = nnx.split(Decoder(config, rngs=nnx.Rngs(0)))
    engine = Engine(graphdef, tokenizer, Stops(tokenizer, ["</answer>"], rows=512), self.sizes)
    engine.load(params, version=0)
    self.cache = engine._kv
    self.packed = np.zeros((LANES, self.sizes.columns), np.int32)
    table = lanes.LaneTable.of(self.packed)
    table.live[:], table.length[:], table.budget[:], table.temperature[:], table.top_p[:] = 1, PROMPT, 999, 1.0, 1.0
    table.ids[:] = np.random.default_rng(0).integers(0, 512, table.ids.shape)
    self.table = np.arange(LANES * self.sizes.table, dtype=np.int32).reshape(LANES, -1)

  def measure(self, clock) -> float:
    """Seconds of a step."""
    begin = clock()
    chunk = self.cache.decode(self.packed, self.table, [1])
    seconds = clock() - begin
    assert chunk.steps.min() == self.sizes.chunk
    return seconds / self.sizes.chunk


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--drafts", default="2,4,8")
  parser.add_argument("--questions", type=int, default=200)
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--clock", choices=CLOCKS, default="wall")
  args = parser.parse_args()
  sizes = [int(size) for size in args.drafts.split(",")]

  engines = {size: Steps(size) for size in (0, *sizes)}
  seconds = {size: [] for size in engines}
  for _ in range(args.rounds):  # alternating, so that other work on the machine hits all of them
    for size, engine in engines.items():
      seconds[size].append(engine.measure(CLOCKS[args.clock]))
  cost = {size: min(seconds[size]) / min(seconds[0]) for size in sizes}
  print(f"A step of {LANES} lanes without drafts: {min(seconds[0]) * 1e3:.2f} ms ({args.clock} clock)")
  print("steps:  " + ", ".join(f"k = {size} costs {cost[size]:.2f} x" for size in sizes), flush=True)

  print("\nrecipe        k  tokens a step  drafts kept  forward passes     speed")
  for name in ("search_r1", *PAPERS):
    ids, written = transcripts(name, args.questions)
    for size in sizes:
      tokens, steps, drafted, kept = replayed(ids, written, size)
      print(
        f"{name:10} {size:4d}  {tokens / steps:13.2f}  {kept / drafted:11.3f}  {steps / tokens:12.1%}  "
        f"{tokens / steps / cost[size]:8.2f}",
        flush=True,
      )


if __name__ == "__main__":
  main()
