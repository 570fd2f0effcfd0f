import collections

import pytest
from refusals import refused

from ragrl_jax.data.stream import Mixture, Stream, split
from ragrl_jax.structs import Example


def test_every_epoch_draws_every_example_once():
  stream = Stream(7, seed=0)
  epochs = [[which for _, which in stream.draw(7 * epoch, 7)] for epoch in range(20)]
  assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
  assert len({tuple(epoch) for epoch in epochs}) > 15  # a new order for every epoch


def test_the_cursor_is_the_only_state():
  whole = Stream(5, seed=3).draw(0, 23)
  assert [index for index, _ in whole] == list(range(23))
  parts, cursor = [], 0
  for count in (4, 0, 9, 1, 9):
    parts += Stream(5, seed=3).draw(cursor, count)  # a new stream, as after a restart
    cursor += count
  assert parts == whole
  used = Stream(5, seed=3)
  used.draw(1000, 5)
  assert used.draw(0, 23) == whole  # going back gives the same examples


def test_other_seeds_give_other_orders():
  draws = {tuple(which for _, which in Stream(50, seed=seed).draw(0, 50)) for seed in range(5)}
  assert len(draws) == 5


def test_all_orders_are_equally_likely():
  # 4,000 epochs of 4 examples: each example comes first about 1,000 times (standard deviation 27).
  stream = Stream(4, seed=1)
  first = collections.Counter(stream.at(4 * epoch) for epoch in range(4000))
  assert all(850 < first[i] < 1150 for i in range(4))


def test_the_recorded_order():
  # Recorded on Python 3.11. A resumed run must draw the same examples on every Python version.
  assert [Stream(6, seed=0).at(i) for i in range(12)] == [0, 5, 1, 4, 3, 2, 2, 0, 1, 5, 3, 4]
  assert Stream(1, seed=0).draw(5, 2) == [(5, 0), (6, 0)]


@pytest.mark.parametrize(("cursor", "count"), [(-1, 1), (0, -1)])
def test_impossible_draws_are_refused(cursor, count):
  refused("must not be negative", Stream(3, seed=0).draw, cursor, count)


def mixture(share, *, seed=0):
  return Mixture(10, 1000, share=share, prompts_per_step=2000, seed=seed)


def test_a_mixture_follows_its_share():
  mixed = mixture(lambda step: {0: 1.0, 1: 0.3, 2: 0.0}[step])
  easy = [sum(which < 10 for _, which in mixed.draw(2000 * batch, 2000)) for batch in range(3)]
  assert easy[0] == 2000 and easy[2] == 0
  assert 530 < easy[1] < 670  # expected 600, standard deviation 20.5
  assert {which for _, which in mixed.draw(0, 2000)} == set(range(10))
  assert len({which for _, which in mixed.draw(4000, 2000)}) > 800


def test_a_mixtures_draw_depends_on_seed_and_number_alone():
  half = lambda step: 0.5
  whole = mixture(half).draw(100, 40)
  assert [index for index, _ in whole] == list(range(100, 140))
  assert mixture(half).draw(100, 15) + mixture(half).draw(115, 25) == whole
  for other in (mixture(half).draw(2100, 40), mixture(half, seed=1).draw(100, 40)):
    assert [which for _, which in other] != [which for _, which in whole]


EXAMPLES = [Example(str(number), f"{number}?", ("a",)) for number in range(101)]


def test_every_question_is_in_exactly_one_part():
  train, held_out = split(EXAMPLES, [80, 20])
  assert (len(train), len(held_out)) == (81, 20)  # 80.8 is the nearest to 81
  names = [[int(example.id) for example in part] for part in (train, held_out)]
  assert sorted(names[0] + names[1]) == list(range(101)) and all(part == sorted(part) for part in names)
  assert split(EXAMPLES, [0.8, 0.2]) == [train, held_out]
  assert split(EXAMPLES, [80, 20], seed=1) != [train, held_out]
  assert [len(part) for part in split(EXAMPLES, [1, 1, 2])] == [25, 25, 51]
  again = [Example(f"{example.id}/unanswerable", f" {example.question}", ("a",)) for example in EXAMPLES]
  parts = [{int(example.question.strip("? ")) for example in part} for part in split(EXAMPLES + again, [80, 20])]
  assert not parts[0] & parts[1] and len(parts[0]) + len(parts[1]) == 101 and 10 < len(parts[1]) < 32


@pytest.mark.parametrize(("shares", "number"), [([1], 9), ([1, 0], 9), ([99, 1], 3), ([1, float("nan")], 9)])
def test_shares_that_split_nothing_are_refused(shares, number):
  refused("share", split, EXAMPLES[:number], shares)
