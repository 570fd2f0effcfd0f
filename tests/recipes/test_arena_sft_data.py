"""The data of the SFT baselines. test_care_sft_data.py tests the HTTP part."""

import asyncio
import dataclasses

from scripted_chat import Teacher

from ragrl_jax import recipes
from ragrl_jax.jobs import sft
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.arena import sft_data
from ragrl_jax.structs import Episode, Example, Passage, ToolFailed

PASSAGES = tuple(Passage(str(i), f"T{i}", f"Text number {i}.") for i in range(1, 7))
EXAMPLE = Example("good", "Who is it?", ("Ann Lee", "A. Lee"), PASSAGES, supporting=(4, 0))
named = lambda name, **fields: dataclasses.replace(EXAMPLE, id=name, question=f"Who is {name}?", **fields)


def weighed(recipe, example, turns):
  """The text that SFT trains on, with its EOS."""
  ids, weights = sft.tokenised(recipe, dataclasses.replace(example, meta=dict(turns=turns)), ByteTokenizer(), 0.0)
  text = ByteTokenizer().decode([i for i, weight in zip(ids, weights, strict=True) if weight])
  return text + "EOS" * (ids[-1] in ByteTokenizer().eos_ids)


def test_direct():
  recipe = recipes.get("arena", "direct")
  (turns,) = scripts.answer_directly([EXAMPLE])
  assert weighed(recipe, EXAMPLE, turns) == "<answer> Ann Lee </answer>"
  # There no stop string ends a turn, as in the authors' code, so the model has to learn to.
  assert weighed(recipes.get("arena", "repo,direct"), EXAMPLE, turns) == "<answer> Ann Lee </answer>EOS"
  assert recipe.reward(recipe.score(EXAMPLE, Episode.from_text(recipe, EXAMPLE, turns)), 0) == 2.0


def test_reasoned():
  replies = dict(
    good="[1] says so,\nand a < b by [5].", wordy="<think>hm</think> By [1] and [5].", silent="  ",
    tagged="By [1].</analysis> <answer> Bob </answer>", gone=ToolFailed("x"),
  )  # fmt: skip
  backbone = Teacher({f"Who is {name}?": reply for name, reply in replies.items()})
  asked = [*map(named, replies), named("unmarked", supporting=())]
  kept, counts = asyncio.run(sft_data.reasoned(asked, backbone, concurrency=2))
  assert [example.id for example, _ in kept] == ["good", "wordy"]
  assert counts == {"kept": 2, "out of shape": 2, "no answer": 1, "no references": 1}
  assert len(backbone.asked) == 6  # the question without references is not asked; the failing one is asked twice
  assert "1. Text number 1.\n2. Text" in backbone.asked[0]
  assert "References that matter: [1, 5]\nAnswer: Ann Lee" in backbone.asked[0]
  for preset in ("paper", "repo"):
    recipe = recipes.get("arena", preset)
    for example, turns in kept[preset == "repo" :]:  # the authors' pattern allows no "<"
      assert recipe.reward(recipe.score(example, Episode.from_text(recipe, example, turns)), 0) == 13.0
  assert weighed(recipes.get("arena"), *kept[1]) == (
    "<relevance> [1, 5] </relevance>\n<analysis> By [1] and [5]. </analysis>\n<answer> Ann Lee </answer>"
  )
