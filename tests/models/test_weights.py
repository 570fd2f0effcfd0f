"""Folders are written and read back; every possible error of a folder."""

import json
import random
import shutil
import time

import hf_folders
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import transformers
from decoder_shapes import equal
from flax import nnx
from refusals import refused
from safetensors.numpy import load_file

from ragrl_jax.models import families, mapping, tensors, weights
from ragrl_jax.models.config import EVERYTHING, DecoderConfig
from ragrl_jax.models.hf import LinearScaling
from ragrl_jax.parallel import mesh as mesh_lib

QWEN = hf_folders.DECODERS["qwen2"] | dict(vocab_size=20)  # even, so that two devices can share the embedding
MOE, GEMMA, MISTRAL, SMOL = (hf_folders.DECODERS[name] for name in "qwen3_moe gemma3_text mistral smollm3".split())
SHAPES = hf_folders.decoder_shapes(QWEN)
MINISTRAL = hf_folders.DECODERS["ministral3"]
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
BETA = dict(llama_4_scaling_beta=0.1)
Q0 = "model.layers.0.self_attn.q_proj.weight"
DAMAGED = r"model\.safetensors is truncated, damaged, or not a safetensors file \(.*Fetch it again"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return hf_folders.write(tmp_path_factory.mktemp("qwen2"), QWEN, SHAPES)


@pytest.mark.parametrize("family", hf_folders.DECODERS)
@pytest.mark.parametrize("shard_bytes", [10**9, 3000])
def test_a_saved_folder_is_read_back(family, shard_bytes, tmp_path):
  config = hf_folders.DECODERS[family]
  shapes = hf_folders.decoder_shapes(config)
  model, read = weights.load_pretrained(hf_folders.write(tmp_path / "in", config, shapes))
  weights.save_pretrained(model, read, tmp_path / "out", shard_bytes=shard_bytes)
  again, reread = weights.load_pretrained(tmp_path / "out")
  assert reread == read
  equal(model, again)
  files = sorted((tmp_path / "out").glob("*.safetensors"))
  assert (len(files) > 1) == (shard_bytes == 3000)
  stored = {name: array for file in files for name, array in load_file(file).items()}  # another program's reader
  assert set(stored) == set(shapes)
  for name, array in stored.items():
    np.testing.assert_array_equal(array, hf_folders.tensor(name, shapes[name]), err_msg=name)
  assert not list((tmp_path / "out").glob("*.partial"))


@pytest.mark.parametrize("kind, family, layout, beside", [
  ("qwen3_5", "qwen3_5_text", families.LAYOUTS[2], "model.visual.patch_embed mtp.fc"),
  ("gemma3", "gemma3_text", families.LAYOUTS[2], "model.vision_tower.embed model.multi_modal_projector.norm"),
  ("gemma3", "gemma3_text", families.LAYOUTS[3], "vision_tower.embed multi_modal_projector.norm"),
  ("mistral3", "mistral", families.LAYOUTS[3], "vision_tower.embed multi_modal_projector.norm"),
  ("mistral3", "ministral3", families.LAYOUTS[3], "vision_tower.embed multi_modal_projector.norm"),
])  # fmt: skip
def test_the_text_part_beside_an_image_encoder_is_read(kind, family, layout, beside, tmp_path):
  """As these are published: settings in text_config, longer names, image encoder and draft heads beside them."""
  config = hf_folders.DECODERS[family]
  shapes = hf_folders.decoder_shapes(config)
  alone, expected = weights.load_pretrained(hf_folders.write(tmp_path / "text", config, shapes))
  outside = {key: config.get(key) for key in ("tie_word_embeddings", "eos_token_id")}
  text = {key: value for key, value in config.items() if key not in outside}
  more = dict(mtp_num_hidden_layers=1, mamba_ssm_dtype="float32", output_gate_type="swish") if kind == "qwen3_5" else {}
  whole = dict(model_type=kind, text_config=text | more, vision_config=dict(depth=2), **outside)
  long = {layout(n): hf_folders.tensor(n, s) for n, s in shapes.items()}
  long |= {f"{name}.weight": np.ones(3, np.float32) for name in beside.split()}
  model, read = weights.load_pretrained(hf_folders.write(tmp_path / "whole", whole, {}, **long))
  assert read == expected
  equal(model, alone)
  head = {layout("lm_head.weight"): hf_folders.tensor("another head", shapes["model.embed_tokens.weight"])}
  assert not weights.config_of(hf_folders.write(tmp_path / "head", whole, {}, **long | head)).tied


