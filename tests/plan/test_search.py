import dataclasses
import math

import pytest
import scale_estimate as estimate
import scale_search as search

from ragrl_jax import config as config_lib
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.shapes import SHAPES
from ragrl_jax.plan import summary, workload
from ragrl_jax.plan.memory import Axes

SHAPE = DecoderConfig(
  vocab_size=32_000, d_model=1024, num_layers=12, num_heads=8, num_kv_heads=4, head_dim=128, d_ff=4096, rope_theta=1e6
)
SLICE = estimate.Slice("v5e:4x4", 16)


def small():
  config = config_lib.load("configs/search_r1.py")
  config.rollout.update(dict(prompts_per_step=256, context=1024, lanes=16, rows=32))
  config.learner.update(dict(row_lengths=(1024,), logprob_chunk=256))
  return config


program = lambda report, name: next(one for one in report.programs if one.name == name)
chosen = lambda where=SLICE: search.choices(small(), SHAPE, where, workload.load(small()))


def planned(axes, where=SLICE, rows=32, config=None):
  """The report of a plan for the small run on this mesh."""
  return estimate.estimate(search.Choice(axes, rows, 16, 32, 256).into(config or small()), SHAPE, where)


def crossing(report):
  return {one.name: one.dcn for one in report.programs if one.dcn}


def test_pages_are_those_of_conversations_of_mean_length():
  config = small()  # 512 tokens, 256 of them sampled, in pages of 128
  config.rollout.page = 128
  load = workload.load(config)
  alone = search.pages_for(config, load, 40, 4)
  assert alone == math.ceil(1.2 * 40 * (2 + 2 + 1) / 4) * 4
  config.learner.share_prompts = True
  config.rollout.group_size = 2
  assert search.pages_for(config, load, 40, 4) == math.ceil(1.2 * 40 * (1 + 2 + 1) / 4) * 4
  assert search.pages_for(config, load, 1, 4) == 4 * (8 + 4)  # a full conversation and a prompt on each replica


def test_every_mesh_that_divides_evenly_is_tried_once():
  found = list(search.meshes(8))
  assert len(found) == len(set(found)) == 20  # ways to distribute three factors of two over four axes: C(6, 3)
  assert all(axes.size == 8 for axes in found)
  found = {choice.axes for choice in chosen()}
  assert max(axes.tensor for axes in found) == 4  # because of the key-value heads
  assert max(axes.sequence for axes in found) == 8  # 1,024 tokens in blocks of 128
  assert Axes(data=4, fsdp=4) in found and Axes(fsdp=16) in found
  twice = estimate.Slice("v5e:4x4", 32, 2)
  assert {choice.axes.data % 2 for choice in chosen(twice)} == {0}
  odd = dataclasses.replace(SHAPE, vocab_size=32_001)  # neither 2 nor 4 divides it
  found = list(search.choices(small(), odd, SLICE, workload.load(small())))
  assert {choice.axes.tensor for choice in found} == {choice.tensor for choice in found} == {1}


def test_rows_follow_the_mesh_and_cache_rows_the_lanes():
  found = list(chosen())
  for choice in found:
    assert choice.micro_rows % (choice.axes.data * choice.axes.fsdp) == 0
    assert choice.rows == min(2 * choice.lanes, 320)  # a host's episodes: 256 prompts of 5 samples on 4 hosts
  assert {choice.lanes for choice in found} == {4, 8, 16, 32, 64, 128, 256, 320}


