r"""Speculative decoding with drafts from the conversation's own text: saved steps, and the speed of whole rollouts.

Run:    python benchmarks/speculation.py [--drafts 2,4,8] [--questions 96] [--rounds 3] [--clock cpu]

An engine plays the scripted demonstrations of the made-up world, in the formats of search_r1, arena, care and lear: it
reads prompts, samples turns, and reads search results. Its model has random weights in the shape of
configs/quickstart.py, float32. The model computes the log-probability of every token, but the draw returns the script's
token instead of a random one. So all sides sample the same text, which copies as a trained policy's text does, and the
time is that of the engine's own programs. A policy that really samples copies less, and gains less.

  a step   tokens that a lane samples per decoding step
  kept     share of the drafted tokens that were kept
  tokens/s sampled tokens per second of the rollout, including prefill
  speed    tokens/s divided by tokens/s without drafts (k = 0); above 1, drafts are worth it

A step with k + 1 positions computes k + 1 times as much, but reads weights and cache once. On an accelerator with few
lanes, reading is the bottleneck, and `a step` is the upper limit of the speed. On a CPU, and on an accelerator with
many lanes, computation is the bottleneck. --clock cpu counts CPU seconds, which other work on the machine disturbs
less.
"""

import argparse
import contextlib
import os
import pathlib
import random
import tempfile
import time

import base_reader
import jax.numpy as jnp
import numpy as np
import reading_world
from flax import nnx
from papers import arena, care, lear, miniature

from ragrl_jax import config as config_lib, recipes, retrieval
from ragrl_jax.core import sampling
from ragrl_jax.data import synthetic, writers
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.messages import Open, Turn
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.engine.stops import Stops
from ragrl_jax.jobs import sft
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.recipes.search_r1 import quickstart, recipe

ROOT = pathlib.Path(__file__).parents[1]
ENTITIES = 4_000  # entities of the world, so that the tokenizer has enough text to learn its pieces
PAPERS = dict(
  arena=(arena.PAPER, arena.MIX, arena.PASSAGES),
  care=(care.PAPER, care.MIX, care.PASSAGES),
  lear=(lear.PAPER, lear.MIX, lear.GIVEN),
)
LANES, PAGE = 32, 64
CLOCKS = dict(wall=time.perf_counter, cpu=time.process_time)


# ---- demonstrations --------------------------------------------------------------------------------------------------


def of_search_r1(count: int):
  """(recipe, questions, their turns, world, special tags, number of pieces) of the quickstart."""
  world = synthetic.build(synthetic.Settings(seed=0))
  questions = synthetic.questions(world, count, seed=0, distinct=False)
  with tempfile.TemporaryDirectory() as folder:
    writers.write_passages(pathlib.Path(folder) / "corpus.jsonl.gz", world.passages)
    retrieval.build_index(pathlib.Path(folder) / "corpus.jsonl.gz", "hashing", pathlib.Path(folder) / "index")
    turns = quickstart.demonstrations(questions, retrieval.load_index(pathlib.Path(folder) / "index"), 0)
  config = config_lib.load(ROOT / "configs" / "quickstart.py")
  return config, questions, turns, world, recipe.MARKS, 506


def of_paper(name: str, count: int):
  """The same of a paper's miniature, in a smaller world."""
  paper, mix, passages = PAPERS[name]
  world = reading_world.build(**(miniature.WORLD | dict(paper.world) | dict(entities=ENTITIES)))
  questions = reading_world.questions(world, count, mix=mix, seed=0, passages=passages, distinct=False)
  rng = random.Random(name)
  turns = [paper.demonstrate(example, world, None, rng) for example in questions]
  config = config_lib.default_config()
  config.recipe, config.switches = name, recipes.switches(name)
  config.update(paper.base)
  config.prompting.chat = False
  return config, questions, turns, world, base_reader.MARKS, base_reader.VOCAB


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


# ---- rollouts --------------------------------------------------------------------------------------------------------


def turns_of(written: np.ndarray) -> list[tuple[int, int]]:
  """[(first token, token after the last)] of a conversation's turns."""
  edges = np.flatnonzero(np.diff(np.concatenate(([0], written.astype(int), [0]))))
  return list(zip(edges[::2].tolist(), edges[1::2].tolist()))


