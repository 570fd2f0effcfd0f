"""The decoder against transformers and torch: random small configurations of every family, logits and gradients."""

import dataclasses
import json
import pathlib

import hf_folders
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_shapes import equal, random_model
from flax import nnx

from ragrl_jax.models import families, mapping, weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.models.hf import LinearScaling, RopeScaling, YarnScaling
from ragrl_jax.models.shapes import SHAPES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity
torch.set_num_threads(1)

LOCAL = dict(sliding=(True,), local_rope_theta=50.0)
TOLERANCE = 1e-4  # of logits and of gradients, in float32
PATCH = pytest.MonkeyPatch()


@pytest.fixture(autouse=True)
def undone():
  yield
  PATCH.undo()


def random_config(family, seed):
  """A small configuration. Within six seeds every switch takes each of its values."""
  draw = np.random.default_rng([seed, *family.encode()])
  kv = int(draw.choice([1, 2, 3]))
  heads, layers = kv * (1 + seed % 3), 1 + seed % 3
  d_model = heads * int(draw.choice([4, 6, 10]))  # transformers requires a llama's to be a multiple of its heads
  extra = {}
  if family == "llama" and seed % 2 == 0:
    factors = float(draw.choice([2, 8, 32])), 1.0, float(draw.choice([2, 4]))
    extra["rope_scaling"] = RopeScaling(*factors, int(draw.choice([16, 64])))
  if family in ("qwen2", "qwen3", "mistral", "qwen3_5_text") and seed % 2 == 0:
    more = [dict(beta_fast=8.0, truncate=False), dict(mscale=0.7, mscale_all_dim=1.1), dict(attention_factor=0.8)]
    extra["rope_scaling"] = YarnScaling(float(draw.choice([2, 8])), int(draw.choice([16, 64])), **more[seed // 2])
  if family == "qwen3_moe":
    extra["num_experts"] = [1, 2, 3, 5, 8, 13][seed]
    extra["experts_per_token"] = [1, 1, 3, 2, 4, 8][seed]
    extra["normalize_experts"] = seed % 3 != 1
  if family == "ministral3":
    beta = float(draw.choice([0.1, 0.3]))
    extra["rope_scaling"] = YarnScaling(8.0, int(draw.choice([2, 4])), llama_4_scaling_beta=beta)
  if family in ("mistral", "ministral3", "gemma3_text"):
    extra["window"] = [None, 1, 3, 5, 8, 200][seed]  # of texts with 4 to 13 tokens
  if family == "smollm3" and seed:
    extra["nope"] = [(True,), (False, True), (True, False, True)][seed % 3]
  if family == "gemma3_text":
    extra["query_scale"] = float(draw.choice([3, 16, 168]))
    extra["rope_scaling"] = LinearScaling(float(draw.choice([2, 8]))) if seed % 2 else None
  if family == "gemma3_text" and extra["window"]:
    extra["sliding"] = [(True,), (True, False), (True, False, True), (False,), (False, True), (True, True, False)][seed]
    extra["local_rope_theta"] = float(draw.choice([10.0, 1000.0]))
  if family == "qwen3_5_text":
    extra["attend_every"] = 2 + seed % 3
    layers = extra["attend_every"] * (1 + seed % 2)
    extra["rotary_dim"] = [2, 4, None][seed % 3]
    extra["delta_key_heads"] = 1 + seed % 2
    extra["delta_value_heads"] = extra["delta_key_heads"] * (1 + seed % 3)
    extra |= {f"delta_{part}_dim": int(draw.choice([16, 24, 32])) for part in ("key", "value")}
    extra["delta_conv"] = [4, 2, 3][seed % 3]
  if families.FAMILIES[family].attention_bias is None and seed == 5:
    extra["attention_bias"] = True
  return DecoderConfig.from_shape(
    int(draw.integers(20, 90)), family=family, d_model=d_model, num_layers=layers, num_heads=heads, num_kv_heads=kv,
    head_dim=int(draw.choice([4, 8, 16])), d_ff=int(draw.choice([20, 48])),
    rope_theta=float(draw.choice([100.0, 10_000.0, 1e6])), tied=seed % 2 == 1,
    norm_eps=float(draw.choice([1e-6, 1e-5])), max_position=256, **extra,
  )  # fmt: skip


def theirs(model, config, path, *, exact=True):
  weights.save_pretrained(model, config, path, shard_bytes=40_000)  # several files, with an index
  # The reference computes the experts one after the other.
  more = dict(experts_implementation="eager") if config.num_experts else {}
  loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
    path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **more
  )
  assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
  # In float32, transformers is itself 3e-5 of the largest gradient away from its float64.
  if exact and config.traits.hybrid:
    PATCH.setattr(torch, "float32", torch.float64)
    PATCH.setattr(torch.Tensor, "float", torch.Tensor.double)
    loaded = loaded.double()
  return loaded


def their_logprobs(model, tokens, mask=None, positions=None):
  ids = torch.as_tensor(tokens)
  extra = {} if mask is None else dict(attention_mask=torch.as_tensor(mask), position_ids=torch.as_tensor(positions))
  logits = model(ids, **extra).logits
  return logits, torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]


