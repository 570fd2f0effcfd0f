"""Episodes with their rewards: what training learns from, and what logs and tables show."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ragrl_jax import structs


@dataclasses.dataclass(frozen=True)
class Scored:
  """One episode with what it is worth.

  Attributes:
    terms: unweighted; None where one cannot be scored.
    weights: what weighs each term at this step.
    reward: the weighted sum; None if the episode failed or cannot be scored: it is then trained on by nobody.
    outcome: unshaped correctness, 0 or 1; None if the episode failed, or if a judge's verdict on it is missing.
    turns: what each model segment earned, adding up to the reward; empty where that is None.
    advantage: mean over the episode's trained tokens; None where reward is, and before the learner has found it.
  """

  example: structs.Example
  episode: structs.Episode
  terms: Mapping[str, float | None]
  weights: Mapping[str, float]
  reward: float | None
  outcome: float | None
  turns: tuple[float, ...] = ()
  advantage: float | None = None


def score(
  recipe,
  examples: Sequence[structs.Example],
  episodes: Sequence[structs.Episode],
  step: int,
  *,
  penalty: Callable[[structs.Episode], float] | None = None,
) -> list[Scored]:
  """Scores each episode for its example (aligned sequences), with the recipe's weights at this step.

  Args:
    recipe: what its terms, weights and outcome are.
    examples, episodes: aligned.
    step: of the run.
    penalty: episode → a number ≤ 0 that is added to every reward, shown as the term "overlong".
  """
  weights = dict(recipe.weights(step)) | ({} if penalty is None else dict(overlong=1.0))
  return [
    _scored(recipe, example, episode, step, weights, penalty)
    for example, episode in zip(examples, episodes, strict=True)
  ]


def _scored(recipe, example, episode, step, weights, penalty) -> Scored:
  if episode.ended == "failed":
    return Scored(example, episode, dict.fromkeys(weights), weights, None, None)
  terms, outcome = dict(recipe.score(example, episode)), recipe.outcome(example, episode)
  reward = recipe.reward(terms, step)
  if penalty is not None:
    terms["overlong"] = penalty(episode)
    reward = None if reward is None else reward + terms["overlong"]
  turns = () if reward is None else _turns(recipe, example, episode, weights, reward)
  return Scored(example, episode, terms, weights, reward, outcome, turns)


def _turns(recipe, example, episode, weights, reward) -> tuple[float, ...]:
  """The reward by model segments: what the recipe credits to single turns there, the rest on the last."""
  number = sum(segment.owner == structs.MODEL for segment in episode.segments)
  earned = np.zeros(number)
  if not number:
    return ()
  for name, shares in (recipe.credit(example, episode) if recipe.credit else {}).items():
    earned += weights[name] * np.asarray(shares)
  earned[-1] += reward - earned.sum()
  return tuple(earned.tolist())


def measure(
  recipe,
  metric: str,
  examples: Sequence[structs.Example],
  episodes: Sequence[structs.Episode],
  step: int,
  *,
  penalty: Callable[[structs.Episode], float] | None = None,
) -> list[float | None]:
  """What dynamic sampling looks at: each episode's outcome, or its whole reward ("total").

  None for an episode that cannot be trained on, since a term is unknown or it has no token of the model's, and where
  the outcome that is asked for is unknown.
  """
  scored = score(recipe, examples, episodes, step, penalty=penalty)
  return [
    None
    if one.reward is None or not one.episode.num_model_tokens
    else one.outcome
    if metric == "outcome"
    else one.reward
    for one in scored
  ]


def summarise(scored: Sequence[Scored]) -> dict[str, float]:
  """The step's means over episodes that could be scored, and how many could not."""
  known = [one for one in scored if one.reward is not None]
  groups: dict[int, list[Scored]] = {}
  for one in known:
    groups.setdefault(one.episode.prompt_index, []).append(one)
  mean = lambda values: float(np.mean(values)) if len(values) else float("nan")
  metrics = {
    "reward": mean([one.reward for one in known]),
    "outcome": mean([one.outcome for one in known if one.outcome is not None]),
    "searches": mean([one.episode.num_searches for one in known]),
    "response_tokens": mean([one.episode.num_model_tokens for one in known]),
    "episode_tokens": mean([one.episode.num_tokens for one in known]),
    "advantage_abs": mean([abs(one.advantage) for one in known if one.advantage is not None]),
    "zero_spread_groups": mean([len({one.reward for one in group}) == 1 for group in groups.values()]),
    "failed_share": mean([one.episode.ended == "failed" for one in scored]),
    "unscorable": float(len(scored) - len(known)),
    "unjudged": float(sum(one.outcome is None and one.episode.ended != "failed" for one in scored)),
    "episodes": float(len(scored)),
  }
  for name in scored[0].weights if scored else ():
    metrics[f"term/{name}"] = mean([one.terms[name] for one in known if one.terms[name] is not None])
    metrics[f"weight/{name}"] = float(scored[0].weights[name])
  for why in sorted({one.episode.ended for one in scored}):
    metrics[f"ended/{why or 'unknown'}"] = mean([one.episode.ended == why for one in scored])
  return metrics
