"""Untrained baselines: see README.md."""

import dataclasses
from typing import Any

from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.untrained import play as play_lib
from ragrl_jax.recipes.untrained.parser import Parser
from ragrl_jax.recipes.untrained.prompt import INSTRUCTIONS, METHODS, Prompt
from ragrl_jax.recipes.untrained.reward import Reward
from ragrl_jax.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  method: str = setting("rag", choices=METHODS)  # see README.md
  instructions: str = setting("paper", choices=INSTRUCTIONS, files=True)  # "none": the question only
  # of answers that equal no gold: "exact": wrong; "judge": the judge's verdict (config.judge)
  correctness: str = setting("exact", choices=("exact", "judge"))
  max_searches: int = setting(1, least=0)  # of methods that search more than once
  max_passage_tokens: int | None = setting(None, least=1)  # a longer passage is cut


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "closed_book": dict(method="closed_book", max_searches=0),
  "cot": dict(method="cot", max_searches=0),
  "ircot": dict(method="ircot", max_searches=4),
  "iter_retgen": dict(method="iter_retgen", max_searches=2),
  "self_ask": dict(method="self_ask", max_searches=4),
  "skr": dict(method="skr"),
}


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  prompt, parser = Prompt(switches.method, switches.instructions), Parser(switches.method)
  judged = switches.correctness == "judge"
  reward = Reward(parser, judged=judged)
  play = play_lib.build(
    prompt, parser, max_searches=switches.max_searches, max_passage_tokens=switches.max_passage_tokens, judge=judged
  )
  return recipe_lib.Recipe(
    name="untrained",
    prompt=prompt,
    parser=parser,
    play=play,
    stops=parser.stops,
    score=reward.score,
    weights=reward.weights,
    outcome=reward.outcome,
    switches=switches,
    searches=switches.max_searches > 0,
  )
