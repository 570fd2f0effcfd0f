import pytest

from ragrl_jax import config as config_lib
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.plan import search
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


def test_every_mesh_once():
  found = list(search.meshes(8))
  assert len(found) == len(set(found)) == 20  # ways to deal three factors of two to four axes: C(6, 3)
  assert all(axes.size == 8 for axes in found)


def test_only_meshes_that_cut_evenly():
  found = {choice.axes for choice in search.choices(small(), SHAPE, SLICE)}
  assert max(axes.tensor for axes in found) == 4  # key-value heads
  assert max(axes.sequence for axes in found) == 8  # 1,024 tokens in blocks of 128
  assert Axes(data=4, fsdp=4) in found and Axes(fsdp=16) in found
  twice = search.Slice("v5e:4x4", 32, 2)
  assert {choice.axes.data % 2 for choice in search.choices(small(), SHAPE, twice)} == {0}


def test_rows_follow_the_mesh_and_cache_rows_the_lanes():
  for choice in search.choices(small(), SHAPE, SLICE):
    assert choice.micro_rows % (choice.axes.data * choice.axes.fsdp) == 0 and choice.rows == 2 * choice.lanes


def test_the_best_plan_fits_and_no_other_that_fits_is_shorter():
  config = small()
  choice, report = search.best(config, SHAPE, SLICE, margin=0.1)
  assert report.needed <= 0.9 * report.chip.hbm
  others = [search.estimate(other.into(config), SHAPE, SLICE) for other in search.choices(config, SHAPE, SLICE)]
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
  assert 0 < report.mfu <= 0.75  # of four passes remat asks for, one is nobody's


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
