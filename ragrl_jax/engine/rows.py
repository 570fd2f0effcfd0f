"""Which conversation holds which cache row, and which prompts are kept for their groups. Host bookkeeping only."""

import numpy as np

from ragrl_jax.engine.conversations import NO_ROW, ConversationState
from ragrl_jax.engine.messages import Group

PROMPT = -1  # the number of a row that holds a group's prompt: no caller knows it


class Rows:
  """Gives out the cache rows 0 … rows − 1 to conversations, and the `prompts` rows after them to shared prompts.

  Copies and prefills are only noted here. `KVCache.run_copies` runs them together, and then calls `finish_copies`.

  Attributes:
    absent: a row number past all rows: writes to it are dropped.
    resident: conversations with a row, the least recently used first.
    prompt_fills: prompts whose rows have yet to be computed.
    copies: (from row, to row, tokens), to be run after the fills.
  """

  def __init__(self, rows: int, prompts: int):
    self.absent = rows + prompts
    self._free = list(range(rows))[::-1]
    self._free_prompts = list(range(rows, rows + prompts))[::-1]
    # Samples of one group may begin with different ids (a play may edit its prompt), so the ids are part of the key.
    self._prompts: dict[tuple[Group, tuple[int, ...]], ConversationState] = {}
    self._left: dict[Group, int] = {}  # samples that have not left their group; without an entry, all
    self.resident: dict[ConversationState, None] = {}  # a dict keeps the order in which they were used
    self.prompt_fills: list[ConversationState] = []
    self.copies: list[tuple[int, int, int]] = []
    self._pending_free: list[tuple[list[int], int]] = []  # (free list, row): free once the copies are done

  @property
  def free(self) -> int:
    """Conversation rows that nobody holds."""
    return len(self._free)

  @property
  def prompts(self) -> int:
    """Prompt rows in use."""
    return len(self._prompts)

  @property
  def prompt_row_is_pending(self) -> bool:
    """Whether no prompt row is free, but one will be once the copies are done."""
    return not self._free_prompts and any(free is self._free_prompts for free, _ in self._pending_free)

  # ---- conversations -------------------------------------------------------------------------------------------------

  def acquire(self, conversation: ConversationState) -> bool:
    """Gives the conversation a free row. False if there is none."""
    if not self._free:
      return False
    conversation.row = self._free.pop()
    self.resident[conversation] = None
    return True

  def release(self, conversation: ConversationState) -> None:
    """Frees the conversation's row, if it has one, once no copy reads it any more."""
    if conversation.row != NO_ROW:
      self._pending_free.append((self._free, conversation.row))
      conversation.row = NO_ROW
      del self.resident[conversation]
      self._free_if_unread()

  def touch(self, conversation: ConversationState) -> None:
    """Makes the conversation the most recently used one."""
    del self.resident[conversation]
    self.resident[conversation] = None

  def victim(self, episode: int | None) -> ConversationState | None:
    """The idle conversation to swap out: one of the episode if there is one, else the least recently used."""
    idle = [c for c in self.resident if c.turn is None]
    return next((c for c in idle if c.episode == episode), idle[0] if idle else None)

  # ---- prompts -------------------------------------------------------------------------------------------------------

  def prompt_of(self, conversation: ConversationState) -> ConversationState | None:
    """The row that the conversation copies its group's prompt from; None if it computes the prompt itself."""
    group = conversation.group
    if group is None:
      return None
    key = group, tuple(conversation.ids)
    # The last sample of a group gains nothing from a row that only it would copy.
    shared = self._left.get(group, group.size) > 1
    if key not in self._prompts and shared and self._free_prompts and conversation.missing:
      row = self._free_prompts.pop()
      own = ConversationState(PROMPT, list(conversation.ids), conversation.key, episode=PROMPT, row=row)
      self._prompts[key] = own
      self.prompt_fills.append(own)
    return self._prompts.get(key)

  def leave(self, group: Group) -> None:
    """One sample leaves the group. After the last one the prompt's row is free."""
    left = self._left.pop(group, group.size) - 1
    if left > 0:
      self._left[group] = left
      return
    for key in [key for key in self._prompts if key[0] == group]:
      self._pending_free.append((self._free_prompts, self._prompts.pop(key).row))
    self._free_if_unread()

  # ---- copies --------------------------------------------------------------------------------------------------------

  def finish_copies(self) -> None:
    """The noted fills and copies are done: the rows that only they still read are free."""
    for free, row in self._pending_free:
      free.append(row)
    self.prompt_fills, self.copies, self._pending_free = [], [], []

  def _free_if_unread(self) -> None:
    if not self.copies:
      self.finish_copies()


def extension(
  conversations: list[ConversationState], rows: int, width: int, absent: int
) -> tuple[np.ndarray, np.ndarray]:
  """The (tokens [n, P], table [n, 3]) that have `extend` prefill the next tokens of up to n = `rows` conversations."""
  tokens, table = np.zeros((rows, width), np.int32), np.zeros((rows, 3), np.int32)
  table[:, 0] = absent
  for i, conversation in enumerate(conversations):
    # Of ids a b c d e with a cached, a width of 2 takes b c: row, 1, 2. The newest token, e, is never taken.
    count = min(conversation.missing, width)
    tokens[i, :count] = conversation.ids[conversation.cached : conversation.cached + count]
    table[i] = conversation.row, conversation.cached, count
  return tokens, table
