"""Attention of packed rows with shared prompts, compiled for a TPU by libtpu: memory and calls of its kernel."""

import functools

import jax
import jax.numpy as jnp
import pytest

from ragrl_jax.models import attention
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.plan import aot

pytestmark = pytest.mark.parity


def compiled(heads, kv_heads, length, *, shared):
  """Attention and its gradient for one row and one chip of v5e, at head size 128."""
  mesh = mesh_lib.make(aot.devices("v5e:2x2")[:1])
  array = functools.partial(
    jax.ShapeDtypeStruct, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  )
  q, k = (array((1, length, count, 128), jnp.bfloat16) for count in (heads, kv_heads))
  ids = array((1, length), jnp.int32)

  def both(q, k, v, gradient, ids, until):
    out, back = jax.vjp(lambda *x: attention.attend(*x, ids, until if shared else None, mesh=mesh), q, k, v)
    return out, back(gradient)

  return jax.jit(both).lower(q, k, k, q, ids, ids).compile()


def test_shared_prompts_take_three_kernel_calls_and_no_loop():
  # The heads of Qwen2.5-7B. Three calls: forward, gradient of the queries, gradient of the keys and values.
  texts = [compiled(28, 4, 2048, shared=shared).as_text() for shared in (True, False)]
  assert [text.count('custom_call_target="tpu_custom_call"') for text in texts] == [3, 3]
  assert not any(" while(" in text for text in texts)
