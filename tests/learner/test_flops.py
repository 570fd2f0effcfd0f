import types

import pytest

from ragrl_jax.learner import flops
from ragrl_jax.learner.settings import AdvantageSettings, CriticSettings, Settings
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.settings.learning import Teacher

CONFIG = DecoderConfig(
  vocab_size=10, d_model=4, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=5, rope_theta=1e4
)


def test_operations_by_hand():
  # A layer: q 4·8, k and v 4·4 each, o 8·4: 96; gate, up, down 4·5 each: 60. Two layers: 312.
  assert flops.matmul_parameters(CONFIG) == 312
  # 7 tokens: 2 · 312 · 7 = 4368. Attention: 2 layers · 2 heads · 4 · 2 (scores, sums) · 2 (multiply, add) · 28 pairs
  # = 1792. Head, 5 tokens: 2 · 10 · 4 · 5 = 400.
  assert flops.forward(CONFIG, tokens=7, pairs=28, scored=5) == 4368 + 1792 + 400
  # A backward pass costs two forward passes, so learning costs three; there are two updates. Reference and old policy
  # cost one each. A separate critic, without the head's 400: one pass for its values and six for its update.
  settings = Settings(kl="k3", epochs=2, critic=CriticSettings(kind="own"), advantage=AdvantageSettings(kind="gae"))
  assert flops.update(CONFIG, settings, tokens=7, pairs=28, scored=5) == 8 * 6560 + 7 * 6160


def test_operations_of_adapters_by_hand():
  # Rank 2 on q (4 and 8 wide) and down (5 and 4 wide): 2 · (12 + 9) = 42 parameters per layer, 84 in all. For 7 tokens
  # 2 · 84 · 7 = 1176 a pass. Matrices and head, 4368 + 400, twice; attention's 1792 and the adapters three times:
  step = 2 * 4768 + 3 * 1792 + 3 * 1176
  sizes = dict(tokens=7, pairs=28, scored=5, adapters=84)
  assert flops.update(CONFIG, Settings(), **sizes) == step
  # Three passes over the batch: the old policy has adapters, the reference has none.
  settings = Settings(kl="k3", epochs=3)
  assert flops.update(CONFIG, settings, **sizes) == 3 * step + (6560 + 1176) + 6560
  # Values of a shared trunk: one pass with adapters, without the head's 400.
  shared = Settings(critic=CriticSettings(kind="shared"), advantage=AdvantageSettings(kind="gae"))
  assert flops.update(CONFIG, shared, **sizes) == step + 6160 + 1176


def test_utilisation():
  device = lambda kind: types.SimpleNamespace(device_kind=kind)
  assert flops.mfu(989e12, 2.0, 4, device("NVIDIA H200")) == pytest.approx(1 / 8)
  kinds = {"TPU v5 lite": 197e12, "TPU v5p": 459e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H100 80GB HBM3": 989e12}
  assert {kind: flops.peak(device(kind)) for kind in kinds} == kinds
  assert flops.mfu(1.0, 1.0, 1, device("cpu")) is None


def test_a_teacher_reads_the_batch_once_per_epoch_or_once_for_the_reward():
  sizes = dict(tokens=7, pairs=28, scored=5)
  one = flops.forward(CONFIG, **sizes)
  for kind, epochs, passes in (("jsd", 2, 2), ("k1", 2, 1)):
    how = dict(advantage=AdvantageSettings()) if kind == "k1" else {}
    settings = Settings(teacher=Teacher(path="x", kind=kind), epochs=epochs, **how)
    assert flops.teacher(CONFIG, settings, **sizes) == passes * one
  assert flops.teacher(CONFIG, Settings(), **sizes) == 0
