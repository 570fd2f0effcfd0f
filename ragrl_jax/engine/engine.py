"""The engine: draws tokens for many conversations over a few lanes (continuous batching). One thread, no asyncio.

A conversation holds a cache row from its first turn until it is closed. It holds a lane only while it draws. So one
that waits for a search keeps its cache, and leaves its lane to another. `conversations.py` draws its states.

    messages.py  what callers send and get     kv_cache.py, rows.py  who is in the cache, prefill
    lanes.py     what decode is told and says  programs.py, stops.py compiled for the device

The newest token of a conversation is never in the cache: the step that draws the next one takes it in. That is why
prefill needs no logits, and why a prompt that is computed once serves every sample of its group.

Next: ragrl_jax/core/losses.py.
"""

import collections
import time
from typing import Any

import jax
import numpy as np
from flax import nnx

from ragrl_jax.engine.conversations import NO_ROW, ConversationState
from ragrl_jax.engine.counters import Counters
from ragrl_jax.engine.kv_cache import KVCache
from ragrl_jax.engine.lanes import COLUMNS, RUNNING, Chunk, LaneTable
from ragrl_jax.engine.messages import Group, Open, Turn, TurnEnded
from ragrl_jax.engine.programs import Programs, caster
from ragrl_jax.engine.stops import Stops
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.prompting.tokenizer import Tokenizer
from ragrl_jax.settings import MAX_PROMPTS, PREFILL_ROWS, Rollout

MIN_WIDTH = 8  # tokens: a narrower extension than this saves nothing
NO_WEIGHTS = "the engine has no weights: call engine.load(params, version) first."


