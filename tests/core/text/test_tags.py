import random
import re
import time

import pytest

from ragrl_jax.core.text import tags

PIECES = ["<a>", "</a>", "<b>", "</b>", "x", " ", "\n", "<", ">", "</", "a>", "<c>", "<<a>>", "é"]


def texts(count, seed):
  draw = random.Random(seed)
  return ["".join(draw.choice(PIECES) for _ in range(draw.randint(0, 14))) for _ in range(count)]


def test_pairs_by_hand():
  text = "<a>1<a>2</a>3</a>"
  # The first closing tag closes the last opening tag before it. The second closing tag then has no open tag.
  assert tags.pairs(text, "a") == [tags.Pair("a", "2", 4, 12)] and text[4:12] == "<a>2</a>"
  assert tags.pairs(text, "a", opening="first") == [tags.Pair("a", "1<a>2", 0, 12)]
  assert [p.body for p in tags.pairs("<a>1</a><b>2</b><a></a>", ("a", "b"))] == ["1", "2", ""]
  assert tags.pairs("<a>1</b>", ("a", "b")) == []
  assert tags.last("<a>1</a><a>2</a>", "a").body == "2" and tags.last("</a><a>", "a") is None
  with pytest.raises(ValueError, match="'last' or 'first'"):
    tags.pairs("", "a", opening="middle")


def test_outer_pairs():
  bodies = lambda text: [(pair.name, pair.body) for pair in tags.outer(text, ("a", "b"))]
  assert bodies("<a>1<b>2</b></a><b>3</b>") == [("a", "1<b>2</b>"), ("b", "3")]
  assert bodies("<a>1<b>2</a>3</b>") == [("b", "2</a>3")]  # of two that cross, the later end
  assert bodies("<a>1<b>2</b>") == [("b", "2")]  # a tag that is never closed opens nothing
  for text in texts(2000, 3):
    found = tags.outer(text, ("a", "b"))
    assert set(found) <= set(tags.pairs(text, ("a", "b")))
    assert all(one.end <= two.start for one, two in zip(found, found[1:])), text


def test_first_match_is_the_shortest_match_pattern():
  pattern = re.compile(r"<(a|b)>(.*?)</\1>", re.DOTALL)
  matched = 0
  for text in texts(4000, 0):
    expected, got = pattern.search(text), tags.first_match(text, ("a", "b"))
    assert (got is None) == (expected is None), text
    if expected is not None:
      assert (got.name, got.body, got.start, got.end) == (*expected.groups(), *expected.span()), text
      matched += 1
  assert matched > 500


def test_pairs_hold_no_tag_of_their_own_name_and_the_last_is_the_last_of_all():
  for text in texts(2000, 1):
    for names in ("a", ("a", "b")):
      assert tags.last(text, names) == (tags.pairs(text, names) or [None])[-1], text
    for pair in tags.pairs(text, ("a", "b")):
      assert f"<{pair.name}>" not in pair.body and f"</{pair.name}>" not in pair.body
      assert text[pair.start : pair.end] == f"<{pair.name}>{pair.body}</{pair.name}>"


@pytest.mark.parametrize(("text", "expected"), [
  ("1<a>2</a>3", "13"),
  ("1<a>2", "1<a>2"),  # never closed: a mention
  ("1</a>2", "1</a>2"),  # no tag is open
  ("<a>1<a>2</a>3</a>4", "4"),  # one block in another
  ("<a>1</a>2<a>3<a>4</a></a>5", "25"),
  ("<t>the <a> says so</t>1<a>2</a>3", "<t>the <a> says so</t>13"),  # a mention before a block
  ("<a>1</a>2<a>3", "2<a>3"),
  ("<think>1<a>2</think>3</a>4", "<think>1<a>2</think>3</a>4"),  # it would cross a thought: two mentions
  ("<a>1<think>2</a>3</think>4", "<a>1<think>2</a>3</think>4"),
  ("<a>1<think>2</a>3", "3"),  # no complete thought
  ("<think>1</a>2<a>3</think>4</a>5<a>6</a>", "<think>1</a>2<a>3</think>4</a>5"),
  ("<think>1<a>2</a>3</think><a><think>4</think></a>5", "<think>13</think>5"),
  ("<think><think>1<a></think>2</think></a>", "<think><think>1<a></think>2</think></a>"), ("<a></a>", ""), ("", ""),
])  # fmt: skip
def test_without(text, expected):
  assert tags.without(text, "<a>", "</a>") == expected
  odd = lambda shown: shown.replace("</a>", "|a)").replace("<a>", "(a|")  # tags are plain text, not patterns
  assert tags.without(odd(text), "(a|", "|a)") == odd(expected)


def test_without_is_as_removing_innermost_blocks_until_none_is_left():
  draw = random.Random(2)  # any seed
  block = re.compile(r"<a>(?:(?!</?a>).)*</a>")
  for _ in range(2000):
    text = left = "".join(draw.choice(["<a>", "</a>", "<b>", "x"]) for _ in range(draw.randint(0, 14)))
    while block.search(left):
      left = block.sub("", left)
    assert tags.without(text, "<a>", "</a>") == left, text


def test_sections():
  for text, names in ((" <a>1</a>\n<b>2</b> ", "ab"), ("<a></a><a></a>", "aa"), ("", ""), ("  ", "")):
    assert "".join(pair.name for pair in tags.sections(text, ("a", "b"))) == names
  assert [pair.name for pair in tags.sections("<a> 1 < 2 and <i> </a>", ("a", "b"))] == ["a"]
  for text in ("x<a></a>", "<a></a>x", "<a></a>x<b></b>", "<a><b></b></a>", "<a>", "</a>", "<a></b>"):
    assert tags.sections(text, ("a", "b")) is None


def test_linear_in_the_length():
  text = "<a>" * 200_000 + "<" * 200_000
  start = time.thread_time()  # other work of this machine is not counted
  tags.pairs(text, "a")
  tags.first_match(text, ("a", "b"))
  tags.without(text, "<a>", "</a>")
  tags.without(text + "</a>" * 200_000, "<a>", "</a>")
  tags.sections(text, ("a", "b"))
  # A quadratic pattern would take minutes. The bound is on the order of growth, not on speed.
  assert time.thread_time() - start < 20.0