def test_conversations_beside_the_train_state():
  def made(kv_dtype, ahead=0):
    config = small()
    config.rollout.update(dict(kv_dtype=kv_dtype, ahead=ahead, page=64))
    return estimate.estimate(search.Choice(Axes(fsdp=16), 16, 16, 32, 256, 4).into(config), SHAPE, SLICE)

  report, narrow = made("model"), made("int8")
  stays, engine = report.resident["learner"] + report.resident["reference"], report.resident["engine: weights"]
  room = max(one.temporaries for one in report.programs if one.name.startswith("engine"))
  assert report.free == narrow.free == pytest.approx(15.75 * 2**30 - stays - engine - room)
  # 512 tokens, half of them drawn, in pages of 64, and a page more; 12 layers, keys and values, one of 4 heads of 128.
  assert report.conversation.tokens == 576 and report.conversation.replicas == 1
  assert report.conversation.bytes == 576 * 12 * 2 * 128 * 2 and report.conversation.reserved == 1024 * 12 * 2 * 128 * 2
  assert narrow.conversation.bytes == 576 * 12 * 2 * (128 + 4)
  assert narrow.conversation.reserved == report.conversation.reserved
  assert report.conversations == report.free // report.conversation.bytes
  assert narrow.conversations / narrow.reserved_rows == pytest.approx(1024 / 576 * 256 / 132, rel=0.01)
  together = made("model", ahead=1)  # the learner works meanwhile
  spare = max(one.temporaries for one in together.programs)
  assert together.free == pytest.approx(15.75 * 2**30 - stays - engine - report.resident["gradient"] - spare)


def test_int8_on_tpus_costs_plain_attention_and_on_gpus_saves_half():
  def decoded(where, kv_dtype):
    config = small()
    config.rollout.kv_dtype = kv_dtype
    report = planned(Axes(data=where.chips), where, 16, config)
    return program(report, "engine: decode").hbm / config.rollout.chunk - report.resident["engine: weights"]

  gpus = estimate.Slice("h200:8", 8)
  assert decoded(gpus, "int8") / decoded(gpus, "model") == pytest.approx(132 / 256)
  assert decoded(SLICE, "int8") / decoded(SLICE, "model") == pytest.approx(8 * 132 / 256)


def test_the_best_plan_fits_and_no_other_that_fits_is_shorter():
  config = small()
  choice, report = search.best(config, SHAPE, SLICE, margin=0.1)
  assert report.needed <= 0.9 * report.chip.hbm
  others = [estimate.estimate(other.into(config), SHAPE, SLICE) for other in chosen()]
  least = min(other.step_s for other in others if other.needed <= 0.9 * other.chip.hbm)
  assert report.step_s <= search.EQUAL * least
  after, _ = search.best(config, SHAPE, SLICE, margin=0.1, refused=frozenset({choice}))
  assert after != choice


def test_nothing_fits_in_less_than_the_least():
  least, hbm = search.least(small(), SHAPE, SLICE), 15.75 * 2**30
  assert search.best(small(), SHAPE, SLICE, margin=1 - 0.999 * least / hbm) is None
  assert search.best(small(), SHAPE, SLICE, margin=1 - 1.001 * least / hbm)[1].needed == pytest.approx(least)


def test_more_chips_are_faster_and_the_steps_parts_add_up():
  config = small()
  report = search.best(config, SHAPE, SLICE, margin=0.1)[1]
  assert 3.0 < report.step_s / search.best(config, SHAPE, estimate.Slice("v5e:8x8", 64), margin=0.1)[1].step_s < 5.0
  assert report.step_s == pytest.approx(sum(one.calls * report.seconds(one)[0] for one in report.programs))
  assert 0 < report.mfu <= 5 / 6  # of six passes two are scoring; remat's second forward pass does not count


def test_only_gradients_cross_slices():
  report = planned(Axes(data=2, fsdp=16), estimate.Slice("v5e:4x4", 32, 2))
  # a chip's sixteenth of the gradient, in float32
  assert crossing(report) == {"learner: accumulate": pytest.approx(4 * report.parameters / 16, rel=0.01)}
  report = planned(Axes(data=8, fsdp=4), estimate.Slice("v5e:4x4", 32, 2))
  # A chip's quarter; each of a slice's four chips sends a quarter of it to the other slice.
  assert report.programs[0].dcn == pytest.approx(4 * report.parameters / 4 / 4, rel=0.01)
  # Between four slices a chip sends its part, a half of a quarter, 2 · 3 / 4 times.
  report = planned(Axes(data=8, fsdp=4), estimate.Slice("v5e:2x4", 32, 4))
  assert report.programs[0].dcn == pytest.approx(1.5 * 4 * report.parameters / 4 / 2, rel=0.01)


