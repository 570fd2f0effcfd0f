"""A whole step: cutting, packing and distributing rows changes nothing, and untrained tokens do not train."""

import dataclasses
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import shared_programs
import small_learner as small
from flax import nnx
from refusals import refused

from ragrl_jax import structs
from ragrl_jax.core import guards, losses
from ragrl_jax.learner import (
  blocks as blocks_lib,
  forward,
  learner as learner_lib,
  packing,
  row_layout,
  step,
  trained as trained_lib,
)
from ragrl_jax.learner.settings import AdvantageSettings, CriticSettings, OptimizerSettings, Settings
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.parallel import mesh as mesh_lib
from ragrl_jax.run import progress

pytestmark = pytest.mark.usefixtures("share_programs")
# All at once: off-policy ratios, a sequence-level aggregation, KL and entropy.
TERMS = dict(aggregation="seq_mean_token_mean", kl="k3", kl_coef=0.3, entropy_coef=0.05)
FULL = Settings(**TERMS, logprob_chunk=64, epochs=2, temperature=0.8)


def test_a_little_more_free_memory_of_a_gpu_compiles_the_same_program(monkeypatch):
  chunks, on = [], np.ones((1, 4))
  batch = types.SimpleNamespace(loss_mask=on, tokens=on, places=None, states=None)
  monkeypatch.setattr(forward.attention, "platform", lambda mesh: "gpu")
  monkeypatch.setattr(forward.logprobs_lib, "chunked", lambda *_, chunk, **how: chunks.append(chunk) or ())
  for tokens in (0, 3000, 3010, 10**6):  # of 500 logits, which take a quarter of the memory
    model = types.SimpleNamespace(spare=lambda tokens=tokens: tokens * 16 * 500, unembedding=lambda: np.zeros((500, 2)))
    model.mesh, model.tokenless = None, ()
    forward.scores(model, batch, temperature=1.0, chunk=512, hidden=np.zeros((1, 4, 2)))
  assert chunks == [512, 2048, 2048, 8192]


def off_policy(batches):
  """Old and reference log-probabilities that differ from the policy's."""
  old = lambda b, shift: np.where(b.loss_mask, b.sampler_logprobs + np.float32(shift), 0).astype(np.float32)
  return [dataclasses.replace(b, old_logprobs=old(b, 0.1), ref_logprobs=old(b, -0.4)) for b in batches]


@pytest.fixture(scope="module")
def full():
  return small.learner(FULL)


@pytest.fixture(scope="module")
def plain():
  return small.learner()


def test_loss_and_gradient_equal_a_plain_computation(full):
  """Reference: one sequence at a time, all logits at once, without segments, chunks or accumulation."""
  sequences = small.items()
  graphdef, params = full.trained.graphdef, full.params
  longest = max(len(s.tokens) for s in sequences)

  def loss(params, tokens, mask, advantages, logprobs):
    logits = nnx.merge(graphdef, params)(tokens[None])[0] / FULL.temperature
    logp = jax.nn.log_softmax(logits)[:-1]
    x = jnp.take_along_axis(logp, tokens[1:, None], 1)[:, 0]
    old, ref = logprobs[1:] + 0.1, logprobs[1:] - 0.4
    rho, a = jnp.exp(x - old), advantages[1:]
    surrogate = -jnp.minimum(a * rho, a * jnp.clip(rho, 0.8, 1.2))
    kl = jnp.exp(ref - x) - (ref - x) - 1.0
    entropy = -(jnp.exp(logp) * logp).sum(-1)
    on = mask[1:].astype(jnp.float32)
    return ((surrogate + 0.3 * kl - 0.05 * entropy) * on).sum() / on.sum() / len(sequences)

  # No token sees what comes after it, so zeros after a sequence's end only give all sequences one program.
  reference = jax.jit(jax.value_and_grad(loss))
  columns = lambda s: (s.tokens, s.loss_mask, s.advantages, s.sampler_logprobs)
  parts = [reference(params, *(np.pad(x, (0, longest - len(x))) for x in columns(s))) for s in sequences]
  want, want_grads = jax.tree.map(lambda *each: np.sum(each, axis=0), *parts)
  got, got_grads = small.gradient(full, off_policy(small.blocks(sequences)))
  assert got == pytest.approx(float(want), rel=1e-5)
  assert small.distance(got_grads, want_grads) < 1e-5


def test_packing_padding_order_and_micro_batches_change_nothing(full):
  sequences = small.items(16, seed=1)
  want, want_grads = small.gradient(full, off_policy(small.padded(sequences)))
  eight = [block for i in range(0, 16, 2) for block in small.blocks(sequences[i : i + 2])]
  cuts = dict(packed=small.blocks(sequences), reversed=small.blocks(sequences[::-1]), eight=eight)
  assert [len(blocks) for blocks in cuts.values()] == [1, 1, 8]
  for name, batches in cuts.items():
    got, grads = small.gradient(full, off_policy(batches))
    assert got == pytest.approx(want, rel=1e-5) and small.distance(grads, want_grads) < 1e-5, name