def test_configs_beside_an_image_encoder_that_are_refused():
  qwen, score = hf_folders.DECODERS["qwen3_5_text"], dict(architectures=["Gemma3ForSequenceClassification"])
  for kind, text, outside, says in (
    ("qwen3_5", None, {}, "text_config is missing"),
    ("qwen3_5", qwen | dict(attn_output_gate=False), {}, "attn_output_gate is False"),
    ("qwen3_5", qwen | dict(layer_types=["full_attention"] * 2 + ["linear_attention"] * 2), {}, "layer_types has"),
    ("qwen3_5", qwen | dict(linear_conv_kernel_dim=None), {}, "linear_conv_kernel_dim is missing"),
    ("qwen3_5", qwen | dict(attention_bias=True), {}, "attention_bias is True"),
    ("qwen3_5", qwen, dict(quantization_config=dict(quant_method="fp8")), "quantised weights"),
    ("gemma3", GEMMA | dict(use_bidirectional_attention=True), {}, "use_bidirectional_attention is True"),
    ("gemma3", GEMMA | dict(attn_logit_softcapping=50.0), {}, "attn_logit_softcapping is 50.0"),
    ("gemma3", GEMMA | dict(rope_scaling=dict(type="longrope")), {}, "rope_type 'longrope'"),
    ("gemma3", GEMMA, score, "head gives scores"), ("mistral3", dict(model_type="ministral"), {}, "'ministral' is"),
  ):  # fmt: skip
    refused(says, DecoderConfig.from_hf, dict(model_type=kind, text_config=text) | outside)


def test_saving_one_file_over_shards_leaves_no_index(folder, tmp_path):
  model, config = weights.load_pretrained(folder)
  weights.save_pretrained(model, config, tmp_path, shard_bytes=3000)
  weights.save_pretrained(model, config, tmp_path)
  assert [file.name for file in tmp_path.glob("*safetensors*")] == ["model.safetensors"]
  equal(model, weights.load_pretrained(tmp_path)[0])
  weights.save_pretrained(model, config, tmp_path, shard_bytes=3000)
  assert not (tmp_path / "model.safetensors").exists()  # transformers would load it instead of the shards
  shutil.copyfile(folder / "model.safetensors", tmp_path / "model.safetensors")
  for shard in tmp_path.glob("model-*"):
    shard.unlink()
  equal(model, weights.load_pretrained(tmp_path)[0])  # as other programs leave it: one file, and an old index


def test_bfloat16_on_disk_and_in_memory(folder, tmp_path):
  model, config = weights.load_pretrained(folder)
  weights.save_pretrained(model, config, tmp_path, dtype=jnp.bfloat16)
  assert load_file(tmp_path / "model.safetensors")[Q0].dtype == ml_dtypes.bfloat16
  assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
  half, _ = weights.load_pretrained(tmp_path, dtype=jnp.bfloat16)
  wide, _ = weights.load_pretrained(tmp_path, dtype=jnp.float32)
  assert half.layers.q[...].dtype == jnp.bfloat16
  np.testing.assert_array_equal(wide.layers.q[...], model.layers.q[...].astype(jnp.bfloat16).astype(jnp.float32))


