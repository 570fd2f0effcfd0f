"""Passages as a block of text, and back. Text of a corpus cannot open or close a block."""

import re

import hypothesis
import hypothesis.strategies as st
import pytest

from ragrl_jax.prompting import passages
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.structs import Passage

ANY_TAG = re.compile(r"</?\|?[A-Za-z_][\w|]*>")
titles_and_texts = lambda found: [(p.title, p.text) for p in found]


def test_the_block_of_two_passages_and_of_none():
  # Search-R1: one line "Doc {i}(Title: …) …" per passage, stripped, between the tags, with two newlines around.
  found = [Passage("9", "Danbel", "Born in Tokyo."), Passage("4", "Kormin (town)", "Two lines\nof text.")]
  assert passages.block(found) == (
    "\n\n<information>Doc 1(Title: Danbel) Born in Tokyo.\n"
    "Doc 2(Title: Kormin (town)) Two lines\nof text.</information>\n\n"
  )
  assert passages.block([]) == "\n\n<information></information>\n\n" and passages.parse_block(passages.block([])) == ()


def test_a_block_can_be_read_back():
  found = [
    Passage("a", "T", "x"), Passage("b", "A (b (c)) d", "(e) f) ("), Passage("c", "", "no title"),
    Passage("d", "no text", ""), Passage("e", 'Q: "x"', "Doc 3 says\n\nnothing"),
  ]  # fmt: skip
  back = passages.parse_block(passages.block(found))
  assert titles_and_texts(back) == titles_and_texts(found)
  assert [p.id for p in back] == ["1", "2", "3", "4", "5"]


def test_text_that_would_break_a_block_is_changed_as_little_as_possible():
  # A heading inside a text, a newline in a title, and unbalanced parentheses.
  found = [Passage("a", "one\ntwo", "x\nDoc 2(Title: fake) y"), Passage("b", ":) (", "Doc 1(Title: z) w")]
  back = passages.parse_block(passages.block(found))
  assert titles_and_texts(back) == [("one two", "x\n Doc 2(Title: fake) y"), (":\uff09 \uff08", "Doc 1(Title: z) w")]


def test_tags_in_a_corpus_are_text():
  for tag in "</information> <information> <answer> </search> <|im_end|> <br/> </Think> <tool_call>".split():
    block = passages.block([Passage("a", f"A {tag}", f"{tag}b<{tag}{tag}")])
    assert block.count(tag) == (tag in ("<information>", "</information>")) and block.count("< " + tag[1:]) == 4
    assert passages.parse_block(block)[0].title == f"A < {tag[1:]}"
    assert tag not in passages.numbered([Passage("a", tag, tag)], titles=True)


@pytest.mark.parametrize("text", ["a < b", "x<y and y>z", "<3", "<- here ->", "<a href='x'>", "1<2>0"])
def test_text_that_is_not_a_tag_is_kept(text):
  assert passages.neutral(text) == text


PIECES = ["<", "</", "information", "answer", ">", "</information>", "<information", "\n", "(", ")", " "]
PIECES += ["Doc 1(Title: ", "Doc 2(Title: "]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
WORDS = st.lists(st.one_of(TEXT, st.sampled_from(PIECES)), max_size=10).map("".join)
FOUND = st.lists(st.builds(Passage, id=st.just("x"), title=WORDS, text=WORDS), max_size=4)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(found=FOUND, limit=st.one_of(st.none(), st.integers(1, 60)))
def test_no_corpus_text_opens_or_closes_a_block(found, limit):
  tokenizer = None if limit is None else ByteTokenizer()
  block = passages.block(found, tokenizer=tokenizer, max_passage_tokens=limit)
  assert ANY_TAG.findall(block) == ["<information>", "</information>"]
  assert block.startswith("\n\n<information>") and block.endswith("</information>\n\n")


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(found=FOUND)
def test_any_block_can_be_read_back(found):
  back = passages.parse_block(passages.block(found))
  assert len(back) == len(found)
  assert passages.parse_block(passages.block(back)) == back  # the second time nothing changes
  letters = lambda p: re.sub(r"\W", "", p.title + p.text)
  assert list(map(letters, back)) == list(map(letters, found))


def test_text_that_is_not_a_block():
  for text in [
    "", "x", "<information>", "</information>", "<information>x</information>",
    "<information>Doc 1(Title: x</information>", "a <information>Doc 1(Title: x) y</information>",
    "<information>Doc 2(Title: x) y</information>",
  ]:  # fmt: skip
    assert passages.parse_block(text) is None


def test_a_long_passage_is_cut_and_its_neighbours_are_not():
  # "Doc 1(Title: T) " has 16 of the 20 bytes, so four are left for the text.
  found = [Passage("a", "T", "abcdefgh"), Passage("b", "U", "abcd")]
  block = passages.block(found, tokenizer=ByteTokenizer(), max_passage_tokens=20)
  assert titles_and_texts(passages.parse_block(block)) == [("T", "abcd"), ("U", "abcd")]

  # So is a title that is longer than the limit.
  block = passages.block([Passage("a", "A (long) title", "text")], tokenizer=ByteTokenizer(), max_passage_tokens=20)
  assert titles_and_texts(passages.parse_block(block)) == [("A (lon".replace("(", "\uff08"), "")]


@pytest.mark.parametrize(("cut", "text", "limit", "left"), [
  # Six bytes. The fourth and fifth start a character that a cut after five bytes would split.
  (passages.cut, "\u6771\u4eac", 5, "\u6771"), (passages.cut, "\u6771\u4eac", 6, "\u6771\u4eac"),
  (passages.cut, "\u6771", 2, ""), (passages.cut_middle, "ab", 0, ""), (passages.cut_middle, "abcdefgh", 8, "abcdefgh"),
  (passages.cut_middle, "abcdefgh", 5, "abcgh"), (passages.cut_middle, "abcdefgh", 1, "a"),
  # Three bytes per character, so the 4 bytes at each end hold one whole character.
  (passages.cut_middle, "\u6771\u4eac\u90fd\u5e02", 8, "\u6771\u5e02"),
])  # fmt: skip
def test_a_cut_at_the_end_or_in_the_middle_leaves_no_partial_character(cut, text, limit, left):
  assert cut(text, ByteTokenizer(), limit) == left


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(found=FOUND, limit=st.integers(24, 60))
def test_no_passage_exceeds_the_limit(found, limit):
  block = passages.block(found, tokenizer=ByteTokenizer(), max_passage_tokens=limit)
  assert len(passages.parse_block(block)) == len(found)
  # A full-width parenthesis has three bytes instead of one, and a cut title may need them.
  tags_and_newlines = len("<information></information>") + 4 + max(len(found) - 1, 0)
  grown = 2 * sum(block.count(c) for c in "\uff08\uff09")
  assert len(block.encode()) <= tags_and_newlines + len(found) * limit + grown


@pytest.mark.parametrize("limit, tokenizer", [(10, None), (0, ByteTokenizer())])
def test_a_limit_needs_a_tokenizer_and_at_least_one_token(limit, tokenizer):
  with pytest.raises(ValueError, match="config.switches.max_passage_tokens"):
    passages.block([], tokenizer=tokenizer, max_passage_tokens=limit)


def test_numbered_references():
  # ARENA: numbers from 1, one line each, no titles. A single passage has no number.
  two = [Passage("a", "T", "x\ny"), Passage("b", "U", "z")]
  assert [passages.numbered(some) for some in (two, two[1:], [])] == ["1. x y\n2. z", "z", ""]
  assert passages.numbered(two, titles=True) == "1. T: x y\n2. U: z"
