"""The teacher's term: its loss and gradient, its part of the reward, and what it leaves as it was."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_learner as small
from flax import nnx

from ragrl_jax.learner import blocks as blocks_lib, packing, row_layout, teacher as teacher_lib
from ragrl_jax.learner.learner import Learner, drain
from ragrl_jax.learner.settings import AdvantageSettings, CriticSettings, Settings
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.settings.learning import Teacher

pytestmark = pytest.mark.usefixtures("share_programs")
LONG = pytest.mark.long
# Wider than the policy, and with more rows of the vocabulary than the policy has.
SHAPE = DecoderConfig(
  vocab_size=40, d_model=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=32, rope_theta=10_000.0
)  # fmt: skip


def other(mesh=None):
  """The teacher's model, with the policy's rows of the vocabulary."""
  return teacher_lib.with_rows(Decoder(SHAPE, rngs=nnx.Rngs(5), mesh=mesh), small.CONFIG.vocab_size)


def made(kind="jsd", mesh=None, alone=False, **how):
  taught = Teacher(path="elsewhere", kind=kind, beta=0.3 if kind == "jsd" else Teacher.beta, alone=alone)
  settings = Settings(logprob_chunk=64, temperature=0.8, teacher=taught, **how)
  return Learner(small.model(mesh=mesh), settings, small.OPTIMIZER, mesh=mesh, teacher=other(mesh))


def weighed(items, seed=3):
  draw = np.random.default_rng(seed)
  weights = lambda item: (0.5 * item.loss_mask * (draw.random(len(item.tokens)) < 0.7)).astype(np.float32)
  return [dataclasses.replace(item, teaching=weights(item)) for item in items]


def gradient(learner, batches):
  """As small.gradient, with the teacher."""
  grads, sums = learner.trained.zeros(learner.params)
  totals = np.asarray([blocks_lib.count(batches, learner.settings)["weight"], 10], np.float32)
  for batch in map(learner.place, batches):
    given = (learner.params, learner.trained.frozen, batch, totals, np.float32(0), learner.teacher(batch))
    grads, sums = learner.trained.accumulate(grads, sums, *given)
  return jax.device_get(sums), grads


@pytest.mark.parametrize("kind", ["jsd", pytest.param("reverse", marks=LONG), pytest.param("forward", marks=LONG)])
def test_loss_and_gradient_equal_a_plain_computation(kind):
  """Reference: one sequence at a time, all logits at once."""
  learner, items = made(kind), weighed(small.items(3))
  count = sum(int(item.loss_mask[1:].sum()) for item in items)
  whole = Decoder(SHAPE, rngs=nnx.Rngs(5))

  def loss(params, tokens, mask, advantages, teaching):
    models = learner.trained.model(params, learner.trained.frozen), whole
    logits = (model(tokens[None])[0, :-1, : small.CONFIG.vocab_size] for model in models)
    p, q = (jax.nn.log_softmax(one / 0.8) for one in logits)
    m = jnp.log(0.3 * jnp.exp(q) + 0.7 * jnp.exp(p))
    kl = lambda a, b: (jnp.exp(a) * (a - b)).sum(-1)
    apart = dict(reverse=kl(p, q), forward=kl(q, p), jsd=0.3 * kl(q, m) + 0.7 * kl(p, m))[kind]
    x = jnp.take_along_axis(p, tokens[1:, None], 1)[:, 0]
    surrogate = -advantages[1:] * jnp.exp(x - jax.lax.stop_gradient(x))
    return ((surrogate + apart * teaching[1:]) * mask[1:].astype(np.float32)).sum() / count

  # No token sees what comes after it, so zeros after a sequence's end only give all sequences one program.
  reference = jax.jit(jax.value_and_grad(loss))
  columns = lambda item: (item.tokens, item.loss_mask, item.advantages, item.teaching)
  parts = [reference(learner.params, *(np.pad(x, (0, 12 - len(x))) for x in columns(item))) for item in items]
  want, want_grads = jax.tree.map(lambda *each: np.sum(each, axis=0), *parts)
  found, grads = gradient(learner, small.blocks(items))
  assert found["loss"] == pytest.approx(float(want), abs=1e-6)
  assert small.distance(grads, want_grads) < 1e-6
  assert found["taught"] == pytest.approx(sum((item.teaching[1:] > 0).sum() for item in items) / count)


def test_a_term_alone_is_the_whole_loss_of_rl_and_of_distillation():
  items = weighed(small.items(4))
  plain, _ = gradient(made(), small.blocks(items))
  found, _ = gradient(made(alone=True, entropy_coef=0.1), small.blocks(items))
  assert found["loss"] == pytest.approx(0.5 * found["teacher_kl"], rel=1e-5)  # each weight is 0.5
  assert found["teacher_kl"] == pytest.approx(plain["teacher_kl"], rel=1e-5)
  # In distillation every trained token is taught. It counts by its weight, as in the loss.
  weights = [np.where(np.arange(len(item.tokens)) % 2, 1.0, 0.3).astype(np.float32) for item in items]
  items = [dataclasses.replace(item, advantages=w, teaching=0.5 * w) for item, w in zip(items, weights)]
  found, _ = gradient(made(alone=True, objective="sft"), small.blocks(items))
  assert found["loss"] == pytest.approx(0.5 * found["teacher_kl"], rel=1e-5)
  assert found["taught"] == pytest.approx(1.0)


def test_packing_and_devices_change_nothing():
  items = weighed(small.items(16, seed=1))
  want, want_grads = gradient(made(), small.padded(items))
  spread = made(mesh=mesh_lib.make(jax.devices(), data=1, fsdp=2, tensor=2, sequence=2))
  assert spread.teacher.params["layers"]["q"][...].sharding.spec == spread.params["layers"]["q"][...].sharding.spec
  found, grads = gradient(spread, small.blocks(items))
  assert found["teacher_kl"] == pytest.approx(want["teacher_kl"], rel=1e-5)
  assert small.distance(grads, want_grads) < 1e-5


def test_an_update_pulls_the_policy_to_its_teacher_and_leaves_that_as_it_was():
  learner = made()
  before = jax.device_get(learner.teacher.params)
  items = [dataclasses.replace(item, advantages=0 * item.advantages) for item in weighed(small.items())]
  state, apart = learner.init(0), []
  for _ in range(8):
    state, metrics = small.update(learner, state, small.blocks(items))
    apart.append(metrics["teacher_kl"])
  assert apart[-1] < 0.9 * apart[0]
  assert small.distance(before, learner.teacher.params) == 0


def test_the_sampled_tokens_k1_is_subtracted_from_the_rewards_of_failed_episodes():
  """DGPO (arXiv 2508.20324), by hand: r_t = score_t - 0.001 (log p - log q) where the episode failed, then GAE."""
  critic = CriticSettings(kind="own", optimizer=small.OPTIMIZER)
  learner = made("k1", advantage=AdvantageSettings(kind="gae", whiten=False), critic=critic)
  right, wrong = (small.earning(item, reward) for item, reward in zip(small.items(2), (1.0, 0.0)))
  teach = lambda item, coef: dataclasses.replace(item, teaching=np.full(len(item.tokens), coef, np.float32))
  state, items = learner.init(0), [teach(right, 0.0), teach(wrong, 0.001)]
  ready = learner.prepare(state, [items], small.pack)
  for item, got, score, coef in zip(items, ready.items, (1.0, 0.0), (0.0, 0.001)):
    log = (jax.nn.log_softmax(small.logits(model, item.tokens)[:-1] / 0.8) for model in (small.model(), other()))
    x, y = (np.take_along_axis(one, item.tokens[1:, None], 1)[:, 0] for one in log)
    on = item.loss_mask[1:]
    rewards = -coef * np.asarray(x - y)[on]
    rewards[-1] += score
    # A new critic's values are 0, gamma and lambda 1: an advantage is the sum of the rewards to come.
    np.testing.assert_allclose(got.advantages[1:][on], np.cumsum(rewards[::-1])[::-1], atol=1e-6)


def with_prompts(items, prompt, cut=2):
  """Pairs of items begin with the same two tokens, and with others for their teacher."""
  first = items[0].tokens[:cut]
  tokens = lambda item: np.concatenate([first, item.tokens[cut:]])
  return [
    dataclasses.replace(item, tokens=tokens(item), loss_mask=item.loss_mask & (np.arange(len(item.tokens)) >= cut),
                        teacher_prompt=(cut, prompt)) for item in items
  ]  # fmt: skip


def packed_for_teachers(parts, sharing=None):
  how = dict(rows=2, lengths=small.LENGTHS, sharing=sharing, teacher_prompts=True)
  return [packing.pack_items(part, **how) for part in parts]


def test_a_teacher_behind_a_server_is_subtracted_in_the_same_way():
  items = [small.earning(item, 1.0) for item in weighed(small.items(4))]
  learner = made("k1", advantage=AdvantageSettings())
  state = learner.init(0)
  ready = learner.prepare(state, [items], small.pack)
  packed = packing.join(small.pack([items]))
  scores = packed.of_items([learner.teacher.score(learner.place(block)) for block in packed.blocks], items)
  scored = [dataclasses.replace(item, teacher_logprobs=np.asarray(own)) for item, own in zip(items, scores)]
  far = dataclasses.replace(learner.settings.teacher, path="http://there/v1", model="m")
  remote = small.learner(dataclasses.replace(learner.settings, teacher=far))
  found = remote.prepare(remote.init(0), [scored], small.pack)
  for one, two in zip(ready.items, found.items):
    np.testing.assert_allclose(one.advantages, two.advantages, atol=1e-5)
  assert found.metrics["teacher_kl"] == pytest.approx(ready.metrics["teacher_kl"], rel=1e-5)


HYBRID = DecoderConfig.from_shape(
  32, family="qwen3_5_text", d_model=16, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=32,
  rope_theta=10_000.0, attend_every=2, delta_key_heads=1, delta_value_heads=2, delta_key_dim=32, delta_value_dim=32,
  delta_conv=4,
)  # fmt: skip


@pytest.mark.parametrize("sharing, shape", [
  *((sharing, small.CONFIG) for sharing in (row_layout.Sharing(), row_layout.Sharing(deep=False))),
  *(pytest.param(None, shape, marks=LONG) for shape in (small.CONFIG, HYBRID)),
  pytest.param(row_layout.Sharing(deep=False), HYBRID, marks=LONG),
])  # fmt: skip
def test_a_policy_teaches_itself_what_it_was_told(sharing, shape, monkeypatch):
  """Reference: one sequence at a time, the teacher's with another prompt, and no gradient through the teacher."""
  monkeypatch.setattr(small, "CONFIG", shape)
  learner = small.learner(Settings(logprob_chunk=64, advantage=None, teacher=Teacher(path="policy", kind="forward")))
  items = with_prompts(weighed(small.items(6)), prompt=(5, 6, 7, 8, 9))
  pack = lambda parts: packed_for_teachers(parts, sharing)
  ready = learner.prepare(learner.init(0), [items], pack)
  (blocks,), (teacher_rows,) = ready.minibatches, ready.teacher_rows
  policy = small.model()
  log = lambda tokens: np.asarray(jax.nn.log_softmax(small.logits(policy, tokens)))
  total = weight = 0.0
  for item in items:
    p, q = log(item.tokens)[1:-1], log(np.concatenate([item.teacher_prompt[1], item.tokens[2:]]))[4:-1]
    total += float(((np.exp(q) * (q - p)).sum(-1) * (item.teaching > 0)[2:]).sum())
    weight += item.loss_mask.sum()
  params = learner.params, learner.trained.frozen
  grads, sums = learner.trained.zeros(learner.params)
  for block, rows in zip(blocks, teacher_rows):
    given = np.asarray([weight, 6], np.float32), np.float32(0), learner.teacher(block, rows, params)
    grads, sums = learner.trained.accumulate(grads, sums, *params, block, *given)
  assert float(sums["teacher_kl"]) == pytest.approx(total / weight, rel=1e-4 if shape.traits.hybrid else 1e-5)
  # In the reward: the same tokens' log-probabilities.
  packed = packing.join(pack([items]))
  found = packed.of_items([learner.teacher.score(*pair, params) for pair in zip(blocks, teacher_rows)], items)
  for item, got in zip(items, found):
    q = log(np.concatenate([item.teacher_prompt[1], item.tokens[2:]]))[4:-1]
    want = np.take_along_axis(q, item.tokens[2:, None], 1)[:, 0]
    np.testing.assert_allclose(got[2:], np.where(item.loss_mask[2:], want, 0), atol=1e-5)


def test_a_policy_that_teaches_itself_is_the_one_before_the_update():
  learner = small.learner(Settings(logprob_chunk=64, epochs=2, teacher=Teacher(path="policy", kind="reverse")))
  items = with_prompts(weighed(small.items(4)), prompt=small.items()[0].tokens[:2].tolist())  # told nothing else
  state = learner.init(0)
  state, metrics = drain(learner.train(state, learner.prepare(state, [items], packed_for_teachers)))
  assert metrics["teacher_kl"] > 1e-4  # the mean of 0, before the first step, and of what that step has changed