def test_a_folder_is_checked_and_copied(folder, tmp_path):
  config = weights.copy_pretrained(folder, tmp_path, dtype=np.float32, shard_bytes=3000)
  assert config.family == "qwen2"
  equal(weights.load_pretrained(folder)[0], weights.load_pretrained(tmp_path)[0])
  refused("another one", weights.copy_pretrained, folder, folder, dtype=np.float32)


@pytest.mark.parametrize("sizes", [dict(data=2, fsdp=2, tensor=2), dict(data=1, fsdp=8), dict(data=4, sequence=2)])
def test_loading_onto_a_mesh(folder, sizes, monkeypatch):
  mesh = mesh_lib.make(jax.devices(), **sizes)
  read, reads = mapping._read, []

  def counted(*given):
    part, leaf = read(*given), given[3]
    reads.append((leaf.ndim, part.size / np.prod(leaf.shape)))
    return part

  monkeypatch.setattr(mapping, "_read", counted)
  spread, _ = weights.load_pretrained(folder, mesh=mesh)
  monkeypatch.undo()
  # fsdp and tensor decide the number of parts of a matrix. Each part is read once, though `data` devices hold it.
  parts = [share for ndim, share in reads if ndim == 3]
  ways = sizes.get("fsdp", 1) * sizes.get("tensor", 1)
  assert parts == [1 / ways] * (7 * ways)  # q, k, v, o, gate, up, down
  assert not spread.layers.q[...].is_fully_replicated or ways == 1
  equal(weights.load_pretrained(folder)[0], spread)


@pytest.mark.parametrize("piece", [2**26, 200])  # the embedding [20, 16] whole, and in pieces of three rows
def test_a_saved_mesh_is_the_same_folder(folder, tmp_path, piece, monkeypatch):
  monkeypatch.setattr(tensors, "PIECE", piece)
  spread, config = weights.load_pretrained(folder, mesh=mesh_lib.make(jax.devices(), data=1, fsdp=4, tensor=2))
  weights.save_pretrained(spread, config, tmp_path)
  equal(weights.load_pretrained(folder)[0], weights.load_pretrained(tmp_path)[0])


def test_a_mesh_is_saved_piece_by_piece(folder, monkeypatch):
  spread, _ = weights.load_pretrained(folder, mesh=mesh_lib.make(jax.devices(), data=2, fsdp=2, tensor=2))
  monkeypatch.setattr(tensors, "PIECE", 200)
  pieces = {
    name: [piece.nbytes for piece in read()]
    for name, shape, read in mapping.entries(families.TENSORS, nnx.split(spread)[1])
    if name in ("model.embed_tokens.weight", Q0)
  }
  assert pieces["model.embed_tokens.weight"] == [3 * 64] * 6 + [2 * 64]
  assert pieces[Q0] == [32 * 64]  # a layer is one piece
  wide = spread.embedding[...]
  list(tensors.pieces(wide))
  assert wide._npy_value is None  # the array keeps no copy


def test_names_without_a_head_and_a_tied_copy(tmp_path):
  config = hf_folders.DECODERS["qwen3"]
  shapes = hf_folders.decoder_shapes(config)
  arrays = {name: hf_folders.tensor(name, shape) for name, shape in shapes.items()}
  want, _ = weights.load_pretrained(hf_folders.write(tmp_path / "full", config, shapes))
  bare = {name.removeprefix("model."): array for name, array in arrays.items()}
  equal(want, weights.load_pretrained(hf_folders.write(tmp_path / "bare", config, {}, **bare))[0])
  copy = {"lm_head.weight": arrays["model.embed_tokens.weight"], "model.rotary_emb.inv_freq": np.ones(4, np.float32)}
  equal(want, weights.load_pretrained(hf_folders.write(tmp_path / "copy", config, shapes, **copy))[0])
  arrays["lm_head.weight"] = arrays.pop("model.embed_tokens.weight")
  equal(want, weights.load_pretrained(hf_folders.write(tmp_path / "head", config, {}, **arrays))[0])


