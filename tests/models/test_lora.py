"""Adapters: their effect, the trained parameters, and their folder with every possible error."""

import json
import re

import decoder_shapes
import hf_folders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_shapes import MORE, SHAPE, V, equal
from flax import nnx
from refusals import refused
from safetensors.numpy import load_file, save_file

from ragrl_jax.models import attention, layers, lora, mapping, matmul, tensors, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib, rules

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, V, (2, 12)))


def fresh(*, family="qwen3", rank=4, alpha=8.0, pattern=".*", drawn=True, seed=0, mesh=None, **how):
  """A drawn model with adapters; `drawn` gives them a non-zero B."""
  config = DecoderConfig.from_shape(V, family=family, **SHAPE | MORE.get(family, {}))
  model, draw = decoder_shapes.drawn(config, seed=seed, mesh=mesh, **how), np.random.default_rng([seed, 1])
  if rank:
    lora.add(model, rank=rank, alpha=alpha, layers=pattern, seed=seed)
  if drawn and rank:
    nnx.update(model, jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 0.3, x.shape), x.dtype), lora.split(model)[1]))
  return model


@jax.jit
def logits(model):
  return model(TOKENS)


def test_a_layer_by_hand():
  # x = (1, 2); W = I; A = (3, 1)ᵀ of rank 1, so x A = 5; alpha / rank = 2; B = (1, -1): y = (1, 2) + 2 · 5 · (1, -1).
  shape = DecoderConfig.from_shape(V, family="llama", **SHAPE | dict(d_model=2))
  layer = nnx.eval_shape(lambda: layers.Layer(shape, rngs=nnx.Rngs(0), param_dtype=jnp.float32))
  layer.q, layer.lora_alpha = nnx.Param(jnp.eye(2)), 2.0
  layer.q_lora_a, layer.q_lora_b = lora.Adapter(jnp.array([[3.0], [1.0]])), lora.Adapter(jnp.array([[1.0, -1.0]]))
  np.testing.assert_allclose(layer.project(jnp.array([[[1.0, 2.0]]]), "q"), [[[11.0, -8.0]]], rtol=1e-6)


@pytest.mark.parametrize("pattern, names", [
  ("q k v o gate up down", lora.MATRICES), (".*", lora.MATRICES), ("down q", ("q", "down")), ("[qkvo]", tuple("qkvo")),
  ("gate|up|down", ("gate", "up", "down")), ("q q|v", ("q", "v")),
])  # fmt: skip
def test_patterns(pattern, names):
  assert lora.select_matrices(pattern) == names


@pytest.mark.parametrize("pattern, says", [
  ("q_proj", "'q_proj' matches none of q, k"), ("q (", "'\\(' is not a regular"), (" ", "names no matrix"),
  ("q lm_head", "'lm_head' matches none"),
])  # fmt: skip
def test_patterns_that_match_nothing(pattern, says):
  refused(f"{says}.*config.model.lora.layers", lora.select_matrices, pattern)


def test_fresh_adapters_change_nothing_and_are_drawn_as_peft_draws_them():
  base, model = fresh(rank=0), fresh(drawn=False)
  np.testing.assert_allclose(logits(model), logits(base), atol=1e-5)  # another program sums in another order
  found = dict(mapping.named(lora.split(model)[1]))
  assert len(found) == 14 and all(leaf.dtype == jnp.float32 for leaf in found.values())
  assert found["layers/down_lora_a"].shape == (2, 24, 4) and found["layers/down_lora_b"].shape == (2, 4, 16)
  for name, leaf in found.items():
    if name.endswith("_b"):
      assert (leaf == 0).all(), name
    else:  # uniform in ± 1 / √in, so the standard deviation is the bound / √3
      bound = leaf.shape[1] ** -0.5
      assert np.abs(leaf).max() <= bound and np.std(leaf) == pytest.approx(bound / 3**0.5, rel=0.15), name
  few = dict(mapping.named(lora.split(fresh(pattern="down", drawn=False))[1]))
  np.testing.assert_array_equal(few["layers/down_lora_a"], found["layers/down_lora_a"])  # other adapters do not matter


