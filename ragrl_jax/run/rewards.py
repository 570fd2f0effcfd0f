"""Episodes with their rewards, for training, logs and tables.

Order of the calls in a training step: `Scorer.score`, `by_prompts`, `items` (for the learner), `with_advantages`.
"""

import concurrent.futures
import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ragrl_jax import structs
from ragrl_jax.core import groups as groups_lib
from ragrl_jax.core.rewards import lengths
from ragrl_jax.learner import advantages, packing
from ragrl_jax.run import detectors, signs as signs_lib
from ragrl_jax.store import episodes as episodes_lib

Penalty = Callable[[structs.Episode], float]  # episode → a number ≤ 0 that is added to its reward


@dataclasses.dataclass(frozen=True)
class Scored:
  """One episode with its reward.

  Attributes:
    terms: unweighted; None for a term that cannot be scored.
    weights: the weight of each term at this step.
    reward: the weighted sum; None if the episode failed or cannot be scored. It is then excluded from training.
    outcome: unshaped correctness, 0 or 1; None if the episode failed, or if a judge's verdict on it is missing.
    turns: the reward of each model segment; their sum is `reward`. Empty if `reward` is None.
    advantages: of the tokens of each model segment. Empty if no token is trained, or before they are computed.
    unearned: known tricks, and whether the episode uses them (`Recipe.unearned`).
    pooled: (sum, number) of terms that are means (`Recipe.pooled`).
    measures: other measures of the recipe (`Recipe.measures`).
    signs: how it is written (signs.py).
  """

  example: structs.Example
  episode: structs.Episode
  terms: Mapping[str, float | None]
  weights: Mapping[str, float]
  reward: float | None
  outcome: float | None
  turns: tuple[float, ...] = ()
  advantages: tuple[np.ndarray, ...] = ()
  unearned: Mapping[str, bool] = dataclasses.field(default_factory=dict)
  pooled: Mapping[str, tuple[float, int]] = dataclasses.field(default_factory=dict)
  measures: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
  signs: Mapping[str, float] = dataclasses.field(default_factory=dict)

  @property
  def watched(self) -> dict[str, float]:
    """What the detectors watch, by the names of its metrics: `signs` and `unearned`."""
    return {**self.signs, **{f"unearned/{trick}": float(used) for trick, used in self.unearned.items()}}

  @property
  def trains(self) -> bool:
    """Whether the episode can be trained on: it has a reward, and at least one sampled token."""
    return self.reward is not None and self.episode.num_model_tokens > 0

  @property
  def advantage(self) -> float | None:
    """Mean over the episode's trained tokens; None without `advantages`."""
    return episodes_lib.mean_advantage(self.advantages)


def overlong(*, limit: int, buffer: int) -> Penalty | None:
  """DAPO's penalty of too many model tokens, see `core.rewards.lengths`. None if there is no limit (0)."""
  if not limit:
    return None
  return lambda episode: lengths.overlong_penalty(episode.num_model_tokens, limit=limit, buffer=buffer)


def score(recipe, examples: Sequence[structs.Example], episodes: Sequence[structs.Episode], step: int) -> list[Scored]:
  """Scores each episode for its example, in the same order, with the recipe's weights at this step."""
  return Scorer().score(recipe, examples, episodes, step)


