"""The engine's greedy tokens are those of transformers' `generate` over the same weights."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ragrl_jax import structs
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.engine.stops import Stops
from ragrl_jax.models import weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.rollout import collect
from ragrl_jax.settings import Rollout

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

NEW = 24


def test_greedy_turns_are_those_of_generate(tmp_path):
  config = DecoderConfig(
    vocab_size=264, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48, rope_theta=1e4
  )
  model = Decoder(config, rngs=nnx.Rngs(0), param_dtype=jnp.float32)
  weights.save_pretrained(model, config, tmp_path)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()

  tokenizer = ByteTokenizer()
  sizes = Sizes(lanes=4, rows=4, context=96, chunk=8, prefill=32, page=32, prefill_rows=2)
  engine = Engine(nnx.split(model)[0], tokenizer, Stops(tokenizer, [], rows=264), sizes)
  engine.load(nnx.split(model)[1], version=0)
  prompts = [np.random.default_rng(i).integers(0, 256, 5 + 9 * i).tolist() for i in range(4)]

  async def play(example, policy, tools):
    talk = policy.start(prompts[int(example.id)])
    await talk.generate(greedy=True)
    return talk.end()

  sampling = dataclasses.replace(Rollout().sampling, max_new_tokens=NEW)
  rollout = collect.Rollout(engine, play, None, seed=0, sampling=sampling)
  episodes = rollout.run([collect.Request(structs.Example(str(i), "", ()), i) for i in range(4)], step=0)
  greedy = dict(do_sample=False, max_new_tokens=NEW, eos_token_id=256, pad_token_id=0)
  for prompt, episode in zip(prompts, episodes):
    with torch.no_grad():
      out = theirs.generate(torch.tensor([prompt]), **greedy, return_dict_in_generate=True, output_logits=True)
    said = out.sequences[0, len(prompt) :].tolist()
    assert list(episode.segments[1].ids) == said
    want = [torch.log_softmax(logits[0].double(), -1)[token].item() for logits, token in zip(out.logits, said)]
    np.testing.assert_allclose(episode.segments[1].logprobs, want, atol=1e-5)
