"""T5 against transformers and torch: random models of both versions, padded batches, every step of the decoder."""

import json

import numpy as np
import pytest
from flax import nnx

from ragrl_jax.models import t5

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.parity

# feed_forward_proj, scaled as v1.0, layers of encoder and decoder, buckets, farthest, longest text, own head, sharded
SHAPES = [
  ("relu", True, 2, 2, 32, 128, 150, False, True), ("relu", True, 1, 3, 8, 20, 40, False, False),
  ("gated-gelu", False, 2, 1, 32, 128, 200, True, False), ("gated-gelu", False, 3, 2, 16, 64, 70, True, False),
  ("gated-silu", True, 1, 1, 10, 30, 33, False, False), ("gated-gelu", True, 2, 2, 32, 256, 40, False, False),
  ("relu", False, 1, 2, 32, 128, 20, False, False),
]  # fmt: skip


def made(number, mlp, scaled, encoder, decoder, buckets, far, draw):
  """A model whose norms, position biases and embedding are large enough for errors to show."""
  torch.manual_seed(number)
  sizes = dict(vocab_size=50, d_model=int(draw.choice([16, 24])), d_kv=8, d_ff=40, num_heads=int(draw.choice([2, 3])))
  sizes |= dict(num_layers=encoder, num_decoder_layers=decoder, relative_attention_num_buckets=buckets)
  how = dict(relative_attention_max_distance=far, feed_forward_proj=mlp, tie_word_embeddings=scaled)
  config = transformers.T5Config(**sizes, **how, decoder_start_token_id=0, dropout_rate=0.0)
  model = transformers.T5ForConditionalGeneration(config).eval()
  with torch.no_grad():
    for name, weights in model.named_parameters():
      if "norm" in name:
        weights.mul_(1.0 + 0.3 * torch.rand_like(weights))
      elif "relative" in name:
        weights.mul_(2.0)
  return model


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_random_t5s(number, tmp_path):
  *shape, length, own_head, shards = SHAPES[number]
  draw = np.random.default_rng(number)
  model = made(number, *shape, draw)
  if own_head:  # as in the published v1.1 models; transformers 5 would tie it when saving
    model.lm_head.weight = torch.nn.Parameter(torch.randn(50, model.config.d_model))
  model.save_pretrained(tmp_path, max_shard_size="20KB" if shards else "5GB")
  assert (tmp_path / "model.safetensors.index.json").exists() == shards
  if own_head:
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    safetensors_torch.save_file(weights, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["scale_decoder_outputs"]  # as transformers 4 wrote it
    (tmp_path / "config.json").write_text(json.dumps(config | dict(tie_word_embeddings=False)))
  tokens, mask = np.zeros((4, length), np.int32), np.zeros((4, length), np.int32)
  for i, size in enumerate((length, length // 2, 1, 3)):
    tokens[i, :size], mask[i, :size] = draw.integers(2, 50, size), 1
  said = np.concatenate([np.zeros((4, 1), np.int64), draw.integers(2, 50, (4, 12))], axis=1)
  given = dict(input_ids=torch.tensor(tokens).long(), attention_mask=torch.tensor(mask).long())
  with torch.no_grad():
    want = model(**given, decoder_input_ids=torch.tensor(said)).logits.numpy()
  ours, config = t5.load_t5(tmp_path)
  assert (config.scaled, config.tied) == (shape[1], not own_head)
  got = nnx.jit(lambda model, *arguments: model(*arguments))(ours, tokens, mask, said.astype(np.int32))
  assert np.ptp(want) > 0.5
  np.testing.assert_allclose(got, want, atol=1e-4)