class Engine:
  """Draws tokens for many conversations at once. All methods are called from one thread.

  Args:
    graphdef: of the decoder, from `nnx.split`.
    tokenizer: of the model.
    stops: the compiled stop strings of the run.
    lanes: W, conversations drawn for together.
    rows: C ≥ W, conversations whose keys and values are kept.
    context: most tokens of a conversation.
    chunk: most tokens that one decode call draws for a lane.
    prefill: tokens that one extension prefills for a row; a remainder of at most a quarter of it takes a narrower one.
    block: cache tokens attended to at a time.
    prefill_rows: rows of one extension; a narrower one takes four times as many.
    max_prompts: prompts kept for their groups at a time.
    refill: while conversations wait for a lane, a chunk ends as soon as this share of the lanes has become free.
    mesh: the weights are resharded to it by the rules of `parallel/rules.py`; None leaves them on their devices.
    frozen: the decoder's weights that are the same in every version; `load` is given the others.
    own_weights: keep a copy of the weights, so that an update may overwrite the learner's while the engine draws.

  Raises:
    ValueError: sizes that do not fit together.
  """

  def __init__(
    self,
    graphdef: nnx.GraphDef,
    tokenizer: Tokenizer,
    stops: Stops,
    *,
    lanes: int,
    rows: int,
    context: int,
    chunk: int = Rollout.chunk,
    prefill: int = Rollout.prefill,
    block: int = Rollout.block,
    prefill_rows: int = PREFILL_ROWS,
    max_prompts: int = MAX_PROMPTS,
    refill: float = 0.125,
    mesh: jax.sharding.Mesh | None = None,
    frozen: nnx.State | None = None,
    own_weights: bool = False,
  ):
    sizes = dict(lanes=lanes, context=context, chunk=chunk, prefill=prefill, block=block, prefill_rows=prefill_rows)
    if bad := [f"{name}={size}" for name, size in sizes.items() if size < 1]:
      raise ValueError(f"{', '.join(bad)}: each must be at least 1 (config.rollout).")
    if rows < lanes:
      raise ValueError(f"rows={rows} < lanes={lanes}: every lane needs a cache row (config.rollout.rows).")
    self.tokenizer, self.stops, self.context = tokenizer, stops, context
    self.lanes, self.chunk, self.block, self.mesh = lanes, chunk, block, mesh
    self.version, self.weights = 0, None  # what was loaded last, without the frozen weights: `load` takes them again
    self.counters = Counters()
    self._num_rows, self._max_prompts = rows, max_prompts
    self._widths = {prefill: prefill_rows}  # width → rows of an extension, the widest first
    if prefill >= MIN_WIDTH * 4:
      self._widths[prefill // 4] = prefill_rows * 4  # as many tokens a call as the wide one
    self._length = -(-context // block) * block  # of a row in the cache
    self._free_enough = max(1, int(lanes * refill))  # free lanes that end a chunk while others wait
    self._own_weights = own_weights
    self._graphdef, self._frozen, self._params = graphdef, nnx.State({}) if frozen is None else frozen, None
    self._cast: Any = None  # these two are made by the first load, which brings the weights' shapes
    self._built: KVCache | None = None
    self._packed = np.zeros((lanes, COLUMNS), np.int32)
    self._table = LaneTable.of(self._packed)  # views: a write to a field is a write to the array
    self._forget()

  # ---- weights -------------------------------------------------------------------------------------------------------

  def load(self, params: Any, version: int) -> None:
    """Takes new weights, and forgets what the old ones computed.

    Args:
      params: the decoder's but for the frozen ones, on any devices.
      version: what episodes sampled with them will say.

    Raises:
      ValueError: conversations are open: an episode has one version from its first token to its last.
    """
    if self._conversations:
      raise ValueError(
        f"weights of version {version} came while {len(self._conversations)} conversations are open: "
        "end the run first; an episode is sampled by one version."
      )
    if self._cast is None:
      dtype = nnx.merge(self._graphdef, params, self._frozen).dtype
      self._cast = caster(dtype, params, self.mesh, own=self._own_weights)
      self._frozen = caster(dtype, self._frozen, self.mesh)(self._frozen)
    self.weights, self.version = self._cast(params), version
    self._params = nnx.merge_state(self._frozen, self.weights)
    if self._built is None:
      self._build()
    self._kv.params = self._params
    self._forget()

  def _build(self) -> None:
    """Allocates the cache and runs every program, so that nothing compiles later."""
    model = nnx.eval_shape(lambda: nnx.merge(self._graphdef, self._params))
    sharding = cache_lib.sharding_like(self._params, model.config)
    total = self._num_rows + self._max_prompts
    self._built = KVCache(
      Programs(self._graphdef, self.stops.table, chunk=self.chunk, block=self.block, sharding=sharding),
      lambda: cache_lib.allocate(model.config, total, self._length, model.dtype, sharding),
      self._params,
      rows=self._num_rows,
      prompts=self._max_prompts,
      widths=self._widths,
      block=self.block,
      max_copies=self.lanes,
    )
    self._kv.counters = self.counters
    self._table.row[:] = total
    for _ in range(2):  # the second time with the cache that the first one returned: its layout may be another
      self._kv.warm_up()
      self._call_decode(min_live=1)
    self._kv.block_until_ready()

  def _forget(self) -> None:
    self._conversations: dict[int, ConversationState] = {}  # by their callers' numbers
    self._waiting: collections.deque[ConversationState] = collections.deque()  # new episodes, for a row
    self._waited_for: collections.deque[ConversationState] = collections.deque()  # for a row, and others for them
    self._prefilling: collections.deque[ConversationState] = collections.deque()
    self._ready: collections.deque[ConversationState] = collections.deque()  # for a lane
    self._lane: list[ConversationState | None] = [None] * self.lanes
    self._live = 0  # lanes that draw
    self._packed[:] = 0
    self._table.row[:] = self._num_rows + self._max_prompts
    if self._built is not None:
      self._built.forget()

  @property
  def _kv(self) -> KVCache:
    if self._built is None:
      raise ValueError(NO_WEIGHTS)
    return self._built

  def check(self) -> None:
    """Raises ValueError if there are no weights, or if they were donated since they were loaded."""
    if self._params is None:
      raise ValueError(NO_WEIGHTS)
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(self._params)):
      raise ValueError(f"the weights of version {self.version} were donated to an update: load the new ones first.")

  def restart_counters(self) -> Counters:
    """Starts counting at zero; returns the record that is counted in from now on."""
    self.counters = Counters()
    if self._built is not None:
      self._built.counters = self.counters
    return self.counters

  # ---- messages ------------------------------------------------------------------------------------------------------

  def open(self, message: Open) -> None:
    """Opens a conversation.

    Raises:
      ValueError: its number is in use, it has no tokens, or its parent is not open.
    """
    if message.conversation in self._conversations or not message.ids:
      raise ValueError(f"{message}: it needs a number that no open conversation has, and at least one token.")
    parent = None if message.parent is None else self._find(message.parent)
    first = message.conversation if message.first is None else message.first
    opened = ConversationState(
      message.conversation,
      list(message.ids),
      message.key,
      episode=first,
      has_siblings=message.first is not None,
      group=message.group,
      parent=parent,
    )
    if first in self._conversations:
      self._conversations[first].has_siblings = True
    self._conversations[opened.number] = opened
    if parent is not None:
      # An idle parent has all but its newest tokens in the cache. So has the fork, but for its own newest one.
      opened.shared = min(len(opened.ids) - 1, parent.cached)
      parent.pending_forks += 1

  def submit(self, turn: Turn) -> None:
    """Starts a turn. `step` returns it as a TurnEnded when it has ended.

    Raises:
      ValueError: the conversation is not open, or has a turn under way.
    """
    conversation = self._find(turn.conversation)
    if conversation.turn is not None:
      raise ValueError(f"{turn}: conversation {turn.conversation} has a turn under way; submit it when that has ended.")
    conversation.turn, conversation.drawn = turn, []
    conversation.ids += turn.new_ids
    if conversation.row != NO_ROW:
      self._kv.rows.touch(conversation)
      self._queue(conversation)
    elif conversation.has_siblings or conversation.host_copy is not None:
      self._waited_for.append(conversation)
    else:
      self._waiting.append(conversation)

  def close(self, number: int) -> None:
    """Ends a conversation, after the turn under way if there is one. One that `reset` has forgotten is closed."""
    conversation = self._conversations.get(number)
    if conversation is not None:
      conversation.closed = True
      self._release_closed(conversation)

  def leave(self, group: Group) -> None:
    """Says that one sample of the group will never open a conversation."""
    self._kv.rows.leave(group)

  def reset(self) -> None:
    """Forgets every conversation and turn: after an error."""
    self._forget()

  def _find(self, number: int) -> ConversationState:
    if number not in self._conversations:
      raise ValueError(f"conversation {number} is not open: open it first.")
    return self._conversations[number]

  def _release_closed(self, conversation: ConversationState) -> None:
    if conversation.closed and conversation.turn is None:
      del self._conversations[conversation.number]
      self._kv.release(conversation)

  def _queue(self, conversation: ConversationState) -> None:
    (self._prefilling if conversation.missing else self._ready).append(conversation)

  # ---- steps ---------------------------------------------------------------------------------------------------------

  @property
  def busy(self) -> bool:
    """Whether `step` has something to do now. If not, turns may still wait for a row."""
    if self._live or self._ready or self._prefilling:
      return True
    if not (self._waited_for or self._waiting):
      return False
    return bool(self._kv.rows.free or (self._waited_for and self._kv.rows.victim(None)))

  def step(self) -> list[TurnEnded]:
    """Draws at most `chunk` tokens for every lane; returns the turns that ended."""
    begin = time.perf_counter()
    # 1. Seat the conversations that wait for a row, with what is already known of their tokens.
    # 2. Prefill the tokens that are missing.
    if self._seat() | self._prefill():
      self._kv.block_until_ready()
      self.counters.prefill_s += time.perf_counter() - begin
    # 3. Give free lanes to the conversations that are ready.
    self._take_lanes()
    if not self._live:
      return []
    begin = time.perf_counter()
    # 4. Draw a chunk of tokens on the device.
    chunk = self._decode()
    # 5. Append them to their conversations, and end the turns that are complete.
    ended = self._append(chunk)
    self.counters.decode_s += time.perf_counter() - begin
    return ended

  def _seat(self) -> bool:
    """Step 1: gives rows in order. Those that others may be waiting for come first, and may swap others out."""
    some = False
    for queue in (self._waited_for, self._waiting):
      while queue and self._kv.seat(queue[0]):
        self._queue(queue.popleft())
        some = True
    self._kv.run_copies()
    return some

  def _prefill(self) -> bool:
    """Step 2: full batches always, a part of one only if lanes would stay empty otherwise."""
    some = False
    for width, n in self._widths.items():  # the widest first: what it leaves may fit the next
      while batch := [c for c in self._prefilling if self._kv.width(c) == width][:n]:
        if len(batch) < n and self._live + len(self._ready) >= self.lanes:
          break
        self._kv.extend(batch, width)
        done = [c for c in batch if not c.missing]
        self._ready.extend(done)
        self._prefilling = collections.deque(c for c in self._prefilling if c not in done)
        some = True
    return some

  def _take_lanes(self) -> None:
    """Step 3: first come, first served."""
    if not self._ready or self._live == self.lanes:
      return
    for lane, holder in enumerate(self._lane):
      if holder is None and self._ready:
        conversation = self._ready.popleft()
        self._lane[lane] = conversation
        self._live += 1
        self._table.put(lane, _lane_values(conversation))

  def _decode(self) -> Chunk:
    """Step 4: a chunk, cut short when enough lanes have become free for those that wait."""
    backlog = self._ready or self._prefilling
    # 32 lanes live and 4 free ones suffice: the chunk ends when fewer than 29 live. Without a backlog it draws on.
    chunk = self._call_decode(min_live=max(1, self._live - self._free_enough + 1) if backlog else 1)
    newest = chunk.tokens[np.maximum(chunk.count - 1, 0), np.arange(self.lanes)]
    self._table.token[:] = np.where(chunk.count > 0, newest, self._table.token)
    self._table.length[:] += chunk.count
    self._table.budget[:] -= chunk.count
    self._table.automaton[:] = chunk.automaton
    self.counters.sampled_tokens += int(chunk.count.sum())
    self.counters.lane_steps += self.lanes * int(chunk.count.max())
    self.counters.chunks += 1
    return chunk

  def _call_decode(self, min_live: int) -> Chunk:
    limits = np.array([self.chunk, min_live], np.int32)
    self._kv.cache, packed = self._kv.programs.decode(self._params, self._kv.cache, self._packed, limits)
    return Chunk.of(np.asarray(packed))

  def _append(self, chunk: Chunk) -> list[TurnEnded]:
    """Step 5."""
    ended = []
    for lane, conversation in enumerate(self._lane):
      if conversation is None:
        continue
      count, stop = int(chunk.count[lane]), int(chunk.stop[lane])
      conversation.ids += chunk.tokens[:count, lane].tolist()
      conversation.drawn += chunk.logprobs[:count, lane].tolist()
      conversation.cached += count  # each step took in the token before the one that it drew
      if stop != RUNNING:
        self._lane[lane] = None
        self._live -= 1
        self._table.live[lane] = 0
        self._table.length[lane] = 0  # attention runs to the longest lane: an empty one must not be it
        ended.append(self._end(conversation, stop))
    return ended

  def _end(self, conversation: ConversationState, stop: int) -> TurnEnded:
    ids = conversation.ids[len(conversation.ids) - len(conversation.drawn) :]
    conversation.turn = None
    self._release_closed(conversation)
    return TurnEnded(conversation.number, tuple(ids), tuple(conversation.drawn), stop)


def _lane_values(conversation: ConversationState) -> LaneTable:
  """What `decode` is told of a conversation whose turn begins."""
  turn = conversation.turn
  assert turn is not None  # only conversations with a turn under way become ready
  return LaneTable(
    token=conversation.ids[-1],
    length=conversation.cached,
    row=conversation.row,
    live=1,
    budget=turn.budget,
    automaton=0,  # stop strings begin afresh in every turn: what the environment wrote completes none
    accept=turn.accept,
    top_k=turn.top_k,
    key=conversation.key,
    temperature=turn.temperature,
    top_p=turn.top_p,
  )
