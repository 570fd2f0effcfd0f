"""The data of the study. test_care_sft_data.py tests failures of the endpoint."""

import asyncio
import dataclasses

import pytest
from console import ragrl
from scripted_chat import Teacher
from scripted_server import serving

from ragrl_jax import config as config_lib, recipes, retrieval, settings
from ragrl_jax.data import readers, writers
from ragrl_jax.jobs import sft
from ragrl_jax.recipes.lear import sft_data
from ragrl_jax.structs import Episode, Example, Passage, ToolFailed

PASSAGES = (Passage("1", "Tower", "The tower stands in Paris."), Passage("2", "Town", "Lyon is large."))
REPLY = "<reason>I look.</reason>\n<extract>It is in Paris.</extract><answer>Paris</answer>"
FENCED = REPLY.replace("</reason>", "</reason>Evidence:")


def named(name, **fields):
  return Example(name, f"Where is {name}?", ("Paris", "Paris, France"), **{**dict(passages=PASSAGES), **fields})


def test_which_transcripts_are_kept(tmp_path):
  replies = dict(
    it=REPLY, thoughtful=f"<think> <answer>Rome</answer> </think>\n{REPLY}\n", tagged=REPLY + REPLY,
    unended=f"<think> Perhaps {REPLY}",  # the limit of tokens ended the thought
    # A heading, a fence and remarks around the sections are no reason to drop a right answer.
    fenced=f"## Solution\n```xml\n{FENCED}\n```\nI hope it helps.", wrong=REPLY.replace(">Paris", ">x"),
    gone=ToolFailed("x"),
  )  # fmt: skip
  teacher = Teacher({f"Where is {name}?": reply for name, reply in replies.items()})
  asked = [*map(named, replies), named("bare", passages=())]
  kept, counts = asyncio.run(sft_data.taught(asked, teacher, concurrency=2))
  assert [example.id for example, _ in kept] == ["it", "thoughtful", "fenced"]
  assert kept[2][1] == [("model", REPLY.replace("</extract>", "</extract>\n"))]
  assert counts == {"kept": 3, "wrong answer": 1, "out of shape": 2, "no answer": 1, "no passages": 1}
  assert len(teacher.asked) == 8 and "The tower stands in Paris." in teacher.asked[0]
  (tmp_path / "words.txt").write_text("Mine: {question}\n{passages}")
  made = sft_data.taught(asked[:1], teacher, instructions=f"file:{tmp_path / 'words.txt'}", concurrency=1)
  assert len(asyncio.run(made)[0]) == 1 and "Mine: " in teacher.asked[-1]


@pytest.mark.parametrize(("reply", "preset", "text"), [
  ("reason_extract", "study_rational", "<reason> I look. </reason>\n<extract> It is in Paris. </extract>"),
  ("extract", "study_vanilla", "<extract> It is in Paris. </extract>"),
  ("rational", "paper", "<reason> I look. </reason>\n<extract> It is in Paris. </extract>\n<answer> Paris </answer>"),
  ("vanilla", "vanilla", "<extract> It is in Paris. </extract>\n<answer> Paris </answer>"),
  ("rationale", "rationale", "<reason> I look. </reason>\n<answer> Paris </answer>"),
])  # fmt: skip
def test_arms_are_parts_of_one_reply(reply, preset, text):
  turns = sft_data.arm([("model", REPLY)], reply)
  assert turns == [("model", text)]
  recipe, example = recipes.get("lear", preset), named("it")
  episode = Episode.from_text(recipe, example, turns)
  assert recipe.score(example, episode)["format"] == recipe.outcome(example, episode) == 1.0


def test_answerable():
  far = named("far", passages=PASSAGES[1:])
  assert sft_data.answerable([named("it"), far, named("bare", passages=())]) == [named("it")]
  # "no" is a word of neither passage, only letters of "known": HotpotQA's 71 "no" questions would all be admitted.
  inside = Example("n", "Is it?", ("no",), (Passage("1", "", "A known monolith."),))
  assert sft_data.answerable([inside]) == [] and sft_data.answerable([inside], "letters") == [inside]


def test_every_row_of_a_table_is_trained_for_equal_epochs(tmp_path):
  """By transcripts, not tokens: Zero's without passages take as many steps as Full's. The study has three epochs."""
  for name, passages in (("full", PASSAGES), ("zero", ())):
    asked = [named(f"q{i}", passages=passages) for i in range(48)]
    writers.write_examples(tmp_path / f"{name}.jsonl", asked, turns=[[("model", "<answer> Paris </answer>")]] * 48)
  for variant, file, steps in (
    ("generator", "full", 2), ("generator", "zero", 2), ("filter", "full", 2),  # 24 at a time
    ("study_vanilla", "full", 12), ("study_rational", "full", 12),  # 15 at a time: four steps, three times
  ):  # fmt: skip
    config = config_lib.load("lear", f"sft,{variant}")
    config.data.train = str(tmp_path / f"{file}.jsonl")
    assert sft.planned(settings.of(config)).steps == steps, variant
  config = config_lib.load("lear")
  assert config.evaluate.examples == 0  # the best checkpoint on the whole development set
  assert config.checkpoint.keep * config.checkpoint.every >= config.steps and config.evaluate.every == 50


def ask_without_passages(folder):
  """Writes an index, and two questions of which the first has no passages."""
  retrieval.build_index(PASSAGES, "bm25", folder / "index", progress=False)
  bare = dataclasses.replace(named("tower", passages=()), question="Where does the tower stand?")
  writers.write_examples(folder / "asked.jsonl", [bare, named("b", passages=PASSAGES[1:])])


def test_the_launcher(tmp_path):
  ask_without_passages(tmp_path)
  command = ("make-lear-sft", f"--data={tmp_path}/asked.jsonl", f"--out={tmp_path}/out", f"--index={tmp_path}/index")
  ragrl(*command, "--top_k=1", says="")
  teacher = lambda messages, _: REPLY if "The tower stands" in messages[-1]["content"] else "I do not know"
  with serving(teacher) as (url, _):
    done = ragrl(*command, "--top_k=1", f"--answers={tmp_path}/answers", f"--url={url}", "--model=m", says="1  kept")
  assert "1  out of shape" in done.stdout
  for name in ("answerable", *sft_data.ARMS):
    (made,) = readers.read_examples(tmp_path / "out" / f"{name}.jsonl.gz")
    assert made.id == "tower" and made.passages[0].text == PASSAGES[0].text
    assert ("turns" in made.meta) == (name != "answerable")


def test_the_generators_launcher(tmp_path):
  ask_without_passages(tmp_path)
  made = {}
  index = ["--index", tmp_path / "index"]
  for name, options in dict(sft=[*index, "--top_k=1"], full=[*index, "--noturns"], zero=[]).items():
    counts, out = f"2 questions, {1 if name == 'zero' else 2} of them", tmp_path / f"{name}.jsonl"
    ragrl("make-lear-generator", "--data", tmp_path / "asked.jsonl", "--out", out, *options, says=counts)
    made[name] = list(readers.read_examples(out))
  assert [[p.text] for p in PASSAGES] == [[p.text for p in example.passages] for example in made["sft"]]  # found, own
  assert [example.meta["turns"] for example in made["sft"]] == [[["model", "<answer> Paris </answer>"]]] * 2
  # all of them, whether or not a passage contains the answer
  assert [(example.id, "turns" in example.meta) for example in made["full"]] == [("tower", False), ("b", False)]
  assert [len(example.passages) for example in made["zero"]] == [0, 1]
