"""Checkpoints to ask: a player with a scripted engine and the test's retriever."""

import dataclasses

from small_server import ScriptedEngine

from ragrl_jax import recipes
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.recipes import steps as steps_lib
from ragrl_jax.rollout import collect
from ragrl_jax.rollout.tools import RetrievalTools
from ragrl_jax.run.player import Player
from ragrl_jax.run.prepared import Prepared
from ragrl_jax.serving import ask_checkpoint
from ragrl_jax.settings import Rollout, Settings
from ragrl_jax.structs import Passage

TOWNS = [Passage("7", "Kormin", "Kormin was born in Tolper. He is a smith."), Passage("8", "<b>x</b>", "Nothing here.")]
SEARCHED = (
  "<think>I look it up.</think><search>birthplace of Kormin</search>",
  '<think>It says "Kormin was born in Tolper." [1]</think><answer>Tolper</answer>',
)


class Towns:
  """Finds the two towns, whatever is asked."""

  def describe(self):
    return dict(kind="towns")

  def search(self, queries, k):
    return [TOWNS[:k] for _ in queries]


def asker(texts, *, recipe="search_r1", judge=None, name="out/run", engine=None, play=None, tools=None, **sampling):
  """An Asker over a scripted engine, or over `engine`."""
  recipe = recipes.get(recipe, None, instructions="none") if isinstance(recipe, str) else recipe
  engine = engine or ScriptedEngine(ByteTokenizer(), texts, recipe.stops)
  judges = {} if judge is None else judge if isinstance(judge, dict) else dict.fromkeys(steps_lib.TERMS, judge)
  tools = tools or RetrievalTools(Towns(), top_k=2, judges=judges)
  how = dataclasses.replace(Rollout().sampling, **dict(max_new_tokens=1000) | sampling)
  rollout = collect.Rollout(engine, play or recipe.play, tools, seed=3, sampling=how)
  config = Settings(rollout=Rollout(context=100_000))
  prepared = Prepared(config, recipe, engine.tokenizer, None, None)
  return ask_checkpoint.Asker(Player(prepared, recipe, None, None, engine, Towns(), judges, rollout), name)
