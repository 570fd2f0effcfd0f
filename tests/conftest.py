"""Strict settings for every test, made before JAX starts."""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Nearly all of a JAX test's time is compilation, so programs are kept between runs.
jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(__file__).parents[1] / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def pytest_collection_modifyitems(items):
  """The longest files first: a worker takes a whole file, and one that starts last is waited for."""
  items.sort(key=lambda item: item.path.name not in ("test_train.py", "test_crash.py"))