@pytest.mark.long  # the learner's programs for eight devices; steps: tests/parallel/test_meshes.py
def test_guards_do_not_depend_on_packing_or_devices():
  guarded = dict(importance_cap=2.0, importance_floor=0.3, sequence_low=0.55, max_fall=0.02, max_rise=0.02)
  settings = dataclasses.replace(FULL, surrogate="cispo", kl="k3+", kl_corrected=True, llds_coef=0.2, **guarded)
  sequences = small.items(16, seed=1)
  one = small.learner(settings)
  want, want_grads = small.gradient(one, off_policy(small.padded(sequences)))
  spread = small.learner(settings, mesh=mesh_lib.make(jax.devices(), data=1, fsdp=2, tensor=2, sequence=2))
  for made in (one, spread):
    got, grads = small.gradient(made, off_policy(small.blocks(sequences)))
    assert got == pytest.approx(want, rel=1e-5) and small.distance(grads, want_grads) < 1e-5
  _, metrics = small.update(one, one.init(0), sequences)
  assert all(metrics[name] > 0 for name in ("left_out_sequences", "left_out_tokens", "llds_tokens", "clip_fraction"))


def test_untrained_tokens_reach_nothing(full):
  """Values at untrained places, even NaN, do not affect the step."""
  batches = off_policy(small.blocks(small.items()))
  spoil = lambda x, b: np.where(b.loss_mask, x, np.nan).astype(np.float32)
  names = ("advantages", "sampler_logprobs", "old_logprobs", "ref_logprobs")
  broken = [dataclasses.replace(b, **{n: spoil(getattr(b, n), b) for n in names}) for b in batches]
  want, got = small.gradient(full, batches), small.gradient(full, broken)
  assert got[0] == want[0] and small.distance(got[1], want[1]) == 0.0


def test_environment_tokens_are_not_learnt(plain):
  until_4 = lambda x, later: np.where(np.arange(len(x)) < 4, x, later)
  sequences = [dataclasses.replace(s, loss_mask=until_4(s.loss_mask, False)) for s in small.items()]
  sequences = [s for s in sequences if s.loss_mask[1:].any()]
  other = [dataclasses.replace(s, tokens=until_4(s.tokens, 31 - s.tokens)) for s in sequences]
  want, got = small.gradient(plain, small.blocks(sequences)), small.gradient(plain, small.blocks(other))
  assert got[0] == pytest.approx(want[0], rel=1e-6) and small.distance(got[1], want[1]) < 1e-6


@pytest.mark.parametrize("gap", [-120.0, -25.0, 25.0, 120.0])
def test_values_are_finite_however_far_off_policy(full, gap):
  batches = off_policy(small.blocks(small.items()))
  moved = lambda b: {name: getattr(b, name) + np.float32(gap) for name in ("old_logprobs", "ref_logprobs")}
  far = [dataclasses.replace(b, **moved(b)) for b in batches]
  loss, grads = small.gradient(full, far)
  assert np.isfinite(loss) and all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_score_is_the_models_log_probability(plain):
  batch = small.blocks(small.items())[0]
  got = np.asarray(plain.score(plain.params, batch))
  logits = jax.jit(small.model().__call__)(batch.tokens, batch.positions, batch.segment_ids)
  logp = np.asarray(jax.nn.log_softmax(logits))
  rows, columns = np.nonzero(batch.loss_mask)
  want = logp[rows, columns - 1, batch.tokens[rows, columns]]
  np.testing.assert_allclose(got[rows, columns], want, rtol=1e-5, atol=1e-5)
  assert (got[~batch.loss_mask] == 0).all()


def test_update_reports_and_moves(plain):
  state = plain.init(0)
  batches = small.blocks(small.items())
  scored = [dataclasses.replace(b, sampler_logprobs=np.asarray(plain.score(state.params, b))) for b in batches]
  before = jax.tree.map(np.asarray, state.params)
  state, metrics = small.update(plain, state, scored)
  assert metrics["mismatch"] < 1e-6  # same weights and same temperature
  assert metrics["ratio"] == pytest.approx(1.0) and metrics["clip_fraction"] == 0.0
  tokens = sum(int(b.loss_mask.sum()) for b in batches)
  assert metrics["tokens"] == tokens and metrics["sequences"] == 10
  # On-policy with the token mean, the loss is minus the mean advantage.
  want = -sum(float(b.advantages.sum()) for b in batches) / tokens
  assert metrics["loss"] == pytest.approx(want, rel=1e-5)
  assert metrics["optimizer_step"] == 1 and metrics["skipped"] == 0
  assert metrics["mask_coverage"] == pytest.approx(tokens / sum(int((b.segment_ids > 0).sum()) for b in batches))
  assert small.distance(before, state.params) > 1e-3
  assert small.distance(before, plain.params) == 0.0  # donation does not delete the model's own parameters
  assert all(isinstance(x, float) for x in metrics.values())


def test_tokens_with_positive_advantage_become_likelier(plain):
  signed = lambda i, s: dataclasses.replace(s, advantages=np.full(len(s.tokens), (-1.0) ** i, np.float32))
  (batch,) = small.blocks([signed(i, s) for i, s in enumerate(small.items())])
  state = plain.init(0)
  before = np.asarray(plain.score(state.params, batch))
  for _ in range(5):
    state, _ = small.update(plain, state, [batch])
  moved = np.asarray(plain.score(state.params, batch)) - before
  assert moved[batch.advantages > 0].mean() > 0.01 > -0.01 > moved[batch.advantages < 0].mean()


