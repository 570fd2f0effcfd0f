import pytest

from ragrl_jax.core.rewards import citations

# Gold ids 1 and 5. (text of the section, score of the authors' code, our score if it differs)
TABLE = [
  ("[1, 5]", 1.0),
  ("[5,1]", 1.0),
  ("[1,5,5]", 1.0),
  (" [ 1 , 5 ] ", 1.0),
  ("[1]", 0.5),
  ("[1,5,7]", 0.5),
  ("[7]", 0.0),
  ("[]", 0.0),
  ('["1"]', 0.0),
  ("1,5", 0.0),
  ("1", 0.0),
  ("[1,5,]", 0.0),
  ("[[1]]", 0.0),
  ('[1,"a"]', 0.0),
  ("null", 0.0),
  ('{"1":2}', 0.0),
  ("", 0.0),
  ("[1 5]", 0.0),
  ("[01, 5]", 0.0),
  ("[-1, 5]", 0.5),
  ("［１，\u00a05］", 1.0),  # full-width, as models write them in Chinese and Japanese
  ("[\u22121,\u202f5]", 0.5),
]
LENIENT = [("[1.0,5.0]", 1.0), ("[true,5]", 1.0), ("[1e0, 5]", 1.0)]


def test_by_hand():
  for text, expected in TABLE:
    for strict in [True, False]:
      assert citations.overlap(citations.parse_ids(text, strict=strict), [1, 5]) == expected


@pytest.mark.parametrize(("text", "expected"), LENIENT)
def test_numbers_that_only_the_authors_code_accepts(text, expected):
  assert citations.overlap(citations.parse_ids(text, strict=False), [1, 5]) == expected
  assert citations.overlap(citations.parse_ids(text), [1, 5]) == 0.0


def test_nothing_crashes_or_hangs():
  for strict in [True, False]:
    for text in [
      "[" * 100_000,
      "[" + "9" * 10_000 + "]",
      "[" + "1," * 50_000 + "1]",
      "[١]",
      "[NaN]",
      "\x00",
      "[1" + " " * 100_000,
    ]:
      assert citations.overlap(citations.parse_ids(text, strict=strict), [1, 5]) in (0.0, 0.5)


def test_order_and_repetition_do_not_count():
  assert citations.parse_ids("[3, 1, 3]") == [1, 3]
  assert citations.overlap([3, 1], (1, 3)) == 1.0
