import math

import pytest

from ragrl_jax import config as config_lib
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.plan import search, workload
from ragrl_jax.plan.memory import Axes

SHAPE = DecoderConfig(
  vocab_size=32_000, d_model=1024, num_layers=12, num_heads=8, num_kv_heads=4, head_dim=128, d_ff=4096, rope_theta=1e6
)
SLICE = search.Slice("v5e:4x4", 16)


def small():
  config = config_lib.load("configs/search_r1.py")
  config.rollout.update(dict(prompts_per_step=256, context=1024, lanes=16, rows=32))
  config.learner.update(dict(row_lengths=(1024,), logprob_chunk=256))
  return config


def chosen(where=SLICE):
  return search.choices(small(), SHAPE, where, workload.load(small()))


def test_pages_are_those_of_conversations_of_the_mean_length():
  config = small()  # 512 tokens, 256 of them drawn, in pages of 128
  config.rollout.page = 128
  load = workload.load(config)
  alone = search.pages_for(config, load, 40, 4)
  assert alone == math.ceil(1.2 * 40 * (2 + 2 + 1) / 4) * 4
  config.learner.share_prompts = True
  config.rollout.group_size = 2
  assert search.pages_for(config, load, 40, 4) == math.ceil(1.2 * 40 * (1 + 2 + 1) / 4) * 4
  assert search.pages_for(config, load, 1, 4) == 4 * (8 + 4)  # a full conversation on each replica, and a prompt


def test_every_mesh_once():
  found = list(search.meshes(8))
  assert len(found) == len(set(found)) == 20  # ways to deal three factors of two to four axes: C(6, 3)
  assert all(axes.size == 8 for axes in found)


def test_only_meshes_that_cut_evenly():
  found = {choice.axes for choice in chosen()}
  assert max(axes.tensor for axes in found) == 4  # key-value heads
  assert max(axes.sequence for axes in found) == 8  # 1,024 tokens in blocks of 128
  assert Axes(data=4, fsdp=4) in found and Axes(fsdp=16) in found
  twice = search.Slice("v5e:4x4", 32, 2)
  assert {choice.axes.data % 2 for choice in chosen(twice)} == {0}


def test_rows_follow_the_mesh_and_cache_rows_the_lanes():
  for choice in chosen():
    assert choice.micro_rows % (choice.axes.data * choice.axes.fsdp) == 0 and choice.rows == 2 * choice.lanes


def test_the_best_plan_fits_and_no_other_that_fits_is_shorter():
  config = small()
  choice, report = search.best(config, SHAPE, SLICE, margin=0.1)
  assert report.needed <= 0.9 * report.chip.hbm
  others = [search.estimate(other.into(config), SHAPE, SLICE) for other in chosen()]
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
  more = search.best(config, SHAPE, search.Slice("v5e:8x8", 64), margin=0.1)[1]
  assert 3.0 < report.step_s / more.step_s < 5.0
  assert report.step_s == pytest.approx(sum(one.calls * report.seconds(one)[0] for one in report.programs))
  assert 0 < report.mfu <= 5 / 6  # of six passes, two of them scoring, remat's second is nobody's


def test_only_gradients_cross_slices():
  config = search.Choice(Axes(data=2, fsdp=16), 32, 16, 32, 256).into(small())
  report = search.estimate(config, SHAPE, search.Slice("v5e:4x4", 32, 2))
  crossing = {one.name: one.dcn for one in report.programs if one.dcn}
  # A chip's sixteenth of the gradient, in float32.
  assert crossing == {"learner: accumulate": pytest.approx(4 * report.parameters / 16, rel=0.01)}
  config = search.Choice(Axes(data=8, fsdp=4), 32, 16, 32, 256).into(small())
  report = search.estimate(config, SHAPE, search.Slice("v5e:4x4", 32, 2))
  # A chip's quarter, of which each of a slice's four takes one to the other slice.
  assert report.programs[0].dcn == pytest.approx(4 * report.parameters / 4 / 4, rel=0.01)


def test_only_gradients_leave_a_host_of_gpus():
  two = search.Slice("h200:2x8", 16)
  assert (two.host, two.hosts, two.islands) == (8, 2, 2)
  found = {choice.axes for choice in chosen(two)}
  assert {axes.data % 2 for axes in found} == {0} and Axes(data=4, fsdp=2, tensor=2) in found
  assert {axes.sequence for axes in found} == {1}  # attention needs whole rows
  config = search.Choice(Axes(data=2, fsdp=8), 32, 16, 32, 256).into(small())
  report = search.estimate(config, SHAPE, two)
  assert (report.hosts, report.slices) == (2, 1)
  # A GPU's eighth of the gradient, in float32.
  crossing = {one.name: one.dcn for one in report.programs if one.dcn}
  assert crossing == {"learner: accumulate": pytest.approx(4 * report.parameters / 8, rel=0.01)}


def test_a_host_of_gpus_is_as_large_as_its_topology_says():
  one, eight = search.Slice("h200:1", 1), search.Slice("h200:8", 8)
  assert (one.host, one.hosts, eight.host, eight.hosts, SLICE.host, SLICE.hosts) == (1, 1, 8, 1, 4, 4)
  assert {choice.axes for choice in chosen(one)} == {Axes()}
  whole, spread = (
    search.estimate(search.Choice(axes, 8, 16, 32, 256).into(small()), SHAPE, where)
    for axes, where in ((Axes(), one), (Axes(tensor=4, data=2), eight))
  )
  # Every GPU of the host is a replica: all weights, and an eighth of the conversations, with room for prompts besides.
  assert spread.resident["engine: weights"] == whole.resident["engine: weights"]
  assert spread.resident["engine: cache"] == whole.resident["engine: cache"] * (32 / 8 + 8) / (32 + 8)
  assert not any(program.sent or program.dcn for program in whole.programs)
