"""Warnings from a run's metrics: signs that the run learns nothing or becomes unstable."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ragrl_jax.recipes.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class Limits:
  """Thresholds of the warnings. Shares are in 0..1. A metric's start is its median over the first `first` steps
  that trained the policy.

  Attributes:
    first: number of steps that define the start, at least 1.
    entropy_floor: lowest entropy in nats per token; below it the policy has stopped exploring.
    entropy_share: entropy below this share of its start has collapsed; above start / entropy_share it has exploded.
    kl_ceiling: highest KL to the reference, nats per token.
    length_share: shortest responses as a share of their start; the longest are start / length_share.
    zero_advantage_share: highest share of trained tokens with advantage 0.
    mask_coverage_floor: lowest share of trained tokens among all tokens.
    spread_share: lowest share of groups with a spread at the first step.
    mismatch_ceiling: highest mean |learner's - sampler's log-probability|, nats.
    clip_ceiling: highest share of clipped tokens.
  """

  first: int = 5
  entropy_floor: float = 0.01
  entropy_share: float = 0.2
  kl_ceiling: float = 1.0
  length_share: float = 0.33
  zero_advantage_share: float = 0.9
  mask_coverage_floor: float = 0.02
  spread_share: float = 0.05
  mismatch_ceiling: float = 0.05
  clip_ceiling: float = 0.3


def kept(history: Sequence[Mapping[str, float]], metrics: Mapping[str, float]) -> list[Mapping[str, float]]:
  """The history with a further step, but only what `warnings` reads of it: the start of the run and the last step.

  A history of all steps would grow as long as the run lasts.
  """
  earlier = _starting(history, Limits.first)
  return [*(earlier or history[:1]), metrics]


def start(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, float]]:
  """The history of a run that is resumed, from the rows of its earlier steps, oldest first."""
  known = lambda row: {name: value for name, value in row.items() if value is not None}  # None: it was not finite
  steps = [known(row) for row in rows if row["step"]]
  return _starting(steps, Limits.first) or steps[:1]


def _starting(rows: Sequence[Mapping[str, float]], count: int) -> list[Mapping[str, float]]:
  """The first rows of steps that trained the policy. The others do not show how it began."""
  return [row for row in rows if "entropy" in row and row.get("groups/trained") != 0][:count]


def warnings(
  history: Sequence[Mapping[str, float]],
  *,
  searches_expected: bool = False,
  switches: Collection[str] = (),
  limits: Limits | None = None,
) -> dict[str, str]:
  """The warnings about the last step, {name: message}; empty if there are none.

  A step without any search, or with advantages that are all 0, gives a warning at once: such a run trains nothing, and
  no other sign shows it. Warnings that compare with the start of the run come after `limits.first` steps that
  trained the policy.

  Args:
    history: the metrics of every step so far, oldest first, or of those that `kept` keeps. Missing metrics are ignored.
      Used are zero_advantage_share, searches (mean per episode), entropy, kl, response_tokens (mean per episode),
      mask_coverage, mismatch, clip_fraction, skipped, groups/trained and groups/missing, episodes and unscorable.
    searches_expected: whether the recipe searches.
    switches: the names of the recipe's switches, so that messages name no other.
    limits: the thresholds; `Limits()` if None.
  """
  if not history:
    return {}
  limits, now, found = limits or Limits(), history[-1], {}

  def say(name: str, wrong: bool | None, message: str) -> None:
    if wrong:
      found[name] = message

  get = now.get
  if get("groups/trained") == 0:
    say(
      "no_groups",
      True,
      f"none of the {get('groups/drawn', 0):.0f} groups drawn had a spread: the step trained on nothing and left the "
      "parameters as they were. Raise config.rollout.group_size, temperature or filter.max_draws, or choose "
      "questions that are sometimes answered rightly.",
    )
    return found
  if get("episodes") and get("unscorable") == get("episodes"):
    say(
      "nothing_scored",
      True,
      f"none of the {get('episodes', 0):.0f} episodes could be scored: {get('failed_share', 0):.0%} failed, and judges "
      "gave no verdict on the others, so the step trained on nothing. See the log for the tool's or judge's errors.",
    )
    return found
  say(
    "few_groups",
    get("groups/missing", 0) > 0,
    f"{get('groups/draws', 0):.0f} draws found {get('groups/trained', 0):.0f} groups with a spread, "
    f"{get('groups/missing', 0):.0f} fewer than a step needs, so it trained on fewer groups. Raise "
    "config.rollout.filter.max_draws or group_size.",
  )
  everything_zero = get("zero_advantage_share", 0.0) >= 1.0
  say(
    "no_signal",
    everything_zero,
    "every advantage is 0: all samples of each prompt got the same reward, so nothing is learnt. Check whether any "
    "answer is right; raise config.rollout.group_size or temperature, or choose easier questions.",
  )
  say(
    "little_signal",
    not everything_zero and get("zero_advantage_share", 0.0) > limits.zero_advantage_share,
    f"{get('zero_advantage_share', 0):.0%} of the trained tokens have advantage 0: most groups have no spread.",
  )
  say(
    "no_searches",
    searches_expected and get("searches") == 0,
    "no episode called the search tool: check that the prompt asks for it and that its stop string can be sampled, and "
    "read episodes/.",
  )
  say(
    "little_trained",
    "mask_coverage" in now and now["mask_coverage"] < limits.mask_coverage_floor,
    f"only {get('mask_coverage', 0):.1%} of the tokens are trained: the rest are prompts and retrieved text. Lower "
    f"{'config.switches.max_passage_tokens or ' * ('max_passage_tokens' in switches)}config.retrieval.top_k, or raise "
    "config.rollout.context.",
  )
  say(
    "mismatch",
    get("mismatch", 0.0) > limits.mismatch_ceiling,
    f"the learner's log-probabilities are {get('mismatch', 0):.3f} nats off the sampler's: temperature, weights or "
    "dtype differ between them.",
  )
  say(
    "far_from_reference",
    get("kl", 0.0) > limits.kl_ceiling,
    f"KL to the reference is {get('kl', 0):.2f} nats a token: raise config.loss.kl_coef or lower the learning rate.",
  )
  say(
    "clipping",
    get("clip_fraction", 0.0) > limits.clip_ceiling,
    f"{get('clip_fraction', 0):.0%} of the tokens are clipped: lower config.loss.epochs or the learning rate.",
  )
  say(
    "skipped",
    get("skipped", 0.0) > 0,
    "gradient or update was not finite and the step was skipped: parameters and optimiser are as they were.",
  )
  if len(start := _starting(history[:-1], limits.first)) == limits.first:
    _against_first(start, now, limits, say)
  return found


def of_training(
  history: Sequence[Mapping[str, float]], recipe: Recipe, steps: int, *, mixed: bool = True
) -> dict[str, str]:
  """`warnings` as metrics, "warning/NAME" → text, and at the first step warnings of a poor start or too few `steps`.

  Args:
    history: as for `warnings`.
    recipe: searches are expected if it searches; its weights may change with the steps.
    steps: number of steps of the whole run.
    mixed: whether the run mixes easy with hard questions.
  """
  found = warnings(history, searches_expected=recipe.searches, switches=recipe.switches)
  if len(history) == 1 and (few := _few_spreads(history[0])) and "no_signal" not in found:
    found["few_spreads"] = few
  if len(history) == 1 and (cut_short := recipe.cut_short(steps, mixed=mixed)):
    weights = ", ".join(f"{name} {end:g} (later {last:g})" for name, (end, last) in cut_short.items())
    found["schedule"] = (
      f"the run ends before the recipe's schedule does: at step {steps} there is {weights}. Raise config.steps, "
      f"or lower the step in config.switches ({recipe.name}'s README says which one)."
    )
  return {f"warning/{name}": text for name, text in found.items()}


def _few_spreads(row: Mapping[str, float]) -> str:
  """The warning that hardly any group can be learnt from, or ""."""
  share = 1.0 - max(row.get("zero_spread_groups", 0.0), row.get("groups/discarded_share", 0.0))
  if share >= Limits.spread_share:
    return ""
  return (
    f"{share:.1%} of the groups have replies of different rewards, and only those teach. Fine-tune the model first "
    "(`ragrl demonstrate` writes transcripts, `ragrl sft` learns them), raise config.rollout.group_size or "
    "temperature, or choose questions that are sometimes answered rightly."
  )


def _against_first(rows, now, limits, say) -> None:
  """The warnings that compare the last step with the start of the run."""

  def first(name: str) -> float | None:
    values = sorted(step[name] for step in rows if name in step)
    return values[len(values) // 2] if values else None

  entropy, start = now.get("entropy"), first("entropy")
  if entropy is not None and start:
    say(
      "entropy_collapse",
      entropy < limits.entropy_floor or entropy < limits.entropy_share * start,
      f"entropy fell from {start:.3f} to {entropy:.3f} nats a token: the policy has stopped exploring. Raise "
      "config.loss.clip_high, temperature or config.loss.entropy_coef.",
    )
    say(
      "entropy_explosion",
      entropy > start / limits.entropy_share,
      f"entropy rose from {start:.3f} to {entropy:.3f} nats a token: the policy is collapsing. Lower "
      "config.optimizer.learning_rate or raise config.loss.kl_coef.",
    )
  length, start = now.get("response_tokens"), first("response_tokens")
  if length is not None and start:
    say(
      "length",
      not limits.length_share * start <= length <= start / limits.length_share,
      f"responses went from {start:.0f} to {length:.0f} tokens: read episodes/ before continuing.",
    )
  searches, start = now.get("searches"), first("searches")
  if searches is not None and start:
    say(
      "searches_vanish",
      searches < limits.length_share * start,
      f"searches per episode fell from {start:.2f} to {searches:.2f}: the policy is learning not to search.",
    )
