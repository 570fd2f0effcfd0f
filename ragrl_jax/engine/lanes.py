"""What the host and `decode` tell each other: lanes go in, a chunk of tokens comes out, each as one int32 array.

One array is one transfer. Floats travel as their bits. The records here name the parts of those arrays: numpy's on the
host, where a write to a field is a write to the array, and JAX's inside the program.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int32

# How a lane's turn stands after a chunk. A number from 0 up is the stop that ended it (an index into `Stops.names`).
RUNNING = -1
FULL = -2  # the budget is spent

COLUMNS = 11  # int32 a lane


class LaneTable(NamedTuple):
  """What `decode` is told of its W lanes.

  Attributes:
    token: the newest token, not yet in the cache.
    length: tokens in the cache, which is the newest token's position; 0 in an empty lane.
    live: 1 where the lane draws, 0 where it is empty.
    budget: tokens that may still be drawn.
    automaton: state of the stop automaton.
    accept: the stop strings asked for, as bits.
    top_k, temperature, top_p: as in `structs.Sampling`.
    key: what the conversation's random numbers are drawn with.
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

  @classmethod
  def of(cls, packed: Any) -> "LaneTable":
    """The fields of an int32 [W, COLUMNS], numpy's or JAX's."""
    whole = [packed[:, column] for column in range(7)]
    temperature, top_p = (packed[:, column].view(np.float32) for column in (9, 10))
    return cls(*whole, key=packed[:, 7:9], temperature=temperature, top_p=top_p)

  def put(self, lane: int, values: "LaneTable") -> None:
    """Writes one lane's values: `values` holds a number a field, and two for the key. On the host."""
    for column, value in zip(self, values):
      column[lane] = value


class Chunk(NamedTuple):
  """What one `decode` drew, at most T tokens a lane.

  Attributes:
    tokens, logprobs: what was drawn in each step, and its log-probability; only a lane's first `count` mean anything.
    count: tokens that the lane drew.
    automaton: state of the stop automaton.
    stop: RUNNING, FULL or the number of the stop.
  """

  tokens: Int32[Any, "T W"]
  logprobs: Float32[Any, "T W"]
  count: Int32[Any, "W"]
  automaton: Int32[Any, "W"]
  stop: Int32[Any, "W"]

  def pack(self) -> jax.Array:
    """int32 [2 · T + 3, W], inside the program."""
    bits = jax.lax.bitcast_convert_type(self.logprobs, jnp.int32)
    return jnp.concatenate((self.tokens, bits, jnp.stack([self.count, self.automaton, self.stop])))

  @classmethod
  def of(cls, packed: np.ndarray) -> "Chunk":
    """The fields of what `pack` made, on the host."""
    steps = (len(packed) - 3) // 2
    return cls(packed[:steps], packed[steps : 2 * steps].view(np.float32), *packed[2 * steps :])
