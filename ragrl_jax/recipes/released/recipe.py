"""Released agents: see README.md."""

import dataclasses
from typing import Any

from ragrl_jax.recipes import answered, search_agent
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.released import digest
from ragrl_jax.recipes.released import play as play_lib
from ragrl_jax.recipes.released.agents import PLAYED
from ragrl_jax.recipes.released.parser import Parser
from ragrl_jax.recipes.released.prompt import INSTRUCTIONS, Prompt
from ragrl_jax.recipes.released.tags import AGENTS
from ragrl_jax.settings.fields import setting
from ragrl_jax.structs import Episode, Example


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """README.md lists the settings of the agents' authors."""

  agent: str = setting("search_r1", "whose tags, prompt and limits", choices=AGENTS)
  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  notice: str = setting("paper", "text after a turn without an action", choices=search_agent.NOTICES, files=True)
  digest: str = setting("paper", "prompt for reading documents", choices=digest.DIGESTS, files=True)
  correctness: str = setting("exact", "answers that equal no gold; exact: they are wrong", choices=("exact", "judge"))
  documents: str = setting("search", "given: searches return all of the question's own", choices=("search", "given"))
  max_searches: int = setting(4, "most searches", unit="searches", least=0)
  max_passage_tokens: int | None = setting(None, "longer documents are cut", unit="tokens", least=1)

  @property
  def stepped(self) -> bool:
    """See `recipe.Switches`."""
    return AGENTS[self.agent].thinks


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "search_r1": dict(agent="search_r1"),
  "desa": dict(agent="desa"),
  "autorefine": dict(agent="autorefine", max_searches=5),
  "research": dict(agent="research", max_searches=8),
  "r1_searcher": dict(agent="r1_searcher", max_searches=8),
  "search_o1": dict(agent="search_o1", max_searches=10),
  "simpledeepsearcher": dict(agent="simpledeepsearcher", max_searches=10),
  "given": dict(documents="given"),  # combined with an agent
}


def unrecorded(example: Example, episode: Episode) -> dict[str, float | None]:
  """Number of the model's tokens in its digests, which are not in the episode."""
  del example  # the number is among the episode's facts
  return dict(digest_tokens=episode.facts.get("digest_tokens"))


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  prompt, parser = Prompt(switches.agent, switches.instructions), Parser(switches.agent)
  given = switches.documents == "given"
  return recipe_lib.Recipe(
    name="released",
    prompt=prompt,
    stops=parser.stops,
    switches=switches,
    searches=switches.max_searches > 0 and not given,
    measures=unrecorded if PLAYED[switches.agent].digests else None,
    needs_passages=given,
    **answered.fields(play_lib.build(prompt, parser, switches), answered.Reward(parser, switches.correctness)),
  )
