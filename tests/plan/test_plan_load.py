import pytest

from ragrl_jax import config as config_lib, settings as run_settings
from ragrl_jax.learner import flops, settings as settings_lib
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.plan import workload as load_lib

# d 8, 2 layers, 2 heads of 4 over one key-value head, d_ff 16, 10 tokens: a layer's matrices have
# 8 · 8 (q) + 2 · 8 · 4 (k, v) + 8 · 8 (o) + 3 · 8 · 16 = 64 + 64 + 64 + 384 = 576 parameters.
SIZES = dict(d_model=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=16, rope_theta=1e4)
SHAPE = DecoderConfig(vocab_size=10, **SIZES)


def made(**learner):
  config = config_lib.default_config()
  config.rollout.update(prompts_per_step=3, group_size=4, context=100, lanes=2, rows=2, chunk=5, prefill=10, page=50)
  config.learner.update(dict(micro_rows=2, row_lengths=(100,)) | learner)
  return config


def test_every_episode_reads_its_own_prompt_and_a_shared_one_counts_once_per_group():
  found = load_lib.load(made(), fill=0.5, drawn=0.2)  # 12 episodes of 50 tokens, 10 of them sampled
  assert (found.episodes, found.length, found.drawn, found.tokens) == (12, 50, 10, 600)
  assert found.read == 12 * 40 and found.packed == 600 and found.pairs == 12 * 50 * 51 / 2
  found = load_lib.load(made(share_prompts=True), fill=0.5, drawn=0.2)
  assert found.tokens == 600 and found.read == 3 * 40 and found.packed == 3 * 40 + 12 * 10
  # A sampled token attends to the prompt, to those before it, and to itself.
  assert found.pairs == 3 * 40 * 41 / 2 + 12 * sum(40 + i for i in range(1, 11))


@pytest.mark.parametrize("fill, drawn", [(0.0, 0.5), (1.5, 0.5), (0.5, 0.0), (0.5, 1.5), (float("nan"), 0.5)])
def test_shares_are_above_0_and_at_most_1(fill, drawn):
  with pytest.raises(ValueError, match=rf"fill={fill:g}, drawn={drawn:g}: each must be above 0"):
    load_lib.load(made(), fill=fill, drawn=drawn)


def test_blocks_end_with_their_mini_batch():
  config = made()
  load = load_lib.load(config, fill=0.5, drawn=0.2)
  cut = load_lib.blocks(config, SHAPE, load)
  assert (cut.count, cut.updates, cut.rows, cut.length) == (3, 1, 2, 100)  # 600 tokens / 200
  # Two per multiply-add; attention's two products for 2 layers of 2 heads of 4; the head for sampled tokens.
  forward = 2 * 2 * 576 * 600 + 2 * 2 * 2 * 2 * 2 * 4 * load.pairs / 2 + 2 * 10 * 8 * 120
  assert cut.forward == pytest.approx(forward / 3) and cut.whole == pytest.approx(forward)
  config.loss.update(dict(minibatches=2, epochs=3))
  cut = load_lib.blocks(config, SHAPE, load)  # 300 tokens per mini-batch take 2 blocks
  assert (cut.count, cut.updates) == (2 * 2 * 3, 6)
  assert cut.forward == pytest.approx(forward / 3) and cut.whole == pytest.approx(forward)


# Of grpo two steps per batch need the old policy's scores, and k3 the reference's. Of ppo a critic learns too, and
# computes its values first.
@pytest.mark.parametrize("variant, passes", [("grpo", 3 + 1 + 1), ("ppo", 6 + 1 + 1 + 1)])
def test_passes_that_settings_need(variant, passes):
  run = run_settings.of(config_lib.load("configs/search_r1.py", variant))
  assert load_lib.passes(settings_lib.from_config(run)) == passes


def test_the_engines_calls():
  config = made()
  load = load_lib.load(config, fill=0.5, drawn=0.2)
  weights, token = 1000.0, 8.0  # bytes of a chip
  here = dict(replicas=1, weights=weights, cache=token * 500, tokens=500)
  found = load_lib.engine(config, SHAPE, load, 2, **here)
  assert found.fills == 6  # 480 tokens, half of them on this host, in 4 rows of 10
  assert found.chunks == 6  # 120 tokens, half of them here, on 2 lanes: 30 steps
  # A step reads the weights, and for each lane 40 tokens and half of 10.
  assert found.chunk_bytes == 5 * (weights + 2 * token * 45) and found.fill_bytes == weights + 4 * token * 20
  matrices, attention, head = 2 * 2 * 576, 4 * 2 * 2 * 4, 2 * 10 * 8
  assert found.chunk_flops == 5 * 2 * (matrices + attention * 45 + head)
  assert found.fill_flops == 40 * (matrices + attention * 20)
  twice = load_lib.engine(config, SHAPE, load, 2, **here | dict(replicas=2))  # each has a lane
  assert (twice.fills, twice.chunks) == (3, 6) and twice.chunk_bytes == 5 * (weights + token * 45)
  thrice = load_lib.engine(config, SHAPE, load, 2, **here, passes=3)  # plain JAX moves every cached byte three times
  assert thrice.chunk_bytes == 5 * (weights + 3 * 2 * token * 45) and thrice.fill_bytes == weights + 3 * 4 * token * 20
  config.rollout.lanes = 16  # more than a host's 6 episodes: 10 steps, for 10 tokens of each; empty lanes read nothing
  found = load_lib.engine(config, SHAPE, load, 2, **here)
  assert found.chunks == 2 and found.chunk_bytes == 5 * (weights + 6 * token * 45)


def test_pages_that_a_conversation_holds():
  # 40 tokens of prompt and 10 drawn, in pages of 8: 5 and 2, and one that the next token goes to. A shared prompt's are
  # divided among 4 samples, and rounded up.
  for shared, want in ((False, 5 + 2 + 1), (True, 2 + 2 + 1)):
    config = made(share_prompts=shared)
    config.rollout.page = 8
    assert load_lib.held(config, load_lib.load(config, fill=0.5, drawn=0.2)) == want


def test_training_bytes():
  found = load_lib.train_bytes(SHAPE, dict(data=1, fsdp=4, tensor=2), 100, width=2, remat=True, parameters=1400)
  weights = 4 * 2 * 2 * 576 / 2  # four passes over half of the matrices, in bf16
  gradient = 2 * 4 * 1400 / 8  # read and written
  token = 6 * 8 + (2 * 2 + 2 * 1) * 4 / 2 + 3 * 16 / 2
  activations = 2 * 100 * 2 * token * 2 * 4  # written and read, by layer and pass
  assert found == pytest.approx(weights + gradient + activations + 2 * 2 * 4 * 100 * 10 / 2)


@pytest.mark.parametrize("kl, epochs", [("none", 1), ("k3", 2)])
def test_adapters_need_no_gradient_of_the_matrices(kl, epochs):
  config = made(share_prompts=True)
  config.loss.update(dict(kl=kl, kl_coef=0.1 if kl != "none" else 0.0, epochs=epochs))
  load = load_lib.load(config, fill=0.5, drawn=0.2)
  settings, cut = settings_lib.from_config(run_settings.of(config)), load_lib.blocks(config, SHAPE, load)
  for adapters in (0, 84):
    sizes = dict(tokens=load.packed, pairs=load.pairs, scored=load.episodes * load.drawn, adapters=adapters)
    want = flops.update(SHAPE, settings, **sizes)
    assert load_lib.needed(SHAPE, settings, cut, load, adapters) == pytest.approx(want)