def test_only_what_the_settings_compute_is_reported(plain, full):
  batches = small.blocks(small.items())
  for made, there in ((plain, False), (full, True)):
    _, metrics = small.update(made, made.init(0), batches)
    assert {"loss", "ratio", "mismatch", "entropy", "grad_norm"} <= metrics.keys()
    assert ("kl" in metrics) == ("kl_k3" in metrics) == there == (made.settings.kl != "none")
    assert not there or (metrics["kl"] == pytest.approx(metrics["kl_k3"]) and metrics["kl_k2"] > 0 < metrics["old_kl"])
    assert ("importance" in metrics) == (made.settings.importance_cap is not None)
    assert ("dual_clip_fraction" in metrics) == (made.settings.dual_clip is not None) and "value_loss" not in metrics


def test_guards_that_are_off_are_not_in_the_compiled_step(full, monkeypatch):
  refuse = mock.Mock(side_effect=AssertionError("a guard is computed though it is off"))
  for name in ("importance_weights", "kept_sequences", "kept_tokens", "fallen_likelihood"):
    monkeypatch.setattr(guards, name, refuse)
  batch, totals = small.blocks(small.items())[0], jnp.ones(2)
  model = nnx.merge(full.trained.graphdef, full.params)
  jax.eval_shape(lambda: step.policy_objective(model, batch, totals, jnp.float32(0.3), settings=FULL))
  on = dataclasses.replace(FULL, llds_coef=0.2)
  with pytest.raises(AssertionError, match="is off"):
    jax.eval_shape(lambda: step.policy_objective(model, batch, totals, jnp.float32(0.3), settings=on))


def test_masks_leave_out_what_the_sampler_did_not_mean(plain):
  """The sampler's log-probabilities are random here, so each bound leaves some tokens out."""
  bounds = dict(
    importance_dropped=dict(importance_floor=0.9), left_out_sequences=dict(sequence_low=0.6, sequence_high=2.0),
    left_out_tokens=dict(max_fall=0.01, max_rise=0.01),
  )  # fmt: skip
  of = lambda **how: Settings(importance_cap=2.0, **how)
  (batch,) = small.blocks(small.items())
  scores = plain.score(plain.params, batch)
  for name, how in bounds.items():
    names = step.computed(of(**how)) & {*bounds, "importance_capped"}
    assert names == {name} | ({"importance_capped"} if "importance_floor" not in how else set())
    _, metrics, _ = policy_of(of(**how), scores, batch)
    assert 0.0 < metrics[name] < 1.0 and metrics.keys() < {*step.SUMS}, name
  _, metrics, slopes = policy_of(of(sequence_high=1.0, sequence_low=1.0), scores, batch)
  assert metrics["left_out_sequences"] == 1.0 and not slopes.any()


def test_llds_holds_up_what_an_update_lowers_without_a_reason():
  """With advantages of 0 nothing but LLDS moves the policy: back to the old log-probabilities, which were higher."""
  sequences = [dataclasses.replace(item, advantages=np.zeros_like(item.advantages)) for item in small.items()]
  made = small.learner(Settings(logprob_chunk=64, epochs=2, llds_coef=0.2))
  (batch,) = small.blocks(sequences)
  scores = np.asarray(made.score(made.params, batch))
  higher = dataclasses.replace(batch, old_logprobs=np.where(batch.loss_mask, scores + 0.5, 0).astype(np.float32))
  loss, grads = small.gradient(made, [higher])
  assert loss == pytest.approx(0.2 * 0.5, rel=1e-5)
  stepped = jax.tree.map(lambda p, g: p - 0.1 * g, made.params, grads)
  assert (np.asarray(made.score(stepped, batch)) - scores)[batch.loss_mask].mean() > 0.001
  lower = dataclasses.replace(batch, old_logprobs=np.where(batch.loss_mask, scores - 0.5, 0).astype(np.float32))
  assert small.gradient(made, [lower])[0] == 0.0
  _, metrics = small.update(made, made.init(0), small.items())
  assert 0.0 <= metrics["llds"] and 0.0 <= metrics["llds_tokens"] <= 1.0 and 0.0 <= metrics["fallen_tokens"] <= 1.0
  assert "fallen_tokens" not in step.computed(Settings())  # with one update nothing has moved yet


def test_the_share_of_fallen_tokens_is_that_of_both_mini_batches():
  """All tokens of the first have an advantage above 0 and have fallen; of the second one item has one, and rose."""
  made = small.learner(Settings(logprob_chunk=64, minibatches=2), OptimizerSettings(learning_rate=0.0))
  signs = [1] * 3 + [-1] * 7
  items = [dataclasses.replace(item, advantages=0 * item.advantages + a) for item, a in zip(small.items(), signs)]
  state = made.init(0)
  ready = made.prepare(state, [items[:2], items[2:]], small.pack)
  for blocks, by in zip(ready.minibatches, (1.0, -1.0)):
    blocks[:] = [dataclasses.replace(b, old_logprobs=b.old_logprobs + np.float32(by)) for b in blocks]
  _, metrics = learner_lib.drain(made.train(state, ready))
  first, second = (sum(item.loss_mask[1:].sum() for item in some) for some in (items[:2], items[2:3]))
  assert metrics["fallen_tokens"] == pytest.approx(first / (first + second))


