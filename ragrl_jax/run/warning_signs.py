"""Warnings about one step's metrics: signs that it learns nothing or is unstable. detectors.py compares steps."""

import math
from collections.abc import Collection, Mapping

from ragrl_jax.recipes.recipe import Recipe

# Name, whether a step's metrics show it, message. A metric that is missing shows nothing. With one of ALONE the others
# mean nothing.
ALONE = (
  (
    "no_groups",
    lambda m: m["groups/trained"] == 0,
    "none of the {groups/drawn:.0f} groups drawn had a spread: the step trained on nothing and left the parameters as "
    "they were. Raise config.rollout.group_size, temperature or filter.max_draws, or choose questions that are "
    "sometimes answered rightly.",
  ),
  (
    "nothing_scored",
    lambda m: m["episodes"] == m["unscorable"] > 0,
    "none of the {episodes:.0f} episodes could be scored: {failed_share:.0%} failed, and judges gave no verdict on the "
    "others, so the step trained on nothing. See the log for the tool's or judge's errors.",
  ),
)
SIGNS = (
  (
    "few_groups",
    lambda m: m["groups/missing"] > 0,
    "{groups/draws:.0f} draws found {groups/trained:.0f} groups with a spread, {groups/missing:.0f} fewer than a step "
    "needs, so it trained on fewer groups. Raise config.rollout.filter.max_draws or group_size.",
  ),
  (
    "no_signal",
    lambda m: m["zero_advantage_share"] >= 1.0 and not m["taught"] > 0,
    "every advantage is 0: all samples of each prompt got the same reward, so nothing is learnt. Check whether any "
    "answer is right; raise config.rollout.group_size or temperature, or choose easier questions.",
  ),
  (
    "little_signal",
    lambda m: 0.9 < m["zero_advantage_share"] < 1.0,
    "{zero_advantage_share:.0%} of the trained tokens have advantage 0: most groups have no spread.",
  ),
  (
    "few_spreads",
    lambda m: m["spreads"] < 0.05 and not (m["zero_advantage_share"] >= 1.0 or m["taught"] > 0),
    "{spreads:.1%} of the groups have replies of different rewards, and only those teach. Fine-tune the model first "
    "(`ragrl demonstrate` writes transcripts, `ragrl sft` learns them), raise config.rollout.group_size or "
    "temperature, or choose questions that are sometimes answered rightly.",
  ),
  (
    "no_searches",
    lambda m: m["searches_expected"] and m["searches"] == 0,
    "no episode called the search tool: check that the prompt asks for it and that its stop string can be sampled, and "
    "read episodes/.",
  ),
  (
    "no_room",
    lambda m: m["searches_expected"] and m["ended/budget"] > 0.05,
    "{ended/budget:.0%} of the episodes ended because config.rollout.context was full: what was found left too little "
    "for another turn, so they have no answer. Raise config.rollout.context, or lower {shown}the number of passages a "
    "search (config.retrieval.top_k, or a switch of the recipe).",
  ),
  (
    "little_trained",
    lambda m: m["mask_coverage"] < 0.02,
    "only {mask_coverage:.1%} of the tokens are trained: the rest are prompts and retrieved text. Lower {shown}"
    "config.retrieval.top_k, or raise config.rollout.context.",
  ),
  (
    "mismatch",
    lambda m: m["mismatch"] > 0.05,
    "the learner's log-probabilities are {mismatch:.3f} nats off the sampler's: temperature, weights or dtype differ "
    "between them.",
  ),
  (
    "far_from_reference",
    lambda m: m["kl"] > 1.0,
    "KL to the reference is {kl:.2f} nats a token: raise config.loss.kl_coef or lower the learning rate.",
  ),
  (
    "clipping",
    lambda m: m["clip_fraction"] > 0.3,
    "{clip_fraction:.0%} of the tokens are clipped: lower config.loss.epochs or the learning rate.",
  ),
  (
    "far_update",
    lambda m: m["old_kl"] > 0.01,  # in healthy runs it was .004 at most (docs/steady.md)
    "the steps on one batch moved the policy by {old_kl:.3f} nats a token, so far that it may collapse: lower "
    "config.loss.epochs, minibatches or config.optimizer.learning_rate.",
  ),
  (
    "skipped",
    lambda m: m["skipped"] > 0,
    "gradient or update was not finite and the step was skipped: parameters and optimiser are as they were.",
  ),
)


class _Metrics(dict):
  def __missing__(self, name: str) -> float:
    return math.nan  # no comparison with it is true


def warnings(
  metrics: Mapping[str, float], *, first: bool = False, searches_expected: bool = False, switches: Collection[str] = ()
) -> dict[str, str]:
  """The warnings about a step, {name: message}; empty if there are none.

  Args:
    switches: the names of the recipe's switches, so that messages name no other.
  """
  numbers = _Metrics(metrics, searches_expected=searches_expected)
  numbers["shown"] = "config.switches.max_passage_tokens or " * ("max_passage_tokens" in switches)
  if first:
    numbers["spreads"] = 1.0 - max(numbers.get("zero_spread_groups", 0.0), numbers.get("groups/discarded_share", 0.0))
  shown_signs = lambda signs: {name: text.format_map(numbers) for name, shows, text in signs if shows(numbers)}
  return shown_signs(ALONE) or shown_signs(SIGNS)


def of_training(
  metrics: Mapping[str, float], recipe: Recipe, step: int, steps: int, *, mixed: bool = True
) -> dict[str, str]:
  """`warnings` as metrics, "warning/NAME" → text, and at the first step a warning of too few `steps`.

  Args:
    recipe: searches are expected unless it gives the passages itself; its weights may change with the steps.
    step: of the metrics, counted from 1.
  """
  policy_searches = recipe.searches and not recipe.needs_passages
  messages = warnings(metrics, first=step == 1, searches_expected=policy_searches, switches=recipe.switches)
  if step == 1 and (cut_short := recipe.cut_short(steps, mixed=mixed)):
    weights = ", ".join(f"{name} {end:g} (later {last:g})" for name, (end, last) in cut_short.items())
    messages["schedule"] = (
      f"the run ends before the recipe's schedule does: at step {steps} there is {weights}. Raise config.steps, "
      f"or lower the step in config.switches ({recipe.name}'s README says which one)."
    )
  return {f"warning/{name}": text for name, text in messages.items()}
