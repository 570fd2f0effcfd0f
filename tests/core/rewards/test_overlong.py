import pytest

from ragrl_jax.core.rewards.lengths import overlong_penalty


def test_the_papers_numbers():
  # The paper's values: 20,480 tokens, of which the last 4,096 are penalised.
  want = {0: 0.0, 16_384: 0.0, 17_408: -0.25, 18_432: -0.5, 20_480: -1.0, 20_481: -1.0, 10**9: -1.0}
  assert {tokens: overlong_penalty(tokens, limit=20_480, buffer=4096) for tokens in want} == want


def test_the_penalty_is_never_positive_and_grows_with_length():
  found = [overlong_penalty(n, limit=50, buffer=20) for n in range(70)]
  assert found == sorted(found, reverse=True) and found[0] == 0.0 and found[-1] == -1.0
  # A buffer as long as the limit penalises from the first token on. A buffer of one token gives a step.
  assert overlong_penalty(1, limit=4, buffer=4) == -0.25
  assert [overlong_penalty(n, limit=4, buffer=1) for n in (3, 4)] == [0.0, -1.0]


@pytest.mark.parametrize("given", [dict(limit=10, buffer=0), dict(limit=10, buffer=11)])
def test_settings_that_divide_by_zero_are_refused(given):
  with pytest.raises(ValueError, match="buffer="):
    overlong_penalty(3, **given)
