"""Episodes with their rewards: what training learns from, and what logs and tables show."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from ragrl_jax import structs
from ragrl_jax.core import advantages


@dataclasses.dataclass(frozen=True)
class Scored:
  """One episode with what it is worth.

  Attributes:
    terms: unweighted; None where one cannot be scored.
    weights: what weighs each term at this step.
    reward: the weighted sum; None if the episode failed or cannot be scored: it is then trained on by nobody.
    outcome: unshaped correctness, 0 or 1; None if the episode failed.
    advantage: in reward deviations; 0 where reward is None.
  """

  example: structs.Example
  episode: structs.Episode
  terms: Mapping[str, float | None]
  weights: Mapping[str, float]
  reward: float | None
  outcome: float | None
  advantage: float = 0.0


def score(recipe, examples: Sequence[structs.Example], episodes: Sequence[structs.Episode], step: int) -> list[Scored]:
  """Scores each episode for its example (aligned sequences), with the recipe's weights at this step."""
  weights = recipe.weights(step)
  scored = []
  for example, episode in zip(examples, episodes, strict=True):
    if episode.ended == "failed":
      scored.append(Scored(example, episode, dict.fromkeys(weights), weights, None, None))
      continue
    terms = recipe.score(example, episode)
    scored.append(Scored(
      example, episode, terms, weights, recipe.reward(terms, step), recipe.outcome(example, episode)))
  return scored


def with_advantages(scored: Sequence[Scored], settings) -> list[Scored]:
  """Fills in the advantages. What has no reward leaves its group's statistics.

  Args:
    scored: whole groups; episodes of one prompt share `prompt_index`.
    settings: config.advantage.

  Raises:
    ValueError: an advantage kind that is not known.
  """
  kinds = {
    "group_relative": lambda rewards, groups: advantages.group_relative(
      rewards, groups, std=settings.std, std_floor=settings.std_floor, eps=settings.eps),
    "leave_one_out": advantages.leave_one_out,
  }
  if settings.kind not in kinds:
    raise ValueError(f"config.advantage.kind={settings.kind!r}: it must be one of {sorted(kinds)}.")
  known = [i for i, one in enumerate(scored) if one.reward is not None]
  values = np.zeros(len(scored), np.float32)
  if known:
    rewards = jnp.asarray([scored[i].reward for i in known], jnp.float32)
    groups = jnp.asarray([scored[i].episode.prompt_index for i in known], jnp.int32)
    values[known] = np.asarray(kinds[settings.kind](rewards, groups))
  return [dataclasses.replace(one, advantage=float(value)) for one, value in zip(scored, values)]


def summarise(scored: Sequence[Scored]) -> dict[str, float]:
  """The step's means over episodes that could be scored, and how many could not."""
  known = [one for one in scored if one.reward is not None]
  groups: dict[int, list[Scored]] = {}
  for one in known:
    groups.setdefault(one.episode.prompt_index, []).append(one)
  mean = lambda values: float(np.mean(values)) if len(values) else float("nan")
  metrics = {
    "reward": mean([one.reward for one in known]),
    "outcome": mean([one.outcome for one in known]),
    "searches": mean([one.episode.num_searches for one in known]),
    "response_tokens": mean([sum(len(s.ids) for s in one.episode.turns if s.owner == structs.MODEL) for one in known]),
    "episode_tokens": mean([one.episode.num_tokens for one in known]),
    "advantage_abs": mean([abs(one.advantage) for one in known]),
    "zero_spread_groups": mean([len({one.reward for one in group}) == 1 for group in groups.values()]),
    "failed_share": mean([one.episode.ended == "failed" for one in scored]),
    "unscorable": float(len(scored) - len(known)),
    "episodes": float(len(scored)),
  }
  for name in scored[0].weights if scored else ():
    metrics[f"term/{name}"] = mean([one.terms[name] for one in known if one.terms[name] is not None])
    metrics[f"weight/{name}"] = float(scored[0].weights[name])
  for why in sorted({one.episode.ended for one in scored}):
    metrics[f"ended/{why or 'unknown'}"] = mean([one.episode.ended == why for one in scored])
  return metrics