def our_gradient(model):
  """(tokens, segment ids, weight) → (logits, gradients of Σ weight · next log-probability by transformers' names)."""
  graphdef, params = nnx.split(model)

  @jax.jit
  def run(params, tokens, segment_ids, weight):
    def loss(params):
      logits = nnx.merge(graphdef, params)(tokens, None, segment_ids)
      found = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)
      return jnp.sum(found[..., 0] * weight), logits

    return jax.grad(loss, has_aux=True)(params)

  def named(tokens, segment_ids, weight):
    gradients, logits = run(params, jnp.asarray(tokens), jnp.asarray(segment_ids), jnp.asarray(weight, jnp.float32))
    entries = mapping.entries(families.tensors(model.config), gradients, families.rows(model.config))
    return np.asarray(logits), {tensor: np.concatenate(list(read())) for tensor, _, read in entries}

  return named


def compare(gradients, model):
  found = {}
  for name, parameter in model.named_parameters():
    found |= hf_folders.on_disk(name, parameter.grad.numpy())
  assert set(gradients) == set(found)
  near = TOLERANCE
  if any("linear_attn" in name for name in found) or "Ministral3" in type(model).__name__:
    # The norm of a delta layer's output enlarges rounding where a head says little, and so do scores that are scaled by
    # the position, so of the largest gradient. (Ministral's seed 5: 120, and 0.02 between torch's float32 and float64.)
    near *= max(np.abs(gradient).max() for gradient in found.values())
  for name, gradient in found.items():
    np.testing.assert_allclose(gradients[name], gradient, atol=near, rtol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", families.FAMILIES)
def test_logits_and_gradients_padded_and_packed(family, seed, tmp_path):
  config = random_config(family, seed)
  ours = random_model(config, seed)
  model = theirs(ours, config, tmp_path)
  draw = np.random.default_rng(seed)
  lengths = draw.integers(4, 14, 3)
  # transformers takes Gemma's id 0 for padding, and gives its embedding no gradient.
  texts = [draw.integers(int(family == "gemma3_text"), config.vocab_size, n) for n in lengths]

  gradient = our_gradient(ours)  # one program, because the padded and the packed case have the same shape
  T = int(lengths.sum()) + 2

  # Padded: one text per row, padded on the left, on the right and in between; transformers uses mask and positions.
  tokens, mask = np.zeros((3, T), np.int64), np.zeros((3, T), np.int64)
  for row, (text, start) in enumerate(zip(texts, (0, T - lengths[1], 2))):
    tokens[row, start : start + len(text)], mask[row, start : start + len(text)] = text, 1
  positions = np.maximum(mask.cumsum(1) - 1, 0) * mask
  weight = (mask[:, 1:] * mask[:, :-1]) / 10.0
  their_logits, logprobs = their_logprobs(model, tokens, mask, positions)
  (logprobs * torch.as_tensor(weight)).sum().backward()
  logits, gradients = gradient(tokens, mask, weight)
  theirs_here = their_logits.detach().numpy()[mask == 1]
  np.testing.assert_allclose(logits[mask == 1], theirs_here, atol=TOLERANCE, rtol=TOLERANCE)
  compare(gradients, model)

  # Packed: all three in one row, beside rows of padding. transformers computes them one by one; gradients are summed.
  model.zero_grad()
  want = []
  for text in texts:
    their_logits, logprobs = their_logprobs(model, text[None])
    (logprobs.sum() / 10.0).backward()
    want.append(their_logits.detach().numpy()[0])
  tokens, segments = np.ones((3, T), np.int64), np.zeros((3, T), np.int64)
  tokens[0, :-2], segments[0, :-2] = np.concatenate(texts), np.repeat([1, 2, 3], lengths)
  weight = (segments[:, 1:] == segments[:, :-1]) * (segments[:, 1:] > 0) / 10.0
  logits, gradients = gradient(tokens, segments, weight)
  np.testing.assert_allclose(logits[0, :-2], np.concatenate(want), atol=TOLERANCE, rtol=TOLERANCE)
  compare(gradients, model)


def agree(config, tokens, path):
  """Logits, and gradients of the sum of log-probabilities / 100, of these rows."""
  ours = random_model(config, 0)
  model = theirs(ours, config, path)
  their_logits, logprobs = their_logprobs(model, tokens)
  (logprobs.sum() / 100.0).backward()
  logits, gradients = our_gradient(ours)(tokens, np.ones_like(tokens), np.full(logprobs.shape, 0.01))
  np.testing.assert_allclose(logits, their_logits.detach().numpy(), atol=TOLERANCE, rtol=TOLERANCE)
  compare(gradients, model)


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.traits.hybrid])
def test_published_hybrids_with_narrow_heads(name, tmp_path):
  """Their numbers of heads and ties, in 4 layers."""
  narrow = dict(d_model=32, head_dim=16, rotary_dim=4, d_ff=48, delta_key_dim=32, delta_value_dim=32)
  config = dataclasses.replace(SHAPES[name], vocab_size=64, num_layers=4, **narrow)
  agree(config, np.random.default_rng(0).integers(0, 64, (1, 90)), tmp_path)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_blockwise_attention_on_long_rows(family, tmp_path):
  config = random_config(family, 0)
  if family in ("mistral", "gemma3_text"):
    config = dataclasses.replace(config, window=150, **LOCAL if family == "gemma3_text" else {})
  agree(config, np.random.default_rng(0).integers(1, config.vocab_size, (2, 300)), tmp_path)  # three blocks of 128


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("size", ["1GB", "20KB"])
def test_what_transformers_saves_we_load(family, size, tmp_path):
  config = random_config(family, 4)
  ours = random_model(config, 4)
  theirs(ours, config, tmp_path / "ours", exact=False).save_pretrained(tmp_path / "theirs", max_shard_size=size)
  again, read = weights.load_pretrained(tmp_path / "theirs")
  assert read == config
  equal(ours, again)