def test_which_parameters_are_trained_and_which_are_frozen():
  model = fresh(pattern="q v")
  assert lora.trainable(model) is lora.Adapter and lora.trainable(fresh(rank=0)) is nnx.Param
  graphdef, adapters, frozen = lora.split(model)
  assert {name for name, _ in mapping.named(adapters)} == {f"layers/{n}_lora_{s}" for n in "qv" for s in "ab"}
  equal(nnx.merge(graphdef, adapters, frozen), model)
  equal(nnx.merge(graphdef, nnx.merge_state(frozen, adapters)), model)
  assert not jax.tree.leaves(lora.split(fresh(rank=0))[2])


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_merged_is_equal_and_without_is_the_base(family, tmp_path):
  model, base = fresh(family=family, pattern="q o gate down"), fresh(family=family, rank=0)
  before = logits(model)
  assert np.abs(before - logits(base)).max() > 0.1
  graphdef, adapters, frozen = lora.split(model)
  reference = lora.without(adapters)
  np.testing.assert_allclose(logits(nnx.merge(graphdef, reference, frozen)), logits(base), atol=1e-5)
  assert all(a is not b for a, b in zip(*map(jax.tree.leaves, (reference, adapters)), strict=True))
  merged = lora.merged(model)
  assert nnx.split(merged)[0] == nnx.split(base)[0]
  np.testing.assert_allclose(logits(merged), before, atol=1e-5 * float(np.abs(before).max()))
  weights.save_pretrained(model, model.config, tmp_path)
  equal(weights.load_pretrained(tmp_path)[0], merged)  # a full folder has them merged
  equal(model, fresh(family=family, pattern="q o gate down"))  # the model itself is not changed


@pytest.mark.slow  # a backward pass to compile
def test_gradients_are_those_of_the_merged_matrices():
  # With W' = W + s A B: dL/dA = s (dL/dW') Bᵀ and dL/dB = s Aᵀ (dL/dW').
  model = fresh(pattern="k down", alpha=6.0)
  scale = 6.0 / 4

  def gradients(model):
    graphdef, trained, frozen = lora.split(model)
    loss = lambda trained: jax.nn.log_softmax(nnx.merge(graphdef, trained, frozen)(TOKENS))[..., 0].mean()
    return dict(mapping.named(jax.jit(jax.grad(loss))(trained)))

  got, want, parts = gradients(model), gradients(lora.merged(model)), dict(mapping.named(lora.split(model)[1]))
  for name in ("k", "down"):
    a, b, of_w = parts[f"layers/{name}_lora_a"], parts[f"layers/{name}_lora_b"], want[f"layers/{name}"]
    np.testing.assert_allclose(got[f"layers/{name}_lora_a"], scale * np.einsum("lio,lro->lir", of_w, b), atol=2e-6)
    np.testing.assert_allclose(got[f"layers/{name}_lora_b"], scale * np.einsum("lir,lio->lro", a, of_w), atol=2e-6)
  assert got.keys() == parts.keys()


@pytest.mark.slow  # two backward passes to compile
@pytest.mark.parametrize("family, pattern, rank, room", [
  ("qwen2", ".*", 4, 0),  # with biases
  ("qwen3", "q v down", 3, 10**9), pytest.param("llama", "k|gate|o", 17, 10**9, marks=pytest.mark.long),
  pytest.param("gemma3_text", "up down", 1, 0, marks=pytest.mark.long),
  pytest.param("qwen3_5_text", ".*", 4, 0, marks=pytest.mark.long),  # with delta layers
  pytest.param("qwen3_5_text", "q v", 2, 10**9, marks=pytest.mark.long),  # which have no adapters
])  # fmt: skip
def test_one_gpu_computes_a_matrix_and_its_adapter_together(family, pattern, rank, room, monkeypatch):
  model = fresh(family=family, pattern=pattern, rank=rank, remat=True)
  model.room = room
  graphdef, adapters, frozen = lora.split(model)

  def gradients(also):
    loss = lambda adapters, frozen: jax.nn.log_softmax(nnx.merge(graphdef, adapters, frozen)(TOKENS))[..., 0].mean()
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)[: 1 + also])).trace(adapters, frozen)

  whole = family == "llama"  # frozen matrices have gradients, too, for whoever asks for them
  want = gradients(whole).lower().compile()(adapters, frozen)
  monkeypatch.setattr(attention, "platform", lambda mesh: "gpu")
  monkeypatch.setattr(attention, "_kernel", lambda mesh, q: None)
  joined, calls = matmul.adapted, []
  monkeypatch.setattr(matmul, "adapted", lambda x, matrices: calls.append(len(matrices)) or joined(x, matrices))
  traced = gradients(whole)
  assert sum(calls) == sum(map(len, jax.tree.leaves(adapters))) // 2  # every A of every layer
  found = traced.lower().compile()(adapters, frozen)
  for (name, one), (_, same) in zip(mapping.named(want), mapping.named(found), strict=True):
    np.testing.assert_allclose(same, one, atol=2e-5 * float(np.abs(one).max()), err_msg=name)


