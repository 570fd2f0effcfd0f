"""The data that the host and `decode` exchange: lanes go in, a chunk of tokens comes out, each as one int32 array.

One array needs only one transfer. Floats are stored as their bits. The records here name the parts of these arrays:
NumPy's on the host, where writing to a field writes to the array, and JAX's inside the program. `Counters` sums up
what the chunks did.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int16, Int32

# The state of a lane's turn after a chunk. A number from 0 up is the stop that ended it (an index into `Stops.names`).
RUNNING = -1
FULL = -2  # the budget is spent

COLUMNS = 12  # int32 a lane, without the token ids
TAIL = 6  # rows of a packed chunk that hold one number a lane
NOTHING = -1  # stands for a token where none was sampled


class LaneTable(NamedTuple):
  """The inputs of `decode`, for W lanes.

  Attributes:
    token: the newest token, not yet in the cache.
    length: tokens in the cache, which is the newest token's position; 0 in an empty lane.
    live: 1 if the lane samples, 0 if it is empty.
    budget: number of tokens that the turn may still sample.
    automaton: state of the stop automaton.
    accept: the stop strings that end the turn, as bits.
    top_k, temperature, top_p: as in `structs.Sampling`.
    key: determines the conversation's random numbers.
    slot: of the conversation's memories in a hybrid's delta layers.
    ids: the tokens by position, up to the newest one. Drafts are looked up in them; without drafts C is 0.
  """

  token: Int32[Any, "W"]
  length: Int32[Any, "W"]
  live: Int32[Any, "W"]
  budget: Int32[Any, "W"]
  automaton: Int32[Any, "W"]
  accept: Int32[Any, "W"]
  top_k: Int32[Any, "W"]
  key: Int32[Any, "W 2"]
  temperature: Float32[Any, "W"]
  top_p: Float32[Any, "W"]
  slot: Int32[Any, "W"]
  ids: Int32[Any, "W C"]

  @classmethod
  def unpack(cls, packed: Any) -> "LaneTable":
    """The fields of an int32 [W, COLUMNS + C], numpy's or JAX's."""
    columns = [packed[:, column] for column in range(7)]
    temperature, top_p = (packed[:, column].view(np.float32) for column in (9, 10))
    ids, key, slot = packed[:, COLUMNS:], packed[:, 7:9], packed[:, 11]
    return cls(*columns, key=key, temperature=temperature, top_p=top_p, slot=slot, ids=ids)

  def put(self, lane: int, values: "LaneTable") -> None:
    """Writes one lane's values, on the host: two numbers for the key, all ids, and one number for each other field."""
    for column, value in zip(self[:-1], values[:-1]):
      column[lane] = value
    if self.ids.shape[1]:
      self.ids[lane, : len(values.ids)] = values.ids

  def advance(self, chunk: "Chunk") -> None:
    """Moves all lanes on by the tokens that they sampled, on the host."""
    newest = chunk.tokens[np.maximum(chunk.count - 1, 0), np.arange(len(chunk.count))]
    self.token[:] = np.where(chunk.count > 0, newest, self.token)
    self.length[:] += chunk.count
    self.budget[:] -= chunk.count
    self.automaton[:] = chunk.automaton


