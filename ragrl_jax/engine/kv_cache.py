"""The keys and values of the open conversations: in cache rows on the device, or swapped out to the host."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ragrl_jax.engine import rows as rows_lib
from ragrl_jax.engine.conversations import NO_ROW, ConversationState
from ragrl_jax.engine.counters import Counters
from ragrl_jax.engine.programs import Programs
from ragrl_jax.models import cache as cache_lib


class KVCache:
  """Seats conversations in cache rows and brings their tokens in: by copy where they are known, else by prefill.

  Args:
    programs: compiled for the cache's shapes.
    allocate: makes the empty cache.
    params: of the decoder. `Engine.load` replaces them.
    rows: rows for conversations.
    prompts: rows for prompts that a group shares.
    widths: {tokens a conversation takes in by one extension: conversations of that extension}.
    block: cache tokens copied at a time.
    max_copies: copies of one program call.

  Attributes:
    cache: the device arrays. Every program that changes them is given them for good, and returns new ones.
    rows: who holds which row.
    counters: what was done is added here.
  """

  def __init__(
    self,
    programs: Programs,
    allocate: Callable[[], cache_lib.Cache],
    params: Any,
    *,
    rows: int,
    prompts: int,
    widths: Mapping[int, int],
    block: int,
    max_copies: int,
  ):
    self.programs, self._allocate, self.params = programs, allocate, params
    self._num_rows, self._num_prompts = rows, prompts
    self._widths, self._block, self._max_copies = widths, block, max_copies
    self.cache = allocate()
    self.counters = Counters()
    self.forget()

  def forget(self) -> None:
    """Nobody holds a row any more. What lies in the cache stays, unread."""
    self.rows = rows_lib.Rows(self._num_rows, self._num_prompts)
    if self.cache.k.is_deleted():  # an interrupted program had been given it
      self.cache = self._allocate()

  def warm_up(self) -> None:
    """Runs every program of this file once, so that none compiles later."""
    for width, n in self._widths.items():
      nobody = rows_lib.extension([], n, width, self.rows.absent)
      self.cache = self.programs.extend(self.params, self.cache, *nobody)
    self.cache = self.programs.copy(self.cache, np.zeros((self._max_copies, 3), np.int32))
    # A row is put back from the device's array and from the host's: each is a compilation of its own.
    row = self.programs.take_row(self.cache, np.int32(0))
    self.cache = self.programs.put_row(self.cache, row, np.int32(0))
    row = cache_lib.to_host(self.programs.take_row(self.cache, np.int32(0)))
    self.cache = self.programs.put_row(self.cache, row, np.int32(0))

  # ---- rows ----------------------------------------------------------------------------------------------------------

  def seat(self, conversation: ConversationState) -> bool:
    """Gives the conversation a row, and in it what is already known of its tokens. False if no row can be had."""
    if not self.rows.acquire(conversation):
      # Only those that somebody may be waiting for push others out: new episodes wait until a row is free.
      waited_for = conversation.has_siblings or conversation.host_copy is not None
      victim = self.rows.victim(conversation.episode) if waited_for else None
      if victim is None:
        return False
      self._swap_out(victim)
      self.rows.acquire(conversation)
    if conversation.host_copy is not None:
      self._put(conversation, conversation.host_copy)
      conversation.host_copy = None
    if conversation.parent is not None:
      self._copy_from(conversation.parent, conversation)
    if conversation.group is not None:
      self._share_prompt(conversation)
    return True

  def release(self, conversation: ConversationState) -> None:
    """Ends an idle conversation: it leaves its group and its parent. Its row is free once its forks have copies."""
    self._leave_group(conversation)
    if conversation.parent is not None:
      self._copy_from(conversation.parent, conversation)
    if not conversation.pending_forks:
      self._drop(conversation)

  def _swap_out(self, victim: ConversationState) -> None:
    """Moves an idle conversation's row to the host. It comes back bit for bit."""
    self.run_copies()  # the row may be the source or the target of a copy
    victim.host_copy = cache_lib.to_host(self.programs.take_row(self.cache, np.int32(victim.row)))
    self.counters.swapped_rows += 1
    self.rows.release(victim)

  def _share_prompt(self, conversation: ConversationState) -> None:
    """Copies the prompt from its group's row, if there is one, and leaves the group."""
    if self.rows.prompt_row_is_pending:
      self.run_copies()
    prompt = self.rows.prompt_of(conversation)
    if prompt is not None:
      conversation.cached = len(conversation.ids) - 1
      self.rows.copies.append((prompt.row, conversation.row, conversation.cached))
      self.counters.shared_tokens += conversation.cached
    self._leave_group(conversation)

  def _leave_group(self, conversation: ConversationState) -> None:
    if conversation.group is not None:
      self.rows.leave(conversation.group)
      conversation.group = None

  def _copy_from(self, parent: ConversationState, fork: ConversationState) -> None:
    """Gives the fork its parent's first tokens, if it has a row to put them in, and parts the two."""
    if fork.row != NO_ROW and fork.shared:
      fork.cached = fork.shared
      if parent.host_copy is not None:
        self._put(fork, parent.host_copy)
      else:
        self.rows.copies.append((parent.row, fork.row, fork.shared))
    fork.parent = None
    parent.pending_forks -= 1
    if parent.closed and not parent.pending_forks:
      self._drop(parent)

  def _drop(self, conversation: ConversationState) -> None:
    self.rows.release(conversation)
    conversation.host_copy = None

  def _put(self, conversation: ConversationState, host_copy: cache_lib.Cache) -> None:
    self.cache = self.programs.put_row(self.cache, host_copy, np.int32(conversation.row))

  # ---- tokens --------------------------------------------------------------------------------------------------------

  def run_copies(self) -> None:
    """Prefills new shared prompts, then runs the noted copies. The rows that only they still read are free then."""
    fills = self.rows.prompt_fills
    while fills := [prompt for prompt in fills if prompt.missing]:
      width = self.width(fills[0])
      self.extend([prompt for prompt in fills if self.width(prompt) == width][: self._widths[width]], width)
    copies = self.rows.copies
    for at in range(0, len(copies), self._max_copies):
      table = np.zeros((self._max_copies, 3), np.int32)
      for i, (source, target, tokens) in enumerate(copies[at : at + self._max_copies]):
        table[i] = source, target, -(-tokens // self._block)  # whole blocks: what follows the tokens is never read
      self.cache = self.programs.copy(self.cache, table)
    self.rows.finish_copies()

  def width(self, conversation: ConversationState) -> int:
    """Width of the extension that takes the conversation's next tokens. It depends on their number alone."""
    # Widths 32 and 8: 40 missing tokens go as 32 + 8, 20 as one of 32, 5 as one of 8.
    return min(width for width in self._widths if width == max(self._widths) or conversation.missing <= width)

  def extend(self, conversations: list[ConversationState], width: int) -> None:
    """Prefills the next tokens, at most `width`, of conversations of one width."""
    tokens, table = rows_lib.extension(conversations, self._widths[width], width, self.rows.absent)
    self.cache = self.programs.extend(self.params, self.cache, tokens, table)
    for i, conversation in enumerate(conversations):
      conversation.cached += int(table[i, 2])
    self.counters.prefilled_tokens += int(table[:, 2].sum())
    self.counters.extensions += 1

  def block_until_ready(self) -> None:
    """Waits for the device, so that prefill's time is not counted as decode's."""
    jax.block_until_ready(self.cache)