def test_no_copy_of_a_frozen_matrix_is_kept_and_an_engine_multiplies_apart(monkeypatch):
  monkeypatch.setattr(attention, "platform", lambda mesh: "gpu")
  monkeypatch.setattr(attention, "_kernel", lambda mesh, q: None)
  calls, joined = [], matmul.adapted
  monkeypatch.setattr(matmul, "adapted", lambda x, matrices: calls.append(x) or joined(x, matrices))
  for room in (0, 10**9):
    model = fresh(remat=True, rank=33)  # what is padded then has no matrix's shape
    model.room = room
    graphdef, adapters, frozen = lora.split(model)
    run = lambda adapters, rest=(graphdef, frozen): nnx.merge(rest[0], adapters, rest[1])(TOKENS)
    kept = jax.eval_shape(lambda adapters, run=run: jax.vjp(run, adapters)[1], adapters)
    shapes = {leaf.shape for leaf in jax.tree.leaves(kept)}
    assert shapes and not shapes & {(16, 32), (16, 24), (32, 16)}  # of q, of gate and up, of o
  count = len(calls)
  layers_of = [jax.tree.map(lambda x, number=number: x[number], nnx.state(model.layers)) for number in range(2)]
  attend = lambda layer, q, k, v, carry: (q, carry)
  run = lambda x: model.run(x, jnp.zeros((2, 12), jnp.int32), attend, (), layers_of)[0]
  jax.eval_shape(run, jnp.zeros((2, 12, 16)))
  assert count and len(calls) == count


def test_a_bfloat16_base_has_float32_adapters():
  model = fresh(param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)
  _, adapters, frozen = lora.split(model)
  assert {x.dtype for x in jax.tree.leaves(adapters)} == {jnp.dtype(jnp.float32)}
  assert {x.dtype for x in jax.tree.leaves(frozen)} == {jnp.dtype(jnp.bfloat16)}
  merged = lora.merged(model)
  assert {x.dtype for x in jax.tree.leaves(nnx.split(merged)[1])} == {jnp.dtype(jnp.bfloat16)}
  graphdef = nnx.split(fresh())[0]  # the same in float32
  exact = logits(nnx.merge(graphdef, jax.tree.map(lambda x: x.astype(jnp.float32), nnx.split(model)[1])))
  for rounded in (model, merged):  # logits of about 5 after two layers with 8 bits of mantissa
    assert np.abs(logits(rounded) - exact).mean() < 0.1


def test_what_adapters_learnt_over_a_base_of_16_bits_is_saved(tmp_path):
  """As learnt with small rates: most changes are less than a step of bfloat16."""
  model = fresh(param_dtype=jnp.bfloat16)
  _, adapters, _ = lora.split(model)
  nnx.update(model, jax.tree.map(lambda x: 0.01 * x, adapters))
  base = dict(mapping.named(nnx.split(model)[1]))
  weights.save_pretrained(model, model.config, tmp_path, dtype=np.float32)
  got = dict(mapping.named(nnx.split(weights.load_pretrained(tmp_path)[0])[1]))
  for name in lora.MATRICES:
    if (a := base.get(f"layers/{name}_lora_a")) is not None:
      change = np.einsum("lir,lro->lio", a, base[f"layers/{name}_lora_b"]) * model.layers.lora_alpha / a.shape[-1]
      want = np.asarray(base[f"layers/{name}"], np.float32) + change
      assert 0 < np.abs(change).max() < 0.01
      np.testing.assert_allclose(got[f"layers/{name}"], want, atol=1e-6, err_msg=name)


def test_adapters_are_sharded_as_their_matrices(tmp_path):
  mesh = mesh_lib.make(jax.devices(), data=2, fsdp=2, tensor=2)
  model = fresh(mesh=mesh, drawn=False)
  specs = lambda m: {name: leaf.sharding.spec for name, leaf in mapping.named(lora.split(m)[1])}
  found, P = specs(model), jax.sharding.PartitionSpec
  assert found["layers/q_lora_a"] == P(None, "fsdp", None) and found["layers/q_lora_b"] == P(None, None, "tensor")
  assert found["layers/down_lora_a"] == P(None, "tensor", None) and found["layers/o_lora_b"] == P(None, None, "fsdp")
  assert rules.parameter_axes(("mu", "layers", "up_lora_b")) == ("layer", None, "ff")  # so are their moments
  lora.save_adapters(model, tmp_path, base="")
  again = fresh(mesh=mesh, rank=0)
  lora.load_adapters(again, tmp_path)
  assert specs(again) == found
  equal(again, model)