def policy_of(settings, logprobs, batch, kl_coef=0.3):
  """(value, metrics, slopes) of the policy's loss of these log-probabilities."""
  totals = jnp.float32(batch.loss_mask.sum()), jnp.float32(2.0)
  loss = lambda x: step._policy(x, x * 0.0, batch, totals, jnp.float32(kl_coef), settings)
  (value, metrics), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.asarray(logprobs))
  return float(value), metrics, np.asarray(slopes)


def test_the_corrected_penalty_is_weighed_by_the_ratio():
  """Every token is half as likely as before the updates; without advantages the penalty is the loss."""
  (batch,) = small.blocks(small.items())
  scores = np.where(batch.loss_mask, batch.sampler_logprobs, 0.0)
  shifted = lambda by: np.where(batch.loss_mask, scores + by, 0).astype(np.float32)
  changed = dict(old_logprobs=shifted(np.log(2.0)), ref_logprobs=shifted(0.4), advantages=scores * 0.0)
  of = lambda corrected: Settings(epochs=2, kl="k3+", kl_coef=0.3, kl_corrected=corrected)
  found = [policy_of(of(x), scores, dataclasses.replace(batch, **changed)) for x in (True, False)]
  (loss, _, slopes), (want, _, wanted) = found
  assert want > 0.0 and np.abs(wanted).max() > 0.0 and loss == pytest.approx(want / 2, rel=1e-5)
  np.testing.assert_allclose(slopes, wanted / 2, atol=1e-6)


def test_the_mismatch_is_that_of_the_policy_that_sampled(full):
  """Steps on the same batch change the policy, not what the sampler computed."""
  (batch,), state = small.blocks(small.items(12)), full.init(0)
  scored = dataclasses.replace(batch, sampler_logprobs=np.asarray(full.score(state.params, batch)))
  state, metrics = small.update(full, state, *[[scored]] * 4)
  assert int(state.step) == 8 and metrics["ratio"] != 1.0 and metrics["mismatch"] < 1e-5


def test_the_tangent_of_k3_reaches_the_loss():
  """Ten nats apart: e^10 - 11, or e^5 - 6 + 5 (e^5 - 1) along the tangent."""
  (batch, *_) = small.blocks(small.items())
  logprobs = jnp.where(batch.loss_mask, batch.sampler_logprobs, 0.0)
  batch = dataclasses.replace(batch, old_logprobs=logprobs, ref_logprobs=logprobs + 10.0, advantages=logprobs * 0.0)
  for tangent, cost in ((None, 22015.5), (5.0, 879.5)):
    settings = dataclasses.replace(FULL, aggregation="token_mean", entropy_coef=0.0, kl_tangent=tangent)
    value, found, _ = policy_of(settings, logprobs, batch, kl_coef=0.5)
    assert (float(found["kl"]), value) == pytest.approx((cost, cost / 2), rel=1e-3)


def test_a_gradient_that_is_not_finite_is_skipped_and_the_run_stopped(plain):
  good = small.blocks(small.items())
  bad = [dataclasses.replace(b, advantages=np.where(b.loss_mask, np.inf, 0).astype(np.float32)) for b in good]
  state, _ = small.update(plain, plain.init(0), good)
  before = jax.tree.map(np.asarray, state)
  state, metrics = small.update(plain, state, bad)
  assert metrics["skipped"] == 1 and metrics["nonfinite_in_a_row"] == 1
  assert small.distance((before.params, before.opt_state), (state.params, state.opt_state)) == 0.0
  assert int(state.step) == 1 and int(state.skipped) == 1
  state, metrics = small.update(plain, state, good)  # a good step resets the count
  assert metrics["nonfinite_in_a_row"] == 0 and int(state.step) == 2
  state, _ = small.update(plain, state, bad)
  state, _ = small.update(plain, state, bad)
  says, at = r"3 optimiser steps in a row.*run/checkpoints/7. .*learning_rate, and", "run/checkpoints/7"
  refused(says, small.update, plain, state, bad, checkpoint=at, error=learner_lib.NonFinite)


def test_an_update_that_is_not_finite_is_skipped_too(plain):
  """As of parameters with 16 bits, whose squared gradients are 0 or infinite."""
  optimizer = optax.stateless(lambda updates, _: jax.tree.map(lambda u: u.at[(0,) * u.ndim].set(jnp.nan), updates))
  state = dataclasses.replace(plain.init(0), opt_state=optimizer.init(plain.params))
  grads = jax.tree.map(jnp.ones_like, state.params)
  after, metrics = jax.jit(step.apply, static_argnums=3)(state, grads, dict(loss=jnp.float32(1.0)), optimizer)
  assert metrics["skipped"] == 1 and metrics["update_norm"] == 0 and int(after.step) == 0
  assert small.distance(state.params, after.params) == 0.0


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_rate_multiplies_the_learning_rate_to_the_bit(kind):
  make = lambda rate: small.learner(optimizer=OptimizerSettings(kind=kind, learning_rate=rate, weight_decay=0.1))
  halved, low = make(1e-2), make(5e-3)
  halved.rate = 0.5
  states = [learner.init(0) for learner in (halved, low)]
  for seed in (0, 1):
    batches = small.blocks(small.items(seed=seed))
    states, (one, two) = zip(*(small.update(*pair, batches) for pair in zip((halved, low), states)))
    assert one == two and one["learning_rate"] == pytest.approx(5e-3)
  jax.tree.map(np.testing.assert_array_equal, *states)


