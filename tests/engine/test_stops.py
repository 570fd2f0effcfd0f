"""The stop automaton by hand. test_stops_search.py tests it with real vocabularies."""

import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from ragrl_jax.engine import stops
from ragrl_jax.prompting.tokenizer import ByteTokenizer


class Listed:
  """A vocabulary as a list of tokens; None is EOS."""

  def __init__(self, *tokens):
    self.tokens = tokens
    self.vocab_size = len(tokens)
    self.eos_ids = tuple(i for i, t in enumerate(tokens) if t is None)
    self.pad_id = 0

  def token_bytes(self, token):
    return self.tokens[token] or b""


def run(automaton, ids, accept):
  """(name of the stop at each token, "" without one; the last state)."""
  state, named = np.zeros(1, np.int32), []
  for i in ids:
    state, stop = stops.advance(automaton.table, state, np.array([i], np.int32), np.array([accept], np.int32))
    named.append(automaton.names[int(stop[0])] if stop[0] >= 0 else "")
  return named, int(state[0])


AB, LONGER, CONTROL = (b"ab", b"</", b"search", b">\n\n", b">"), (b"x</a", b">"), (b"</", b"s>", b"")


@pytest.mark.parametrize("tokens, strings, ids, accepted, named", [
  # A stop in the middle of a token.
  (AB, ["</search>"], [0, 1, 2, 3], ["</search>"], ["", "", "", "</search>"]),
  (AB, ["</search>"], [0, 1, 2, 4, 4], ["</search>"], ["", "", "", "</search>", ""]),
  (AB, ["</search>"], [1, 2, 0, 4], ["</search>"], [""] * 4),
  # Of two stops in one token, the first accepted one: "b>a>" completes "b>" at byte two and "a>" at byte four.
  *(((b"b>a>",), ["a>", "b>"], [0], some, [first]) for some, first in ((["a>", "b>"], "b>"), (["a>"], "a>"), ([], ""))),
  # Of two stops that end on one byte, the longer.
  (LONGER, ["a>", "</a>", ">"], [0, 1], ["a>", "</a>", ">"], ["", "</a>"]),
  (LONGER, ["a>", "</a>", ">"], [0, 1], ["a>", ">"], ["", "a>"]),
  (LONGER, ["a>", "</a>", ">"], [0, 1], [">"], ["", ">"]),
  # One that is not accepted hides no other: "ab" ends inside "xabc".
  ((b"xa", b"b", b"c"), ["ab", "abc"], [0, 1, 2], ["abc"], ["", "", "abc"]),
  # A failed beginning is kept if it may still match: after "aaa" the last two letters may begin "aab".
  ((b"a", b"b"), ["aab"], [0, 0, 0, 0, 1], ["aab"], ["", "", "", "", "aab"]),
  # Tokens without bytes change nothing: a control token, and rows beyond the vocabulary.
  *((CONTROL, ["</s>"], [0, silent, 1], ["</s>"], ["", "", "</s>"]) for silent in (2, 3, 6)),
  # A character that is cut into bytes.
  ([bytes([i]) for i in range(256)], ["東"], [*"京東".encode()], ["東"], [""] * 5 + ["東"]),
])  # fmt: skip
def test_the_stop_that_a_token_completes(tokens, strings, ids, accepted, named):
  automaton = stops.Stops(Listed(*tokens), strings, rows=len(tokens) + 4)
  assert run(automaton, ids, automaton.mask(accepted))[0] == named


def test_every_eos_id_is_the_stop_eos_and_resets_the_state():
  automaton = stops.Stops(Listed(b"</", None, b"s>", None), ["</s>"], rows=4)
  accept = automaton.mask(["</s>"])
  assert run(automaton, [0, 1, 2], accept) == (["", "eos", ""], 0)
  assert run(automaton, [0, 3], accept) == (["", "eos"], 0)
  assert run(automaton, [1], 0)[0] == [""]  # of a turn that accepts no stop


