"""Rejection sampling over evaluations' folders: what is kept, and what cannot be trained on."""

import dataclasses

import played
from console import ragrl
from refusals import refused

from ragrl_jax import recipes
from ragrl_jax.data import readers, writers
from ragrl_jax.evaluation import demonstrations, harness
from ragrl_jax.jobs import sft
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage

EXAMPLES = [Example("1", "Who?", ("Ann",), source="nq"), Example("2", "Where?", ("Oslo",), source="nq")]
SHOWN = [dataclasses.replace(example, passages=(Passage("p", "T", "Ann."),)) for example in EXAMPLES]
FOUND = (ENVIRONMENT, "\n\n<information>Doc 1(Title: T) Ann.</information>\n\n")
RIGHT = [(MODEL, "<search> who </search>"), FOUND, (MODEL, "<answer> Ann </answer>")]
# Of the first question; and the second's.
SHORT, WRONG, OSLO = ([(MODEL, f"<answer> {text} </answer>")] for text in ("Ann", "Bob", "Oslo"))


def sampled(folder, *transcripts, recipe="search_r1", preset="paper", examples=EXAMPLES, change=None, **settings):
  """The folder of an evaluation in which these were played, one a question."""
  made = recipes.get(recipe, preset)
  turns = dict(zip((example.id for example in examples), transcripts, strict=True))

  def episode(example):
    said = Episode.from_text(made, example, turns[example.id])
    return change(said) if change else said

  said = dict(recipe=recipe, preset=preset, switches=dict(made.switches), data="nq.jsonl", own_passages=None)
  harness.evaluate(examples, played.by_example(episode), made, folder, settings=said | settings)
  return folder


def test_right_transcripts_are_kept_once(tmp_path):
  given = dict(a=(RIGHT, WRONG), b=(RIGHT, OSLO), c=(SHORT, WRONG))
  folders = [sampled(tmp_path / name, *transcripts) for name, transcripts in given.items()]
  kept, counts = demonstrations.keep_right(folders, EXAMPLES)
  assert [(example.id, turns) for example, turns in kept] == [("1", RIGHT), ("1.2", SHORT), ("2", OSLO)]
  assert counts == {"kept": 3, "wrong": 2, "again": 1}
  writers.write_examples(tmp_path / "sft.jsonl", [e for e, _ in kept], turns=[turns for _, turns in kept])
  first = next(iter(readers.read_examples(str(tmp_path / "sft.jsonl"))))
  ids, weights = sft.tokenised(recipes.get("search_r1"), first, ByteTokenizer(), 0.0)
  trained = bytes(token for token, weight in zip(ids, weights) if weight).decode()
  assert trained == "<search> who </search><answer> Ann </answer>"  # only the model's own text


def test_cut_and_failed_episodes_are_not_kept_nor_passages_that_the_prompt_lacked(tmp_path):
  long = lambda segment: dataclasses.replace(segment, stop="length")
  cut = lambda said: dataclasses.replace(said, segments=(*said.segments[:-1], long(said.segments[-1])))
  failed = lambda episode: dataclasses.replace(episode, ended="failed", failure="gone")
  folders = [sampled(tmp_path / "cut", SHORT, OSLO, change=cut), sampled(tmp_path / "gone", SHORT, OSLO, change=failed)]
  assert demonstrations.keep_right(folders, EXAMPLES) == ([], {"cut off": 2, "failed": 2})
  kept, _ = demonstrations.keep_right([sampled(tmp_path / "a", SHORT, OSLO, own_passages=False)], SHOWN)
  assert [example.passages for example, _ in kept] == [(), ()]


def test_what_cannot_be_trained_on(tmp_path):
  good = sampled(tmp_path / "good", RIGHT, OSLO)
  given = sampled(tmp_path / "shown", SHORT, OSLO, recipe="untrained", preset="given", examples=SHOWN)
  assert demonstrations.keep_right([given], SHOWN)[1] == {"kept": 2}
  others = [dataclasses.replace(example, passages=(Passage("q", "T", "Bob."),)) for example in EXAMPLES]
  for folders, examples, says in (
    ([good, sampled(tmp_path / "other", RIGHT, OSLO, preset="repo")], EXAMPLES, "differ in switches"),
    ([sampled(tmp_path / "noisy", RIGHT, OSLO, noise=8)], EXAMPLES, "prompts were changed"),
    ([sampled(tmp_path / "sure", SHORT, OSLO, recipe="untrained", preset="sure")], EXAMPLES, "several conversations"),
    ([sampled(tmp_path / "given", SHORT, OSLO, recipe="untrained", preset="given")], EXAMPLES, "2 of its 2 questions"),
    ([sampled(tmp_path / "agent", SHORT, OSLO, recipe="agent", switches={"program": "a.py:f"})], EXAMPLES, "program's"),
    ([given], others, "other passages in --data"), ([good], EXAMPLES[:1], "question '2' is not in --data"),
    ([good], [*EXAMPLES, EXAMPLES[0]], "the same source and id"), ([tmp_path], EXAMPLES, "it has no metrics.json"),
  ):  # fmt: skip
    refused(says, demonstrations.keep_right, folders, examples)


def test_the_command(tmp_path):
  for name, first in {"s/1": RIGHT, "s/2/seed_0": SHORT, "s/2/seed_1": WRONG, "wrong": WRONG}.items():
    sampled(tmp_path / name, first, WRONG)
  writers.write_examples(tmp_path / "nq.jsonl", EXAMPLES)
  command = ("make-rejection-sft", f"--data={tmp_path}/nq.jsonl")
  ragrl(*command, f"--results={tmp_path}/s/*", f"--out={tmp_path}/o.jsonl.gz", says="2 transcripts of 1 question")
  written = list(readers.read_examples(str(tmp_path / "o.jsonl.gz")))
  assert [e.meta["turns"] for e in written] == [[list(turn) for turn in turns] for turns in (RIGHT, SHORT)]
  done = ragrl(*command, f"--results={tmp_path}/wrong", f"--out={tmp_path}/none.jsonl")
  assert done.returncode == 2 and "none of 2 episodes is correct" in done.stderr
  assert not (tmp_path / "none.jsonl").exists()
