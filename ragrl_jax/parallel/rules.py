"""Sharding rules: parameter path → logical axes → mesh axes, one table for each step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ragrl_jax.core import spread as spread_lib

# Logical axis → the mesh axes that shard it. None: the axis is not sharded.
MESH_AXES: dict[str | None, str | tuple[str, ...] | None] = {
  None: None,
  "layer": None,  # the scan over layers needs each layer's slice on every device
  "vocab": "tensor",
  "embed": "fsdp",
  "heads": "tensor",  # heads · head_dim
  "ff": "tensor",
  "expert": "tensor",
  "batch": ("data", "fsdp"),
  "replica": "data",  # rows of an activation whose features are sharded over fsdp
  "length": "sequence",
}

# Stack of layers (or none) → logical axes → names of the parameters that have them.
PARAMETERS: dict[str, dict[tuple[str | None, ...], str]] = {
  "": {
    ("vocab", "embed"): "embedding lm_head",
    (None, None): "relative_bias",
    (None,): "final_norm value_head value_bias rng ns_coeffs",  # the last: of Muon's Newton-Schulz polynomial
  },
  "layers/": {
    ("layer", None): "attention_norm mlp_norm attention_post_norm mlp_post_norm cross_norm q_norm k_norm o_bias",
    ("layer", "embed", "heads"): "q k v cross_q cross_k cross_v",
    ("layer", "heads", "embed"): "o cross_o",
    ("layer", "heads"): "q_bias k_bias v_bias",
    ("layer", "embed", "ff"): "gate up",
    ("layer", "ff", "embed"): "down",
    ("layer", "embed", None): "router",
    ("layer", "expert", "embed", None): "experts_gate experts_up",
    ("layer", "expert", None, "embed"): "experts_down",
  },
  "delta/": {
    ("layer", None): "attention_norm mlp_norm delta_norm",
    ("layer", "embed", "heads"): "qkv z b a",
    ("layer", "heads", "embed"): "out",
    ("layer", "heads"): "log_decay step_bias",
    ("layer", None, None, "heads"): "conv",
    ("layer", "embed", "ff"): "gate up",
    ("layer", "ff", "embed"): "down",
  },
}
# End of a parameter's path → its logical axes. The paths of optimiser moments have the same ends.
_AXES_OF = {
  at + name: axes for at, named in PARAMETERS.items() for axes, names in named.items() for name in names.split()
}
# LoRA's A has the input axis of its matrix, B the output axis. The rank is small and not sharded.
for _name, _axes in list(_AXES_OF.items()):
  if _name.partition("/")[2] in ("q", "k", "v", "o", "gate", "up", "down", "qkv", "z", "out"):
    _AXES_OF[f"{_name}_lora_a"], _AXES_OF[f"{_name}_lora_b"] = (*_axes[:2], None), (_axes[0], None, _axes[2])

# The vocabulary size comes with the checkpoint. An encoder's may stay whole; a decoder's is refused (`check_vocab`).
MAY_STAY_WHOLE = {"vocab"}


def check_vocab(tensor: int, vocab: int, setting: str) -> None:
  """Raises ValueError if `tensor` devices cannot split a decoder's vocabulary. `setting` is `tensor`'s config path.

  Otherwise the embedding would not be sharded: every device would hold all its rows and compute all logits.
  """
  if vocab % tensor:
    raise ValueError(
      f"{setting}={tensor}: it must divide the {vocab} rows of the model's embedding, or every device would hold them "
      f"all. Use {math.gcd(vocab, tensor)}, or pad the table of the model's folder."
    )


def check_parts(tensor: int, setting: str, *, experts: int, delta_heads: int) -> None:
  """Raises ValueError if so many devices cannot split these parts of a layer; `setting` is their number's."""
  for number, what in ((experts, "experts a layer"), (delta_heads, "key heads of a delta layer")):
    if number % tensor:
      raise ValueError(
        f"{setting}={tensor}: it must divide the model's {number} {what}. Use {math.gcd(number, tensor)}."
      )


