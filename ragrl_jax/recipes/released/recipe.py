"""Released agents: see README.md."""

import dataclasses
from typing import Any

from ragrl_jax.recipes import parts, search_agent
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.recipes.released import play as play_lib
from ragrl_jax.recipes.released.agents import AGENTS
from ragrl_jax.recipes.released.play import INSTRUCTIONS, Parser, wordings
from ragrl_jax.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """README.md lists the settings of the agents' authors."""

  agent: str = setting("search_r1", "whose tags, prompt and limits", choices=AGENTS)
  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  notice: str = setting("paper", "text after a turn without an action", choices=search_agent.NOTICES, files=True)
  digest: str = setting("paper", "prompt for reading documents", choices=play_lib.DIGESTS, files=True)
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


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  agent, given = AGENTS[switches.agent], switches.documents == "given"
  prompt, parser = Prompt(switches.instructions, wordings(agent), marked=agent.asks), Parser(agent)
  play = play_lib.make_play(prompt, parser, switches)
  # The model's tokens in its digests are not in the episode.
  unrecorded = lambda example, episode: dict(digest_tokens=episode.facts.get("digest_tokens"))
  return recipe_lib.Recipe(
    name="released",
    prompt=prompt,
    stops=parser.stops,
    switches=switches,
    searches=switches.max_searches > 0 and not given,
    measures=unrecorded if agent.digests else None,
    needs_passages=given,
    **parts.answer_fields(play, parts.AnswerReward(parser, switches.correctness)),
  )
