"""Warnings from a run's metrics: signs that the run learns nothing or becomes unstable."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ragrl_jax.recipes.recipe import Recipe

FIRST = 5  # steps that trained the policy, whose medians show how the run began
RISE = 0.15  # of the share of replies with a known trick; in healthy runs it was .10 at most (benchmarks/LOG.md)
TRICKS = "unearned/"

# Name, whether a step's metrics show it, message. A metric that is missing shows nothing. "first/NAME" is the metric's
# median at the start of the run, for entropy, response_tokens and searches. With one of ALONE the others mean nothing.
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
    lambda m: m["zero_advantage_share"] >= 1.0,
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
    lambda m: m["spreads"] < 0.05 and not m["zero_advantage_share"] >= 1.0,
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
    "skipped",
    lambda m: m["skipped"] > 0,
    "gradient or update was not finite and the step was skipped: parameters and optimiser are as they were.",
  ),
  (
    "entropy_collapse",
    lambda m: m["first/entropy"] > 0 and m["entropy"] < max(0.01, 0.2 * m["first/entropy"]),
    "entropy fell from {first/entropy:.3f} to {entropy:.3f} nats a token: the policy has stopped exploring. Raise "
    "config.loss.clip_high, temperature or config.loss.entropy_coef.",
  ),
  (
    "entropy_explosion",
    lambda m: m["entropy"] > 5.0 * m["first/entropy"],
    "entropy rose from {first/entropy:.3f} to {entropy:.3f} nats a token: the policy is collapsing. Lower "
    "config.optimizer.learning_rate or raise config.loss.kl_coef.",
  ),
  (
    "length",
    lambda m: (
      m["response_tokens"] < m["first/response_tokens"] / 3 or m["response_tokens"] > 3 * m["first/response_tokens"]
    ),
    "responses went from {first/response_tokens:.0f} to {response_tokens:.0f} tokens: read episodes/ before you go on.",
  ),
  (
    "searches_vanish",
    lambda m: m["searches"] < m["first/searches"] / 3,
    "searches per episode fell from {first/searches:.2f} to {searches:.2f}: the policy is learning not to search.",
  ),
  (
    "unearned",
    lambda m: bool(m.get("tricks")),
    "more and more replies use a trick that earns reward without the work: {tricks}. Read such replies in episodes/, "
    "and the recipe's README.md under 'Unearned reward'{guard}.",
  ),
)


class _Metrics(dict):
  def __missing__(self, name: str) -> float:
    return math.nan  # no comparison with it is true


def kept(history: Sequence[Mapping[str, float]], metrics: Mapping[str, float]) -> list[Mapping[str, float]]:
  """The history with a further step, but only what `warnings` reads of it: the start of the run and the last step.

  A history of all steps would grow as long as the run lasts.
  """
  earlier = _starting(history)
  return [*(earlier or history[:1]), metrics]


def start(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, float]]:
  """The history of a run that is resumed, from the rows of its earlier steps, oldest first."""
  known = lambda row: {name: value for name, value in row.items() if value is not None}  # None: it was not finite
  steps = [known(row) for row in rows if row["step"]]
  return _starting(steps) or steps[:1]


def _starting(rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
  """The first rows of steps that trained the policy. The others do not show how it began."""
  return [row for row in rows if "entropy" in row and row.get("groups/trained") != 0][:FIRST]


def warnings(
  history: Sequence[Mapping[str, float]], *, searches_expected: bool = False, switches: Collection[str] = ()
) -> dict[str, str]:
  """The warnings about the last step, {name: message}; empty if there are none.

  A step without any search, or with advantages that are all 0, gives a warning at once: such a run trains nothing, and
  no other sign shows it. Warnings that compare with the start of the run come after FIRST steps that trained the
  policy.

  Args:
    history: the metrics of every step so far, oldest first, or of those that `kept` keeps.
    searches_expected: whether the recipe searches.
    switches: the names of the recipe's switches, so that messages name no other.
  """
  if not history:
    return {}
  now = _Metrics(history[-1], searches_expected=searches_expected)
  now["guard"] = "; config.switches.guarded=True pays nothing for it" * ("guarded" in switches)
  now["shown"] = "config.switches.max_passage_tokens or " * ("max_passage_tokens" in switches)
  if len(history) == 1:
    now["spreads"] = 1.0 - max(now.get("zero_spread_groups", 0.0), now.get("groups/discarded_share", 0.0))
  elif len(rows := _starting(history[:-1])) == FIRST:
    tricks = [name for name in now if name.startswith(TRICKS)]
    for name in ("entropy", "response_tokens", "searches", *tricks):
      values = sorted(row[name] for row in rows if name in row)
      if values and ((start := values[len(values) // 2]) or name in tricks):
        now[f"first/{name}"] = start
    now["tricks"] = ", ".join(
      f"{name.removeprefix(TRICKS)} rose from {now[f'first/{name}']:.0%} to {now[name]:.0%} of the replies"
      for name in tricks
      if now[name] > now[f"first/{name}"] + RISE
    )
  shown = lambda signs: {name: text.format_map(now) for name, shows, text in signs if shows(now)}
  return shown(ALONE) or shown(SIGNS)


def of_training(
  history: Sequence[Mapping[str, float]], recipe: Recipe, steps: int, *, mixed: bool = True
) -> dict[str, str]:
  """`warnings` as metrics, "warning/NAME" → text, and at the first step a warning of too few `steps`.

  Args:
    history: as for `warnings`.
    recipe: searches are expected if it searches; its weights may change with the steps.
    steps: number of steps of the whole run.
    mixed: whether the run mixes easy with hard questions.
  """
  found = warnings(history, searches_expected=recipe.searches, switches=recipe.switches)
  if len(history) == 1 and (cut_short := recipe.cut_short(steps, mixed=mixed)):
    weights = ", ".join(f"{name} {end:g} (later {last:g})" for name, (end, last) in cut_short.items())
    found["schedule"] = (
      f"the run ends before the recipe's schedule does: at step {steps} there is {weights}. Raise config.steps, "
      f"or lower the step in config.switches ({recipe.name}'s README says which one)."
    )
  return {f"warning/{name}": text for name, text in found.items()}
