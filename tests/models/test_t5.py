"""T5 against recorded outputs of transformers, and unsuitable folders; more in tests/parity/test_t5_parity.py."""

import json
import pathlib

import hf_folders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ragrl_jax.models import t5
from ragrl_jax.parallel import mesh as mesh_lib

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "models_t5s.json").read_text())
SHAPES = {version: hf_folders.t5_shapes(config) for version, config in hf_folders.T5S.items()}


def folder_of(path, version, **changed):
  return hf_folders.write(path, hf_folders.T5S[version], SHAPES[version], **changed)


@nnx.jit
def run(model, tokens, mask, said):
  return model(tokens, mask, said), model.first_logits(tokens, mask)


@pytest.mark.parametrize("version", hf_folders.T5S)
def test_transformers_logits(version, tmp_path):
  model, config = t5.load_t5(folder_of(tmp_path, version))
  assert (config.scaled, config.tied) == ((True, True) if version == "v1.0" else (False, False))
  golden = {name: jnp.asarray(value) for name, value in GOLDEN[version].items()}
  got, first = run(model, golden["tokens"], golden["mask"], golden["said"])
  np.testing.assert_allclose(got, golden["logits"], atol=1e-5)
  np.testing.assert_allclose(first, golden["logits"][:, 0], atol=1e-5)
  # Padding and later tokens have no effect; the text has one.
  other = jnp.where(golden["mask"] == 0, 5, golden["tokens"]), golden["mask"], golden["said"].at[:, -1].set(6)
  np.testing.assert_array_equal(run(model, *other)[0][:, :-1], got[:, :-1])
  assert jnp.abs(run(model, golden["tokens"].at[:, 2].set(4), golden["mask"], golden["said"])[1] - first).max() > 1e-3


def test_the_mesh_changes_no_verdict(tmp_path):
  folder = folder_of(tmp_path, "v1.1")
  model, _ = t5.load_t5(folder, mesh=mesh_lib.make(jax.devices()[:4], data=1, fsdp=2, tensor=2, sequence=1))
  assert not model.encoder.layers.q[...].sharding.is_fully_replicated
  golden = {name: jnp.asarray(value) for name, value in GOLDEN["v1.1"].items()}
  got = run(model, golden["tokens"], golden["mask"], golden["said"])[0]
  np.testing.assert_allclose(got, golden["logits"], atol=1e-5)


def test_buckets_by_hand():
  # 8 buckets, both ways: 4 a side (ahead, 4 more), of which 2 are near. Distance d ≥ 2 is in 2 + 2 · ln(d / 2) / ln 5,
  # cut off: 2 at 2 … 4 (2 · 0.69 / 1.61 = 0.86), 3 from 5 on (2 · 0.92 / 1.61 = 1.14), and never more than 3.
  both = t5.buckets(1, 13, bidirectional=True, num_buckets=8, max_distance=10)[0]
  np.testing.assert_array_equal(both, [0, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7])
  behind = t5.buckets(13, 13, bidirectional=True, num_buckets=8, max_distance=10)[12]
  np.testing.assert_array_equal(behind, [3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 1, 0])
  # One way: 4 near ones, then 4 + 4 · ln(d / 4) / ln 2.5: 0.97 at 5, 1.77 at 6, 2.44 at 7, 3.03 at 8. Ahead is 0.
  causal = t5.buckets(13, 13, bidirectional=False, num_buckets=8, max_distance=10)
  np.testing.assert_array_equal(causal[12], [7, 7, 7, 7, 7, 6, 5, 4, 4, 3, 2, 1, 0])
  np.testing.assert_array_equal(causal[0], np.zeros(13))


def test_old_files_have_copies_that_are_not_read(tmp_path):
  rows = hf_folders.tensor("shared.weight", (29, 16))
  bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
  extra = {"encoder.embed_tokens.weight": rows, "lm_head.weight": rows, bias: np.zeros((8, 2), np.float32)}
  model, config = t5.load_t5(folder_of(tmp_path, "v1.0", **extra))
  assert config.tied and not hasattr(model, "lm_head")
  # An unembedding of its own is used, whatever config.json says. T5 has no second embedding.
  head = {"lm_head.weight": rows * 2}
  model, config = t5.load_t5(folder_of(tmp_path / "own", "v1.0", **head))
  assert config.scaled and not config.tied
  np.testing.assert_array_equal(model.lm_head[...], rows * 2)
  with pytest.raises(ValueError, match="encoder.embed_tokens.weight differs from shared.weight"):
    t5.load_t5(folder_of(tmp_path / "two", "v1.0", **{"encoder.embed_tokens.weight": rows * 2}))


@pytest.mark.parametrize("changed, message", [
  (dict(model_type="mt5"), "must be t5"), (dict(feed_forward_proj="gated-relu"), "feed_forward_proj"),
  (dict(layer_norm_epsilon="small"), "config.json: layer_norm_epsilon is 'small': it must be a number"),
  (dict(d_kv=None), "d_kv is missing"), (dict(num_layers=3), "no tensor"), (dict(num_layers=1), "no place"),
  (dict(d_ff=25), "shape"),
])  # fmt: skip
def test_unsuitable_folders_are_refused(changed, message, tmp_path):
  folder = folder_of(tmp_path, "v1.0")
  (folder / "config.json").write_text(json.dumps(hf_folders.T5S["v1.0"] | changed))
  with pytest.raises(ValueError, match=message):
    t5.load_t5(folder)
