"""Learning When to Search: see README.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core.rewards import queries
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.when_to_search import curriculum
from ragrl_jax.recipes.when_to_search import play as play_lib
from ragrl_jax.recipes.when_to_search.parser import STOPS, Parser
from ragrl_jax.recipes.when_to_search.prompt import INSTRUCTIONS, Prompt
from ragrl_jax.recipes.when_to_search.reward import ANSWER, Reward

PRESETS = {
  "paper": dict(
    instructions="paper",  # "paper", "short", or "none" (the bare question)
    max_searches=5,
    max_passage_tokens=800,  # a longer passage is cut: five of them make the paper's 4096
    beta=0.3,
    answer="staged",  # or "unified" (both dependencies at once), "none"
    stage_two_from=301,  # the first step of stage 2: 60 % of 500 are stage 1
    settle_metric="",  # a metric whose end of rising begins stage 2 before that, say "evaluation/em"
    settle_patience=3,  # evaluations without a rise
    correctness="judge",  # of answers that no gold equals; "exact": they are wrong
    search_weight=1.0,
    conciseness="keywords",  # a name of core.rewards.queries.CONCISE
    similarity="ngrams",  # of queries, by character trigrams; "encoder": by their vectors
    halve=False,  # True: the printed formula, half the mean
  ),
  "exact": dict(correctness="exact"),
  "printed": dict(similarity="encoder", halve=True),
  "no_search_reward": dict(search_weight=0.0),
  "no_stage_one": dict(stage_two_from=0),
  "no_stage_two": dict(stage_two_from=None),
  "no_answer_reward": dict(answer="none"),
  "unified": dict(answer="unified"),
}


def build(variant: str | None = None, **switches: Any) -> recipe_lib.Recipe:
  """The recipe under one of PRESETS, or several joined by commas, with single switches overridden.

  Raises:
    ValueError: an unknown preset or switch, or a value that the switch does not take.
  """
  use = recipe_lib.settings("when_to_search", PRESETS, variant, switches)
  recipe_lib.choose("instructions", use["instructions"], tuple(INSTRUCTIONS))
  recipe_lib.choose("answer", use["answer"], ANSWER)
  recipe_lib.choose("correctness", use["correctness"], ("judge", "exact"))
  recipe_lib.choose("conciseness", use["conciseness"], tuple(queries.CONCISE))
  recipe_lib.choose("similarity", use["similarity"], ("ngrams", "encoder"))
  recipe_lib.whole("max_searches", use["max_searches"], 0)
  recipe_lib.whole("settle_patience", use["settle_patience"], 1)
  for name, low in (("max_passage_tokens", 1), ("stage_two_from", 0)):
    if use[name] is not None:
      recipe_lib.whole(name, use[name], low)
  judged, encoded = use["correctness"] == "judge", use["similarity"] == "encoder"
  prompt, parser = Prompt(use["instructions"]), Parser()
  reward = Reward(
    parser,
    beta=use["beta"],
    answer=use["answer"],
    stage_two_from=use["stage_two_from"],
    judged=judged,
    search_weight=use["search_weight"],
    concise=queries.CONCISE[use["conciseness"]],
    encoded=encoded,
    halve=use["halve"],
  )
  play = play_lib.build(
    prompt,
    parser,
    max_searches=use["max_searches"],
    max_passage_tokens=use["max_passage_tokens"],
    judge=judged,
    encoder=encoded,
  )

  def follow(rows: Sequence[Mapping[str, Any]]) -> recipe_lib.Recipe:
    """Stage 2 begins at the step after the evaluation that found the metric settled, and never ends."""
    last = curriculum.settled(rows, metric=use["settle_metric"], patience=use["settle_patience"])
    if last is None:
      return recipe
    begin = last + 1 if use["stage_two_from"] is None else min(last + 1, use["stage_two_from"])
    return build(variant, **{**switches, "stage_two_from": begin, "settle_metric": ""})

  recipe = recipe_lib.Recipe(
    name="when_to_search",
    prompt=prompt,
    parser=parser,
    play=play,
    stops=STOPS,
    score=reward.score,
    weights=reward.weights,
    outcome=reward.outcome,
    switches=use,
    follow=follow if use["settle_metric"] else None,
    searches=use["max_searches"] > 0,
  )
  return recipe
