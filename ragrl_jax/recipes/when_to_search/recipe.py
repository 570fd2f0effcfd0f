"""Learning When to Search: see README.md."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core.rewards import queries
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.recipes.when_to_search import curriculum, demonstrate
from ragrl_jax.recipes.when_to_search import play as play_lib
from ragrl_jax.recipes.when_to_search.parser import STOPS, Parser
from ragrl_jax.recipes.when_to_search.prompt import INSTRUCTIONS
from ragrl_jax.recipes.when_to_search.reward import ANSWER, Reward
from ragrl_jax.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  max_searches: int = setting(5, "most searches", unit="searches", least=0)
  max_passage_tokens: int | None = setting(800, "longer passages are cut; five fill 4096", unit="tokens", least=1)
  beta: float = setting(0.3, "β: value of a search in the answer's reward")
  answer: str = setting("staged", "the answer's reward; unified: both dependencies on searches at once", choices=ANSWER)
  stage_two_from: int | None = setting(
    301, "first step of stage 2; stage 1 has 60 % of 500 steps; None: there is no stage 2", unit="steps", least=0
  )
  settle_metric: str = setting(
    "", 'stage 2 begins earlier when this metric stops rising, for example "evaluation/em"; empty: it does not'
  )
  settle_patience: int = setting(3, "evaluations without a rise", unit="evaluations", least=1)
  correctness: str = setting("judge", "answers that equal no gold; exact: they are wrong", choices=("judge", "exact"))
  search_weight: float = setting(1.0, "weight of the searches' reward")
  conciseness: str = setting("keywords", "rule for a concise query", choices=queries.CONCISE)
  similarity: str = setting(
    "encoder",
    "similarity of queries: of their vectors (config.retrieval.query_encoder), or of character trigrams",
    choices=("encoder", "ngrams"),
  )
  halve: bool = setting(False, "the printed formula, half the mean")
  guarded: bool = setting(False, 'the tricks of README.md\'s "Unearned reward" earn nothing')

  @property
  def judges(self) -> bool:
    """Whether the judge decides about answers that equal no gold."""
    return self.correctness == "judge"


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "exact": dict(correctness="exact"),
  "printed": dict(halve=True),
  "ngrams": dict(similarity="ngrams"),
  "no_search_reward": dict(search_weight=0.0),
  "no_stage_one": dict(stage_two_from=0),
  "no_stage_two": dict(stage_two_from=None),
  "no_answer_reward": dict(answer="none"),
  "unified": dict(answer="unified"),
}


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  prompt, parser = Prompt(switches.instructions, INSTRUCTIONS), Parser()

  def next_recipe(rows: Sequence[Mapping[str, Any]]) -> recipe_lib.Recipe:
    """Stage 2 begins at the step after the evaluation at which the metric had stopped rising."""
    last = curriculum.settled(rows, metric=switches.settle_metric, patience=switches.settle_patience)
    if last is None:
      return recipe
    begin = last + 1 if switches.stage_two_from is None else min(last + 1, switches.stage_two_from)
    return build(dataclasses.replace(switches, stage_two_from=begin, settle_metric=""))

  recipe = recipe_lib.Recipe(
    name="when_to_search",
    prompt=prompt,
    parser=parser,
    play=play_lib.build(prompt, parser, switches),
    judges_golds=switches.judges,
    stops=STOPS,
    switches=switches,
    next_recipe=next_recipe if switches.settle_metric else None,
    waits_for=switches.settle_metric,
    encodes=switches.similarity == "encoder",
    script=functools.partial(demonstrate.script, searches=switches.max_searches),
    searches=switches.max_searches > 0,
    **recipe_lib.scoring(Reward(parser, switches)),
  )
  return recipe
