"""What the tests of compiled programs share."""

import jax
import pytest


@pytest.fixture
def quick():
  """Programs for TPUs compile at O1, four times as fast as at a run's O2."""
  before = jax.config.jax_optimization_level
  jax.config.update("jax_optimization_level", "O1")
  yield
  jax.config.update("jax_optimization_level", before)
