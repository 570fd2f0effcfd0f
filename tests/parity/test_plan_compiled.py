"""The arithmetic of `ragrl_jax/plan/` compared with libtpu's compilation of a small run."""

import pytest
import scale_estimate as estimate
import scale_search as search

from ragrl_jax import config as config_lib
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.plan import compiled
from ragrl_jax.plan.memory import Axes

pytestmark = pytest.mark.parity
SMALL = dict(d_model=512, num_heads=4, num_kv_heads=2, head_dim=128, d_ff=1024, rope_theta=1e6)
SMALL |= dict(family="qwen3", num_layers=2, tied=False)
STAYS = 1e-4  # the moments' step counters are left out
SENT, ROOM = (0.5, 2.0), (0.8, 2.5)  # ICI bytes and temporaries, arithmetic / compiled; 7B models are closer


def small(variant):
  config = config_lib.load("configs/search_r1.py", variant)
  config.model.shape = SMALL
  config.rollout.update(dict(context=1024, lanes=16, rows=32, prompts_per_step=16))
  config.learner.update(dict(row_lengths=(1024,), logprob_chunk=256))
  return search.Choice(Axes(fsdp=4, tensor=2), 8, 16, 32, 256).into(config)


@pytest.mark.parametrize("variant, only", [("grpo", "learner: accumulate"), ("ppo", "none")])  # the same policy's
def test_resident_bytes_are_those_of_the_compiled_programs(variant, only, quick):
  config = small(variant)
  report = compiled.check(config, "v5e:2x4", only=(only,))
  shape = DecoderConfig.from_shape(151_936, **SMALL)
  said = estimate.estimate(config, shape, estimate.Slice("v5e:2x4", 8))
  of = lambda name: sum(size for key, size in report.resident.items() if key.split(":")[0] == name)
  assert said.resident["learner"] == pytest.approx(of("learner"), rel=STAYS)
  assert said.resident["reference"] == of("reference")
  assert said.resident["gradient"] == pytest.approx(of("gradient"), rel=STAYS)
  assert said.resident.get("critic", 0) == pytest.approx(of("learner critic"), rel=STAYS)
  assert said.resident["engine: weights"] == report.resident["engine: weights"]
  assert said.resident["engine: cache"] == report.resident["engine: cache"]
  assert (said.tokens, said.parameters) == (report.tokens, report.parameters)

  assert len(report.programs) == (variant == "grpo")
  for mine, theirs in zip(said.programs, report.programs):
    assert (mine.name, mine.calls, mine.hbm) == (theirs.name, theirs.calls, theirs.hbm)
    assert mine.flops == theirs.flops
    assert SENT[0] < mine.sent / theirs.sent < SENT[1]
    assert ROOM[0] < mine.temporaries / theirs.temporaries < ROOM[1]