class Chunk(NamedTuple):
  """The result of one `decode`: at most T tokens per lane.

  Attributes:
    tokens, logprobs: the sampled tokens and their log-probabilities. On the device, places without a kept token hold
      NOTHING. On the host, a lane's tokens come first, and only its first `count` have a meaning.
    count: number of tokens that the lane sampled.
    steps: number of steps in which the lane sampled.
    drafted, kept: number of tokens in its drafts, and how many of them sampling also chose.
    automaton: state of the stop automaton.
    stop: RUNNING, FULL or the number of the stop.
    routes: the experts of all layers in the state that drew each token; None for a model without experts.
  """

  tokens: Int32[Any, "T W"]
  logprobs: Float32[Any, "T W"]
  count: Int32[Any, "W"]
  steps: Int32[Any, "W"]
  drafted: Int32[Any, "W"]
  kept: Int32[Any, "W"]
  automaton: Int32[Any, "W"]
  stop: Int32[Any, "W"]
  routes: Int16[Any, "T W n"] | None = None

  def pack(self) -> jax.Array:
    """Packs the fields into int32 [(2 + r) · T + TAIL, W], inside the program; r numbers hold a token's routes."""
    bits = jax.lax.bitcast_convert_type(self.logprobs, jnp.int32)
    rows = [self.tokens, bits, jnp.stack(self[2:-1])]
    if self.routes is not None:
      # Two experts of 16 bits in a number: [T, W, n] → [T, W, r, 2] → [T · r, W].
      T, W, n = self.routes.shape
      pairs = jnp.pad(self.routes, ((0, 0), (0, 0), (0, n % 2))).reshape(T, W, -1, 2)
      rows.append(jax.lax.bitcast_convert_type(pairs, jnp.int32).swapaxes(1, 2).reshape(-1, W))
    return jnp.concatenate(rows)

  @classmethod
  def unpack(cls, packed: np.ndarray, routes: int = 0) -> "Chunk":
    """Unpacks the result of `pack` on the host, and moves each lane's tokens before the places without one.

    Args:
      routes: n, experts of a token in all layers together; 0 for a model without experts.
    """
    r = -(-routes // 2)
    most = (len(packed) - TAIL) // (2 + r)
    tokens, logprobs = packed[:most], packed[most : 2 * most].view(np.float32)
    # Two steps of three places: a b . c . . → a b c . . .
    first = np.argsort(tokens == NOTHING, axis=0, kind="stable")
    moved = lambda x: np.take_along_axis(x, first.reshape(*first.shape, *(1,) * (x.ndim - 2)), 0)
    result = cls(moved(tokens), moved(logprobs), *packed[2 * most :][:TAIL])
    if not routes:
      return result
    pairs = packed[2 * most + TAIL :].reshape(most, r, -1).swapaxes(1, 2)
    return result._replace(routes=moved(np.ascontiguousarray(pairs).view(np.int16)[..., :routes]))


@dataclasses.dataclass
class Counters:
  """The engine's work since `Engine.restart_counters`. Seconds are those of the thread that calls `Engine.step`."""

  decode_s: float = 0.0
  prefill_s: float = 0.0
  sampled_tokens: int = 0
  prefilled_tokens: int = 0
  prefill_places: int = 0  # tokens that the calls of `extend` had room for
  shared_tokens: int = 0  # that another conversation had prefilled
  lane_steps: int = 0  # lanes × steps
  drawing_steps: int = 0  # lane steps that sampled a token or more; exactly one token without drafts
  drafted_tokens: int = 0  # tokens that drafts proposed
  kept_tokens: int = 0  # drafted tokens that sampling also chose
  chunks: int = 0  # calls of `decode`
  extensions: int = 0  # calls of `extend`
  swapped_rows: int = 0  # rows moved to the host to make room

  def add_chunk(self, chunk: Chunk, replicas: int) -> None:
    """Counts what a call of `decode` did."""
    steps = chunk.steps.reshape(replicas, -1)
    # A replica runs until its longest lane is done. Its other lanes are idle for the rest of these steps.
    self.lane_steps += int(steps.max(axis=1).sum()) * steps.shape[1]
    self.drawing_steps += int(steps.sum())
    self.sampled_tokens += int(chunk.count.sum())
    self.drafted_tokens += int(chunk.drafted.sum())
    self.kept_tokens += int(chunk.kept.sum())
    self.chunks += 1

  @property
  def prefill_filled(self) -> float:
    """Share of the places of `extend` that held a token."""
    return self.prefilled_tokens / self.prefill_places if self.prefill_places else 0.0

  @property
  def occupancy(self) -> float:
    """Share of the lane steps that sampled a token."""
    return self.drawing_steps / self.lane_steps if self.lane_steps else 0.0

  @property
  def tokens_per_step(self) -> float:
    """Mean number of tokens per lane step that sampled; 1 without drafts."""
    return self.sampled_tokens / self.drawing_steps if self.drawing_steps else 0.0

  @property
  def kept_share(self) -> float:
    """Share of the drafted tokens that sampling also chose."""
    return self.kept_tokens / self.drafted_tokens if self.drafted_tokens else 0.0
