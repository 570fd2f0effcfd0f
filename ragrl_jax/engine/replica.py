"""One replica's conversations: which wait, are in the cache, or sample.

Pages are taken just before they are written to. If none is free, the replica frees pages in this order: it swaps out
idle conversations (of the same episode first, then the least recently used), gives up prompts, and swaps out later
conversations during their turn. So the oldest conversation always makes progress.

Samples of a group often search for the same words and get the same results. A conversation shares the pages of another
one that has prefilled the same tokens after the same history, and computes nothing. The bits are those of computing it
again: the number of missing tokens alone chooses the programs, no row depends on other rows, and the same tokens were
prefilled in both (a sampled token's keys differ from a prefilled one's by rounding).

In a hybrid, a conversation also needs a slot for the memories of its delta layers. Pages can be shared up to any token;
memories are those after all cached tokens, and are copied.
"""

import array
import collections
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ragrl_jax.engine.kv_cache import KVCache
from ragrl_jax.engine.lanes import RUNNING, Chunk, Counters, LaneTable
from ragrl_jax.engine.messages import NO_LANE, NO_SLOT, ConversationState, Group, TurnEnded
from ragrl_jax.engine.pages import Pages, Prompts
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.settings import MAX_PROMPTS


class Replica:
  """Seats conversations, finds pages for their tokens, and fills lanes.

  Args:
    packed: int32 [W, COLUMNS], the engine's lane table. The replica writes to its own lanes.
    table: int32 [W, N], the engine's page table, likewise.
    cache: for swapping and copying.
    counters: count swapped rows and shared tokens.

  Attributes:
    counters: as given; the engine replaces them when it counts anew.
    resident: conversations in the cache, the least recently used first.
    slots: of memories; None for a model without them.
    copies: (from page, to page) pairs to copy before the next program runs.
    memories: likewise, (from slot, to slot).
    joining: conversations that will share a prompt when it is computed.
    prefilled: for each history, the conversations in the cache that have its tokens; a dict keeps their order.
    live: number of lanes that sample.
  """

  def __init__(
    self, number: int, sizes: Sizes, packed: np.ndarray, table: np.ndarray, cache: KVCache, counters: Counters
  ):
    self.number, self._sizes = number, sizes
    lanes = sizes.lanes // sizes.replicas
    own_lanes = slice(number * lanes, (number + 1) * lanes)
    self._lanes, self._table = LaneTable.unpack(packed[own_lanes]), table[own_lanes]  # views
    self._cache, self.counters = cache, counters
    self.pages, self.prompts = Pages(sizes.cache_pages), Prompts()
    self.resident: dict[ConversationState, None] = {}  # a dict keeps the order of use
    self.slots = Pages(cache.slots) if cache.slots else None
    self.copies: list[tuple[int, int]] = []
    self.memories: list[tuple[int, int]] = []
    self.joining: list[tuple[ConversationState, ConversationState]] = []
    self.prefilled: dict[bytes, dict[ConversationState, None]] = {}
    self.live = 0
    self._waiting: collections.deque[ConversationState] = collections.deque()  # new episodes
    self._urgent: list[ConversationState] = []  # other conversations wait for these, or they were swapped out
    self._prefilling: list[ConversationState] = []
    self._ready: collections.deque[ConversationState] = collections.deque()  # for a lane
    self._lane: list[ConversationState | None] = [None] * lanes
    self._arrivals = 0

  # ---- messages ------------------------------------------------------------------------------------------------------

  def fork(self, parent: ConversationState, child: ConversationState) -> None:
    """Lets the child share the idle parent's first tokens, on the device or on the host."""
    # An idle parent has all tokens but the newest in the cache. The fork also needs all but its own newest one.
    child.cached = min(len(child.ids) - 1, parent.cached)
    if self.slots is not None and child.cached < parent.cached:
      child.cached = 0  # the parent's memories have seen more: the child starts anew
    elif self.slots is not None and parent in self.resident and not self.slots.free:
      self._swap_out(parent)  # the child gets the host's copy: computed anew, its numbers would depend on the load
    # A prefill of which it has a part is kept whole: how many tokens were missing chose the programs.
    child.prefills = [(first, last) for first, last in parent.prefills if first < child.cached]
    number = -(-child.cached // self._sizes.page)
    child.swapped = parent.swapped[:number]  # () if the parent is in the cache
    child.memory = parent.memory if number else ()
    if parent in self.resident and number:
      child.pages = self.pages.share(parent.pages[:number])
      self._seat(child)
      self._copy_memory(parent, child)

  def submit(self, conversation: ConversationState) -> None:
    """Accepts a conversation whose turn has started."""
    if conversation in self.resident:
      del self.resident[conversation]
      self.resident[conversation] = None  # the most recently used one
      self._queue(conversation)
    elif conversation.urgent:
      self._urgent.append(conversation)
    else:
      self._waiting.append(conversation)

  def withdraw(self, conversation: ConversationState) -> bool:
    """Whether the conversation was a new episode that waited. Then it waits no longer."""
    waited = conversation in self._waiting
    if waited:
      self._waiting.remove(conversation)
    return waited

  def leave(self, group: Group) -> None:
    """One sample of the group will not share its prompt, or shares it already."""
    for prompt in self.prompts.leave(group):
      self._free(prompt)

  def release(self, conversation: ConversationState) -> None:
    """Ends an idle conversation."""
    self._leave_group(conversation)
    self._unseat(conversation)

  # ---- seats ---------------------------------------------------------------------------------------------------------

  @property
  def can_step(self) -> bool:
    """Whether there is work now. If not, new episodes may still wait."""
    if self.live or self._ready or self._prefilling or self._urgent:
      return True
    return bool(self._waiting) and self._has_room(self._waiting[0])

  def seat(self) -> None:
    """Moves waiting conversations into the cache: first those that others may wait for, then new episodes."""
    for conversation in sorted(self._urgent, key=lambda c: c.arrival or self._arrivals + 1):
      if not self._swap_in(conversation):
        break
      self._urgent.remove(conversation)
    while self._waiting and self._has_room(self._waiting[0]):
      conversation = self._waiting.popleft()
      self._seat(conversation)
      if not self.grow(conversation, 0):  # its slot, if it needs one
        continue
      full = self.slots is not None and len(self.prompts) >= MAX_PROMPTS
      if (prompt := self.prompts.find(conversation, full=full)) is not None:
        # A new prompt gets its pages at once; `_has_room` has checked that there are enough.
        self.grow(prompt, len(prompt.ids) - 1)
        self.joining.append((conversation, prompt))
      else:
        self._leave_group(conversation)
        if self.grow(conversation, len(conversation.ids)):
          self._queue(conversation)

  def join(self) -> None:
    """All prompts are computed now: the conversations that wait for one share its pages."""
    for conversation, prompt in self.joining:
      conversation.pages = self.pages.share(prompt.pages)
      conversation.cached, conversation.prefills = prompt.cached, [(0, prompt.cached - 1)]
      self._copy_memory(prompt, conversation)
      self.counters.shared_tokens += prompt.cached
      self._leave_group(conversation)
      self._queue(conversation)
    self.joining, self.prompts.fills = [], []

  def _leave_group(self, conversation: ConversationState) -> None:
    if conversation.group is not None:
      self.leave(conversation.group)
      conversation.group = None

  def _has_room(self, conversation: ConversationState) -> bool:
    """Whether a new episode may start: no conversation must be swapped out for it now, or in the next chunk."""
    if len(self.resident) >= self._sizes.rows // self._sizes.replicas:
      return False
    if not self.resident:
      return True
    active = self.live + len(self._ready) + len(self._prefilling) + len(self.joining)
    new = 0 if self.prompts.has(conversation) else self._number(len(conversation.ids))
    return self.pages.free > new + active * self._number(self._sizes.ahead)

  def _seat(self, conversation: ConversationState) -> None:
    if not conversation.arrival:
      self._arrivals += 1
      conversation.arrival = self._arrivals
    self.resident[conversation] = None

  def _queue(self, conversation: ConversationState) -> None:
    if conversation.missing:
      conversation.prefills.append((conversation.cached, len(conversation.ids) - 2))
      history = array.array("i", (*itertools.chain(*conversation.prefills), -1, *conversation.ids))
      conversation.histories.append(history.tobytes())
    has_all = not conversation.missing or self._share(conversation)
    (self._ready if has_all else self._prefilling).append(conversation)

  def _share(self, conversation: ConversationState) -> bool:
    """Lets a conversation share what another one has prefilled. False if none in the cache has its history."""
    history, tokens = conversation.histories[-1], len(conversation.ids) - 1
    others = self.prefilled.get(history, {})
    # Memories that have seen more tokens are of no use.
    other = next((c for c in others if self.slots is None or c.cached == tokens), None)
    if other is None or (self.slots is not None and conversation.slot == NO_SLOT):
      return False
    self.counters.shared_tokens += tokens - conversation.cached
    self.pages.release(conversation.pages)
    conversation.pages, conversation.cached = self.pages.share(other.pages[: self._number(tokens)]), tokens
    self._copy_memory(other, conversation)
    others[conversation] = None
    return True

  def _swap_in(self, conversation: ConversationState) -> bool:
    self._seat(conversation)
    if conversation.swapped:
      pages = self._number(conversation.cached)
      if not self._make_room(conversation, lambda: pages):
        del self.resident[conversation]
        return False
      conversation.pages = [self.pages.take() for _ in range(pages)]
      self._take_slot(conversation)
      run_copies([self], self._cache)
      self._cache.put(self.number, conversation.pages, conversation.swapped)
      if conversation.memory:
        self._cache.put_memory(self.number, conversation.slot, conversation.memory)
      conversation.swapped = conversation.memory = ()
    self._queue(conversation)
    return True

  def _swap_out(self, victim: ConversationState) -> None:
    """Moves a conversation to the host. It is restored bit for bit, for its next turn or by its place in the queue."""
    run_copies([self], self._cache)  # its pages may be the source or the target of a copy
    if victim.cached:
      victim.swapped = self._cache.take(self.number, victim.pages[: self._number(victim.cached)])
      if self.slots is not None:
        victim.memory = self._cache.take_memory(self.number, victim.slot)
      self.counters.swapped_rows += 1
    self._unseat(victim)
    victim.urgent = True
    if victim.turn is not None:
      if victim.lane != NO_LANE:
        victim.automaton = int(self._lanes.automaton[victim.lane])
        self.empty(victim)
      for queue in (self._ready, self._prefilling):
        if victim in queue:
          queue.remove(victim)
      self._urgent.append(victim)

  def _unseat(self, conversation: ConversationState) -> None:
    self.resident.pop(conversation, None)
    self._free(conversation)

  def _free(self, conversation: ConversationState) -> None:
    """Frees its pages and its slot."""
    self.pages.release(conversation.pages)
    conversation.pages = []
    for history in conversation.histories:
      others = self.prefilled.get(history, {})
      others.pop(conversation, None)
      if not others:
        self.prefilled.pop(history, None)
    conversation.histories = []
    if self.slots is not None and conversation.slot != NO_SLOT:
      self.memories = [(source, to) for source, to in self.memories if to != conversation.slot]
      self.slots.release([conversation.slot])
      conversation.slot = NO_SLOT

  # ---- pages and slots -----------------------------------------------------------------------------------------------

  def _take_slot(self, conversation: ConversationState) -> None:
    """Gives it a slot, unless it has one or needs none; `_make_room` has found that one is free."""
    if self.slots is not None and conversation.slot == NO_SLOT:
      conversation.slot = self.slots.take()

  def _copy_memory(self, source: ConversationState, target: ConversationState) -> None:
    if self.slots is not None:
      # The copies of a call read before they write, and each writes to another slot.
      if any(to in (source.slot, target.slot) for _, to in self.memories):
        run_copies([self], self._cache)
      self._take_slot(target)
      self.memories.append((source.slot, target.slot))

  def _number(self, tokens: int) -> int:
    """Number of pages for this number of tokens."""
    return -(-tokens // self._sizes.page)

  def grow(self, conversation: ConversationState, tokens: int) -> bool:
    """Makes the positions from `cached` to `tokens` writable. False if there is no room; it is then swapped out."""
    pages, first = conversation.pages, conversation.cached // self._sizes.page

    def copied() -> bool:  # the next token's page has other holders, so it is copied before writing
      return first < len(pages) and tokens > conversation.cached and self.pages.shared(pages[first])

    tokens = min(tokens, self._sizes.table * self._sizes.page)
    if not self._make_room(conversation, lambda: max(0, self._number(tokens) - len(pages)) + copied()):
      self._swap_out(conversation)
      return False
    self._take_slot(conversation)
    if copied():
      page = self.pages.take()
      self.copies.append((pages[first], page))
      self.pages.release([pages[first]])
      pages[first] = page
    pages += [self.pages.take() for _ in range(self._number(tokens) - len(pages))]
    return True

  def _make_room(self, conversation: ConversationState, needed: Callable[[], int]) -> bool:
    """Frees pages, and a slot, until there are enough. The needed number may fall when others leave a shared page."""

    def lacks_slot() -> bool:
      return self.slots is not None and conversation.slot == NO_SLOT and not self.slots.free

    while self.pages.free < needed() or lacks_slot():
      if (victim := self._victim(conversation)) is not None:
        self._swap_out(victim)
      elif (prompt := self.prompts.drop()) is not None:
        self._free(prompt)
      else:
        later = [c for c in self.resident if c.arrival > conversation.arrival and c.pages]
        if not later:
          return False
        self._swap_out(max(later, key=lambda c: c.arrival))
    return True

  def _victim(self, conversation: ConversationState) -> ConversationState | None:
    """The idle conversation to swap out: one of the same episode if there is one, else the least recently used."""
    idle = [c for c in self.resident if c.turn is None and c.pages and c is not conversation]  # each has a slot, too
    return next((c for c in idle if c.episode == conversation.episode), idle[0] if idle else None)

  # ---- prefill -------------------------------------------------------------------------------------------------------

  def fills(self, width: int) -> list[ConversationState]:
    """New prompts whose next tokens an extension of this width takes."""
    prompts = [p for p in self.prompts.fills if p.missing and self._sizes.width(p.missing) == width]
    return prompts[: self._sizes.widths[width]]

  def batch(self, width: int) -> list[ConversationState]:
    """Conversations for an extension of this width: full batches, or a partial one only if lanes would stay empty.

    If no lane samples, those that are ready may lack the pages of older ones, so nobody waits for them.
    """
    n = self._sizes.widths[width]
    first: dict[bytes, ConversationState] = {}  # of each history; the others will share its pages
    for conversation in self._prefilling:
      first.setdefault(conversation.histories[-1], conversation)
    candidates = [c for c in first.values() if self._sizes.width(c.missing) == width][:n]
    if len(candidates) < n and self.live and self.live + len(self._ready) >= len(self._lane):
      return []
    grown = [c for c in candidates if c in self._prefilling and self.grow(c, c.cached + min(c.missing, width))]
    return [c for c in grown if c in self._prefilling]  # it may have been swapped out for an older one

  def extended(self, batch: list[ConversationState]) -> None:
    """The batch's tokens are in the cache."""
    done = [c for c in batch if c in self._prefilling and not c.missing]
    for conversation in done:
      self.prefilled.setdefault(conversation.histories[-1], {})[conversation] = None
    self._ready.extend(c for c in self._prefilling if c in done or self._share(c))
    self._prefilling = [c for c in self._prefilling if c.missing]

  # ---- lanes ---------------------------------------------------------------------------------------------------------

  def take_lanes(self) -> None:
    """Gives free lanes to the conversations that are ready, in order, and pages to all conversations in lanes."""
    for lane, holder in enumerate(self._lane):
      if holder is None and self._ready:
        conversation = self._ready.popleft()
        conversation.lane, self._lane[lane] = lane, conversation
        self.live += 1
        self._lanes.put(lane, _lane_values(conversation))
    for conversation in sorted(self.drawing(), key=lambda c: c.arrival):
      if conversation.lane != NO_LANE:  # it may have been swapped out for an older one
        if self.grow(conversation, conversation.cached + min(self._sizes.ahead, conversation.budget)):
          self._table[conversation.lane, : len(conversation.pages)] = conversation.pages
          self._lanes.slot[conversation.lane] = conversation.slot  # with nothing cached, it may have got one only now

  def drawing(self) -> Iterator[ConversationState]:
    """The conversations in lanes."""
    return (c for c in self._lane if c is not None)

  def append(self, chunk: Chunk) -> list[TurnEnded]:
    """Appends the sampled tokens to the conversations in lanes; ends and returns the turns that are complete."""
    ended, first = [], self.number * len(self._lane)
    for conversation in list(self.drawing()):
      lane = first + conversation.lane
      count, stop = int(chunk.count[lane]), int(chunk.stop[lane])
      sampled = chunk.tokens[:count, lane]
      if self._sizes.speculate:  # the next draft may copy them
        self._lanes.ids[conversation.lane, len(conversation.ids) :][:count] = sampled
      conversation.ids += sampled.tolist()
      conversation.logprobs += chunk.logprobs[:count, lane].tolist()
      if chunk.routes is not None:
        conversation.routes += chunk.routes[:count, lane].tobytes()
      conversation.cached += count  # each sampled token added the one before it to the cache
      if stop != RUNNING:
        self.empty(conversation)
        ids = conversation.ids[len(conversation.ids) - len(conversation.logprobs) :]
        turn = tuple(ids), tuple(conversation.logprobs)
        ended.append(TurnEnded(conversation.number, *turn, stop, conversation.routes))
        conversation.turn, conversation.automaton = None, int(chunk.automaton[lane])
    return ended

  def min_live(self) -> int:
    """A chunk ends when fewer lanes are live: if others wait for a lane, as soon as enough lanes are free."""
    if not (self._ready or self._prefilling):
      return 1
    # With 32 live lanes, 4 free ones suffice: the chunk ends when fewer than 29 are live. Without a queue it continues.
    return max(1, self.live - max(1, int(len(self._lane) * REFILL)) + 1)

  def empty(self, conversation: ConversationState) -> None:
    """Frees the conversation's lane."""
    lane, conversation.lane = conversation.lane, NO_LANE
    self._lane[lane] = None
    self.live -= 1
    self._lanes.live[lane] = 0
    self._lanes.length[lane] = 0  # attention runs up to the longest lane, which must not be an empty one


REFILL = 0.125  # share of the lanes that must be free to end a chunk while others wait


def _lane_values(conversation: ConversationState) -> LaneTable:
  """The values for `decode` of a conversation in a lane."""
  turn = conversation.turn
  assert turn is not None  # only conversations with a turn become ready
  return LaneTable(
    token=conversation.ids[-1],
    length=conversation.cached,
    live=1,
    budget=conversation.budget,
    automaton=conversation.automaton,
    accept=turn.accept,
    top_k=turn.top_k,
    key=conversation.key,
    temperature=turn.temperature,
    top_p=turn.top_p,
    slot=conversation.slot,
    ids=conversation.ids,
  )


class ReplicaTurns:
  """Assigns conversations to replicas in turn. All samples of a group get the replica of the first one."""

  def __init__(self, replicas: int):
    self._next = itertools.cycle(range(replicas))
    self._of_group: dict[Group, tuple[int, int]] = {}  # (replica, number of samples that have not come yet)

  def replica(self, group: Group | None) -> int:
    """The number of the replica. Called once for each sample of a group."""
    if group is None:
      return next(self._next)
    number, missing = self._of_group.pop(group, None) or (next(self._next), group.size)
    if missing > 1:
      self._of_group[group] = number, missing - 1
    return number


def run_copies(replicas: Sequence[Replica], cache: KVCache) -> None:
  """Copies what these replicas have listed. It runs before any program that writes to pages or memories."""
  if any(replica.copies for replica in replicas):
    cache.copy({replica.number: replica.copies for replica in replicas})
  if any(replica.memories for replica in replicas):
    cache.copy({replica.number: replica.memories for replica in replicas}, memory=True)
  for replica in replicas:
    replica.copies, replica.memories = [], []