def test_an_unembedding_that_differs_from_a_tied_embedding_is_used_and_kept(tmp_path, caplog):
  """As transformers does. Merged adapters with a trained head, or grown vocabularies, leave such folders."""
  config = hf_folders.DECODERS["qwen3"]
  assert config["tie_word_embeddings"]
  shapes = hf_folders.decoder_shapes(config)
  head = hf_folders.tensor("another head", shapes["model.embed_tokens.weight"])
  source = hf_folders.write(tmp_path / "in", config, shapes, **{"lm_head.weight": head})
  model, read = weights.load_pretrained(source)
  assert not read.tied and not weights.config_of(source).tied
  np.testing.assert_array_equal(model.unembedding(), head)
  assert caplog.text.count("lm_head.weight differs from it: it is used") == 1  # said once
  weights.save_pretrained(model, read, tmp_path / "saved")
  weights.copy_pretrained(source, tmp_path / "copied", dtype=np.float32)
  for name in ("saved", "copied"):
    assert json.loads((tmp_path / name / "config.json").read_text())["tie_word_embeddings"] is False
    np.testing.assert_array_equal(load_file(tmp_path / name / "model.safetensors")["lm_head.weight"], head)
  # A decoder that embeds texts has no head. A folder that is replaced is read again.
  assert weights.load_pretrained(source, head=False)[1].tied
  same = {"lm_head.weight": hf_folders.tensor("model.embed_tokens.weight", head.shape)}
  assert weights.config_of(hf_folders.write(source, config, shapes, **same)).tied


def test_folders_that_are_no_models_are_named(tmp_path):
  (tmp_path / "config.json").write_text(json.dumps(dict(recipe="search_r1", model=dict(path=""))))
  refused("is a run's folder.*`ragrl export --checkpoint .* --out FOLDER`", weights.config_of, tmp_path)
  (tmp_path / "model").mkdir()
  (tmp_path / "model" / "adapter_config.json").write_text("{}")
  refused(f"a run's folder, not a model's: use {tmp_path / 'model'}", weights.config_of, tmp_path)
  refused("holds adapters: give it as config.model.lora.path", weights.config_of, tmp_path / "model")


