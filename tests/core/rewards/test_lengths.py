import random

import pytest
from refusals import refused

from ragrl_jax.core.rewards import lengths
from ragrl_jax.core.rewards.lengths import overlong_penalty


@pytest.mark.parametrize(("tau", "paid"), [
  # L_r/L_e = 0.25, 0.5, 1, 1.5, 2, 4 gives x = −3, −1, 0, 0.5, 1, 3; the score is σ(x / τ).
  (0.1, (0.0, 0.0, 0.5, 0.9933, 1.0, 1.0)), (0.5, (0.0025, 0.1192, 0.5, 0.7311, 0.8808, 0.9975)),
  (1.0, (0.0474, 0.2689, 0.5, 0.6225, 0.7311, 0.9526)),
])  # fmt: skip
def test_rationale(tau, paid):
  got = [lengths.rationale(reason, 100, tau=tau) for reason in (25, 50, 100, 150, 200, 400)]
  assert got == pytest.approx(paid, abs=5e-5)


def test_evidence_and_edges():
  # γ = .5, 500 tokens of passages: full score from u = .9 on (.98 and .9); then the square roots of .898, .8, .5, .002.
  got = [lengths.evidence(length, 500, omega=0.9, gamma=0.5) for length in (10, 50, 51, 100, 250, 499)]
  assert got == pytest.approx([1, 1, 0.9476, 0.8944, 0.7071, 0.0447], abs=5e-5)
  assert lengths.rationale(0, 5, tau=0.5) == lengths.rationale(5, 0, tau=0.5) == lengths.rationale(0, 0, tau=0.5) == 0
  assert lengths.rationale(1, 10**9, tau=0.1) == 0.0 and lengths.rationale(10**9, 1, tau=0.1) == 1.0  # no overflow
  paid = lambda evidence, passages: lengths.evidence(evidence, passages, omega=0.9, gamma=0.3)
  assert paid(0, 500) == paid(501, 500) == paid(10**9, 500) == paid(500, 500) == paid(5, 0) == 0.0


def test_longer_evidence_never_earns_more():
  draw = random.Random(0)
  for _ in range(200):
    omega, gamma = draw.uniform(0.1, 1.0), draw.uniform(0.05, 2.0)
    paid = [lengths.evidence(length, 300, omega=omega, gamma=gamma) for length in range(1, 400, 7)]
    assert all(0.0 <= b <= a <= 1.0 for a, b in zip(paid, paid[1:]))


def test_the_penalty_has_the_papers_numbers_is_never_positive_and_grows_with_length():
  # The paper's values: 20,480 tokens, of which the last 4,096 are penalised.
  want = {0: 0.0, 16_384: 0.0, 17_408: -0.25, 18_432: -0.5, 20_480: -1.0, 20_481: -1.0, 10**9: -1.0}
  assert {tokens: overlong_penalty(tokens, limit=20_480, buffer=4096) for tokens in want} == want
  found = [overlong_penalty(n, limit=50, buffer=20) for n in range(70)]
  assert found == sorted(found, reverse=True) and found[0] == 0.0 and found[-1] == -1.0
  # A buffer as long as the limit penalises from the first token on. A buffer of one token gives a step.
  assert overlong_penalty(1, limit=4, buffer=4) == -0.25
  assert [overlong_penalty(n, limit=4, buffer=1) for n in (3, 4)] == [0.0, -1.0]
  for buffer in (0, 11):  # it would divide by zero; longer than the limit
    refused("buffer=", overlong_penalty, 3, limit=10, buffer=buffer)
