"""Who holds which cache row: conversations, prompts shared by a group, and rows lent to the host."""

import dataclasses
from typing import Any

import numpy as np

NO_ROW = -1


@dataclasses.dataclass(eq=False)
class Group:
  """The samples of one prompt. `left` counts those whose first conversation has not yet taken its copy."""

  left: int


@dataclasses.dataclass(eq=False)
class Talk:
  """A conversation as the engine sees it. Its maker appends to `ids` between turns; the rest is the engine's.

  Attributes:
    ids: every token so far. All but the last must be in the cache before the next one can be drawn.
    key: two int32: what its random numbers are drawn with.
    family: whose it is: the conversations of one episode have one.
    nested: its family has other conversations, which may be waiting for it.
    group: of the samples that begin with the same ids, if it is its sample's first conversation.
    parent: the conversation whose first `shared` tokens it begins with.
    cached: tokens in the cache.
    settled: `cached` as it was when the last turn ended.
    row: its place, or NO_ROW.
    saved: its row, kept on the host while its place is lent.
    busy: a turn is under way.
    heirs: forks that have yet to copy from it.
  """

  ids: list[int]
  key: tuple[int, int]
  family: Any = None
  nested: bool = False
  group: Group | None = None
  parent: "Talk | None" = None
  shared: int = 0
  cached: int = 0
  settled: int = 0
  row: int = NO_ROW
  saved: Any = None
  busy: bool = False
  closed: bool = False
  heirs: int = 0

  @property
  def missing(self) -> int:
    """Tokens that have to be taken in before the next one can be drawn."""
    return len(self.ids) - 1 - self.cached


class Rows:
  """Gives out cache rows 0 … rows − 1, and prompt rows after them. Host bookkeeping only.

  Attributes:
    seated: conversations with a row, the longest unused first.
    fills: prompts whose own rows have yet to be computed.
    copies: (from, to, tokens): rows to be copied once that is done.
    freed: (free list, row): free once the copies are done.
  """

  def __init__(self, rows: int, prompts: int):
    self._free = list(range(rows))[::-1]
    self._free_prompts = list(range(rows, rows + prompts))[::-1]
    self._prompts: dict[tuple[int, tuple[int, ...]], tuple[Group, Talk]] = {}
    self.seated: dict[Talk, None] = {}
    self.fills: list[Talk] = []
    self.copies: list[tuple[int, int, int]] = []
    self.freed: list[tuple[list[int], int]] = []

  @property
  def free(self) -> int:
    """Rows that nobody has."""
    return len(self._free)

  def give(self, talk: Talk) -> bool:
    """A free row for the conversation, if there is one."""
    if not self._free:
      return False
    talk.row = self._free.pop()
    self.seated[talk] = None
    return True

  def take(self, talk: Talk) -> None:
    """Frees the conversation's row, as soon as nothing has to be copied from it any more."""
    if talk.row != NO_ROW:
      self.freed.append((self._free, talk.row))
      talk.row = NO_ROW
      del self.seated[talk]
      if not self.copies:
        self.settle()

  def settle(self) -> None:
    """The copies are done: what they were made from is free."""
    for free, row in self.freed:
      free.append(row)
    self.fills, self.copies, self.freed = [], [], []

  def touch(self, talk: Talk) -> None:
    del self.seated[talk]
    self.seated[talk] = None

  def lender(self, family: Any) -> Talk | None:
    """An idle conversation whose row can be lent: of the same family if there is one, else the longest unused."""
    idle = [t for t in self.seated if not t.busy]
    return next((t for t in idle if t.family is family), idle[0] if idle else None)

  def prompt(self, talk: Talk) -> Talk | None:
    """The row that this conversation's prompt is copied from, filled by then; None if it computes its own."""
    key = (id(talk.group), tuple(talk.ids))
    if key not in self._prompts and talk.group.left > 1 and self._free_prompts and talk.missing:
      own = Talk(list(talk.ids), talk.key, row=self._free_prompts.pop())
      self._prompts[key] = (talk.group, own)
      self.fills.append(own)
    return self._prompts.get(key, (None, None))[1]

  def leave(self, group: Group) -> None:
    """One sample fewer will ask for the group's prompt; after the last one its row is free."""
    group.left -= 1
    if group.left <= 0:
      for key in [k for k, (owner, _) in self._prompts.items() if owner is group]:
        self.freed.append((self._free_prompts, self._prompts.pop(key)[1].row))
      if not self.copies:
        self.settle()

  @property
  def short_of_prompts(self) -> bool:
    """Whether every prompt row is in use, but some will be free once the copies are done."""
    return not self._free_prompts and any(free is self._free_prompts for free, _ in self.freed)

  @property
  def prompts(self) -> int:
    """Prompt rows in use."""
    return len(self._prompts)


def extension(talks: list[Talk], rows: int, width: int, absent: int) -> tuple[np.ndarray, np.ndarray]:
  """The (tokens [n, P], table [n, 3]) that take the next tokens of up to n conversations into the cache."""
  tokens, table = np.zeros((rows, width), np.int32), np.zeros((rows, 3), np.int32)
  table[:, 0] = absent
  for i, talk in enumerate(talks):
    count = min(talk.missing, width)
    tokens[i, :count] = talk.ids[talk.cached : talk.cached + count]
    table[i] = talk.row, talk.cached, count
  return tokens, table
