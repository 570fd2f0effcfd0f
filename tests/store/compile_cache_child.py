"""Compares the bits of a gradient from a program without cache, when the cache is written, and when it is read."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from ragrl_jax.store import compile_cache

read = []
jax.monitoring.register_event_listener(lambda name, **_: read.append(name) if name.endswith("/cache_hits") else None)
x, w = (np.random.default_rng(seed).normal(size=size).astype("f4") for seed, size in ((0, (64, 96)), (1, (96, 300))))


def loss(w, x):
  logits = jnp.tanh(x @ w)
  return (jax.nn.log_softmax(logits, -1) * jnp.exp(logits - logits.mean(0))).sum()


def gradient() -> bytes:
  """The gradient; clears JAX's programs first, so the program is compiled again or read from the cache."""
  jax.clear_caches()
  return np.asarray(jax.jit(jax.grad(loss))(w, x)).tobytes()


without = gradient()
folder = compile_cache.keep()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # this program compiles quickly
written, before = gradient(), len(read)
print(json.dumps(dict(folder=str(folder), same=[written == without, gradient() == without], reads=[before, len(read)])))