def test_only_gradients_leave_a_host_of_gpus():
  two = estimate.Slice("h200:2x8", 16)
  assert (two.host, two.hosts, two.islands) == (8, 2, 2)
  found = {choice.axes for choice in chosen(two)}
  assert {axes.data % 2 for axes in found} == {0} and Axes(data=4, fsdp=2, tensor=2) in found
  assert {axes.sequence for axes in found} == {1}  # attention needs whole rows
  report = planned(Axes(data=2, fsdp=8), two)
  assert (report.hosts, report.slices) == (2, 1)
  # a GPU's eighth of the gradient, in float32
  assert crossing(report) == {"learner: accumulate": pytest.approx(4 * report.parameters / 8, rel=0.01)}


def test_the_size_of_a_gpu_host_is_that_of_its_topology():
  one, eight = estimate.Slice("h200:1", 1), estimate.Slice("h200:8", 8)
  assert (one.host, one.hosts, eight.host, eight.hosts, SLICE.host, SLICE.hosts) == (1, 1, 8, 1, 4, 4)
  assert {choice.axes for choice in chosen(one)} == {Axes()}
  whole, spread = planned(Axes(), one, 8), planned(Axes(tensor=4, data=2), eight, 8)
  # Every GPU of the host is a replica: all weights, an eighth of the conversations, and room for prompts.
  assert spread.resident["engine: weights"] == whole.resident["engine: weights"]
  assert spread.resident["engine: cache"] == whole.resident["engine: cache"] * (32 / 8 + 8) / (32 + 8)
  assert not any(program.sent or program.dcn for program in whole.programs)


def test_an_engine_spans_the_fewest_hosts_that_hold_it():
  """145 GB of bf16 weights: four chips of 32 GB are too few, eight suffice. Eight of 16 GB do not."""
  config, model, where = small(), SHAPES["qwen2.5-72b"], estimate.Slice("v6e:16x16", 256)
  assert (where.spans(4), where.spans(8), where.spans(3), estimate.Slice("v6e:2x2", 4).spans(8)) == (1, 2, 0, 0)
  choice, report = search.best(config, model, where, margin=0.05)
  assert (choice.tensor, report.span, report.fewest, report.fits) == (8, 2, 2, True)
  assert "cache rows an engine, on 2 hosts" in summary.text(report)
  narrow = dataclasses.replace(choice, tensor=4, pages=0)
  report = estimate.estimate(narrow.into(config), model, where)
  said = summary.text(report)
  assert (report.span, report.fits) == (1, False) and "IT DOES NOT FIT" in said
  assert "weights do not fit on 1 host, but on 2 hosts: raise config.rollout.mesh.tensor" in said
  v5e = estimate.Slice("v5e:16x16", 256)
  assert search.best(config, model, v5e, margin=0.05) is None
  said = summary.text(estimate.estimate(choice.into(config), model, v5e))
  assert "do not fit on 2 hosts, nor on more of them" in said and "key-value heads" in said


def test_half_as_many_engines_have_twice_the_work_each():
  config, model = small(), dataclasses.replace(SHAPE, num_kv_heads=8)
  alone, two = (
    estimate.estimate(search.Choice(Axes(fsdp=16), 32, lanes, 2 * lanes, 256, tensor, 64).into(config), model, SLICE)
    for lanes, tensor in ((16, 4), (32, 8))
  )
  assert (alone.span, two.span) == (1, 2)
  assert [program(two, f"engine: {name}").dcn for name in ("prefill", "decode")] == [0, 0]  # within a slice
  assert two.resident["engine: weights"] == pytest.approx(alone.resident["engine: weights"] / 2, rel=0.01)
  # As many lanes a chip and as many calls: a chip's share of a call's operations is the same.
  assert program(two, "engine: decode").calls == program(alone, "engine: decode").calls
  assert program(two, "engine: decode").flops == pytest.approx(program(alone, "engine: decode").flops)