def check(
  sizes: Mapping[str, int],
  *,
  heads: int,
  kv_heads: int,
  vocab: int | None = None,
  experts: int = 0,
  delta_heads: int = 0,
  micro_rows: int | None = None,
  row_lengths: Sequence[int] = (),
) -> None:
  """Refuses a mesh on which devices would gather, or compute twice, the parts of others. The compiler would not warn.

  Args:
    sizes: sizes of the mesh's axes.
    heads, kv_heads: attention heads and key-value heads of the model.
    vocab: rows of the model's embedding; None if unknown.
    experts, delta_heads: number of experts of one layer, and of key heads of a delta layer; 0 for none.
    micro_rows, row_lengths: sizes of the learner's blocks; None and () without training.

  Raises:
    ValueError: tensor does not divide heads, vocabulary or experts, data · fsdp the rows, or sequence a row's tokens.
  """
  tensor, sequence, shares = sizes["tensor"], sizes["sequence"], sizes["data"] * sizes["fsdp"]
  if heads % tensor or kv_heads % tensor:
    raise ValueError(
      f"config.mesh.tensor={tensor}: it must divide the model's {kv_heads} key-value heads and its {heads} heads, or "
      f"every device would gather the others'. Use {math.gcd(heads, kv_heads, tensor)}, and give the other devices to "
      "config.mesh.fsdp."
    )
  if vocab is not None:
    check_vocab(tensor, vocab, "config.mesh.tensor")
  check_parts(tensor, "config.mesh.tensor", experts=experts, delta_heads=delta_heads)
  if micro_rows is not None and micro_rows % shares:
    raise ValueError(
      f"config.learner.micro_rows={micro_rows}: it must be a multiple of config.mesh.data * config.mesh.fsdp, "
      f"which is {shares}."
    )
  if bad := [length for length in row_lengths if length % sequence]:
    raise ValueError(
      f"config.learner.row_lengths={tuple(row_lengths)}: each must be a multiple of config.mesh.sequence={sequence}; "
      f"{bad[0]} is not."
    )


def names_of(path: Sequence[Any]) -> tuple[str, ...]:
  """The names in a tree path, without the last entry that an `nnx.Variable` adds ("value")."""
  names = tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
  return names[:-1] if names and names[-1] in ("value", "raw_value") else names


def parameter_axes(names: Sequence[str]) -> tuple[str | None, ...]:
  """Logical axes of the parameter at this path. Raises ValueError if no rule matches the path's end."""
  for length in (2, 1):
    if (axes := _AXES_OF.get("/".join(names[-length:]))) is not None:
      return axes
  raise ValueError(
    f"parameter {'/'.join(names)} has no sharding rule: add the end of its path and its logical axes to PARAMETERS "
    "in ragrl_jax/parallel/rules.py."
  )


def ways(mesh: Mesh, part: str | tuple[str, ...] | None) -> int:
  """Number of shards along these mesh axes."""
  return math.prod(mesh.shape[axis] for axis in ((part,) if isinstance(part, str) else part or ()))


def spec(mesh: Mesh, axes: Sequence[str | None], shape: Sequence[int], what: str) -> PartitionSpec:
  """The mesh axes of an array with these logical axes and this shape; `what` names the array in error messages.

  Raises:
    ValueError: the number of axes is wrong, or a mesh axis does not divide the array's axis.
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
    ValueError: the path of an array has no rule, or the mesh does not divide one of its axes.
  """

  def one(path, leaf):
    names = names_of(path)
    axes = parameter_axes(names) if leaf.ndim else ()
    return NamedSharding(mesh, spec(mesh, axes, leaf.shape, f"parameter {'/'.join(names)}"))

  return jax.tree_util.tree_map_with_path(one, tree)


def place(mesh: Mesh, tree: Any) -> Any:
  """Puts a tree of parameters or of optimiser state on the mesh; a ShapeDtypeStruct only gets its sharding."""

  def one(leaf, at):
    if isinstance(leaf, jax.ShapeDtypeStruct):
      return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at)
    return jax.device_put(leaf, at)

  return jax.tree.map(one, tree, shardings(mesh, tree))


def constrain(x: jax.Array, mesh: Mesh | None, axes: Sequence[str | None]) -> jax.Array:
  """Constrains the sharding of an activation inside `jit`; does nothing without a mesh.

  An axis that its mesh axes do not divide is not sharded. Without the constraint the compiler sees weights sharded over
  fsdp, and may then not shard the batch over it.
  """
  if mesh is None:
    return x
  return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, activation(mesh, axes, x.shape)))


def activation(mesh: Mesh, axes: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
  """The mesh axes of an activation with these logical axes; an axis that is not divisible is not sharded."""
  parts = ((MESH_AXES[name], size) for name, size in zip(axes, shape, strict=True))
  return PartitionSpec(*(part if size % ways(mesh, part) == 0 else None for part, size in parts))


def head(mesh: Mesh | None, hidden: jax.Array, unembedding: jax.Array) -> spread_lib.Spread:
  """The sharding of hidden states [R, T, D] and of an unembedding [V, D], for `core.logprobs.chunked`."""
  if mesh is None or mesh.size == 1:
    return spread_lib.ONE_DEVICE
  long = lambda part: tuple(a for a in ((part,) if isinstance(part, str) else part or ()) if mesh.shape[a] > 1)
  rows, length, _ = activation(mesh, ("batch", "length", None), hidden.shape)
  vocab, embed = spec(mesh, ("vocab", "embed"), unembedding.shape, "the unembedding")
  return spread_lib.Spread(mesh, long(rows), long(length), long(vocab), long(embed))


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """The sharding of packed rows [R, T]."""
  return NamedSharding(mesh, PartitionSpec(MESH_AXES["batch"], MESH_AXES["length"]))