@contextlib.contextmanager
def scripted(ids: np.ndarray):
  """In this context, compiled programs sample the ids [N, C]: row n in the conversation with the key (0, n)."""
  uniforms, draw, script = sampling.uniforms, sampling.draw, ids.astype(np.float32)

  def of_script(keys, positions):
    return jnp.asarray(script).at[keys[:, 1], positions].get(mode="clip") + 0.0 * uniforms(keys, positions)

  def as_written(logits, tokens, *filters):
    # The log-probability is that of the token drawn at a half, so drawing is not left out.
    return tokens.astype(jnp.int32), draw(logits, jnp.full_like(tokens, 0.5), *filters)[1]

  sampling.uniforms, sampling.draw = of_script, as_written
  try:
    yield
  finally:
    sampling.uniforms, sampling.draw = uniforms, draw


class Side:
  """An engine with drafts of `speculate` tokens (0: none) that plays one recipe's conversations."""

  def __init__(self, ids: np.ndarray, written: np.ndarray, speculate: int, vocabulary: int):
    tokenizer = ByteTokenizer()
    shape = config_lib.load(ROOT / "configs" / "quickstart.py").model.shape.to_dict()
    graphdef, params = nnx.split(Decoder(DecoderConfig.from_shape(vocabulary, **shape), rngs=nnx.Rngs(0)))
    context = -(-(ids.shape[1] + 1) // PAGE) * PAGE
    sizes = Sizes(lanes=LANES, rows=2 * LANES, context=context, chunk=16, page=PAGE, speculate=speculate)
    self.engine = Engine(graphdef, tokenizer, Stops(tokenizer, [], rows=vocabulary), sizes)
    self.engine.load(params, version=0)
    self.ids, self.turns, self.seconds = ids, [turns_of(row) for row in written], []

  def play(self, clock) -> None:
    """One rollout: opens all conversations, and steps until every turn is written."""
    engine, left = self.engine, [list(turns) for turns in self.turns]
    self.counters, begin = engine.restart_counters(), clock()
    for number, row in enumerate(self.ids):
      first, _ = left[number][0]
      engine.open(Open(number, tuple(row[:first].tolist()), (0, number)))
      self._submit(number, left, at=first)
    while engine.busy:
      for ended in engine.step():
        number = ended.conversation
        start, end = left[number].pop(0)
        if ended.ids != tuple(self.ids[number, start:end].tolist()):
          raise AssertionError(f"conversation {number}: the engine sampled {ended.ids}, which is not the script.")
        if left[number]:
          self._submit(number, left, at=end)
        else:
          engine.close(number)
    self.seconds.append(clock() - begin)

  def _submit(self, number: int, left: list[list[tuple[int, int]]], at: int) -> None:
    """Starts the next turn, after what the environment writes from `at` on."""
    start, end = left[number][0]
    self.engine.submit(Turn(number, tuple(self.ids[number, at:start].tolist()), budget=end - start))

  @property
  def rate(self) -> float:
    """Sampled tokens per second of the best round; the first one compiles."""
    return self.counters.sampled_tokens / min(self.seconds[1:])


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--drafts", default="2,4,8")
  parser.add_argument("--questions", type=int, default=96)
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--clock", choices=CLOCKS, default="wall")
  parser.add_argument("--recipes", default=",".join(("search_r1", *PAPERS)))
  args = parser.parse_args()
  print(f"{args.clock} clock, {LANES} lanes, load {os.getloadavg()[0]:.1f}")
  print("recipe        k  a step   kept  tokens/s  speed", flush=True)
  for name in args.recipes.split(","):
    ids, written = transcripts(name, args.questions)
    with scripted(ids):
      vocabulary = -(-(int(ids.max()) + 1) // 512) * 512
      sides = {size: Side(ids, written, size, vocabulary) for size in (0, *map(int, args.drafts.split(",")))}
      for _ in range(args.rounds + 1):  # the sides alternate, so that other work on the machine affects all of them
        for side in sides.values():
          side.play(CLOCKS[args.clock])
    for size, side in sides.items():
      counts, speed = side.counters, side.rate / sides[0].rate
      print(
        f"{name:10} {size:4d}  {counts.tokens_per_step:6.2f}  {counts.kept_share:5.1%}  {side.rate:8.0f}  {speed:5.2f}",
        flush=True,
      )


if __name__ == "__main__":
  main()
