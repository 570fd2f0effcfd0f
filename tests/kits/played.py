"""Plays evaluations without a model: a function gives the episode of each question."""

import dataclasses
from collections.abc import Callable, Generator, Sequence

from ragrl_jax import structs
from ragrl_jax.rollout.collect import Request


def by_example(episode: Callable[[structs.Example], structs.Episode]):
  """A play for `evaluation.harness` that calls `episode` for one question after the other."""

  def play(asked: Sequence[Sequence[Request]], at_once: int) -> Generator[structs.Episode, None, None]:
    del at_once
    for request in (request for group in asked for request in group):
      numbers: dict = dict(prompt_index=request.prompt_index, sample=request.sample, example_id=request.example.id)
      yield dataclasses.replace(episode(request.example), **numbers)

  return play
