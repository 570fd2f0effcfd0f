from ragrl_jax.core.rewards import citations

# Gold ids 1 and 5: texts of the section, by their score.
TABLE = {
  1.0: ("[1, 5]", "[5,1]", "[1,5,5]", " [ 1 , 5 ] ", "［１，\u00a05］"),  # the last as in Chinese and Japanese
  0.5: ("[1]", "[1,5,7]", "[-1, 5]", "[\u22121,\u202f5]"),
  0.0: ("[7]", "[]", '["1"]', "1,5", "1", "[1,5,]", "[[1]]", '[1,"a"]', "null", '{"1":2}', "", "[1 5]", "[01, 5]"),
}
LENIENT = ("[1.0,5.0]", "[true,5]", "[1e0, 5]")  # only the authors' code accepts these


def test_by_hand():
  for expected, texts in TABLE.items():
    for text in texts:
      for strict in [True, False]:
        assert citations.overlap(citations.parse_ids(text, strict=strict), [1, 5]) == expected, text
  for text in LENIENT:
    assert citations.overlap(citations.parse_ids(text, strict=False), [1, 5]) == 1.0
    assert citations.overlap(citations.parse_ids(text), [1, 5]) == 0.0
  # Order and repetition do not count.
  assert citations.parse_ids("[3, 1, 3]") == [1, 3] and citations.overlap([3, 1], (1, 3)) == 1.0


def test_nothing_crashes_or_hangs():
  long = ("[" * 100_000, "[" + "9" * 10_000 + "]", "[" + "1," * 50_000 + "1]", "[1" + " " * 100_000)
  for strict in [True, False]:
    for text in (*long, "[١]", "[NaN]", "\x00"):
      assert citations.overlap(citations.parse_ids(text, strict=strict), [1, 5]) in (0.0, 0.5)
