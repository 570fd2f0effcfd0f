"""Credit by information gain: how much likelier a turn's results made the gold answer.

The policy before the update scores the gold answer behind each turn's results, as if it came next. It reads beginnings
of the episodes, so in rows that are trees one forward pass computes every shared token once.

Source: IGPO (arXiv 2510.14967), with its difference of log-probabilities; random results, IG-Search (arXiv 2604.15148).
"""

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ragrl_jax import structs
from ragrl_jax.learner import advantages, packing
from ragrl_jax.run import rewards
from ragrl_jax.settings import Settings


def gained(
  items: Sequence[packing.Item],
  scored: Sequence[rewards.Scored],
  config: Settings,
  tokenizer: Any,
  score: Callable[[Sequence[packing.Item]], Sequence[np.ndarray]],
) -> list[packing.Item]:
  """The items with the gain of each turn, in nats per token of the question's first gold.

  A turn has none if no other one follows it in its conversation, if the answer has no room behind its results, or, with
  config.advantage.gain_over="random", if it found nothing.

  Args:
    score: sequences → the log-probability of each one's tokens under the mask.
  """
  advantage, trained = config.advantage, [one for one in scored if one.trains]
  item_numbers = advantages.by_episode(items)
  gains = [np.full(len(items[numbers[0]].rewards), np.nan, np.float32) for numbers in item_numbers]
  forks: dict[tuple[int, bytes], packing.Item] = {}  # samples of a question have many in common
  end = "" if structs.THOUGHT in advantage.gain_lead else f"{structs.THOUGHT}\n\n"  # of an opened thought
  pairs = []  # (episode, turn, the fork behind its results, the fork that is compared with it)
  for number, one in enumerate(trained):
    answer, golds = _answer(advantage.gain_lead, one.example.golds[0], tokenizer)
    others = _others(one, trained) if advantage.gain_over == "random" else None
    for turn, *contexts in _contexts(one.episode, others, np.asarray(tokenizer.encode(end), np.int32)):
      pair = [_fork(np.concatenate([context, answer]), golds, one.episode.prompt_index) for context in contexts]
      if max(len(fork.tokens) for fork in pair) <= config.rollout.context:
        keys = [(fork.group_id, fork.tokens.tobytes()) for fork in pair]
        forks |= zip(keys, pair)
        pairs.append((number, turn, *keys))
  logprobs = score([*forks.values()]) if forks else []
  mean = {key: values.sum() / forks[key].loss_mask.sum() for key, values in zip(forks, logprobs, strict=True)}
  for number, turn, after, before in pairs:
    gains[number][turn] = mean[after] - mean[before]
  of_item = {at: gain for numbers, gain in zip(item_numbers, gains, strict=True) for at in numbers}
  return [dataclasses.replace(item, gains=of_item[at]) for at, item in enumerate(items)]


def _answer(lead: str, gold: str, tokenizer: Any) -> tuple[np.ndarray, int]:
  """(the ids of the lead and the gold, how many of them are the gold's)."""
  lead_ids, ids = tokenizer.encode(lead), tokenizer.encode(f"{lead}{gold}")
  # The lead's last token may end inside the gold: "<answer> " and "<answer> Ann" may part before the space.
  common = next((n for n, (a, b) in enumerate(zip(lead_ids, ids)) if a != b), min(len(lead_ids), len(ids)))
  return np.asarray(ids, np.int32), max(len(ids) - common, 1)


def _contexts(
  episode: structs.Episode, others: Sequence[Sequence[int]] | None, end: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """(number of a turn, its conversation up to the next turn, what that is compared with).

  Turns are model segments with tokens. They are compared with the conversation before the turn; or, given the results
  of other questions, with one of these in place of the turn's own. In a thought that the chat template opened no answer
  counts: where one is open, `end` ends it.
  """
  turn = 0
  for segments in episode.conversations:
    ids = np.asarray([i for s in segments for i in s.ids], np.int32)
    ends = np.cumsum([len(s.ids) for s in segments])
    turns = [n for n, s in enumerate(segments) if s.owner == structs.MODEL and s.ids]
    for n, after in zip(turns, turns[1:]):
      until, last = ends[after - 1], _end(segments[:after], end)
      whole = np.concatenate([ids[:until], last])
      if others is None:
        yield turn, whole, np.concatenate([ids[: ends[n] - len(segments[n].ids)], _end(segments[:n], end)])
      elif others and any(s.found for s in segments[n:after]):
        draw = random.Random(f"{episode.prompt_index}/{episode.sample}/{turn}")
        yield turn, whole, np.concatenate([ids[: ends[n]], np.asarray(draw.choice(others), np.int32), last])
      turn += 1
    turn += bool(turns)


def _end(segments: Sequence[structs.Segment], end: np.ndarray) -> np.ndarray:
  return end if structs.opened(segments) else end[:0]


def _others(one: rewards.Scored, scored: Sequence[rewards.Scored]) -> list[tuple[int, ...]]:
  """What searches for other questions found."""
  other_episodes = [other.episode for other in scored if other.episode.prompt_index != one.episode.prompt_index]
  return [segment.ids for episode in other_episodes for segment in episode.searches if segment.found]


def _fork(tokens: np.ndarray, golds: int, group: int) -> packing.Item:
  """A sequence whose last `golds` tokens are scored."""
  zeros = np.zeros(len(tokens), np.float32)
  return packing.Item(tokens, np.arange(len(tokens)) >= len(tokens) - golds, zeros, zeros, group, name="a gold")
