import difflib
import random

import pytest

from ragrl_jax.core.rewards import quotes

CONTEXT = "The Eiffel Tower\nstands in   Paris. It was built in 1889 by Gustave Eiffel's company."
LONG = "abcde " * 60


def plain(quote, context, threshold=quotes.SOFT):
  """Checks every window of as many words, one after the other. `soft` must agree with it."""
  words, quote = context.lower().split(), " ".join(quote.lower().split())
  size = len(quote.split())
  windows = [" ".join(words[i : i + size]) for i in range(len(words) - size + 1)] if quote else []
  return any(difflib.SequenceMatcher(None, window, quote).ratio() >= threshold for window in windows)


def test_exact_and_a_quote_that_spans_two_contexts_is_in_neither():
  for quote in ("stands in Paris.", "Tower stands\tin\n\nParis.", "  1889 ", CONTEXT):
    assert quotes.exact(quote, [CONTEXT, "another"])
  for quote in ("stands in paris.", "Eiffel stands", "", " \n"):
    assert not quotes.exact(quote, [CONTEXT, "another"])
  assert quotes.exact("one two", ["one two three"]) and not quotes.exact("two three", ["one two", "three four"])
  assert not quotes.exact("x", [])


@pytest.mark.parametrize(("quote", "context", "found"), [
  ("STANDS IN PARIS.", CONTEXT, True),
  # Window "in paris. it was built", 22 letters, against 21: 20 match in order; 2 · 20 / 43 = .93.
  ("in Paris It was buit", CONTEXT, True),
  ("stands in Berlin.", CONTEXT, False),  # little more than "stands in " matches: 2 · 11 / 33
  ("", CONTEXT, False), ("word " * 40, CONTEXT, False),
  # Like difflib, it finds few near matches in long texts.
  (LONG, LONG, True), ("b" + LONG[1:], LONG, False), ("b" + LONG[1:180], LONG, True),
])  # fmt: skip
def test_soft(quote, context, found):
  assert quotes.soft(quote, context) == plain(quote, context) == found


def test_soft_agrees_with_the_plain_windows():
  draw, found = random.Random(0), 0
  for number in range(800):
    letters = draw.choice(["ab", "abcd", "abcdefgh", "é😀x"])
    words = ["".join(draw.choice(letters) for _ in range(draw.randint(1, 6))) for _ in range(draw.choice([2, 5, 20]))]
    context = [draw.choice(words) for _ in range(draw.choice([0, 3, 20, 60]))]
    size = draw.choice([0, 1, 2, 5, 10, 50])
    if number % 50 == 0:  # so long that difflib treats frequent letters as junk
      words = ["".join(draw.choice("etaoinshrdlucmfwygpbvkxqjz") for _ in range(5)) for _ in range(200)]
      context, size = [draw.choice(words) for _ in range(90)], 60
    if context and number % 3:
      at = draw.randrange(len(context))
      copied = " ".join(context[at : at + size])
      quote = "".join(letter if draw.random() > 0.1 else draw.choice(letters) for letter in copied)
    else:
      quote = " ".join(draw.choice(words) for _ in range(size))
    threshold = draw.choice([0.85, 0.85, 0.5, 0.95, 1.0])
    context = " ".join(context)
    verdict = plain(quote, context, threshold)
    assert quotes.soft(quote, context, threshold) == verdict, (quote, context, threshold)
    found += verdict
  assert 100 < found < 700  # both verdicts occur


def test_long_quotes_get_the_plain_windows_verdicts():
  """From 200 characters on, `soft` skips windows that difflib's blocks cannot match."""
  draw, found = random.Random(1), 0
  for number in range(12):
    letters = "eeeeettttaaaooiinnsshrrdlcumwfgypbvkxjqz"
    words = ["".join(draw.choice(letters) for _ in range(draw.randint(2, 8))) for _ in range(70)]
    context = [draw.choice(words) for _ in range(100)]
    at, size = draw.randrange(40), draw.randint(45, 60)
    quote = context[at : at + size]
    if number % 4 == 1:  # sentences in another order
      quote = quote[size // 2 :] + quote[: size // 2]
    noise = (60, 200, 1000)[number % 3]
    quote = "".join("~" if draw.randrange(noise) == 0 else letter for letter in " ".join(quote))
    context = " ".join(context)
    verdict = plain(quote, context)
    assert quotes.soft(quote, context) == verdict, (quote, context)
    found += verdict
  assert 2 < found < 10


def test_forms_of_unicode_are_equal_and_quotes_of_scripts_without_spaces_are_whole_words():
  for one, other in (
    ("Cafe\u0301 au lait", "Caf\u00e9 au lait"), ("ＮＨＫ is one", "NHK is one"), ("ﬁne day now", "fine day now"),
    ("the “well‑known” O’Brien’s – 1939", "the \"well-known\" O'Brien's - 1939"),
    ("3\u00a0000 km at\u202f−5 °C…", "3 000 km at -5 °C..."),
  ):  # fmt: skip
    for quote, context in ((one, f"so {other} ."), (other, f"so {one} .")):
      assert quotes.exact(quote, [context]) and quotes.whole_words(quote, [context], 3)
      assert quotes.soft(quote, context, 1.0)
  assert quotes.whole_words("首都は東京", ["日本の首都は東京です"], 3) and quotes.words("首都は東京") == 5
  assert not quotes.whole_words("हिन", ["हिन्दी भाषा"], 1) and quotes.whole_words("हिन्दी", ["हिन्दी भाषा"], 1)
