"""Search-R1 (arXiv 2503.09516): see README.md."""

import dataclasses
import functools
from typing import Any

from ragrl_jax.prompting import wording
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.recipes.search_agent import NOTICES, Parser
from ragrl_jax.recipes.search_r1 import demonstrate
from ragrl_jax.recipes.search_r1 import play as play_lib
from ragrl_jax.recipes.search_r1.prompt import BROWSE_NOTICE, INSTRUCTIONS
from ragrl_jax.recipes.search_r1.reward import Reward
from ragrl_jax.settings.fields import setting

OUR_NOTICES = NOTICES | {"browse": BROWSE_NOTICE}


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  notice: str = setting("paper", "text after a turn without a valid action", choices=OUR_NOTICES, files=True)
  max_searches: int = setting(4, "most turns before the forced answer; NQ's quick start has 2", unit="turns", least=0)
  max_passage_tokens: int | None = setting(166, "longer passages are cut; three fill 500", unit="tokens", least=1)
  action: str = setting("last", "which of several complete pairs in a turn counts", choices=("last", "first"))
  format: bool = setting(False, "reward the format too")
  structure_weight: float = setting(0.2, "with `format`: weight of the format; the answer has the rest")
  final_share: float = setting(0.5, "share of that weight for a wrong answer in a wrong format", unit="share")
  retrieval_weight: float = setting(0.0, "with `format`: weight of finding a gold, for a wrong answer in shape")
  browse: bool = setting(False, "<open> and <find> read the documents around results; they count as searches")
  guarded: bool = setting(False, 'the tricks of README.md\'s "Unearned reward" earn nothing')

  @property
  def stepped(self) -> bool:
    """See `recipe.Switches`."""
    return True

  def __post_init__(self):
    super().__post_init__()
    if self.browse and self.format:
      raise ValueError(
        "config.switches.browse=True with format=True: the format does not allow opened documents. Choose one."
      )


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "grpo": {},  # the algorithms differ in their configs, not in the recipe
  "ppo": {},
  "format": dict(format=True),
  "repo": dict(action="first"),
  "r1": dict(instructions="no_search", max_searches=0),
  "browse": dict(browse=True, instructions="browse", notice="browse"),
}


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  prompt = Prompt(switches.instructions, INSTRUCTIONS, marked=True)
  parser = Parser(switches.action, ("search", "open", "find", "answer") if switches.browse else ("search", "answer"))
  notice = wording.chosen(switches.notice, OUR_NOTICES, setting="config.switches.notice", roles=False).text()
  return recipe_lib.Recipe(
    name="search_r1",
    prompt=prompt,
    parser=parser,
    play=play_lib.build(prompt, parser, switches, notice),
    stops=parser.stops,
    switches=switches,
    script=functools.partial(demonstrate.script, searches=switches.max_searches),
    searches=switches.max_searches > 0,
    **recipe_lib.scoring(Reward(parser, switches)),
  )
