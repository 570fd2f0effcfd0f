"""Untrained baselines: see README.md."""

import dataclasses
from typing import Any

from ragrl_jax.recipes import answered
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.untrained import play as play_lib
from ragrl_jax.recipes.untrained import refine
from ragrl_jax.recipes.untrained.parser import Parser
from ragrl_jax.recipes.untrained.prompt import DOCUMENTS, INSTRUCTIONS, METHODS, Prompt
from ragrl_jax.settings.fields import Rules, setting
from ragrl_jax.structs import Episode, Example

GIVEN = ("rag", "cot", "self_ask", "sure", "recomp", "filco")  # methods that can read the question's own passages
JOINED = ("sure", "flare", "adaptive", "recomp", "filco")  # methods whose episodes join several conversations


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  method: str = setting("rag", "how the question is answered", choices=METHODS)
  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  correctness: str = setting("exact", "answers that equal no gold; exact: they are wrong", choices=("exact", "judge"))
  documents: str = setting("search", "given: the question's own passages; nothing is searched", choices=DOCUMENTS)
  max_searches: int = setting(1, "most searches, for methods that search more than once", unit="searches", least=0)
  max_passage_tokens: int | None = setting(None, "longer retrieved passages are cut", unit="tokens", least=1)
  classifier: str = setting("model", "adaptive: who classifies the questions", choices=("model", "judge"))
  sure_above: float = setting(0.8, "flare: sentences with a less likely token become queries", above=0, most=1)
  mask_below: float = setting(0.4, "flare: queries leave out less likely tokens", above=0, most=1)

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield (
      self.documents == "search" or self.method in GIVEN,
      f"switch documents='given' with method={self.method!r}: own passages are for {', '.join(GIVEN)} "
      "(config.switches.documents).",
    )


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "closed_book": dict(method="closed_book", max_searches=0),
  "cot": dict(method="cot", max_searches=0),
  "ircot": dict(method="ircot", max_searches=4),
  "iter_retgen": dict(method="iter_retgen", max_searches=2),
  "self_ask": dict(method="self_ask", max_searches=4),
  "skr": dict(method="skr"),
  "sure": dict(method="sure"),
  "flare": dict(method="flare", max_searches=8),
  "adaptive": dict(method="adaptive", max_searches=4),
  "recomp": dict(method="recomp"),
  "filco": dict(method="filco"),
  "given": dict(documents="given"),  # with cot, self_ask, sure, recomp or filco; alone it is RAG
}


def unrecorded(example: Example, episode: Episode) -> dict[str, float | None]:
  """Number of the model's tokens that are not in the episode."""
  del example  # the number is among the episode's facts
  return dict(draft_tokens=episode.facts.get("draft_tokens"))


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  method, given = switches.method, switches.documents == "given"
  prompt, parser = Prompt(method, switches.instructions, switches.documents), Parser(method)
  play = play_lib.build(prompt, parser, switches)
  return recipe_lib.Recipe(
    name="untrained",
    prompt=prompt,
    stops=parser.stops,
    switches=switches,
    judged=("complexity",) if method == "adaptive" and switches.classifier == "judge" else (),
    evidence=refine.evidence if method in refine.REFINED else None,
    searches=switches.max_searches > 0 and not given,
    needs_passages=given,
    measures=unrecorded if method == "flare" else None,
    trainable=method not in JOINED,
    **answered.fields(play, answered.Reward(parser, switches.correctness)),
  )
