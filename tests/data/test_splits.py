import pytest

from ragrl_jax.data import stream
from ragrl_jax.structs import Example

EXAMPLES = [Example(str(number), "?", ("a",)) for number in range(101)]


def test_every_question_is_in_exactly_one_part():
  train, held_out = stream.split(EXAMPLES, [80, 20])
  assert (len(train), len(held_out)) == (81, 20)  # 80.8 is the nearest to 81
  names = [[int(example.id) for example in part] for part in (train, held_out)]
  assert sorted(names[0] + names[1]) == list(range(101)) and all(part == sorted(part) for part in names)
  assert stream.split(EXAMPLES, [0.8, 0.2]) == [train, held_out]
  assert stream.split(EXAMPLES, [80, 20], seed=1) != [train, held_out]
  assert [len(part) for part in stream.split(EXAMPLES, [1, 1, 2])] == [25, 25, 51]


@pytest.mark.parametrize(("shares", "number"), [([1], 9), ([1, 0], 9), ([99, 1], 3), ([1, float("nan")], 9)])
def test_shares_that_split_nothing_are_refused(shares, number):
  with pytest.raises(ValueError, match="share"):
    stream.split(EXAMPLES[:number], shares)
