"""Flags of the commands that retrieve passages for questions without passages."""

import dataclasses
import functools
from collections.abc import Sequence

from absl import flags

from ragrl_jax import retrieval, structs
from ragrl_jax.cli import commands
from ragrl_jax.run import questions

INDEX = flags.DEFINE_string("index", "", "Folder of an index, or the address of a retriever or a database.")
OWN = flags.DEFINE_bool(
  "own_passages", True, "--noown_passages: drop the questions' own; recall with --index does, unless this is given."
)
TOP_K = flags.DEFINE_integer("top_k", 5, "Passages to retrieve per question.", lower_bound=1)


@functools.cache
def retriever():
  """The retriever of --index."""
  return retrieval.load_index(INDEX.value)


def with_passages(examples: "Sequence[structs.Example]", *, own: bool | None = None) -> "list[structs.Example]":
  """The examples. With an index, examples without passages get retrieved ones.

  Args:
    own: whether they keep their own passages; None: unless --noown_passages is given.
  """
  if not (OWN.value if own is None else own):
    examples = [questions.without_passages(example) for example in examples]
  without = [number for number, example in enumerate(examples) if not example.passages]
  if not INDEX.value or not without:
    return list(examples)
  result = list(examples)
  found = commands.searched(retriever(), [examples[number].question for number in without], TOP_K.value)
  for number, passages in zip(without, found, strict=True):
    result[number] = dataclasses.replace(examples[number], passages=tuple(passages))
  return result
