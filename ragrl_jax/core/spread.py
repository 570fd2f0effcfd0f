"""Sharding of the output head's arrays on a mesh, and its collectives, none of which sends a whole parameter."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


@dataclasses.dataclass(frozen=True)
class Spread:
  """The mesh axes, of size above 1, that shard tokens [R, T] and the unembedding [V, D]. Without axes: one device.

  Each device computes with one piece of the vocabulary, for the tokens of all devices with other pieces. So the
  unembedding is exchanged once (an all-to-all); per slab only hidden states and a few numbers per token are sent. The
  methods after `over` run inside it, on one device's pieces of the arrays.

  Attributes:
    rows, length: mesh axes that shard R and T.
    vocab, embed: mesh axes that shard V and D of the stored unembedding.
  """

  mesh: jax.sharding.Mesh | None = None
  rows: tuple[str, ...] = ()
  length: tuple[str, ...] = ()
  vocab: tuple[str, ...] = ()
  embed: tuple[str, ...] = ()

  @property
  def pieces(self) -> tuple[str, ...]:
    """Mesh axes that shard the vocabulary during the computation."""
    return self.vocab + self.embed

  @property
  def gathered(self) -> tuple[str, ...]:
    """Mesh axes that shard both the tokens and the vocabulary's pieces; tokens are gathered over them."""
    return tuple(axis for axis in self.rows + self.length if axis in self.pieces)

  def ways(self, axes: tuple[str, ...]) -> int:
    """Number of devices along these axes."""
    return 1 if self.mesh is None else math.prod(self.mesh.shape[axis] for axis in axes)

  def over(self, f: Callable, inputs: str, outputs: str) -> Callable:
    """f, run on every device's pieces. Each letter names the kind of an array: h [R, T, D], w [V, D], t [R, T]."""
    if self.mesh is None:
      return f
    kinds = dict(
      h=PartitionSpec(self.rows, self.length, None),
      w=PartitionSpec(self.vocab, self.embed),
      t=PartitionSpec(self.rows, self.length),
    )
    pick = lambda letters: tuple(kinds[letter] for letter in letters)
    return jax.shard_map(f, mesh=self.mesh, in_specs=pick(inputs), out_specs=pick(outputs), check_vma=False)

  def piece(self, stored: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """From the stored piece: weights [v, D], the rows' token ids int32 [v], and a mask of real rows (None: all)."""
    rows, ways = stored.shape[0], self.ways(self.embed)
    first = rows * self._index(self.vocab)
    if ways == 1:
      return stored, first + jnp.arange(rows, dtype=jnp.int32), None
    stored = jnp.pad(stored, ((0, -rows % ways), (0, 0)))
    weights = jax.lax.all_to_all(stored, self.embed, 0, 1, tiled=True)
    own = self._index(self.embed) * weights.shape[0] + jnp.arange(weights.shape[0], dtype=jnp.int32)
    real = own < rows
    return weights, jnp.where(real, first + own, -1), real if rows % ways else None

  def stored(self, d_weights: jax.Array, rows: int) -> jax.Array:
    """Converts a gradient of `piece`'s weights [v, D], from this device's tokens, to the stored piece's sharding."""
    if other_axes := tuple(axis for axis in self.rows + self.length if axis not in self.pieces):
      d_weights = jax.lax.psum(d_weights, other_axes)
    if self.embed:
      d_weights = jax.lax.all_to_all(d_weights, self.embed, 1, 0, tiled=True)
    return d_weights[:rows]

  def gather(self, x: jax.Array) -> jax.Array:
    """Concatenates the rows of all devices along `gathered`."""
    return jax.lax.all_gather(x, self.gathered, tiled=True) if self.gathered else x

  def own(self, x: jax.Array) -> jax.Array:
    """This device's rows of a gathered array."""
    if not self.gathered:
      return x
    rows = x.shape[0] // self.ways(self.gathered)
    return jax.lax.dynamic_slice_in_dim(x, self._index(self.gathered) * rows, rows)

  def own_sum(self, x: jax.Array) -> jax.Array:
    """This device's rows of a gathered array, summed over the pieces of the vocabulary."""
    if self.gathered:
      x = jax.lax.psum_scatter(x, self.gathered, tiled=True)
    other_axes = tuple(axis for axis in self.pieces if axis not in self.gathered)
    return jax.lax.psum(x, other_axes) if other_axes else x

  def sum(self, x: jax.Array) -> jax.Array:
    """The sum over the pieces of the vocabulary."""
    return jax.lax.psum(x, self.pieces) if self.pieces else x

  def logsumexp(self, x: jax.Array) -> jax.Array:
    """The log-sum-exp over the whole vocabulary, from the log-sum-exp of each piece."""
    if not self.pieces:
      return x
    top = jax.lax.pmax(x, self.pieces)
    return top + jnp.log(self.sum(jnp.exp(x - top)))

  def anywhere(self, x: jax.Array) -> jax.Array:
    """Where x is True on any device. All devices must take the same branch, since it contains collectives."""
    return jax.lax.pmax(x.astype(jnp.int32), self.mesh.axis_names) > 0 if self.mesh is not None else x

  def _index(self, axes: tuple[str, ...]) -> jax.Array:
    """This device's index along the axes; the last axis varies fastest."""
    sizes = {} if self.mesh is None else self.mesh.shape
    count = lambda number, axis: number * sizes[axis] + jax.lax.axis_index(axis)
    return functools.reduce(count, axes, jnp.int32(0))


ONE_DEVICE = Spread()
