"""The engine's greedy tokens are those of transformers' `generate` over the same weights."""

import numpy as np
import pytest
import small_engine as kit

from ragrl_jax.models import weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

NEW = 24


def test_greedy_turns_are_those_of_generate(tmp_path):
  weights.save_pretrained(kit.model(), kit.CONFIG, tmp_path)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
  prompts = [np.random.default_rng(i).integers(0, 256, 5 + 9 * i).tolist() for i in range(4)]

  async def play(example, policy, tools):
    talk = policy.start(prompts[int(example.id[1:])])
    await talk.generate(greedy=True)
    return talk.end()

  episodes = kit.rollout(kit.engine(texts=()), play, max_new_tokens=NEW).run(kit.requests(4, 1), step=0)
  greedy = dict(do_sample=False, max_new_tokens=NEW, eos_token_id=256, pad_token_id=0)
  for prompt, episode in zip(prompts, episodes):
    with torch.no_grad():
      out = theirs.generate(torch.tensor([prompt]), **greedy, return_dict_in_generate=True, output_logits=True)
    said = out.sequences[0, len(prompt) :].tolist()
    assert list(episode.segments[1].ids) == said
    want = [torch.log_softmax(logits[0].double(), -1)[token].item() for logits, token in zip(out.logits, said)]
    np.testing.assert_allclose(episode.segments[1].logprobs, want, atol=1e-5)