def test_a_batch_without_scores_changes_nothing(plain):
  state = plain.init(0)
  before = jax.tree.map(np.asarray, state)
  state, metrics = small.update(plain, state, small.blocks([]))
  assert metrics["tokens"] == 0 and small.distance(before, state) == 0.0
  assert not {"loss", "entropy", "ratio", "mismatch"} & metrics.keys()  # nothing was measured
  refused("at least one block", small.update, plain, state, [])


@pytest.mark.parametrize("optimizer, steps, share", [
  (small.OPTIMIZER, 40, 0.75), (OptimizerSettings(kind="muon", learning_rate=2e-2, total_steps=20), 15, 0.8),
])  # fmt: skip
def test_sft_weighs_tokens_and_learns(optimizer, steps, share):
  learner = small.learner(Settings(objective="sft", logprob_chunk=64), optimizer)
  weights = lambda s: np.where(np.arange(len(s.tokens)) % 2, 1.0, 0.3).astype(np.float32)
  (batch,) = small.blocks([dataclasses.replace(s, advantages=weights(s)) for s in small.items(4)])
  logprobs = np.asarray(learner.score(learner.params, batch))
  want = -(logprobs * batch.advantages).sum() / batch.advantages.sum()  # zero at untrained tokens
  state, metrics = small.update(learner, learner.init(0), [batch])
  assert metrics["loss"] == pytest.approx(float(want), rel=1e-5)
  for _ in range(steps):
    state, metrics = small.update(learner, state, [batch])
  assert metrics["loss"] < share * want


@pytest.mark.parametrize("kl", [pytest.param({}, marks=pytest.mark.long), dict(kl="k3", kl_coef=0.1, kl_target=0.05)])
def test_no_compilation_after_warm_up(kl, monkeypatch):
  monkeypatch.setattr(shared_programs, "KEPT", {})  # no other test has warmed these programs up
  learner = small.learner(Settings(**kl, logprob_chunk=64))
  state, events = learner.init(0), []
  both = lambda seed, n: small.blocks(small.items(n, seed=seed), lengths=(24, 12))
  jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: events.append(event))
  compilations = lambda: events.count("/jax/core/compile/backend_compile_duration")
  for length in (24, 12):
    state, _ = small.update(learner, state, small.blocks(small.items(16), lengths=(length,)))
  assert (cold := compilations()) > 0  # the counter works: two row lengths were new
  for seed, n in ((1, 3), (2, 16), (3, 100), (4, 9)):
    state, _ = small.update(learner, state, both(seed, n))
  restored = jax.tree.map(lambda x: jax.device_put(np.asarray(x), x.sharding), state)  # as after a rollback
  small.update(learner, restored, both(5, 9))
  assert compilations() == cold


def test_blocks_in_a_loop_add_up_to_the_same(full, monkeypatch):
  """On one CPU a program runs up to eight blocks of a shape, and two programs run side by side."""
  batches = [*small.padded(small.items(160, seed=1)), *small.padded(small.items(24, seed=2), length=16)]
  batches = [full.place(batch) for batch in off_policy(batches)]
  assert [batch.tokens.shape[1] for batch in batches] == [24] * 20 + [16] * 3
  totals, trained, kl_coef = np.asarray([500.0, 100.0], np.float32), full.trained, np.float32(0.3)
  gradient = lambda some: learner_lib.drain(trained.gradient(full.params, some, totals, kl_coef))
  for some in (batches, batches[:1]):
    want = trained.zeros(full.params)
    for batch in some:
      want = trained.accumulate(*want, full.params, trained.frozen, batch, totals, kl_coef)
    assert small.distance(gradient(some), want) < 1e-6
  yielded = trained.gradient(full.params, batches, totals, kl_coef)
  assert len(list(yielded)) == 3  # of each half 8 and 2 of the first shape, then those of the other
  side_by_side = gradient(batches)
  monkeypatch.setattr(trained_lib, "_CORES", 1)
  in_turn = gradient(batches)
  jax.tree.map(np.testing.assert_array_equal, side_by_side, in_turn)


def test_rows_that_the_mesh_does_not_divide_are_refused():
  learner = small.learner(mesh=mesh_lib.make(jax.devices(), data=8))
  says = "4 rows a block cannot be spread over 8 devices.*micro_rows"
  refused(says, learner.score, learner.params, small.blocks(small.items(4), rows=4)[0])
  learner = small.learner(mesh=mesh_lib.make(jax.devices(), data=1, sequence=8))
  says = "20 tokens a row cannot be spread over 8 devices.*row_lengths"
  refused(says, learner.score, learner.params, small.blocks(small.items(4), rows=4, lengths=(20,))[0])


