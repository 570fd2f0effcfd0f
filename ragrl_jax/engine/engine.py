"""The engine: continuous batching of many conversations over a few lanes. One thread, no asyncio, no text.

A conversation holds a cache row from its first turn until it is closed; it holds a lane only while it draws. So a row
that waits for a search keeps its cache and leaves its lane to a live one. Lanes name their rows by index: on a CPU a
gather of whole blocks costs what a slice does, and nothing is ever moved between lanes.

The newest token of a conversation is never in the cache: the step that draws the next one takes it in. That is why an
extension needs no logits, and why a prompt computed once serves every sample of its group.
"""

import collections
import dataclasses
import time
from typing import Any

import jax
import numpy as np
from flax import nnx

from ragrl_jax.engine import programs as p
from ragrl_jax.engine import rows as rows_lib
from ragrl_jax.engine.counters import Counters
from ragrl_jax.engine.rows import NO_ROW, Group, Talk
from ragrl_jax.engine.stops import Stops
from ragrl_jax.models import cache as cache_lib
from ragrl_jax.prompting.tokenizer import Tokenizer

NARROWEST = 8  # tokens: a narrower extension than this saves nothing


@dataclasses.dataclass(eq=False)
class Turn:
  """One generation: at most `budget` tokens, until a stop of `accept`.

  Attributes:
    ids, logprobs: what was drawn, and the log-probability of each.
    stop: programs.FULL, or the number of the stop in `Stops.names`; programs.RUNNING until it has ended.
    tag: the caller's own.
  """

  talk: Talk
  budget: int
  accept: int
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  tag: Any = None
  ids: list[int] = dataclasses.field(default_factory=list)
  logprobs: list[float] = dataclasses.field(default_factory=list)
  stop: int = p.RUNNING


