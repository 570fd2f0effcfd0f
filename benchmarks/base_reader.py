"""Trains the base reader, the model from which all miniatures start: python benchmarks/base_reader.py

The base reader is a small model that reads passages of the made-up world. `make base` trains it once per machine. Every
lesson (`benchmarks/papers/lessons.py`) has new names and new facts, so the model can answer only by reading. The stages
lead from a few passages and one hop to fourteen passages, three hops and comparisons. A stage ends when the share of
correct whole replies to new lessons reaches its goal, twice in a row. benchmarks/LOG.md has the number of steps. A
killed run continues from its last checkpoint.

The final exam asks questions about a made-up world whose names occur in no lesson, with 8 and 14 passages and CARE's
prompt. The engine samples the answers.
"""

import dataclasses
import functools
import json
import pathlib
import random
import sys
import time
from collections.abc import Mapping

import jax
import numpy as np
import reading_world
from absl import app, flags, logging
from flax import nnx
from papers import lessons, primed

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.core import schedules
from ragrl_jax.data import synthetic, world
from ragrl_jax.jobs import evaluate, sft
from ragrl_jax.models import lora
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.run import player as player_lib, saving
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import jsonl
from ragrl_jax.structs import MODEL

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "out" / "base"

SYLLABLES = 200
TAGS = "think search information answer relevance analysis retrieval reason extract reflect".split()
# One token each: the tags that a recipe's parser searches for, and signs that must not merge with a neighbour.
MARKS = (*(f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/")), "Answer:", "\n", *"[].,()", *"0123456789")
VOCAB = 1000
ROWS, LENGTH = 8, 512
EVERY, MEASURED = 25, 60  # steps between measurements; lessons per measurement
OPTIMIZER = dict(
  kind="muon", learning_rate=4e-3, warmup_steps=50, schedule="inverse_sqrt", muon_scale=5.0, weight_decay=0.0
)


@dataclasses.dataclass(frozen=True)
class Stage:
  """A stage of the training.

  Attributes:
    name: the stage's name.
    course: its lessons.
    goals: kind of question (hops or comparison) → share of whole replies that must be right.
    steps: most steps.
  """

  name: str
  course: lessons.Course
  goals: Mapping[int | str, float]
  steps: int


NEAR, FAR = {1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.0, 3: 1.5}
COMPARED = {1: 0.7, 2: 0.7, 3: 0.3, lessons.COMPARISON: 3.0}
ANY = FAR | {lessons.COMPARISON: 1.5}
AHEAD = (world.WORDINGS[0], world.BESIDE)  # the object comes last
FIRST = lessons.Course((2, 6), replies={lessons.STEPS: 1.0}, wordings=AHEAD)
course = functools.partial(dataclasses.replace, FIRST)
STAGES = (
  Stage("near", FIRST, {1: 0.9}, 2000),
  Stage("hops", course(passages=(4, 10), kinds=NEAR), {1: 0.9, 2: 0.9}, 3000),
  Stage("far", course(passages=(4, 14), kinds=FAR), {1: 0.93, 2: 0.9, 3: 0.8}, 4000),
  Stage("compared", course(passages=(3, 8), kinds=COMPARED), {1: 0.9, lessons.COMPARISON: 0.9}, 3000),
  Stage("all", course(passages=(4, 14), kinds=ANY), {1: 0.97, 2: 0.92, 3: 0.85, lessons.COMPARISON: 0.8}, 4000),
)
# ARENA's miniature names the passages before it reads them out. A model of this size learns that in three stages, which
# begin with the base reader: the number of a passage is found among two first, then among four. In the last stage most
# replies quote, as the others made the model forget it.
NUMBERED = functools.partial(
  dataclasses.replace,
  FIRST,
  asked=1,
  replies={lessons.NUMBERS: 1.0},
  wordings=AHEAD[1:],
  layouts=(("\n{n}. {text}", "{question}{passages}"),),
)
QUOTING = {lessons.NUMBERS: 2.0, lessons.QUOTED: 3.0}
NUMBERING = (
  Stage("two", NUMBERED(passages=(2, 2)), {1: 0.9}, 2000),
  Stage("four", NUMBERED(passages=(2, 4)), {1: 0.9}, 2000),
  Stage("numbers", NUMBERED(passages=(2, 4), kinds=NEAR, replies=QUOTING), {1: 0.85, 2: 0.75}, 3000),
)
# Tokens per page. It is small, because on a CPU attention reads whole pages, as many as the longest conversation has.
PAGE = 16
# For the exam, which needs no search, because the questions come with their passages.
PASSAGES, QUESTIONS = (8, 14), 1000
ASKED = {8: {1: 0.95, 2: 0.8, lessons.COMPARISON: 0.8}, 14: {1: 0.97, 2: 0.9}}  # EM by hops: the second row is an aim


def main(_):
  logging.set_verbosity(logging.WARNING)
  out = pathlib.Path(flags.FLAGS.out)
  result = exam(train(out), out)
  print(f"\n{out}: questions about names that occur in no lesson; greedy answers of the engine\n")
  print("| Passages | Hops | n | EM | goal |\n|---|---|---|---|---|")
  for passages, by_hops in result.items():
    for hops, part in by_hops.items():
      wanted = ASKED[int(passages)].get(int(hops) if hops.isdigit() else hops, "")
      print(f"| {passages} | {hops} | {part['n']} | {part['em']:.3f} | {wanted} |")
  (out / "exam.json").write_text(json.dumps(result, indent=1))
  sys.exit(any(result["8"][str(hops)]["em"] < least for hops, least in ASKED[8].items()))


def model(out: pathlib.Path = FOLDER, stage: str = STAGES[-1].name) -> pathlib.Path:
  """The folder of the trained base reader, with its tokenizer; or of another stage's model.

  Raises:
    FileNotFoundError: it is not trained yet.
  """
  path = out / stage / "model"
  if not (path.parent / "reached.json").is_file():
    raise FileNotFoundError(f"{path}: there is no base reader on this machine yet. `make base` trains it.")
  return path


def train(out: pathlib.Path) -> pathlib.Path:
  """Trains the unfinished stages, and returns the folder of the base reader."""
  out.mkdir(parents=True, exist_ok=True)
  built = tokenizer(out / "tokenizer.model")
  path = out / "first"
  if not (path / "config.json").is_file():
    save_first(out, path)
  for stage in (*STAGES, *NUMBERING):
    kept = out / stage.name / "reached.json"
    if not kept.is_file():
      taught = teach(stage, built, path, out)
      kept.write_text(json.dumps(taught, indent=1))
    taught = json.loads(kept.read_text())
    print(f"stage {stage.name}: {taught['steps']} steps, {taught['seconds']:.0f} s, {taught['right']}", flush=True)
    path = out / stage.name / "model"
  return model(out)


def settings(out: pathlib.Path, path: pathlib.Path | str, **rollout):
  """The config of a stage, or of the exam: CARE's prompt, without instructions."""
  config = config_lib.default_config()
  config.recipe, config.switches = "care", recipes.switches("care")
  config.switches.update(dict(instructions="none", titles=False))
  config.prompting.chat, config.log.tensorboard = False, False
  config.prompting.tokenizer = str(out / "tokenizer.model")
  config.retrieval.index = ""
  config.model.path = str(path)
  config.model.shape = primed.SHAPE
  config.optimizer.update(OPTIMIZER)
  config.learner.update(dict(micro_rows=ROWS, row_lengths=(LENGTH,), logprob_chunk=2048))
  config.rollout.update(dict(lanes=32, rows=128, chunk=24, prefill=128, page=PAGE) | rollout)
  return config


def tokenizer(path: pathlib.Path) -> sentencepiece.SentencePieceTokenizer:
  """Trains the tokenizer of all miniatures, with pieces for all syllables, the recipes' tags and the world's words."""
  if not path.is_file():
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random("base/tokenizer")
    replies = (lessons.QUOTED, lessons.CITED, lessons.STEPS, lessons.DIRECT)  # numbers are marks, and need no text
    course = lessons.Course((3, 6), kinds=ANY, replies=dict.fromkeys(replies, 1.0), syllables=SYLLABLES)
    text = ["".join(said for _, said in lessons.draw(course, rng).turns) for _ in range(3000)]
    text += [f" {name}" for name in world.draw_names(rng, world.syllables(SYLLABLES), 6000)]
    sentencepiece.train(text, vocab_size=VOCAB, marks=MARKS, path=path, threads=1)
  return sentencepiece.SentencePieceTokenizer(path)


def save_first(out: pathlib.Path, path: pathlib.Path) -> None:
  """Saves the primed weights with which the first stage begins."""
  ready = prepare(settings(out, ""), purpose="sft")
  config, tokenizer = ready.settings, ready.tokenizer
  model, shape = player_lib.model(config, tokenizer, ready.shape)
  primed.prime(model, shape, config.seed)
  saving.save(model, shape, tokenizer, config, path)


def transcript(tokenizer, lesson: lessons.Lesson) -> sft.Transcript:
  """(token ids, loss weights) of a lesson: 1 for the reply and its EOS, 0 for passages and question."""
  ids, weights = [], []
  for owner, text in lesson.turns:
    lines = [*tokenizer.encode(text), *(tokenizer.eos_ids[:1] if owner == MODEL else ())]
    ids += lines
    weights += [float(owner == MODEL)] * len(lines)
  return ids, weights


def drawn(stage: Stage, tokenizer, step: int) -> list[sft.Transcript]:
  """Draws the lessons of a step, as many as fit into one block."""
  rng, result, room = random.Random(f"base/{stage.name}/{step}"), [], sft.FILL * ROWS * LENGTH
  while True:
    one = transcript(tokenizer, lessons.draw(stage.course, rng))
    if len(one[0]) > LENGTH:  # rare: fourteen passages with a long reply
      continue
    room -= len(one[0])
    if room < 0:
      return result
    result.append(one)


def teach(stage: Stage, tokenizer, path: pathlib.Path, out: pathlib.Path) -> dict:
  """Trains one stage from the weights in `path`. Returns the scores it reached.

  Raises:
    RuntimeError: the goals were not reached within the stage's steps.
  """
  config, start, workdir = settings(out, path), time.perf_counter(), out / stage.name
  config.steps, config.checkpoint.every, config.data.train = stage.steps, 100, "lessons"
  share_right = measurer(stage, tokenizer)
  curves: dict[int | str, dict[int, float]] = {kind: {} for kind in stage.course.kinds}
  for row in jsonl.read(workdir / "metrics.jsonl") if (workdir / "metrics.jsonl").is_file() else ():
    for kind, curve in curves.items():
      if f"development/{kind}" in row:
        curve[row["step"]] = row[f"development/{kind}"]

  def measure(step, model):
    if step % EVERY:
      return {}
    result = share_right(model)
    for kind, share in result.items():
      if kind in curves:
        curves[kind][step] = share
    text = ", ".join(f"{kind} {share:.3f}" for kind, share in result.items())
    print(f"{stage.name} {step} (at most {stage.steps}), {time.perf_counter() - start:.0f} s: {text}", flush=True)
    return {f"development/{kind}": share for kind, share in result.items()}

  reached = lambda row: all(schedules.holds([*curves[kind].values()], least) for kind, least in stage.goals.items())
  lessons_of = functools.partial(drawn, stage, tokenizer)
  for _ in sft.sft(config, workdir, drawn=lessons_of, evaluate=measure, reached=reached):
    pass
  last = {kind: curve[max(curve)] for kind, curve in curves.items()}
  if not reached({}):
    raise RuntimeError(
      f"{workdir}: after {max(curves[1])} steps these shares of whole replies are right: {last}. The goals are "
      f"{dict(stage.goals)}, twice in a row. Raise the stage's steps, and delete the folder."
    )
  return dict(steps=max(curves[1]), seconds=round(time.perf_counter() - start), right=last)


def measurer(stage: Stage, tokenizer):
  """Makes a function: model → {kind of question: share of correct whole replies}, on lessons that training never draws.

  A reply is correct if each of its tokens, including EOS, is the most likely one after the tokens before it. Greedy
  decoding then writes this reply.
  """
  rng = random.Random(f"base/{stage.name}/development")
  taken = [lessons.draw(stage.course, rng) for _ in range(MEASURED)]
  rows = [transcript(tokenizer, one) for one in taken]
  length = -(-max(len(ids) for ids, _ in rows) // 64) * 64
  ids, ours, places = (np.zeros((len(rows), length), np.int32) for _ in range(3))
  for row, (one, weights) in enumerate(rows):
    ids[row, : len(one)], ours[row, : len(one)], places[row, : len(one)] = one, weights, 1

  @functools.partial(jax.jit, static_argnums=0)
  def wrong(graph, params, ids, places):
    """For each token after the first: whether another token is more likely."""
    model = nnx.merge(graph, params)
    logits = jax.lax.map(lambda x: model(x[0][None], segment_ids=x[1][None])[0].argmax(-1), (ids, places))
    return logits[:, :-1] != ids[:, 1:]

  def share_right(model: Decoder) -> dict[int | str, float]:
    missed = np.asarray(wrong(*nnx.split(model), ids, places)) & (ours[:, 1:] > 0)
    right: dict[int | str, list[bool]] = {kind: [] for kind in stage.course.kinds}
    for lesson, misses, said in zip(taken, missed, ours):
      edges = np.flatnonzero(np.diff(said, append=0))  # before each reply's first token, and at its last
      for kind, reply, start, end in zip(lesson.kinds, lesson.replies, edges[::2], edges[1::2], strict=True):
        right[kind].append(not misses[start:end].any())
        right.setdefault(reply, []).append(not misses[start:end].any())
    return {kind: round(float(np.mean(every)), 3) for kind, every in right.items()}

  return share_right


def exam(path: pathlib.Path, out: pathlib.Path) -> dict[str, dict[str, dict]]:
  """{passages: {hops, or "comparison": {n, em}}} on a made-up world's held-out questions, answered by the engine."""
  built = reading_world.build(seed=0, entities=4000, held_out=2000, syllables=SYLLABLES, wordings=AHEAD, years=True)
  result: dict[str, dict[str, dict]] = {}
  for passages in PASSAGES:
    player = player_lib.build(prepare(settings(out, path, context=512, max_new_tokens=96)))
    result[str(passages)] = {}
    for kind in ANY:
      questions = reading_world.questions(
        built, QUESTIONS, mix={kind: 1.0}, part=synthetic.HELD_OUT, passages=passages, distinct=False
      )
      metrics, _ = evaluate.measure(player, lora.split(player.model)[1], questions)
      result[str(passages)][str(kind)] = dict(n=metrics["n"], em=metrics["em"], interval=metrics["em_interval"])
      print(f"{passages} passages, {kind}: {result[str(passages)][str(kind)]}", flush=True)
  return result


if __name__ == "__main__":
  flags.DEFINE_string("out", str(FOLDER), "Folder of the stages; the last one's model is the base.")
  app.run(main)
