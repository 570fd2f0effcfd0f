"""How the head's arrays lie on a mesh, and what its devices say to each other: nothing as large as a parameter."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


@dataclasses.dataclass(frozen=True)
class Spread:
  """Mesh axes, longer than 1, that tokens [R, T] and the unembedding [V, D] are cut along; none of them: one device.

  Every device takes a piece of the vocabulary and the tokens of all devices that hold the others. So the unembedding
  changes places once (an all-to-all), and per slab only hidden states and a few numbers a token travel. Everything
  below runs inside `over`, where arrays are one device's pieces.

  Attributes:
    mesh: the devices.
    rows, length: axes of R and of T.
    vocab, embed: axes of V and of D, as the unembedding is stored.
  """

  mesh: jax.sharding.Mesh | None = None
  rows: tuple[str, ...] = ()
  length: tuple[str, ...] = ()
  vocab: tuple[str, ...] = ()
  embed: tuple[str, ...] = ()

  @property
  def pieces(self) -> tuple[str, ...]:
    """Axes along which the vocabulary is cut while it is used."""
    return self.vocab + self.embed

  @property
  def gathered(self) -> tuple[str, ...]:
    """Axes of the tokens whose devices hold different pieces of the vocabulary."""
    return tuple(axis for axis in self.rows + self.length if axis in self.pieces)

  def ways(self, axes: tuple[str, ...]) -> int:
    return math.prod(self.mesh.shape[axis] for axis in axes) if axes else 1

  def over(self, f: Callable, inputs: str, outputs: str) -> Callable:
    """f run on every device's pieces. Letters name the arrays: h [R, T, D], w [V, D], t [R, T]."""
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
    """Of a stored piece: weights [v, D], their rows' ids int32 [v], and where these are real (None: everywhere)."""
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
    """The gradient of `piece`'s weights [v, D], from this device's tokens, as the stored piece lies: [rows, D / …]."""
    if others := tuple(axis for axis in self.rows + self.length if axis not in self.pieces):
      d_weights = jax.lax.psum(d_weights, others)
    if self.embed:
      d_weights = jax.lax.all_to_all(d_weights, self.embed, 1, 0, tiled=True)
    return d_weights[:rows]

  def gather(self, x: jax.Array) -> jax.Array:
    """The rows of every device with another piece of the vocabulary, below each other."""
    return jax.lax.all_gather(x, self.gathered, tiled=True) if self.gathered else x

  def own(self, x: jax.Array) -> jax.Array:
    """This device's rows of what was gathered."""
    if not self.gathered:
      return x
    rows = x.shape[0] // self.ways(self.gathered)
    return jax.lax.dynamic_slice_in_dim(x, self._index(self.gathered) * rows, rows)

  def own_sum(self, x: jax.Array) -> jax.Array:
    """This device's rows, summed over the pieces of the vocabulary."""
    if self.gathered:
      x = jax.lax.psum_scatter(x, self.gathered, tiled=True)
    others = tuple(axis for axis in self.pieces if axis not in self.gathered)
    return jax.lax.psum(x, others) if others else x

  def sum(self, x: jax.Array) -> jax.Array:
    """Over the pieces of the vocabulary."""
    return jax.lax.psum(x, self.pieces) if self.pieces else x

  def logsumexp(self, x: jax.Array) -> jax.Array:
    """log Σ exp over the pieces of the vocabulary, of each piece's own log-sum-exp."""
    if not self.pieces:
      return x
    top = jax.lax.pmax(x, self.pieces)
    return top + jnp.log(self.sum(jnp.exp(x - top)))

  def anywhere(self, x: jax.Array) -> jax.Array:
    """Where any device of the mesh says so: all of them must take the same branch, for they talk in it."""
    return jax.lax.pmax(x.astype(jnp.int32), self.mesh.axis_names) > 0 if self.mesh is not None else x

  def _index(self, axes: tuple[str, ...]) -> jax.Array:
    """This device's number along the axes, the last one counting fastest."""
    count = lambda number, axis: number * self.mesh.shape[axis] + jax.lax.axis_index(axis)
    return functools.reduce(count, axes, jnp.int32(0))


ONE_DEVICE = Spread()