def test_reported_sums_equal_the_sums_of_the_blocks():
  zeros, how = jnp.zeros((1, 2)), dict(clip_low=0.2, clip_high=0.2, aggregation="token_mean")
  assert set(losses.policy_loss(zeros, zeros, zeros, zeros + 1.0, **how)[1]) < set(step.SUMS)


def test_counts_by_hand():
  # One row: segment 1 trains 2 of 3 tokens, segment 2 none of 2; 3 places are padding. Pairs: 1 + 2 + 3 and 1 + 2.
  row = lambda *x: np.asarray([x])
  zeros = np.zeros((1, 8), np.float32)
  batch = structs.Batch(
    tokens=row(*range(8)),
    segment_ids=row(1, 1, 1, 2, 2, 0, 0, 0),
    positions=row(0, 1, 2, 0, 1, 0, 0, 0),
    loss_mask=row(0, 1, 1, 0, 0, 0, 0, 0),
    advantages=row(0, 0.5, 0, 0, 0, 0, 0, 0),
    **dict.fromkeys("sampler_logprobs old_logprobs ref_logprobs values returns teaching".split(), zeros),
  )
  counts = blocks_lib.count([batch], Settings())
  expected = dict(tokens=2, sequences=1, scored=2, packed_tokens=5, places=8, weight=2, pairs=9, silent=1, favoured=1)
  assert counts == expected
  shares = dict(mask_coverage=0.4, packing=5 / 8, zero_advantage_share=0.5)
  doubled = {name: 2 * count for name, count in counts.items()}
  assert blocks_lib.whole_batch([counts, counts]) == doubled | shares
  assert blocks_lib.count([batch], Settings(objective="sft"))["weight"] == 0.5


# ---- Beginnings computed once for their group give the same step -----------------------------------------------------

SHARING = row_layout.Sharing()
# Sequence means, entropies and a temperature, so that everything that reads sequences or positions is used.
SETTINGS_OF_MEANS = dict(aggregation="seq_mean_token_mean", entropy_coef=0.1, temperature=0.8, logprob_chunk=64)
SETTINGS = Settings(**SETTINGS_OF_MEANS)


def groups(seed=2, samples=6):
  """Two groups: samples write turns of 1 to 3 tokens out of two, so that many repeat a sibling's, and read results."""
  draw = np.random.default_rng(seed)
  made = []
  for group, length in enumerate((6, 5)):
    prompt = draw.integers(0, small.CONFIG.vocab_size, length)
    for sample in range(samples):
      ids, mask = [*prompt], [False] * length
      for _ in range(int(draw.integers(1, 4))):
        said = draw.integers(0, 2, draw.integers(1, 4))
        ids, mask = [*ids, *said, 9 + said[0]], [*mask, *[True] * len(said), False]
      tokens, mask = np.asarray(ids, np.int32), np.asarray(mask)
      advantages = np.full(len(ids), draw.normal(), np.float32)
      logprobs = np.where(mask, draw.normal(-3.0, 0.3, len(ids)), 0.0).astype(np.float32)
      made.append(packing.Item(tokens, mask, advantages, logprobs, group, f"{group}.{sample}"))
  return made


def as_trees(items, length=48, sharing=SHARING):
  return packing.pack_items(items, rows=2, lengths=(length,), sharing=sharing)


def apart(items):
  """One sequence per row."""
  return packing.pack_items([dataclasses.replace(x, group_id=n) for n, x in enumerate(items)], rows=12, lengths=(48,))


def scored(packed, items, **shifts):
  """The blocks with old and other scores, which are functions of the item and the token."""
  found = {}
  for name, shift in shifts.items():
    columns = packed.column([x.sampler_logprobs + np.float32(shift) * np.cos(np.arange(len(x.tokens))) for x in items])
    found[name] = [np.where(b.loss_mask, column, 0.0) for b, column in zip(packed.blocks, columns)]
  return [dataclasses.replace(b, **{name: x[n] for name, x in found.items()}) for n, b in enumerate(packed.blocks)]


ONE_TERM = dict(aggregation="token_mean", clip_high=0.28, dual_clip=3.0, importance_cap=2.0, llds_coef=0.2)
ALL_TERMS = dict(aggregation="seq_mean_token_mean", ratio="sequence", entropy_coef=0.1, kl="k3", kl_coef=0.3)


def steps_from_elsewhere(learner, packed, items):
  """An update's metrics. Its old policy is not quite the present one: rounding would decide what of LLDS has fallen."""
  state = learner.init(0)
  ready = learner.prepare(state, [()], lambda _: [packing.Packed(packed.blocks, [], [])])
  shifts = packed.column([np.where(item.tokens % 2, 0.07, -0.09).astype(np.float32) for item in items])
  moved = lambda b, by: dataclasses.replace(b, old_logprobs=np.where(b.loss_mask, b.old_logprobs + by, 0.0))
  ready.minibatches[0] = [learner.place(moved(b, by)) for b, by in zip(ready.minibatches[0], shifts)]
  return learner_lib.drain(learner.train(state, ready))[1]


