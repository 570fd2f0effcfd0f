"""Search-R1 (arXiv 2503.09516): see README.md."""

import dataclasses
from typing import Any

from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.search_agent import NOTICES, notice
from ragrl_jax.recipes.search_r1 import play as play_lib
from ragrl_jax.recipes.search_r1.parser import STOPS, Parser
from ragrl_jax.recipes.search_r1.prompt import INSTRUCTIONS, Prompt
from ragrl_jax.recipes.search_r1.reward import Reward
from ragrl_jax.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  instructions: str = setting("paper", choices=tuple(INSTRUCTIONS), files=True)  # "none": the question only
  notice: str = setting("paper", choices=tuple(NOTICES), files=True)  # what a turn without a valid action gets
  max_searches: int = setting(4, least=0)  # turns before the forced answer; NQ's quick start has 2
  max_passage_tokens: int | None = setting(166, least=1)  # a longer passage is cut; three make the authors' 500
  action: str = setting("last", choices=("last", "first"))  # which of several complete pairs in a turn
  format: bool = False  # reward the format too
  structure_weight: float = 0.2
  final_share: float = 0.5  # 0.1 of 0.2
  retrieval_weight: float = 0.0
  guarded: bool = False  # pay for none of the tricks under "Unearned reward" in README.md


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "grpo": {},  # the algorithms differ in their configs, not in the recipe
  "ppo": {},
  "format": dict(format=True),
  "repo": dict(action="first"),
  "r1": dict(instructions="no_search", max_searches=0),
}


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  prompt, parser = Prompt(switches.instructions), Parser(switches.action)
  reward = Reward(
    parser,
    use_format=switches.format,
    structure_weight=switches.structure_weight,
    final_share=switches.final_share,
    retrieval_weight=switches.retrieval_weight,
    guarded=switches.guarded,
  )
  play = play_lib.build(
    prompt,
    parser,
    notice=notice(switches.notice),
    max_searches=switches.max_searches,
    max_passage_tokens=switches.max_passage_tokens,
  )
  return recipe_lib.Recipe(
    name="search_r1",
    prompt=prompt,
    parser=parser,
    play=play,
    stops=STOPS,
    score=reward.score,
    weights=reward.weights,
    outcome=reward.outcome,
    switches=switches,
    unearned=reward.unearned,
    searches=switches.max_searches > 0,
  )
