import pytest

from ragrl_jax.core.metrics import thought


def test_each_character_of_a_turn_has_a_kind():
  text = "<think> red, so red </think><search> red </search>"
  found = "".join("#tqa"[kind] for kind in thought.kinds(text, "red", None))
  assert found == "#######ttttttttttttt########" + "########" + "tqqqt" + "#########"
  assert {*thought.kinds("so 4 < 5 <answer>4</answer>", None, "4")} == {0, 1, 3}
  assert thought.kinds("", "a", "b").size == 0 and {*thought.kinds("plain", "absent", "")} == {1}


@pytest.mark.parametrize("turns, within, between", [
  (["a b c d e f"], 0.0, None),
  (["a b c d a b c d"], 1 / 5, None),  # abcd twice among abcd bcda cdab dabc abcd
  (["no no no no no no no"], 3 / 4, None), (["a b c d", "x A, b c d"], 0.0, 1 / 2), (["a b c d", "x"], 0.0, None),
  (["two words", ""], None, None),
])  # fmt: skip
def test_repeated_words(turns, within, between):
  assert thought.repeated(turns) == (pytest.approx(within), pytest.approx(between))


@pytest.mark.parametrize("text, broken", [
  ("<think>a</think> <answer>b</answer>", False), ("<think>a <q>b</q></think>", False),
  ("a < b and b > c <|im_end|>", False), ("<think>a", True), ("a</think>", True),
  ("<think><answer></think></answer>", True),
])  # fmt: skip
def test_broken_tags(text, broken):
  assert thought.broken(text) == broken