def test_rows_are_independent_and_the_program_compiles_once():
  automaton = stops.Stops(ByteTokenizer(), ["ab", "b"], rows=300)
  step = jax.jit(stops.advance)
  state = jnp.zeros(3, jnp.int32)
  accept = np.array([automaton.mask(["ab"]), automaton.mask(["b"]), automaton.mask([])], np.int32)
  seen = []
  for letter in "ab":
    state, stop = step(automaton.table, state, np.full(3, ord(letter), np.int32), accept)
    seen.append([automaton.names[i] if i >= 0 else "" for i in np.asarray(stop)])
  assert seen == [["", "", ""], ["ab", "b", ""]]
  assert stop.dtype == state.dtype == np.int32 and step._cache_size() == 1


def test_without_stop_strings_only_eos_is_left():
  automaton = stops.Stops(ByteTokenizer(), [], rows=258)
  assert automaton.names == ("eos",) and run(automaton, [65, 256], automaton.mask([]))[0] == ["", "eos"]


def test_thirty_strings_fit_into_a_mask():
  strings = [f"</{i}>" for i in range(30)]
  automaton = stops.Stops(ByteTokenizer(), strings, rows=258)
  assert 0 < automaton.mask(strings) < 2**31
  for s in strings:
    assert run(automaton, s.encode(), automaton.mask(strings))[0][-1] == s
  refused("at most 30", stops.Stops, ByteTokenizer(), [*strings, "x"], rows=258)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
  strings=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=5, unique=True),
  tokens=st.lists(st.text("ab", max_size=5), min_size=1, max_size=6),
  data=st.data(),
)
def test_small_alphabets_give_every_overlap(strings, tokens, data):
  # With two letters, strings contain, end and begin each other, and tokens complete several at once.
  vocabulary = [t.encode() for t in tokens]
  ids = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=8))
  accepted = data.draw(st.sets(st.sampled_from(strings)))
  outcome, state, order = stops.compile_table(vocabulary, [s.encode() for s in strings], [])
  at, text = 0, ""
  for i in ids:
    o = outcome[at, i]
    got = next((strings[n] for n in order[o] if n >= 0 and strings[n] in accepted), None)
    assert got == first_completed(text, tokens[i], accepted)
    at, text = state[o], text + tokens[i]


def first_completed(text, token, strings):
  """By definition: extends the text letter by letter, and returns the longest accepted string that ends first."""
  for end in range(1, len(token) + 1):
    grown = text + token[:end]
    done = [s for s in strings if grown.endswith(s)]
    if done:
      return max(done, key=len)
  return None


def test_states_are_the_longest_matching_beginnings():
  strings = [b"abab", b"ba", b"b"]
  goto, ends = stops.automaton(strings)
  beginnings = sorted({s[:n] for s in strings for n in range(len(s) + 1)}, key=len)
  assert len(goto) == len(beginnings)
  named = {0: b""}  # state → the beginning that it stands for, from the first text that reaches it
  for letters in itertools.chain.from_iterable(itertools.product(b"abx", repeat=n) for n in range(1, 6)):
    text, at = bytes(letters), 0
    for byte in text:
      at = int(goto[at, byte])
    longest = max((b for b in beginnings if text.endswith(b)), key=len)
    assert named.setdefault(at, longest) == longest
    assert [strings[i] for i in ends[at]] == sorted((s for s in strings if text.endswith(s)), key=len, reverse=True)


@pytest.mark.parametrize("strings, rows, message", [
  (["a", ""], 258, "non-empty"), (["a", "a"], 258, "given once"), (["eos"], 258, "name that EOS goes by"),
  (["a"], 200, "rows=200"),
])  # fmt: skip
def test_invalid_stop_strings_are_refused(strings, rows, message):
  refused(message, stops.Stops, ByteTokenizer(), strings, rows=rows)


def test_a_string_that_was_not_compiled_is_refused():
  refused("name them in the recipe's `stops`", stops.Stops(ByteTokenizer(), ["a"], rows=258).mask, ["a", "b"])