class Scorer:
  """Scores the episodes of a run, for the filter of dynamic sampling and for training.

  An episode is measured when it ends, beside the others' sampling, or by the filter, sometimes a step before it is
  trained on. What does not depend on the step is then computed only once.

  Args:
    penalty: added to every reward, and shown as the term "overlong".
    metric: what the filter compares: "outcome" or "total".
    tokenizer: gives the text of tokens, for signs; None: without signs.
  """

  def __init__(self, penalty: Penalty | None = None, metric: str = "none", tokenizer=None):
    self._penalty, self._metric, self._tokenizer = penalty, metric, tokenizer
    # (prompt, sample) → recipe, episode, what waits for its terms without weights
    self._measured: dict[tuple[int, int], tuple[Any, structs.Episode, Callable[[], Scored]]] = {}

  def begin(self, thread: concurrent.futures.Executor, recipe, example: structs.Example, episode: structs.Episode):
    """Measures an episode in another thread. `measure` and `score` wait for it, and raise its errors."""
    wait_for = thread.submit(_unweighted, recipe, example, episode, self._tokenizer).result
    self._measured[episode.prompt_index, episode.sample] = recipe, episode, wait_for

  def measure(
    self, recipe, examples: Sequence[structs.Example], episodes: Sequence[structs.Episode], step: int
  ) -> list[float | None]:
    """The value that dynamic sampling compares: each episode's outcome, or its whole reward ("total").

    None if the episode cannot be trained on (`Scored.trains`), or if its outcome is compared and unknown.
    """
    scored = [self._known(recipe, *one) for one in zip(examples, episodes, strict=True)]
    value = lambda one: one.outcome if self._metric == "outcome" else one.reward
    return [value(one) if one.trains else None for one in self._weighted(recipe, scored, step)]

  def score(
    self, recipe, examples: Sequence[structs.Example], episodes: Sequence[structs.Episode], step: int
  ) -> list[Scored]:
    """See `score` above. Forgets what was measured of these prompts and of earlier ones."""
    scored = [self._known(recipe, *one) for one in zip(examples, episodes, strict=True)]
    last = max((episode.prompt_index for episode in episodes), default=math.inf)
    self._measured = {key: one for key, one in self._measured.items() if key[0] > last}
    result = self._weighted(recipe, scored, step)
    if self._tokenizer is None:
      return result
    return [dataclasses.replace(one, signs=one.signs | own) for one, own in zip(result, signs_lib.asked(episodes))]

  def _known(self, recipe, example: structs.Example, episode: structs.Episode) -> Scored:
    """The episode as it was measured, unless it was restored or the recipe has been replaced since."""
    key = episode.prompt_index, episode.sample
    measured_by, measured_episode, result = self._measured.get(key, (None, None, None))
    if measured_by is recipe and measured_episode is episode:
      return result()
    one = _unweighted(recipe, example, episode, self._tokenizer)
    self._measured[key] = recipe, episode, lambda: one
    return one

  def _weighted(self, recipe, scored: Sequence[Scored], step: int) -> list[Scored]:
    weights = dict(recipe.weights(step)) | ({} if self._penalty is None else dict(overlong=1.0))
    return [_weighted(recipe, one, step, weights, self._penalty) for one in scored]


def _unweighted(recipe, example: structs.Example, episode: structs.Episode, tokenizer) -> Scored:
  """What depends neither on the step nor on other episodes: all but weights, rewards and some signs."""
  signs = {} if tokenizer is None else signs_lib.written(recipe.parser, tokenizer, episode)
  if episode.ended == "failed":
    return Scored(example, episode, {}, {}, None, None, signs=signs)
  return Scored(
    example,
    episode,
    terms=recipe.score(example, episode),
    weights={},
    reward=None,
    outcome=recipe.outcome(example, episode),
    unearned={} if recipe.unearned is None else recipe.unearned(example, episode),
    pooled={} if recipe.pooled is None else recipe.pooled(example, episode),
    measures={} if recipe.measures is None else recipe.measures(example, episode),
    signs=signs,
  )


def _weighted(recipe, one: Scored, step: int, weights: Mapping[str, float], penalty: Penalty | None) -> Scored:
  """The episode with the rewards of this step."""
  if one.episode.ended == "failed":
    return dataclasses.replace(one, terms=dict.fromkeys(weights), weights=weights)
  terms, reward = dict(one.terms), recipe.reward(one.terms, step)
  if penalty is not None:
    terms["overlong"] = penalty(one.episode)
    reward = None if reward is None else reward + terms["overlong"]
  turns = () if reward is None else _turns(recipe, one.example, one.episode, weights, reward)
  return dataclasses.replace(one, terms=terms, weights=weights, reward=reward, turns=turns)


def _turns(recipe, example, episode, weights, reward) -> tuple[float, ...]:
  """The reward of each model segment. Rewards that no turn is credited with go to the last segment."""
  number = sum(segment.owner == structs.MODEL for segment in episode.segments)
  turn_rewards = np.zeros(number)
  if not number:
    return ()
  for name, shares in (recipe.credit(example, episode) if recipe.credit else {}).items():
    turn_rewards += weights[name] * np.asarray(shares)
  turn_rewards[-1] += reward - turn_rewards.sum()
  return tuple(turn_rewards.tolist())


