"""Weights of a real size are loaded onto a mesh and saved with little more memory than they need."""

import pytest
import weights_at_size

from ragrl_jax.models.shapes import SHAPES


@pytest.mark.long  # two folders of 3.4 GB
@pytest.mark.timeout(900)
def test_weights_of_two_billion_parameters_are_loaded_onto_a_mesh_and_saved(tmp_path):
  found = weights_at_size.run(SHAPES["qwen3-1.7b"], tmp_path, also_reshard=False)
  assert not found["differing"]
  assert found["bytes"] == 2 * 1_720_574_976
  for stage in ("load", "save"):
    assert 1.0 <= found["ratios"][stage] <= weights_at_size.AIM, found["ratios"]


@pytest.mark.long  # two folders of 1.2 GB, and five times that much memory
@pytest.mark.timeout(900)
def test_an_engines_layout_needs_one_program(tmp_path):
  found = weights_at_size.run(SHAPES["qwen3-0.6b"], tmp_path, also_reshard=True)
  assert 0 < found["reshard"]["programs"] <= 13 and not found["differing"]
