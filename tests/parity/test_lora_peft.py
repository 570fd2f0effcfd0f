"""Adapters against PEFT: folders in both directions, the same logits and gradients, merged and not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_shapes import random_model
from flax import nnx

from ragrl_jax.models import families, lora, mapping, weights
from ragrl_jax.models.config import DecoderConfig

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.parity
torch.set_num_threads(1)

TOLERANCE = 1e-4  # of logits and gradients, in float32
SHAPE = dict(d_model=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=40, rope_theta=1000.0)
TOKENS = np.random.default_rng(7).integers(0, 31, (3, 11))


def base(family, path):
  """Our model, drawn by NumPy, and PEFT's, read from its folder."""
  more = dict(
    mistral=dict(window=4), gemma3_text=dict(window=3, sliding=(True, False), query_scale=10.0),
    qwen3_moe=dict(num_experts=5, experts_per_token=2), qwen3_5_text=dict(
      attend_every=2, delta_key_heads=2, delta_value_heads=4, delta_key_dim=16, delta_value_dim=16, delta_conv=4),
  )  # fmt: skip
  config = DecoderConfig.from_shape(31, family=family, tied=family == "qwen3", **SHAPE | more.get(family, {}))
  model = random_model(config, 3)
  weights.save_pretrained(model, config, path)
  how = dict(dtype=torch.float32, attn_implementation="eager")
  return model, transformers.AutoModelForCausalLM.from_pretrained(path, **how)


def logits_and_gradients(model):
  """Logits, and gradients of the mean log-probability of token 0 in the adapters, under PEFT's names."""
  graphdef, adapters, frozen = lora.split(model)

  def loss(adapters):
    logits = nnx.merge(graphdef, adapters, frozen)(jnp.asarray(TOKENS))
    return jax.nn.log_softmax(logits)[..., 0].mean(), logits

  gradients, logits = jax.jit(jax.grad(loss, has_aux=True))(adapters)
  entries = mapping.entries(lora.table(model.config), gradients, families.rows(model.config))
  return np.asarray(logits), {tensor: np.concatenate(list(read())) for tensor, _, read in entries}


def compare(ours, theirs):
  logits, gradients = logits_and_gradients(ours)
  output = theirs(torch.as_tensor(TOKENS)).logits
  np.testing.assert_allclose(logits, output.detach().numpy(), atol=TOLERANCE, rtol=TOLERANCE)
  torch.log_softmax(output, -1)[..., 0].mean().backward()
  trained = ((name.replace(".default", ""), p) for name, p in theirs.named_parameters() if p.requires_grad)
  found = {name: parameter.grad.numpy() for name, parameter in trained}
  assert found.keys() == gradients.keys()
  for name, gradient in found.items():
    np.testing.assert_allclose(gradients[name], gradient, atol=TOLERANCE, rtol=TOLERANCE, err_msg=name)
  return logits


@pytest.mark.parametrize("family, pattern", [
  ("qwen2", "q v"), ("qwen3", ".*"), ("llama", "o gate|up|down"), ("mistral", "[qkvo] down"), ("gemma3_text", ".*"),
  ("qwen3_moe", ".*"), ("qwen3_5_text", ".*"),  # the former: attention's four
])  # fmt: skip
def test_our_folder_in_peft(family, pattern, tmp_path):
  ours, theirs = base(family, tmp_path / "base")
  lora.add(ours, rank=4, alpha=10.0, layers=pattern, seed=1)
  draw = np.random.default_rng(4)
  nnx.update(ours, jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 0.3, x.shape), x.dtype), lora.split(ours)[1]))
  plain = theirs(torch.as_tensor(TOKENS)).logits.detach().numpy()
  lora.save_adapters(ours, tmp_path / "adapters", base=str(tmp_path / "base"))
  with_adapters = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapters", is_trainable=True)
  logits = compare(ours, with_adapters)
  assert np.abs(logits - plain).max() > 0.1

  # Our merged export equals PEFT's merge. PEFT's switch for the reference policy corresponds to `without`.
  with torch.no_grad(), with_adapters.disable_adapter():
    off = with_adapters(torch.as_tensor(TOKENS)).logits.numpy()
  graphdef, adapters, frozen = lora.split(ours)
  reference = nnx.merge(graphdef, lora.without(adapters), frozen)(jnp.asarray(TOKENS))
  np.testing.assert_allclose(reference, off, atol=TOLERANCE, rtol=TOLERANCE)
  weights.save_pretrained(ours, ours.config, tmp_path / "merged")
  exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
  for (name, a), b in zip(with_adapters.merge_and_unload().state_dict().items(), exported.state_dict().values()):
    np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("family, targets", [
  ("qwen2", "all-linear"), ("qwen3", ["q_proj", "down_proj"]), ("llama", r".*\.(k|up)_proj"),
  ("mistral", "all-linear"), ("gemma3_text", "all-linear"), ("qwen3_moe", ["q_proj", "v_proj"]),
])  # fmt: skip
def test_pefts_folder_here(family, targets, tmp_path):
  ours, theirs = base(family, tmp_path / "base")
  torch.manual_seed(0)
  how = dict(target_modules=targets, lora_dropout=0.1, init_lora_weights=False)
  theirs = peft.get_peft_model(theirs, peft.LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=5, **how))
  theirs.save_pretrained(tmp_path / "adapters")
  lora.load_adapters(ours, tmp_path / "adapters")
  compare(ours, theirs.eval())


def test_fresh_adapters_are_of_one_distribution(tmp_path):
  """PEFT's A and ours have the same bound and the same deviation. B is zero in both."""
  ours, theirs = base("llama", tmp_path / "base")
  lora.add(ours, rank=16, alpha=16.0, layers="q", seed=0)
  torch.manual_seed(0)
  theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj"]))
  drawn = [p.detach().numpy() for name, p in theirs.named_parameters() if "lora_A" in name]
  for one in (np.stack(drawn), np.asarray(ours.layers.q_lora_a[...])):
    assert np.abs(one).max() == pytest.approx(24**-0.5, rel=0.02) and one.std() == pytest.approx(72**-0.5, rel=0.06)
  assert all((p == 0).all() for name, p in theirs.named_parameters() if "lora_B" in name)