@pytest.mark.parametrize("objective", [ONE_TERM, pytest.param(ALL_TERMS, marks=pytest.mark.long)])
def test_trees_take_the_same_step(objective):
  learner = small.learner(Settings(**objective, temperature=0.8, logprob_chunk=64, epochs=2))
  shifts = dict(old_logprobs=0.3, ref_logprobs=-0.4)
  for seed, deep in ((2, True), (3, True), (4, False)):
    items = groups(seed)
    one, two = apart(items), as_trees(items, sharing=dataclasses.replace(SHARING, deep=deep))
    want, got = (small.gradient(learner, scored(packed, items, **shifts)) for packed in (one, two))
    # Programs that are compiled quickly round more in JAX 0.12: gradients differ by 1.8e-6 there.
    assert abs(got[0] - want[0]) < 1e-6 and small.distance(got[1], want[1]) < 3e-6
    numbers = [steps_from_elsewhere(learner, packed, items) for packed in (one, two)]
    for name in set(numbers[0]) - {"packed_tokens", "mask_coverage", "packing", "flops"}:
      # The second step's numbers, too: AdamW divides by the square root of tiny ones.
      assert numbers[1][name] == pytest.approx(numbers[0][name], rel=1e-4, abs=2e-6), name
    assert numbers[1]["packed_tokens"] < 0.6 * numbers[0]["packed_tokens"]


@pytest.mark.parametrize("kind", [pytest.param("own", marks=pytest.mark.long), "shared"])
def test_trees_with_a_critic(kind):
  """Values, returns and advantages of PPO, through the rows and back."""
  how = dict(advantage=AdvantageSettings(kind="gae", lam=0.9), critic=CriticSettings(kind, optimizer=small.OPTIMIZER))
  learner = small.learner(Settings(logprob_chunk=64, kl="k1", kl_coef=0.5, kl_in="reward", **how))
  learner.reference = jax.tree.map(lambda x: x + 0.02, learner.params)
  items = [small.earning(item, 0.5, number % 3) for number, item in enumerate(groups())]
  found = []
  for pack in (apart, as_trees):
    state = learner.init(0)
    for _ in range(3):
      ready = learner.prepare(state, [items], lambda parts, pack=pack: [pack(part) for part in parts])
      state, metrics = learner_lib.drain(learner.train(state, ready))
    found.append((np.concatenate([np.where(item.loss_mask, item.advantages, 0.0) for item in ready.items]), metrics))
  np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-3)
  for name in ("loss", "value_loss", "explained_variance", "return_mean", "value_mean"):
    assert found[1][1][name] == pytest.approx(found[0][1][name], rel=1e-2, abs=1e-3), name


@pytest.mark.parametrize("kind, pack", [("group_relative", apart), ("group_relative", as_trees), ("gae", as_trees)])
def test_an_episode_that_is_not_trained_counts_in_its_group_alone(kind, pack):
  """Rows without it take the same step, once advantages have been computed with it."""
  how = dict(advantage=AdvantageSettings(kind=kind, lam=0.9), kl="k3", kl_coef=0.1)
  if kind == "gae":
    how |= dict(critic=CriticSettings("own", optimizer=small.OPTIMIZER))
  learner = small.learner(Settings(**SETTINGS_OF_MEANS, **how))
  items = [small.earning(item, 0.5, number % 3) for number, item in enumerate(groups())]
  cut = [dataclasses.replace(item, trained=number != 4) for number, item in enumerate(items)]
  outcomes = []
  for rewards in (items[4].rewards, items[4].rewards + 2):
    cut[4] = dataclasses.replace(cut[4], rewards=rewards)
    state = learner.init(0)
    ready = learner.prepare(state, [cut], lambda parts: [pack(part) for part in parts])
    assert not ready.items[4].advantages.any() and ready.items[5].advantages.any()
    state, metrics = learner_lib.drain(learner.train(state, ready))
    # The other rows alone, with the advantages and returns that were found.
    left, others = ready.items[:4] + ready.items[5:], learner.init(0)
    outcomes.append((jax.tree.map(np.asarray, state.params), metrics))
    if kind == "group_relative":
      alone = small.learner(Settings(**SETTINGS_OF_MEANS, **how | dict(advantage=None)))
      ready = alone.prepare(others, [left], lambda parts: [pack(part) for part in parts])
      others, want = learner_lib.drain(alone.train(others, ready))
      assert metrics["tokens"] == want["tokens"] and small.distance(state.params, others.params) < 1e-5
      for name in ("loss", "kl", "entropy", "grad_norm"):
        assert metrics[name] == pytest.approx(want[name], rel=1e-4, abs=1e-6), name
  same = small.distance(*(params for params, _ in outcomes)) == 0.0
  assert same == (kind == "gae")  # without a group its reward reaches nothing