class Engine:
  """Draws tokens for many conversations at once.

  Args:
    graphdef: of the decoder, from `nnx.split`.
    tokenizer: of the model.
    stops: the compiled stop strings of the run.
    lanes: W, conversations drawn for together.
    rows: C ≥ W, conversations whose keys and values are kept.
    context: most tokens of a conversation.
    chunk: most tokens a lane draws between two looks at the host.
    prefill: tokens a row takes in by one extension; what is left of at most a quarter of it goes by a narrower one.
    block: cache tokens attended to at a time.
    prefill_rows: rows of one extension; a narrower one takes four times as many.
    max_prompts: prompts kept for their groups at a time.
    refill: while others wait, a chunk ends as soon as this share of the lanes has fallen idle in it.
    mesh: where the weights are brought to, by the rules of `parallel/rules.py`; None leaves them where they are.
    frozen: the decoder's weights that are the same in every version; `load` is given the others.
    own_weights: keep a copy of the weights: whoever gave them may overwrite theirs while these are still drawn with.

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
    chunk: int = 16,
    prefill: int = 64,
    block: int = 64,
    prefill_rows: int = 4,
    max_prompts: int = 8,
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
    self.lanes, self.chunk = lanes, chunk
    self._widths = {prefill: prefill_rows}  # width → rows of an extension
    if prefill >= NARROWEST * 4:
      self._widths[prefill // 4] = prefill_rows * 4
    self.num_rows, self.max_prompts, self.block, self.mesh = rows, max_prompts, block, mesh
    self._own_weights = own_weights
    self.length = -(-context // block) * block  # of a row in the cache
    self.version = 0
    self.counters = Counters()
    self._graphdef, self._frozen, self._params = graphdef, nnx.State({}) if frozen is None else frozen, None
    self._programs, self._cast = None, None
    self._idle_lanes = max(1, int(lanes * refill))
    self._forget()

  # ---- weights -------------------------------------------------------------------------------------------------------

  def load(self, params: Any, version: int) -> None:
    """Takes new weights; what the old ones computed is forgotten.

    Args:
      params: the decoder's but for the frozen ones, on any devices.
      version: what episodes sampled with them will say.

    Raises:
      ValueError: conversations are open: an episode has one version from its first token to its last.
    """
    if self._rows.seated or self._waiting or self._returning:
      raise ValueError(
        f"weights of version {version} came while {len(self._rows.seated)} conversations are open: "
        "end the run first; an episode is sampled by one version."
      )
    if self._cast is None:
      dtype = nnx.merge(self._graphdef, params, self._frozen).dtype
      self._cast = p.caster(dtype, params, self.mesh, own=self._own_weights)
      self._frozen = p.caster(dtype, self._frozen, self.mesh)(self._frozen)
    self._params, self.version = nnx.merge_state(self._frozen, self._cast(params)), version
    if self._programs is None:
      self._build()
    self._forget()

  def _build(self) -> None:
    """The cache, and every program once, so that nothing compiles later."""
    model = nnx.eval_shape(lambda: nnx.merge(self._graphdef, self._params))
    sharding = cache_lib.sharding_like(self._params, model.config)
    total = self.num_rows + self.max_prompts
    self._programs = p.Programs(self._graphdef, self.stops.table, chunk=self.chunk, block=self.block, sharding=sharding)
    self._empty_cache = lambda: cache_lib.allocate(model.config, total, self.length, model.dtype, sharding)
    cache = self._empty_cache()
    self._table = np.zeros((self.lanes, p.COLUMNS), np.int32)
    self._table[:, p.ROW] = total
    for _ in range(2):  # the second time with what the first one gave back
      for width, n in self._widths.items():
        cache = self._programs.extend(self._params, cache, *rows_lib.extension([], n, width, total))
      cache = self._programs.copy(cache, np.zeros((self.lanes, 3), np.int32))
      cache = self._programs.put_row(cache, self._programs.take_row(cache, np.int32(0)), np.int32(0))
      saved = cache_lib.to_host(self._programs.take_row(cache, np.int32(0)))
      cache = self._programs.put_row(cache, saved, np.int32(0))
      cache, _ = self._programs.decode(self._params, cache, self._table, np.array([self.chunk, 1], np.int32))
    self._cache = jax.block_until_ready(cache)

  def _forget(self) -> None:
    self._rows = rows_lib.Rows(self.num_rows, self.max_prompts)
    self._waiting: collections.deque[Turn] = collections.deque()  # new conversations, in order
    self._returning: collections.deque[Turn] = collections.deque()  # those whose family waits for them
    self._filling: collections.deque[Turn] = collections.deque()
    self._ready: collections.deque[Turn] = collections.deque()
    self._lane: list[Turn | None] = [None] * self.lanes
    self._live = 0
    if self._programs is not None:
      self._table[:] = 0
      self._table[:, p.ROW] = self.num_rows + self.max_prompts

  # ---- what callers do ----------------------------------------------------------------------------------------------

  def check(self) -> None:
    """Raises ValueError if there are no weights, or if they were given away since they were loaded."""
    if self._params is None:
      raise ValueError("the engine has no weights: call engine.load(params, version) first.")
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(self._params)):
      raise ValueError(f"the weights of version {self.version} were donated to an update: load the new ones first.")

  def submit(self, turn: Turn) -> None:
    """Asks for a turn of an open conversation. `step` returns it when it has ended."""
    turn.talk.busy = True
    if turn.talk.row != NO_ROW:
      self._rows.touch(turn.talk)
      (self._filling if turn.talk.missing else self._ready).append(turn)
    elif turn.talk.nested or turn.talk.saved is not None:
      self._returning.append(turn)
    else:
      self._waiting.append(turn)

  def close(self, talk: Talk) -> None:
    """Ends a conversation: after the turn under way, if there is one. Its row is free once its forks have copies."""
    talk.closed = True
    if talk.busy:
      return
    if talk.group is not None:
      self.leave(talk.group)
      talk.group = None
    if talk.parent is not None:
      self._copy_parent(talk, talk.parent)
    if not talk.heirs:
      self._rows.take(talk)
      talk.saved = None

  def fork(self, talk: Talk, parent: Talk) -> None:
    """Has a new conversation begin with what the cache holds of its parent's first `talk.shared` tokens."""
    talk.parent = parent
    parent.heirs += 1

  def leave(self, group: Group) -> None:
    """Says that one sample of the group will not ask for its prompt any more."""
    self._rows.leave(group)

  def reset(self) -> None:
    """Forgets every conversation and turn: after an error."""
    self._forget()
    if self._programs is not None and self._cache.k.is_deleted():  # a program was interrupted that had been given it
      self._cache = self._empty_cache()

  @property
  def busy(self) -> bool:
    """Whether `step` has something to do now. Turns may still wait for a row when it has not."""
    return bool(
      self._live
      or self._ready
      or self._filling
      or ((self._returning or self._waiting) and self._rows.free)
      or (self._returning and self._rows.lender(None))
    )

  def step(self) -> list[Turn]:
    """Seats, fills, and draws at most `chunk` tokens a lane; returns the turns that ended."""
    begin = time.perf_counter()
    if self._seat() | self._fill():
      jax.block_until_ready(self._cache)
      self.counters.prefill_s += time.perf_counter() - begin
    self._take_lanes()
    if not self._live:
      return []
    begin = time.perf_counter()
    ended = self._decode()
    self.counters.decode_s += time.perf_counter() - begin
    return ended

  # ---- rows ----------------------------------------------------------------------------------------------------------

  def _seat(self) -> bool:
    """Gives rows to those that wait for one, in order, and what is known of their tokens with it."""
    some = False
    for queue in (self._returning, self._waiting):
      while queue and self._give_row(queue[0].talk):
        turn = queue.popleft()
        self._inherit(turn.talk)
        (self._filling if turn.talk.missing else self._ready).append(turn)
        some = True
    self._settle()
    return some

  def _give_row(self, talk: Talk) -> bool:
    if self._rows.give(talk):
      return True
    lender = self._rows.lender(talk.family) if talk.nested or talk.saved is not None else None
    if lender is None:
      return False
    # Everybody else may be waiting for this one. The lender's row goes to the host and comes back bit for bit.
    self._settle()
    lender.saved = cache_lib.to_host(self._programs.take_row(self._cache, np.int32(lender.row)))
    self.counters.lent_rows += 1
    self._rows.take(lender)
    return self._rows.give(talk)

  def _inherit(self, talk: Talk) -> None:
    """Brings into a new row what is already known of its tokens; what the group has is copied by `_settle`."""
    if talk.saved is not None:
      self._put(talk, talk.saved)
      talk.saved = None
    if talk.parent is not None:
      self._copy_parent(talk, talk.parent)
    if talk.group is None:
      return
    if self._rows.short_of_prompts:
      self._settle()
    entry = self._rows.prompt(talk)
    if entry is not None:
      talk.cached = len(talk.ids) - 1
      self._rows.copies.append((entry.row, talk.row, talk.cached))
      self.counters.shared_tokens += talk.cached
    self._rows.leave(talk.group)
    talk.group = None

  def _copy_parent(self, talk: Talk, parent: Talk) -> None:
    if talk.row != NO_ROW and talk.shared:
      talk.cached = talk.shared
      if parent.saved is not None:
        self._put(talk, parent.saved)
      else:
        self._rows.copies.append((parent.row, talk.row, talk.shared))
    talk.parent = None
    parent.heirs -= 1
    if parent.closed and not parent.heirs:
      self._rows.take(parent)
      parent.saved = None

  def _put(self, talk: Talk, saved: cache_lib.Cache) -> None:
    self._cache = self._programs.put_row(self._cache, saved, np.int32(talk.row))

  def _settle(self) -> None:
    """Computes new shared prompts, then copies rows; what they were copied from may be free then."""
    fills = self._rows.fills
    while fills := [talk for talk in fills if talk.missing]:
      width = self._width(fills[0])
      self._extend([t for t in fills if self._width(t) == width][: self._widths[width]], width)
    copies = self._rows.copies
    for at in range(0, len(copies), self.lanes):
      table = np.zeros((self.lanes, 3), np.int32)
      for i, (source, target, tokens) in enumerate(copies[at : at + self.lanes]):
        table[i] = source, target, -(-tokens // self.block)
      self._cache = self._programs.copy(self._cache, table)
    self._rows.settle()

  # ---- tokens in -----------------------------------------------------------------------------------------------------

  def _width(self, talk: Talk) -> int:
    """Of the extension that takes this conversation's next tokens: a matter of their number alone."""
    return min(width for width in self._widths if width == max(self._widths) or talk.missing <= width)

  def _fill(self) -> bool:
    """Extends rows: full batches always, a part of one only if lanes would stay empty otherwise."""
    some = False
    for width, n in self._widths.items():  # the widest first: what it leaves may fit the next
      while batch := [turn for turn in self._filling if self._width(turn.talk) == width][:n]:
        if len(batch) < n and self._live + len(self._ready) >= self.lanes:
          break
        self._extend([turn.talk for turn in batch], width)
        done = {turn for turn in batch if not turn.talk.missing}
        self._ready.extend(turn for turn in batch if turn in done)
        self._filling = collections.deque(turn for turn in self._filling if turn not in done)
        some = True
    return some

  def _extend(self, talks: list[Talk], width: int) -> None:
    tokens, table = rows_lib.extension(talks, self._widths[width], width, self.num_rows + self.max_prompts)
    self._cache = self._programs.extend(self._params, self._cache, tokens, table)
    for i, talk in enumerate(talks):
      talk.cached += int(table[i, 2])
    self.counters.prefilled_tokens += int(table[:, 2].sum())
    self.counters.extensions += 1

  # ---- tokens out ----------------------------------------------------------------------------------------------------

  def _take_lanes(self) -> None:
    if not self._ready or self._live == self.lanes:
      return
    for lane, held in enumerate(self._lane):
      if held is None and self._ready:
        turn = self._ready.popleft()
        self._lane[lane] = turn
        self._live += 1
        self._table[lane] = (
          turn.talk.ids[-1],
          turn.talk.cached,
          turn.talk.row,
          1,
          turn.budget,
          0,
          turn.accept,
          turn.top_k,
          *turn.talk.key,
          p.bits(turn.temperature),
          p.bits(turn.top_p),
        )

  def _decode(self) -> list[Turn]:
    backlog = self._ready or self._filling
    least = max(1, self._live - self._idle_lanes + 1) if backlog else 1
    self._cache, out = self._programs.decode(
      self._params, self._cache, self._table, np.array([self.chunk, least], np.int32)
    )
    out = np.asarray(out)
    tokens, logprobs = out[: self.chunk].T, p.floats(out[self.chunk : 2 * self.chunk].T)
    count, automaton, stop = out[2 * self.chunk :]
    newest = tokens[np.arange(self.lanes), np.maximum(count - 1, 0)]
    self._table[:, p.TOKEN] = np.where(count > 0, newest, self._table[:, p.TOKEN])
    self._table[:, p.LENGTH] += count
    self._table[:, p.BUDGET] -= count
    self._table[:, p.STATE] = automaton
    ended = []
    for lane, turn in enumerate(self._lane):
      if turn is None:
        continue
      n = int(count[lane])
      turn.ids += tokens[lane, :n].tolist()
      turn.logprobs += logprobs[lane, :n].tolist()
      if stop[lane] != p.RUNNING:
        ended.append(self._end(lane, int(stop[lane])))
    self.counters.sampled_tokens += int(count.sum())
    self.counters.lane_steps += self.lanes * int(count.max())
    self.counters.chunks += 1
    return ended

  def _end(self, lane: int, stop: int) -> Turn:
    turn = self._lane[lane]
    self._lane[lane] = None
    self._live -= 1
    self._table[lane, p.LIVE] = 0
    self._table[lane, p.LENGTH] = 0  # an empty lane must not make the others' window longer
    turn.stop = stop
    talk = turn.talk
    talk.ids += turn.ids
    talk.cached = talk.settled = len(talk.ids) - 1
    talk.busy = False
    if talk.closed:
      self.close(talk)
    return turn
