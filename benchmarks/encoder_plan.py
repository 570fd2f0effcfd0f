"""A BERT encoder on accelerators that this machine lacks: its program, compiled ahead of time. Nothing runs."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from ragrl_jax.models import bert, encoder, encoder_settings
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.plan import index
from ragrl_jax.plan.summary import Program

BASE = bert.BertConfig(30_522, 768, 12, 12, 3072, 512, 2, 1e-12)  # BERT base: E5, BGE, GTE and DPR in that size


def encode(
  shape: bert.BertConfig, devices: list[jax.Device], *, texts: int = 512, tokens: int = 192, pooling: str = "mean"
) -> Program:
  """The compiled encoder in bfloat16 for a batch of texts of one length, split over these devices.

  Args:
    devices: devices that each hold the whole encoder.
    tokens: tokens per text; nearly all passages of 100 words have at most 192.
    pooling: see `encoder_settings.EncoderSettings`.
  """
  mesh = mesh_lib.make(devices)
  settings = encoder_settings.EncoderSettings(pooling, True)
  make = lambda: bert.Bert(shape, pooler=False, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)
  graphdef, abstract = nnx.split(nnx.eval_shape(make))
  replicated, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
  params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), abstract)
  ints = jax.ShapeDtypeStruct((texts, tokens), jnp.int32, sharding=spread)
  run = jax.jit(lambda params, tokens, mask: encoder.vectors_of(settings, graphdef, params, tokens, mask, mesh=mesh))
  c, each = shape, texts // len(devices)
  matrices = c.num_layers * (4 * c.d_model**2 + 2 * c.d_model * c.d_ff)
  attention = c.num_layers * 4 * tokens * c.d_model  # of a token: scores and their product with the values
  states = 2.0 * each * tokens * c.d_model
  flops = float(each * tokens * (2 * matrices + attention))
  hbm = 2.0 * matrices + c.num_layers * states * (8 + 2 * c.d_ff / c.d_model)
  return index.program_of("encoder", run.lower(params, ints, ints), devices, flops=flops, hbm=hbm)