def test_adding_adapters_twice_is_refused():
  refused("has LoRA adapters already", lora.add, fresh(), rank=2, alpha=1.0, layers="q", seed=0)
  refused("config.model.lora.rank", lora.add, fresh(rank=0), rank=0, alpha=1.0, layers="q", seed=0)


Q1B = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("adapters")
  lora.save_adapters(fresh(pattern="q down", alpha=6.5), path, base="models/base")
  return path


def test_a_folder_is_read_back(folder, tmp_path):
  model, again = fresh(pattern="q down", alpha=6.5), fresh(rank=0)
  lora.load_adapters(again, folder)
  equal(again, model)
  assert again.layers.lora_alpha == 6.5 and nnx.split(again)[0] == nnx.split(model)[0]
  stored = load_file(folder / "adapter_model.safetensors")  # another program's reader
  assert len(stored) == 2 * 2 * 2
  np.testing.assert_array_equal(stored[Q1B], model.layers.q_lora_b[1].T)
  values = json.loads((folder / "adapter_config.json").read_text())
  assert (values["r"], values["lora_alpha"], values["target_modules"]) == (4, 6.5, ["q_proj", "down_proj"])
  assert not list(folder.glob("*.partial"))
  (tmp_path / "config.json").write_text('{"model_type": "gemma3"}')  # PEFT puts them into the whole model
  lora.save_adapters(model, tmp_path, base=str(tmp_path))
  assert Q1B.replace("layers", "language_model.layers") in load_file(tmp_path / "adapter_model.safetensors")
  lora.load_adapters(third := fresh(rank=0), tmp_path)
  equal(third, model)


def test_where_the_base_is_found(folder, tmp_path):
  assert lora.find_base(folder, "") == "models/base"  # no folder here, so it is a name on the hub
  gone = changed(folder, tmp_path / "gone", dict(base_model_name_or_path="/gone/base"))
  refused("adapter_config.json: the base model '/gone/base'.*config.model.path", lora.find_base, gone, "")
  assert lora.find_base(folder, str(tmp_path)) == str(tmp_path)  # it has been moved
  lora.save_adapters(fresh(), tmp_path / "here", base=str(folder))
  assert lora.find_base(tmp_path / "here", str(tmp_path)) == str(folder)


def changed(folder, path, settings=None, tensors=None):
  """A copy of the folder with these settings and tensors changed; None removes one."""
  values = json.loads((folder / "adapter_config.json").read_text()) | (settings or {})
  stored = load_file(folder / "adapter_model.safetensors") | (tensors or {})
  path.mkdir(exist_ok=True)
  (path / "adapter_config.json").write_text(json.dumps(values))
  save_file({name: x for name, x in stored.items() if x is not None}, path / "adapter_model.safetensors")
  return path


@pytest.mark.parametrize("targets", [
  ["self_attn.q_proj", "down_proj"], r"model\.layers\.\d+\.(self_attn\.q|mlp\.down)_proj", r".*\.(q|down)_proj",
  ["down_proj", "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"],
])  # fmt: skip
def test_every_way_to_name_modules(targets, folder, tmp_path):
  model = fresh(rank=0)
  lora.load_adapters(model, changed(folder, tmp_path, dict(target_modules=targets, lora_dropout=0.1)))
  equal(model, fresh(pattern="q down", alpha=6.5))


UNSUPPORTED = [
  (dict(use_dora=True), "use_dora is True"), (dict(bias="all"), "bias is 'all'"),
  (dict(use_rslora=True), "use_rslora is True"), (dict(rank_pattern={"q_proj": 2}), "rank_pattern is"),
  (dict(modules_to_save=["lm_head"]), "modules_to_save is"), (dict(layers_to_transform=[0]), "layers_to_transform is"),
  (dict(init_lora_weights="pissa"), "init_lora_weights is 'pissa'"), (dict(peft_type="IA3"), "peft_type is 'IA3'"),
  (dict(a_new_switch=1), "a_new_switch is 1"), (dict(r=None), "r is missing"), (dict(r="4"), "r is '4'"),
  (dict(target_modules=["q_proj", "lm_head"]), "target module 'lm_head' names no matrix"),
  (dict(target_modules="q_proj"), "target module 'q_proj' names no matrix"),
  (dict(target_modules="("), "'\\(' is not a regular expression"),
  (dict(target_modules=["down_proj", "layers.0.self_attn.q_proj"]), "names q_proj in some of 2 layers"),
]  # fmt: skip
SHORT = rf"adapter_model.safetensors: tensor {re.escape(Q1B)} has shape \(16, 4"


