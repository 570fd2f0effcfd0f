"""Which part of an array each device holds: parameter path → logical axes → mesh axes, in one table each."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ragrl_jax.core import spread as spread_lib

# Logical axis → the mesh axes it is spread over. None: every device holds the whole of it.
MESH_AXES: dict[str | None, str | tuple[str, ...] | None] = {
  None: None,
  "layer": None,  # scanned: each step needs its slice on every device
  "vocab": "tensor",
  "embed": "fsdp",
  "heads": "tensor",  # heads · head_dim
  "ff": "tensor",
  "batch": ("data", "fsdp"),
  "replica": "data",  # a batch's rows while fsdp cuts its features instead
  "length": "sequence",
}

# The end of a parameter's path → its logical axes. Optimiser moments end in the same names.
PARAMETERS: dict[str, tuple[str | None, ...]] = {
  "embedding": ("vocab", "embed"),
  "lm_head": ("vocab", "embed"),
  "final_norm": (None,),
  "layers/attention_norm": ("layer", None),
  "layers/mlp_norm": ("layer", None),
  "layers/q_norm": ("layer", None),
  "layers/k_norm": ("layer", None),
  "layers/q": ("layer", "embed", "heads"),
  "layers/k": ("layer", "embed", "heads"),
  "layers/v": ("layer", "embed", "heads"),
  "layers/o": ("layer", "heads", "embed"),
  "layers/q_bias": ("layer", "heads"),
  "layers/k_bias": ("layer", "heads"),
  "layers/v_bias": ("layer", "heads"),
  "layers/o_bias": ("layer", None),
  "layers/gate": ("layer", "embed", "ff"),
  "layers/up": ("layer", "embed", "ff"),
  "layers/down": ("layer", "ff", "embed"),
  "value_head": (None,),
  "value_bias": (None,),
  "layers/cross_norm": ("layer", None),
  "layers/cross_q": ("layer", "embed", "heads"),
  "layers/cross_k": ("layer", "embed", "heads"),
  "layers/cross_v": ("layer", "embed", "heads"),
  "layers/cross_o": ("layer", "heads", "embed"),
  "relative_bias": (None, None),
  "ns_coeffs": (None,),  # Muon's polynomial
  "rng": (None,),
}
# LoRA's A reads what its matrix reads, B writes what it writes; the rank is narrow and stays whole.
for _name in ("q", "k", "v", "o", "gate", "up", "down"):
  _layer, _rows, _columns = PARAMETERS[f"layers/{_name}"]
  PARAMETERS[f"layers/{_name}_lora_a"] = (_layer, _rows, None)
  PARAMETERS[f"layers/{_name}_lora_b"] = (_layer, None, _columns)

# A vocabulary comes with the checkpoint and may have any size: where the mesh does not divide it, it stays whole.
MAY_STAY_WHOLE = {"vocab"}


def names_of(path: Sequence[Any]) -> tuple[str, ...]:
  """The names in a tree path, without the variable's own last step."""
  names = tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
  return names[:-1] if names and names[-1] in ("value", "raw_value") else names


def parameter_axes(names: Sequence[str]) -> tuple[str | None, ...]:
  """Logical axes of the parameter at this path.

  Raises:
    ValueError: no rule matches the end of the path.
  """
  for length in (2, 1):
    if (axes := PARAMETERS.get("/".join(names[-length:]))) is not None:
      return axes
  raise ValueError(
    f"parameter {'/'.join(names)} has no sharding rule: add the end of its path and its logical axes to PARAMETERS "
    "in ragrl_jax/parallel/rules.py."
  )


def ways(mesh: Mesh, part: str | tuple[str, ...] | None) -> int:
  """Into how many pieces these mesh axes cut."""
  return math.prod(mesh.shape[axis] for axis in ((part,) if isinstance(part, str) else part or ()))


def spec(mesh: Mesh, axes: Sequence[str | None], shape: Sequence[int], what: str) -> PartitionSpec:
  """The mesh axes of an array with these logical axes.

  Raises:
    ValueError: the number of axes is wrong, or a mesh axis does not divide the array's.
  """
  if len(axes) != len(shape):
    raise ValueError(f"{what} has shape {tuple(shape)}, its rule names {len(axes)} axes {tuple(axes)}.")
  parts = []
  for name, size in zip(axes, shape):
    part = MESH_AXES[name]
    if size % ways(mesh, part):
      if name not in MAY_STAY_WHOLE:
        raise ValueError(
          f"{what}: its axis {name!r} of size {size} cannot be cut into {ways(mesh, part)} (mesh axis {part}): "
          "choose a divisor of it in config.mesh."
        )
      part = None
    parts.append(part)
  return PartitionSpec(*parts)


def shardings(mesh: Mesh, tree: Any) -> Any:
  """A NamedSharding for each array (or ShapeDtypeStruct) of a tree of parameters or of optimiser state.

  Raises:
    ValueError: an array with axes whose path has no rule, or one that the mesh does not divide.
  """

  def one(path, leaf):
    names = names_of(path)
    axes = parameter_axes(names) if leaf.ndim else ()
    return NamedSharding(mesh, spec(mesh, axes, leaf.shape, f"parameter {'/'.join(names)}"))

  return jax.tree_util.tree_map_with_path(one, tree)


def place(mesh: Mesh, tree: Any) -> Any:
  """A tree of parameters or of optimiser state on the mesh; of ShapeDtypeStructs, only the word that it is there."""

  def one(leaf, at):
    if isinstance(leaf, jax.ShapeDtypeStruct):
      return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at)
    return jax.device_put(leaf, at)

  return jax.tree.map(one, tree, shardings(mesh, tree))


def constrain(x: jax.Array, mesh: Mesh | None, axes: Sequence[str | None]) -> jax.Array:
  """Says inside `jit` how an activation is spread; an axis its mesh axes do not divide stays whole. No mesh, no word.

  Without it the compiler, seeing weights cut along fsdp, may give up cutting the batch along it.
  """
  if mesh is None:
    return x
  return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, activation(mesh, axes, x.shape)))


def activation(mesh: Mesh, axes: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
  """The mesh axes of an activation with these logical axes, those left out that do not divide it."""
  parts = ((MESH_AXES[name], size) for name, size in zip(axes, shape, strict=True))
  return PartitionSpec(*(part if size % ways(mesh, part) == 0 else None for part, size in parts))


def head(mesh: Mesh | None, hidden: jax.Array, unembedding: jax.Array) -> spread_lib.Spread:
  """How hidden states [R, T, D] and an unembedding [V, D] lie, for `core.logprobs.chunked`."""
  if mesh is None or mesh.size == 1:
    return spread_lib.ONE_DEVICE
  long = lambda part: tuple(a for a in ((part,) if isinstance(part, str) else part or ()) if mesh.shape[a] > 1)
  rows, length, _ = activation(mesh, ("batch", "length", None), hidden.shape)
  vocab, embed = spec(mesh, ("vocab", "embed"), unembedding.shape, "the unembedding")
  return spread_lib.Spread(mesh, long(rows), long(length), long(vocab), long(embed))


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Of packed rows [R, T]."""
  return NamedSharding(mesh, PartitionSpec(MESH_AXES["batch"], MESH_AXES["length"]))
