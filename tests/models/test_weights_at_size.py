"""Weights of a real size go onto a mesh and out again in little more memory than they take."""

import pytest
import weights_at_size

from ragrl_jax.models.shapes import SHAPES


@pytest.mark.long  # two folders of 3.4 GB
@pytest.mark.timeout(900)
def test_weights_of_two_billion_parameters_go_onto_a_mesh_and_out_again(tmp_path):
  found = weights_at_size.run(SHAPES["qwen3-1.7b"], tmp_path, also_reshard=False)
  assert not found["differing"]
  assert found["bytes"] == 2 * 1_720_574_976
  for stage in ("load", "save"):
    assert 1.0 <= found["ratios"][stage] <= weights_at_size.AIM, found["ratios"]


@pytest.mark.long  # two folders of 1.2 GB, and as much memory five times
@pytest.mark.timeout(900)
def test_an_engines_layout_is_a_program_a_leaf_away(tmp_path):
  found = weights_at_size.run(SHAPES["qwen3-0.6b"], tmp_path, also_reshard=True)
  assert 0 < found["reshard"]["programs"] <= 13 and not found["differing"]