def test_trees_use_the_recorded_experts():
  config = DecoderConfig.from_shape(
    32, family="qwen3_moe", d_model=16, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=12, rope_theta=1e4,
    num_experts=5, experts_per_token=2,
  )  # fmt: skip
  model, items = Decoder(config, rngs=nnx.Rngs(0)), []
  for item in groups():
    # Samples that share a state share its experts.
    draws = [np.random.default_rng(item.tokens[:n].astype(np.uint32)) for n in range(len(item.tokens))]
    routes = np.stack([np.r_[draw.permutation(5)[:2], draw.permutation(5)[:2]] for draw in draws]).astype(np.int16)
    # One turn: where a sibling draws after a state and a sample does not, both take the sibling's experts.
    items.append(dataclasses.replace(item, routes=routes, loss_mask=np.arange(len(draws)) >= np.argmax(item.loss_mask)))
  alone = packing.pack_items(items, rows=12, lengths=(48,), routes=4)
  shared = lambda deep: packing.pack_items(items, rows=2, lengths=(48,), routes=4, sharing=row_layout.Sharing(deep))
  flat, deep = map(shared, (False, True))
  score = jax.jit(lambda batch: forward.scores(model, batch, temperature=1.0, chunk=64)[0])
  read = lambda packed: packed.of_items([np.asarray(score(b)) for b in packed.blocks], items)
  for packed in (flat, deep):
    for one, two in zip(read(alone), read(packed), strict=True):
      np.testing.assert_allclose(one, two, atol=1e-5)
  own = [dataclasses.replace(b, routes=np.full_like(b.routes, packing.UNROUTED)) for b in deep.blocks]
  assert small.distance([score(b) for b in own], [score(b) for b in deep.blocks]) > 1e-2


@pytest.fixture(scope="module")
def learner():
  return small.learner(SETTINGS)


def test_groups_longer_than_a_row(learner):
  items = groups(samples=9)
  want, want_grads = small.gradient(learner, small.padded(items, rows=12, length=48))
  for sharing, length in ((SHARING, 24), (row_layout.Sharing(entries=1), 48)):
    packed = as_trees(items, length, sharing)
    assert len({(span.block, span.row) for span in packed.spans}) > 2
    got, grads = small.gradient(learner, packed.blocks)
    assert abs(got - want) < 1e-6 and small.distance(grads, want_grads) < 1e-6


def test_trees_on_a_mesh(learner):
  """Rows over fsdp, heads over tensor, and a row's tokens over sequence."""
  packed = as_trees(groups())
  want, want_grads = small.gradient(learner, packed.blocks)
  spread = small.learner(SETTINGS, mesh=mesh_lib.make(jax.devices(), data=1, fsdp=2, tensor=2, sequence=2))
  got, grads = small.gradient(spread, packed.blocks)
  assert got == pytest.approx(want, rel=1e-5) and small.distance(grads, want_grads) < 1e-5


def test_counts(learner):
  items = groups()
  together, alone = (blocks_lib.count(packed.blocks, SETTINGS) for packed in (as_trees(items), apart(items)))
  assert [together[name] - alone[name] for name in ("tokens", "sequences", "weight")] == [0] * 3
  # Every beginning is stored once, and every trained token computed once.
  beginnings = {(item.group_id, *item.tokens[:n]): item for item in items for n in range(1, len(item.tokens) + 1)}
  assert together["packed_tokens"] == len(beginnings) < 0.6 * alone["packed_tokens"]
  assert together["scored"] == sum(bool(item.loss_mask[len(text) - 2]) for text, item in beginnings.items())
  assert together["pairs"] == sum(len(text) - 1 for text in beginnings)


def test_advantages_stay_the_same():
  """A KL penalty in the reward is read from the rows, where an item has entries for its trained tokens only."""
  settings = Settings(logprob_chunk=64, kl="k1", kl_coef=0.5, kl_in="reward", advantage=AdvantageSettings(std="none"))
  learner, found = small.learner(settings, reference=jax.tree.map(lambda x: x + 0.02, small.learner().params)), []
  items = [small.earning(item, number) for number, item in enumerate(groups())]
  for shared in (False, True):
    pack = lambda parts, shared=shared: [as_trees(part) if shared else apart(part) for part in parts]
    ready = learner.prepare(learner.init(0), [items], pack)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(ready.minibatches))  # no step copies them again
    found.append(np.concatenate([item.advantages for item in ready.items]))
    placed = np.concatenate([np.asarray(block.advantages)[block.loss_mask] for block in ready.minibatches[0]])
    np.testing.assert_array_equal(np.sort(placed[placed != 0]), np.sort(found[-1][found[-1] != 0]))
  np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
  assert np.abs(found[0]).max() > 1


def test_an_update_and_empty_blocks_use_the_same_program(learner):
  blocks = as_trees(groups()).blocks
  _, metrics = small.update(learner, learner.init(0), [*blocks, *as_trees([]).blocks])
  assert metrics["tokens"] == blocks[0].loss_mask.sum() and np.isfinite(metrics["loss"])


def test_the_learners_speed_counts_a_shared_prompt_once(learner):
  seconds = {"seconds/step": 3.0, "seconds/rollout": 0.5, "seconds/scoring": 0.5, "seconds/update": 2.0}
  episodes, found = [types.SimpleNamespace(num_tokens=len(item.tokens)) for item in groups()], []
  for shared in (False, True):
    packed = as_trees(groups()) if shared else apart(groups())
    metrics = small.update(learner, learner.init(0), packed.blocks)[1] | seconds
    speed = progress.throughput(metrics, learner, episodes)
    assert speed["learner_flops_per_second"] * 2.5 == metrics["flops"]
    assert speed["tokens_per_second"] * 3.0 == sum(episode.num_tokens for episode in episodes)
    found.append(metrics["flops"])
  assert found[1] < 0.8 * found[0]
