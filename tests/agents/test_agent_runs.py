"""Runs whose episodes are a program's, or call tools: they train on what was sampled, and resume exactly."""

import json

import pytest
import small_tokenizers
import tiny_world

from ragrl_jax.agents.calls.call_texts import Malformed, ToolCall
from ragrl_jax.agents.calls.turns import ToolTurns
from ragrl_jax.data import readers
from ragrl_jax.jobs import train
from ragrl_jax.run import player, questions
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.structs import ENVIRONMENT


def calls(self, text, ids=()):
  """In place of `ToolTurns.calls`: an untrained model writes no call, so what it writes says what it calls."""
  kind = sum(ids) % 4
  search, add = ToolCall("search", json.dumps(dict(query=text[:9]))), ToolCall("add", json.dumps(dict(a=len(ids))))
  if kind == 0:
    raise Malformed("made up")
  return ([search, add], [add], [])[kind - 1]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
  return small_tokenizers.byte_level(tmp_path_factory.mktemp("words"), template=small_tokenizers.QWEN_TOOLS)


def settings(world, words, **switches):
  config = tiny_world.config(world)
  config.recipe, config.preset = "tool_agent", "paper"
  config.prompting.update(tokenizer=str(words), chat=True)
  config.rollout.update(context=768, page=32)
  config.learner.row_lengths = (1024,)
  with config.unlocked():
    config.switches = dict(tools="tool_functions:add", instructions="short", max_turns=2) | switches
  return config


def resumed(config, folder):
  """(the rows of a run that was resumed exactly, the episodes of its first step)."""
  rows = tiny_world.resumed(config, folder)
  assert [row["step"] for row in rows] == [1, 2, 3]
  assert all(row["mismatch"] < 1e-4 and row["failed_share"] == 0 for row in rows)
  return rows, list(episodes_lib.read_episodes(episodes_lib.steps(folder / "whole")[1]))


@pytest.mark.long  # two runs
def test_a_run_trains_on_sampled_calls_and_resumes_exactly(world, words, tmp_path, monkeypatch, rewarding):
  monkeypatch.setattr(ToolTurns, "calls", calls)
  # The sampler's log-probabilities are the learner's, across the turns that the template closed and opened.
  rows, logged = resumed(settings(world, words), tmp_path)
  assert all(row["measure/calls"] > 0 and row["measure/malformed"] > 0 for row in rows)
  assert any(row["measure/searches"] > 0 for row in rows)
  turns = [segment for one in logged for segment in episodes_lib.episode_of(one).turns]
  given = [segment.text for segment in turns if segment.owner == ENVIRONMENT]
  assert any("tool\nerror: the call cannot be read: made up" in text for text in given)
  assert any("Doc 1(Title: " in text for text in given) and all(text.endswith("assistant\n") for text in given)


@pytest.mark.long  # two runs
def test_a_run_of_programs_resumes_exactly_with_rewritten_histories(world, tmp_path):
  config = tiny_world.config(world)
  config.recipe, config.preset = "agent", "paper"
  with config.unlocked():
    config.switches = dict(program="agent_programs:varied", reward="program", rewritten="split", search=True)
  rows, logged = resumed(config, tmp_path)
  assert all(row["measure/searches"] == 1 for row in rows)
  assert rows[0]["measure/requests"] == 3 and 0 < rows[0]["measure/rewrites"] < 1 and rows[0]["term/answer"] > 0
  conversations = [len(episodes_lib.episode_of(one).conversations) for one in logged]
  assert set(conversations) == {1, 2} and rows[0]["sequences"] == sum(conversations)
  # All rows of an episode have its advantage; the groups' are centred over episodes.
  for group in {one["prompt_index"] for one in logged}:
    own = [one["advantage"] for one in logged if one["prompt_index"] == group]
    assert sum(own) == pytest.approx(0, abs=1e-5)


def test_a_template_that_does_not_fit_is_refused_before_the_model_is_made(world, words, tmp_path, monkeypatch):
  monkeypatch.setattr(player, "model", lambda *given: pytest.fail("the model was made"))
  config = settings(world, words)
  config.prompting.tokenizer = str(small_tokenizers.byte_level(tmp_path / "words"))
  with pytest.raises(ValueError, match="this model's chat template has no format of tool calls that can be read"):
    next(iter(train.train(config, tmp_path / "run")))


def test_tools_are_a_part_of_the_prompts_length(world, words):
  made = prepare(config := settings(world, words))
  recipe, words = made.recipe, made.tokenizer
  tools = recipe.tool_tokens(words)
  (longest, *_) = sorted(readers.read_examples(config.data.train), key=lambda e: -len(e.question))
  alone = len(words.render(recipe.prompt.messages(longest)))
  assert tools > 100 and questions.prompt_tokens(recipe, words, longest) == alone + tools
  config.rollout.context = tools
  with pytest.raises(ValueError, match="no prompt fits: the shortest of 16 has"):
    questions.training(config, recipe, words)