def by_prompts(scored: Sequence[Scored], parts: int) -> list[list[Scored]]:
  """Divides the episodes into `parts` lists by prompt, in order, so that groups stay whole."""
  prompts = list(dict.fromkeys(one.episode.prompt_index for one in scored))
  # 5 prompts in 2 parts: numbers 0 0 0 1 1
  part_of = {prompt: number * parts // len(prompts) for number, prompt in enumerate(prompts)}
  return [[one for one in scored if part_of[one.episode.prompt_index] == part] for part in range(parts)]


def items(scored: Sequence[Scored], *, mask_truncated: bool = False) -> list[packing.Item]:
  """The items to pack, in order: one for each conversation of the episodes that train.

  With `mask_truncated` the rewards of episodes that ran out of tokens are compared, and their tokens are not trained.
  """
  return [
    dataclasses.replace(item, trained=not (mask_truncated and one.episode.ended in structs.TRUNCATED))
    for one in scored
    if one.trains
    for item in packing.of_episode(one.episode, one.turns)
  ]


def with_advantages(scored: Sequence[Scored], items: Sequence[packing.Item]) -> list[Scored]:
  """The episodes with the advantages of their tokens, from their `items` in the same order."""
  join = lambda own: np.concatenate([items[number].advantages[items[number].loss_mask] for number in own])
  joined = iter([join(own) for own in advantages.by_episode(items)])
  return [
    dataclasses.replace(one, advantages=_by_segment(one.episode, next(joined))) if one.trains else one for one in scored
  ]


def _by_segment(episode: structs.Episode, tokens: np.ndarray) -> tuple[np.ndarray, ...]:
  """An array of the episode's model tokens, cut into its model segments."""
  sizes = [len(segment.ids) for segment in episode.segments if segment.owner == structs.MODEL]
  return tuple(np.split(tokens, np.cumsum(sizes)[:-1]))


def summarise(scored: Sequence[Scored]) -> dict[str, float]:
  """The step's means over episodes that could be scored, and the number of the others."""
  scorable = [one for one in scored if one.reward is not None]
  groups: dict[int, list[Scored]] = {}
  for one in scorable:
    groups.setdefault(one.episode.prompt_index, []).append(one)
  equal = [groups_lib.equal(one.reward for one in group) for group in groups.values() if len(group) > 1]
  mean = lambda values: float(np.mean(values)) if len(values) else float("nan")
  metrics = {
    "reward": mean([one.reward for one in scorable]),
    "outcome": mean([one.outcome for one in scorable if one.outcome is not None]),
    "searches": mean([one.episode.num_searches for one in scorable]),
    "response_tokens": mean([one.episode.num_model_tokens for one in scorable]),
    "episode_tokens": mean([one.episode.num_tokens for one in scorable]),
    "advantage_abs": mean([abs(one.advantage) for one in scorable if one.advantage is not None]),
    "failed_share": mean([one.episode.ended == "failed" for one in scored]),
    "unscorable": float(len(scored) - len(scorable)),
    "unjudged": float(sum(one.outcome is None and one.episode.ended != "failed" for one in scored)),
    "episodes": float(len(scored)),
  }
  if equal:
    metrics["zero_spread_groups"] = mean(equal)
  for name in scored[0].weights if scored else ():
    metrics[f"term/{name}"] = mean([one.terms[name] for one in scorable if one.terms[name] is not None])
    metrics[f"weight/{name}"] = float(scored[0].weights[name])
  metrics |= {f"pooled/{name}": value for name, value in ratios([one.pooled for one in scorable]).items()}
  for name in dict.fromkeys(name for one in scorable for name in one.measures):
    metrics[f"measure/{name}"] = mean([one.measures[name] for one in scorable if one.measures[name] is not None])
  watched = [one.watched for one in scorable]
  for name in dict.fromkeys(name for one in watched for name in one):
    values = [one[name] for one in watched if name in one]
    if name != "entropy":  # the learner's is not of the drawn tokens alone
      metrics[name] = mean(values)
    if len(values) > 1:
      metrics[detectors.NOISE + name] = float(np.std(values, ddof=1)) / math.sqrt(len(values))
  for why in sorted({one.episode.ended for one in scored}):
    metrics[f"ended/{why or 'unknown'}"] = mean([one.episode.ended == why for one in scored])
  return metrics


def ratios(pooled: Sequence[Mapping[str, tuple[float, int]]]) -> dict[str, float]:
  """Σ sums / Σ numbers of each name over the episodes; without a name whose numbers are all 0."""
  names = dict.fromkeys(name for one in pooled for name in one)
  totals = {name: [sum(one[name][side] for one in pooled if name in one) for side in (0, 1)] for name in names}
  return {name: value / number for name, (value, number) in totals.items() if number}


def write(workdir: pathlib.Path, step: int, scored: Sequence[Scored], tokenizer) -> None:
  """Logs every episode of a training step, with its scores, to `workdir`/episodes/."""
  rows = [
    episodes_lib.row(
      one.example,
      one.episode,
      step=step,
      terms=one.terms,
      weights=one.weights,
      reward=one.reward,
      outcome=one.outcome,
      advantages=one.advantages,
      signs=one.watched,
      tokenizer=tokenizer,
    )
    for one in scored
  ]
  episodes_lib.write_episodes(workdir, step, rows)