@pytest.mark.parametrize("published", [True, False])  # names of tensors; otherwise as transformers 5 builds the model
@pytest.mark.parametrize("kind", ["gemma3", "mistral3"])
def test_the_text_part_of_a_model_with_an_image_encoder(kind, published, tmp_path):
  text = dict(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=7, head_dim=8, sliding_window=4)
  images = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28)
  whole = dict(text_config=text, vision_config=images | dict(patch_size=14), tie_word_embeddings=kind == "gemma3")
  model = transformers.AutoModelForImageTextToText.from_config(transformers.AutoConfig.for_model(kind, **whole))
  torch.manual_seed(0)
  for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.3)
  model.save_pretrained(tmp_path / "whole", save_original_format=published)
  ours, read = weights.load_pretrained(tmp_path / "whole")
  tokens = np.random.default_rng(0).integers(1, 40, (2, 12))
  for other in (model, theirs(ours, read, tmp_path / "text")):  # the latter is the text part, written alone
    want = other(torch.as_tensor(tokens)).logits.detach().numpy()
    np.testing.assert_allclose(ours(jnp.asarray(tokens)), want, atol=TOLERANCE, rtol=TOLERANCE)


def test_bfloat16_folder_loads_in_transformers(tmp_path):
  config = random_config("qwen3", 1)
  ours = random_model(config, 1)
  weights.save_pretrained(ours, config, tmp_path, dtype=jnp.bfloat16)
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
  assert model.dtype == torch.bfloat16
  wide, _ = weights.load_pretrained(tmp_path, dtype=jnp.float32)
  tokens = np.arange(12)[None] % config.vocab_size
  with torch.no_grad():
    want = model.float()(torch.as_tensor(tokens)).logits.numpy()
  np.testing.assert_allclose(wide(jnp.asarray(tokens)), want, atol=TOLERANCE)


def test_configs_of_published_models():
  # As the authors published them (transformers 4's layout), read by both.
  published = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "published_configs.json").read_text())
  for values in published.values():
    config = DecoderConfig.from_hf(values)
    kind = transformers.AutoConfig.for_model(**values)
    kind = getattr(kind, "text_config", kind)
    assert config == DecoderConfig.from_hf(
      json.loads(kind.to_json_string(use_diff=False))
      | dict(max_position_embeddings=config.max_position, bos_token_id=config.bos_id, eos_token_id=list(config.eos_ids))
    )
    with torch.device("meta"):
      empty = transformers.AutoModelForCausalLM.from_config(kind)
    parts = [part for pair in empty.named_parameters() for part in hf_folders.on_disk(*pair)]
    abstract = nnx.split(nnx.eval_shape(lambda c=config: Decoder(c, rngs=nnx.Rngs(0))))[1]
    table = families.tensors(config)
    ours = [pair for name, leaf in mapping.named(abstract) for pair in mapping.tensor_names(table, name, leaf.shape)]
    assert dict(ours) == {tensor: tuple(part.shape) for tensor, part in parts}