@pytest.mark.parametrize("changed, says", [
  ({Q0: None}, rf"no tensor {Q0} of shape \(32, 16\)"),
  ({Q0: np.zeros((16, 32), np.float32)}, rf"model.safetensors: tensor {Q0} has shape \(16, 32\).*\(32, 16\)"),
  ({"extra": np.zeros(3, np.float32)}, "model.safetensors: tensor extra has no place in a qwen2 model"),
  ({Q0: np.zeros((32, 16), np.int8)}, f"tensor {Q0} is I8"),
  ({"model.layers.0.self_attn.q_proj.bias": None}, "no tensor model.layers.0.self_attn.q_proj.bias"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_refused(changed, says, tmp_path):
  refused(says, weights.load_pretrained, hf_folders.write(tmp_path, QWEN, SHAPES, **changed))


def test_a_truncated_file_is_named(folder, tmp_path):
  shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
  file = tmp_path / "model.safetensors"
  whole = file.read_bytes()
  for cut in (whole[:-1], whole[:100], b"", (9).to_bytes(8, "little") + b"not json!"):
    file.write_bytes(cut)
    refused(DAMAGED, weights.load_pretrained, tmp_path)


def test_incomplete_shards_and_wrong_indexes_are_refused(folder, tmp_path):
  weights.save_pretrained(*weights.load_pretrained(folder), tmp_path, shard_bytes=3000)
  index = tmp_path / "model.safetensors.index.json"
  shards = json.loads(index.read_text())["weight_map"]
  (tmp_path / shards[Q0]).rename(tmp_path / "elsewhere")
  refused(f"{shards[Q0]} is missing", weights.load_pretrained, tmp_path)
  (tmp_path / "elsewhere").rename(tmp_path / shards[Q0])
  for weight_map, says in (
    (shards | {"ghost": shards[Q0]}, "has no tensor ghost"),
    ({Q0: "../secret.safetensors"}, "must be the name of a file"),
    *((wrong, "index.json: weight_map must name a file") for wrong in ({Q0: 1}, [Q0], "model.safetensors", {Q0: None})),
  ):
    index.write_text(json.dumps(dict(weight_map=weight_map)))
    refused(says, weights.load_pretrained, tmp_path)


def test_unsupported_configs_are_refused():
  one_of = "it must be one of qwen2, .*gemma3_text.*families.py"
  two = dict(rope_parameters=dict(rope_type="default"), rope_scaling=dict(type="linear", factor=4.0))
  sections = dict(rope_scaling=dict(rope_type="linear", factor=2.0, mrope_section=[1]))
  for change, says in [
    (dict(model_type="gpt2"), f"model_type: 'gpt2' is not a supported model family: {one_of}"),
    (dict(model_type=None), "model_type is missing"), (dict(rope_theta=None), "no rope_theta"),
    (dict(hidden_size=None), "hidden_size is missing"),
    (dict(rope_parameters=dict(rope_theta=5.0)), "rope_theta is 5.0 and 1000.0"),
    (dict(rope_scaling=dict(type="linear", factor=2.0, rope_theta=5.0)), "rope_theta is 5.0 and 1000.0"),
    (dict(rope_parameters=dict(rope_type="longrope")), "rope_type 'longrope'"),
    (dict(rope_scaling=dict(type="yarn", factor=4.0)), "original_max_position_embeddings is missing"),
    (dict(rope_scaling=YARN | dict(beta_slow=0)), "beta_slow is 0.0: it must be above 0"),
    (dict(rope_scaling=YARN | dict(finetuned=True)), "finetuned is True"),
    (two, "rope_parameters and rope_scaling disagree"),
    (dict(rope_scaling=dict(rope_type="llama3", factor=4.0)), "low_freq_factor is missing"),
    (dict(use_sliding_window=True), "use_sliding_window is True"),
    # A key that changes the computation and is not read: models with long contexts, without positions, with own code.
    (dict(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5"),
    (dict(rope_scaling=dict(type="linear", factor=2.0, partial_rotary_factor=0.5)), "partial_rotary_factor is 0.5"),
    (dict(rope_scaling=dict(rope_type="default", type="mrope")), "rope_type 'default' and type 'mrope'"),
    (sections, r"rope scaling: mrope_section is \[1\]"),
    (dict(rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=1000.0)), "rope_type 'dynamic'"),
    (dict(auto_map=dict(AutoModel="modeling.Model")), "auto_map is .* may change what the model computes"),
    (dict(no_rope_layers=[1, 0]), r"no_rope_layers is \[1, 0\]"),
    (dict(dual_chunk_attention_config=dict(chunk_size=9)), "dual_chunk_attention_config is"),
    (dict(quantization_config=dict(quant_method="awq")), "quantization_config: .* Name the model of which"),
    (dict(is_causal=False), "is_causal is False"), (dict(num_experts=4), "num_experts is 4"),
    (dict(a_new_key=1), "a_new_key is 1"),
    (dict(architectures=["Qwen2ForSequenceClassification"]), "head gives scores .* that writes, as Qwen2ForCausalLM"),
    (hf_folders.DECODERS["llama"] | dict(sliding_window=8), "sliding_window is 8"),
    (hf_folders.DECODERS["llama"] | dict(rope_interleaved=True), "rope_interleaved is True"),
    (dict(hidden_act="gelu"), "hidden_act is 'gelu'"),
    (dict(layer_types=["full_attention", "sliding_attention"]), "sliding_attention"),
    (MOE | dict(mlp_only_layers=[0]), r"mlp_only_layers is \[0\]"),
    (MOE | dict(decoder_sparse_step=2), "decoder_sparse_step is 2"),
    (MOE | dict(num_experts=None), "num_experts is missing"),
    (MOE | dict(num_experts_per_tok=6), "experts_per_token is 6: it must be 1 to the 5 experts"),
    (GEMMA | dict(num_hidden_layers=2**30), "num_hidden_layers is 1073741824: it must be at most 10000"),
    (GEMMA | dict(final_logit_softcapping=30.0), "final_logit_softcapping is 30.0"),
    (GEMMA | dict(hidden_activation="silu"), "hidden_activation is 'silu'"),
    (GEMMA | dict(use_bidirectional_attention=True), "use_bidirectional_attention is True"),  # only encoders may
    (GEMMA | dict(layer_types=["full_attention"]), "for each of 3 layers"),
    (GEMMA | dict(rope_parameters=dict(rope_theta=3.0)), "rope_parameters is .* an object for full_attention"),
    (GEMMA | dict(rope_parameters=dict(sliding_attention=dict(rope_theta=3.0))), "rope_theta is 3.0 and 50.0"),
    (GEMMA | dict(sliding_window=None), "sliding_window is missing"),
    (GEMMA | dict(query_pre_attn_scalar=None), "query_pre_attn_scalar is missing"),
    (SMOL | dict(no_rope_layers=[1]), r"no_rope_layers is \[1\]: it must have 1 .* for each of 2 layers"),
    (SMOL | dict(no_rope_layers=[1, 2]), r"no_rope_layers is \[1, 2\]"),
    (SMOL | dict(use_sliding_window=True), "use_sliding_window is True"),
    (hf_folders.DECODERS["llama"] | dict(no_rope_layers=[1, 0]), r"no_rope_layers is \[1, 0\]"),
    (MISTRAL | dict(rope_scaling=YARN | BETA), "in mistral llama_4_scaling_beta has no effect: leave it out"),
    (MINISTRAL | dict(rope_parameters=YARN | dict(rope_theta=1000.0)), "in ministral3 llama_4_scaling_beta is needed"),
    (MISTRAL | dict(attention_bias=True), "attention_bias is True"),
    (MISTRAL | dict(sliding_window=0), "sliding_window is 0"),
  ]:  # fmt: skip
    where = "" if "experts_per_token" in says or "_beta" in says else "folder/config.json.*"
    refused(f"{where}{says}", DecoderConfig.from_hf, QWEN | change, "folder/config.json")


@pytest.mark.parametrize("family", families.FAMILIES)
def test_all_that_transformers_writes_by_default_is_known(family):
  """Keys that are off, transformers' notes and settings of `generate` are harmless, too."""
  written = transformers.AutoConfig.for_model(family).to_dict()
  more = dict(temperature=0.6, unsloth_version="1", _sliding_window_pattern=6, a_new_key=None, another=False)
  rope = {} if family == "ministral3" else {"rope_theta": 1e6, "rope_parameters": None}
  theirs = DecoderConfig.from_hf({**written, **rope, **more})
  assert theirs.family == family and theirs.num_layers == written["num_hidden_layers"]


def test_notes_of_published_folders_are_passed_over():
  llama = hf_folders.DECODERS["llama"]
  smol = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": dict(dtype="q4")}  # SmolLM2's
  old = dict(sbert_ce_default_activation_function="torch.nn.modules.linear.Identity", max_sequence_length=2048)
  assert DecoderConfig.from_hf(llama | smol | old) == DecoderConfig.from_hf(llama)
  coder = dict(use_qk_norm=True, qkv_bias=False, shared_expert_intermediate_size=0)  # Qwen3-Coder-30B-A3B's
  assert DecoderConfig.from_hf(MOE | coder) == DecoderConfig.from_hf(MOE)


def test_both_layouts_of_rope_settings_are_equal():
  old = hf_folders.DECODERS["llama"]
  new = {key: value for key, value in old.items() if not key.startswith("rope")}
  new["rope_parameters"] = old["rope_scaling"] | dict(rope_theta=old["rope_theta"])
  read = DecoderConfig.from_hf(old)
  assert read.rope_scaling.factor == 4.0 and read.rope_theta == 1000.0
  assert DecoderConfig.from_hf(new) == read and DecoderConfig.from_hf(read.to_hf()) == read
  shape = dict(d_model=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, d_ff=16, rope_theta=9.0)
  made = DecoderConfig.from_shape(9, family="llama", rope_scaling=old["rope_scaling"], **shape)
  assert made.rope_scaling == read.rope_scaling and made.rope_theta == 9.0
  with pytest.raises(ValueError, match="config.model.shape, rope scaling: low_freq_factor is missing"):
    DecoderConfig.from_shape(9, family="llama", rope_scaling=dict(rope_type="llama3", factor=2.0), **shape)


def test_yarns_attn_factor_is_that_of_vllm(caplog):
  config = DecoderConfig.from_hf(QWEN | dict(rope_scaling=YARN | dict(attn_factor=0.8782488562869419)))
  assert config.rope_scaling.attention_factor == pytest.approx(1.0)  # DeepSeek's is 1 / (1 + 0.1 ln 4)
  assert DecoderConfig.from_hf(config.to_hf()) == config
  assert caplog.text.count("attn_factor multiplies") == 1


def test_windows_and_both_layouts_of_two_ropes():
  old = DecoderConfig.from_hf(GEMMA)
  assert old.windows == (3, EVERYTHING, 3) and old.query_scale == 10.0
  assert old.ropes == ((50.0, None), (1000.0, LinearScaling(4.0)), (50.0, None))
  new = {key: value for key, value in GEMMA.items() if not key.startswith("rope") and key != "sliding_window_pattern"}
  new["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
  new["rope_parameters"] = dict(
    full_attention=dict(rope_type="linear", factor=4.0, rope_theta=1000.0), sliding_attention=dict(rope_theta=50.0)
  )
  assert DecoderConfig.from_hf(new) == old == DecoderConfig.from_hf(old.to_hf())
  plain = DecoderConfig.from_hf(new | dict(layer_types=["full_attention"] * 3, query_pre_attn_scalar=8))
  assert plain.windows == (EVERYTHING,) * 3 and plain.query_scale is None  # as head_dim
  assert DecoderConfig.from_hf(plain.to_hf()) == plain
  # Mistral's window is 4096 if config.json does not say so, and null if there is none. transformers also obeys
  # layer_types.
  missing = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
  full = MISTRAL | dict(layer_types=["full_attention"] * 2)
  for values, window in ((MISTRAL, 4), (missing, 4096), (missing | dict(sliding_window=None), None), (full, None)):
    config = DecoderConfig.from_hf(values)
    assert config.window == window and DecoderConfig.from_hf(config.to_hf()) == config


def test_layers_without_rotary_positions():
  silent = {key: value for key, value in SMOL.items() if key != "no_rope_layers"} | dict(num_hidden_layers=5)
  every_third = silent | dict(no_rope_layer_interval=3, no_rope_layers=None)
  for values, nope in ((SMOL, [0]), (SMOL | dict(no_rope_layers=[1] * 3), []), (silent, [3]), (every_third, [2])):
    config = DecoderConfig.from_hf(values)
    assert (
      [i for i, each in enumerate(config.nope) if each] == nope == [i for i, rope in enumerate(config.ropes) if rope[1]]
    )
    assert DecoderConfig.from_hf(config.to_hf()) == config


def test_config_files_that_cannot_be_read_and_pickles_are_refused(tmp_path):
  refused("config.json is missing", weights.load_pretrained, tmp_path)
  for text in ("{", "[" * 100_000, '{"num_hidden_layers": ' + "9" * 5000 + "}"):  # two exhaust their parser
    (tmp_path / "config.json").write_text(text)
    refused("config.json is not JSON", weights.load_pretrained, tmp_path)
  (tmp_path / "config.json").write_text(json.dumps(QWEN))
  (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
  refused("safetensors only", weights.load_pretrained, tmp_path)


@pytest.fixture
def rewritten(folder, tmp_path):
  """header → None: writes a folder with this header over the valid folder's data, and config.json beside it."""
  whole = (folder / "model.safetensors").read_bytes()
  length = 8 + int.from_bytes(whole[:8], "little")

  def write(header):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + whole[length:])
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return tmp_path

  write.header = json.loads(whole[8:length])
  return write


def test_invalid_headers(rewritten):
  entries = [dict(data_offsets=[-2048, 0]), dict(data_offsets=[2048, 0]), dict(data_offsets=None), dict(dtype=None)]
  entries += [dict(shape=[-32, -16]), dict(shape=[32.0, 16]), dict(shape=[10**15, 16]), dict(data_offsets=[0, 10**12])]
  other = next(name for name in rewritten.header if name != Q0 and name.endswith("q_proj.weight"))
  entries += [dict(data_offsets=rewritten.header[other]["data_offsets"])]  # two tensors overlap
  headers = [rewritten.header | {Q0: rewritten.header[Q0] | entry} for entry in entries]
  moved = rewritten.header[Q0] | dict(data_offsets=[0, 2048])
  assert moved != rewritten.header[Q0]
  twice = f'{json.dumps(rewritten.header)[:-1]}, "{Q0}": {json.dumps(moved)}}}'.encode()  # a name with two entries
  for header in (*headers, twice, b"[" * 100_000, b'{"x": 1}', b"\xff\xfe", b"null"):
    refused(DAMAGED, tensors.TensorFolder, rewritten(header))


def test_hundreds_of_fuzzed_headers_load_or_are_refused_by_name(rewritten):
  rng = random.Random(0)
  odd = [-1, 0, 2**63, 2**70, 1.5, None, True, "F32", [], {}, [0], [[0, 8]], "\ud800", float("nan"), [8, 0], [-8, 8]]

  def fuzzed():
    header = json.loads(json.dumps(rewritten.header))
    for _ in range(rng.randint(1, 3)):
      name = rng.choice(sorted(header))
      kind = rng.randrange(5)
      if kind == 0:
        header[name] = rng.choice(odd)
      elif kind == 1 and isinstance(header[name], dict):
        header[name][rng.choice(["dtype", "shape", "data_offsets", "more"])] = rng.choice(odd)
      elif kind == 2 and isinstance(header[name], dict) and isinstance(header[name].get("data_offsets"), list):
        header[name]["data_offsets"] = [rng.randint(-9, 9999), rng.randint(-9, 9999)]
      elif kind == 3:
        header.pop(name)
      else:
        return rng.randbytes(rng.randint(0, 200)) + json.dumps(header).encode()[: rng.randint(0, 4000)]
    return header

  errors = 0
  for _ in range(400):
    where = rewritten(fuzzed())
    try:
      found = tensors.TensorFolder(where)
      for name, shape in SHAPES.items():
        found.open(name, shape)
    except ValueError as error:
      errors += 1
      assert str(where) in str(error) and "\n" not in str(error), error
  assert errors > 300


ABSURD = dict(num_hidden_layers=(10**9, 2**40, "two", -1), hidden_size=(2**30, 1.5), vocab_size=(10**30, True))
ABSURD |= dict(intermediate_size=(2**30,), head_dim=([8],), rms_norm_eps=("small",), rope_theta=([1],))
ABSURD |= dict(rope_scaling=([1],), model_type=(["qwen2"],), eos_token_id=("end",), layer_types=(7,))
ABSURD |= dict(max_position_embeddings=("long",))


@pytest.mark.parametrize("change", [{name: value} for name, values in ABSURD.items() for value in values])
def test_a_config_with_absurd_sizes_is_refused_before_anything_is_allocated(folder, tmp_path, change):
  (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
  (tmp_path / "config.json").write_text(json.dumps(QWEN | change))
  begin = time.thread_time()
  refused(rf"{tmp_path}.*({next(iter(change))}|tensor)", weights.load_pretrained, tmp_path)
  assert time.thread_time() - begin < 60  # it used to take minutes and all memory