@pytest.mark.parametrize("settings, tensors, says", [
  *((settings, {}, rf"adapter_config\.json.*{says}") for settings, says in UNSUPPORTED),
  (dict(r=8), {}, r"layers.0.mlp.down_proj.lora_A.weight has shape \(4, 24\), adapter_config.json asks for \(8, 24"),
  ({}, {Q1B: None}, rf"no tensor {re.escape(Q1B)} of shape \(32, 4\), which adapter_config.json"),
  ({}, {Q1B: np.zeros((16, 4), np.float32)}, SHORT),
  ({}, {"lm_head.lora_A": np.zeros((4, 16), np.float32)}, "adapter_model.safetensors: tensor lm_head.lora_A is no"),
  (dict(target_modules=["q_proj"]), {}, r"mlp.down_proj.lora_A.weight is not an adapter.*does not name its module"),
])  # fmt: skip
def test_unsupported_settings_and_tensors_that_do_not_fit_are_refused(settings, tensors, says, folder, tmp_path):
  refused(says, lora.load_adapters, fresh(rank=0), changed(folder, tmp_path, settings, tensors))


def test_missing_adapters_and_pickles_are_refused(tmp_path):
  refused("adapter_config.json is missing", lora.load_adapters, fresh(rank=0), tmp_path)
  (tmp_path / "adapter_config.json").write_text(json.dumps(dict(r=2, lora_alpha=2, target_modules=["q_proj"])))
  (tmp_path / "adapter_model.bin").write_bytes(b"never opened")
  refused("neither adapter_model.safetensors nor.*safetensors only", lora.load_adapters, fresh(rank=0), tmp_path)


def test_families_share_the_names():
  for name, config in hf_folders.DECODERS.items():
    tensors = hf_folders.decoder_shapes(config)
    experts = any(".experts." in tensor for tensor in tensors)
    assert experts == name.startswith("qwen3_moe")
    # Adapters of a model with experts are on attention only (docs/howto/model.md).
    shape = DecoderConfig.from_hf(config)
    assert len(lora.matrices(shape)) == (4 if experts else 10 if name == "qwen3_5_text" else 7)
    base = nnx.eval_shape(lambda c=shape: Decoder(c, rngs=nnx.Rngs(0)))
    tree = mapping.named(lora.shapes(base, lora.matrices(shape), 2))
    named = [pair for place, leaf in tree for pair in mapping.tensor_names(lora.table(shape), place, leaf.shape)]
    modules = {tensor.removeprefix("base_model.model.").rpartition(".lora_")[0] for tensor, _ in named}
    assert modules and {f"{module}.weight" for module in modules} <= set(tensors), name


def test_adapters_on_another_base_are_refused(tmp_path):
  """One weight of the base changes by one unit in the last place: the fingerprint covers every value."""
  base, model = fresh(rank=0), fresh()
  weights.save_pretrained(base, base.config, tmp_path / "base")
  mark = tensors.TensorFolder(tmp_path / "base").fingerprint()
  lora.save_adapters(model, tmp_path / "a", base="", fingerprint=mark)
  lora.load_adapters(fresh(rank=0), tmp_path / "a", base=tmp_path / "base")
  (tmp_path / "base").rename(tmp_path / "moved")
  lora.load_adapters(fresh(rank=0), tmp_path / "a", base=tmp_path / "moved")
  file = tmp_path / "moved" / "model.safetensors"
  data = bytearray(file.read_bytes())
  data[-1000] ^= 1
  file.write_bytes(data)
  with pytest.raises(ValueError, match=f"trained on other weights than those in .*moved .fingerprint {mark[:12]}, not"):
    lora.load_adapters(fresh(rank=0), tmp_path / "a", base=tmp_path / "moved")
  lora.save_adapters(model, tmp_path / "elsewhere", base="")  # adapters of other libraries have no record
  lora.load_adapters(fresh(rank=0), tmp_path / "elsewhere", base=tmp_path / "moved")
