import collections
import itertools
import json
import pathlib
import re
import string
import unicodedata

import hypothesis
import hypothesis.strategies as st
import pytest

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text.normalize import STYLES, normalize, normalize_all

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden" / "answers.json").read_text())


def test_agrees_with_the_published_scripts():
  for row in GOLDEN["rows"]:
    prediction, golds = row["prediction"], [row["gold"]]
    assert normalize(prediction, "squad") == row["hotpotqa"]["normalized"], row
    assert normalize(prediction, "spaced") == row["triviaqa"]["normalized"], row
    assert qa.exact_match(prediction, golds) == row["hotpotqa"]["em"], row
    assert qa.f1(prediction, golds, yes_no_rule=True) == pytest.approx(row["hotpotqa"]["f1"], abs=1e-8), row
    assert qa.exact_match(prediction, golds, style="spaced") == row["triviaqa"]["em"], row
    assert qa.f1(prediction, golds, style="spaced") == pytest.approx(row["triviaqa"]["f1"], abs=1e-8), row
    if "filco_f1" in row:
      assert qa.f1(prediction, golds, unit="char", style="filco") == pytest.approx(row["filco_f1"], abs=1e-8), row


def test_f1_by_hand_and_in_every_published_way():
  # 3 words and 2 share one: precision 1/3, recall 1/2, 2 * 1 / (3 + 2).
  assert qa.f1("the Eiffel Tower.", ["Eiffel Tower"], style="none", unit="word_set") == pytest.approx(0.4)
  assert qa.f1("the Eiffel Tower.", ["Eiffel Tower"]) == 1.0  # equal after normalisation
  # "barack obama" and "donald trump", 12 characters each, share one a, o, m, r and the space: 2 * 5 / 24.
  assert qa.f1("Barack Obama", ["Donald Trump"], unit="char") == pytest.approx(10 / 24)
  assert qa.f1("1994", ["1987"], unit="char") == pytest.approx(0.5)  # 1 and 9
  # FilCo leaves punctuation in: "u.s." and "us" share two characters of four and two. Without it they are equal.
  assert qa.f1("U.S.", ["US"], unit="char", style="filco") == pytest.approx(2 / 3)
  assert qa.f1("U.S.", ["US"], unit="char") == 1.0
  # Multisets count repeats, sets do not: 2 * 1 / (3 + 1) and 1.
  assert qa.f1("no no no", ["no"]) == pytest.approx(0.5) and qa.f1("no no no", ["no"], unit="word_set") == 1.0
  assert qa.exact_match("Paris", "Paris") == 1.0  # a plain string counts as one gold, not as five letters
  with pytest.raises(ValueError, match="'word', 'char' or 'word_set'"):
    qa.f1("x", ["x"], unit="letters")
  score = {name: scorer("U.S. troops", ["the US"]) for name, scorer in qa.F1_OF.items()}
  # squad: "us troops" / "us": 2·1/3. ARENA's: "u s troops" / "us": 0. CARE's reward: {U.S., troops} / {the, US}: 0.
  assert score["squad"] == score["longbench"] == score["hotpotqa"] == pytest.approx(2 / 3)
  assert score["spaced"] == score["word_set"] == 0
  # FilCo: the letters of "u.s. troops" (11, spaces too) and "us" (2) share u and s: 2·2/13.
  assert score["filco"] == pytest.approx(4 / 13)
  assert qa.F1_OF["hotpotqa"]("no it is", ["no"]) == 0 and qa.F1_OF["squad"]("no it is", ["no"]) == pytest.approx(0.5)


@pytest.mark.parametrize("style", ["squad", "spaced"])
@pytest.mark.parametrize("measure", [qa.exact_match, qa.f1, qa.cover_em])
def test_texts_that_normalise_to_nothing(measure, style):
  for said, gold in (("", "The The"), ("a", "the"), ("?", "the"), ("", ""), ("anything", "")):
    assert measure(said, [gold], style=style) == 0.0
  assert measure("the the ", ["The The"], style=style) == 1.0  # these texts are equal even so
  assert measure("(A).", ["a"], style=style) == measure(" ? ", ["?"], style=style) == 1.0
  assert measure("A", ["B", "an"], style=style) == measure("?!", ["!"], style=style) * (measure is not qa.cover_em) == 0


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("measure", [qa.exact_match, qa.f1, qa.cover_em])
@pytest.mark.parametrize("text", ["Caf\u00e9 \u00c5ngstr\u00f6m", "\u1e69", "\ud55c\uad6d", "\u0958", "\u00bd \u304c"])
def test_forms_of_unicode_are_equal(measure, style, text):
  forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
  for said, gold in itertools.product(forms, forms):
    assert measure(said, [gold], style=style) == measure(said, ["x", gold], style=style) == 1.0
    assert qa.has_answer(f"in {said}, so", [gold])
  wide = "".join(chr(ord(one) + 0xFEE0) for one in "Paris1994")  # full-width letters and digits
  assert measure(wide, ["Paris1994"], style=style) == measure("\ufb01ne", ["fine"], style=style) == 1.0
  assert measure("m\u00b2", ["m2"], style=style) == measure("m", ["2"])  # a square is no number


def test_answers_of_signs_alone_are_themselves():
  for one in ("\U0001f600", "\u2013", "\u3002", "\u2026", "?", "A", "The"):
    for metric in (qa.exact_match, qa.f1, qa.cover_em):
      assert metric(one, [one]) == 1.0 and metric("x", [one]) == metric(one, ["x"]) == 0.0
    assert qa.has_answer(f"They say {one} now", [one])
  # An article is searched in its own case: otherwise it were in every sentence.
  assert qa.cover_em("It is hepatitis A", ["A"]) == 1.0 and qa.cover_em("a liver", ["A"]) == 0.0
  assert qa.cover_em("Rated A+", ["a"]) == 0.0


def test_cover_exact_match():
  assert qa.cover_em("It was the Eiffel Tower, I think", ["eiffel tower"]) == 1.0
  assert qa.cover_em("It was the Eiffel", ["eiffel tower"]) == 0.0
  assert qa.cover_em("U.S.A.", ["U.S."], style="spaced") == 1.0
  assert qa.cover_em("nothing", ["a", "not"]) == 1.0  # also inside a word, as the published script does


def test_a_gold_is_normalised_once_for_all_metrics():
  """Twelve aliases cost twelve normalisations a style, however many metrics look at them."""
  golds = [f"Alias No. {number} of the king" for number in range(12)]
  normalize_all.cache_clear()
  for metric in (qa.exact_match, qa.f1, qa.cover_em, qa.overlap):
    metric("The king, of course.", golds)
  assert normalize_all.cache_info().misses == 1
  qa.f1("The king, of course.", golds, unit="char", style="filco")
  assert normalize_all.cache_info().misses == 2


# Few words and characters, so that many are shared; signs and letters that lower case or normalising treats apart.
WORDS = ["the", "a", "A", "an", "king", "King's", "U.S.", "ab", "aab", "yes", "no", "?", "-", "é", "İ", "ß", "x y"]
TEXT = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join) | st.text("ab .,'\u2019\0\n ", max_size=6)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(TEXT, st.lists(TEXT, max_size=6), st.sampled_from(STYLES), st.sampled_from(qa.UNITS), st.booleans())
def test_scores_are_the_plain_formulas(prediction, golds, style, unit, rule):
  """Every gold on its own, with nothing counted once for several."""
  normal = lambda text: normalize.__wrapped__(text, style)
  marks = {"squad": ("", string.punctuation), "spaced": (" ", string.punctuation + "‘’´`")}.get(style, ("", ""))

  def left(text):  # the last step that leaves something: without punctuation, else lower case
    text = " ".join(unicodedata.normalize("NFC", text).lower().split())
    return " ".join("".join(marks[0] if one in marks[1] else one for one in text).split()) or text

  split = re.compile(r"[^\W_]+|[^\w\s\0]|_").findall
  spaced = lambda text: " ".join(["", *split(unicodedata.normalize("NFD", text)), ""])
  ours, best = normal(prediction), dict(em=0.0, cover=0.0, f1=0.0)
  for gold in golds:
    theirs = normal(gold)
    same = ours == theirs if ours and theirs else not ours and not theirs and left(prediction) == left(gold) != ""
    best["em"] = max(best["em"], float(same))
    best["cover"] = max(best["cover"], float(same or theirs != "" and theirs in ours))
    if theirs == "" != gold.strip("\0 \n") and spaced(gold) in spaced(prediction):
      best["cover"] = 1.0
    if rule and ours != theirs and (ours in qa.YES_NO or theirs in qa.YES_NO):
      continue
    best["f1"] = max(best["f1"], 1.0 if same else plain_f1(ours, theirs, unit))
  assert normalize_all(tuple(golds), style) == tuple(map(normal, golds))
  assert qa.exact_match(prediction, golds, style=style) == best["em"]
  assert qa.cover_em(prediction, golds, style=style) == best["cover"]
  found = qa.overlap(prediction, golds, style=style, unit=unit, yes_no_rule=rule)
  assert qa.f1(prediction, golds, style=style, unit=unit, yes_no_rule=rule) == found.f1 == best["f1"]
  if best["f1"]:
    assert 2 * found.precision * found.recall / (found.precision + found.recall) == pytest.approx(best["f1"])


def plain_f1(ours, theirs, unit):
  split = {"word": str.split, "char": list, "word_set": lambda text: set(text.split())}[unit]
  ours, theirs = (collections.Counter(split(text)) for text in (ours, theirs))
  shared = (ours & theirs).total()
  return 2.0 * shared / (ours.total() + theirs.total()) if shared else 0.0


def test_overlap_by_hand():
  # "in red paint": 3 words. Against "red paint": 2 of 3, 2 of 2, F1 4/5. Against "red": 1/3, 1, F1 1/2.
  found = qa.overlap("in red paint", ["red", "red paint"])
  assert (found.precision, found.recall, found.f1, found.exact) == pytest.approx((2 / 3, 1, 4 / 5, 0))
  assert qa.overlap("The Red", ["red"]) == qa.Overlap(1.0, 1.0, 1.0, 1.0)
  assert qa.overlap("blue", ["red"]) == qa.overlap("", ["red"]) == qa.Overlap(0.0, 0.0, 0.0, 0.0)
  # Sets: {a, b} against {a, c}, whatever the number of a. Characters: "ab" in "abcd".
  assert qa.overlap("a a b", ["a c c"], style="none", unit="word_set").precision == pytest.approx(1 / 2)
  assert qa.overlap("ab", ["abcd"], unit="char").recall == pytest.approx(1 / 2)
  assert qa.overlap("yes it is", ["yes"], yes_no_rule=True).f1 == 0 and qa.overlap("yes it is", ["yes"]).f1 == 0.5


def test_set_overlap_and_joint_of_answer_and_facts_by_hand():
  # 3 named, 2 golds, 1 in common: precision 1/3, recall 1/2, F1 2 * 1 / (3 + 2).
  got = qa.set_overlap([1, 2, 3, 3], [3, 4])
  assert (got.precision, got.recall, got.f1, got.exact) == pytest.approx((1 / 3, 0.5, 0.4, 0.0))
  assert qa.set_overlap("ab", "ba").exact == 1.0 and qa.set_overlap([], [1]) == qa.Overlap(0.0, 0.0, 0.0, 0.0)
  assert qa.set_overlap([], []) == qa.Overlap(1.0, 1.0, 1.0, 1.0)
  # Facts: 2 named, 1 of 3 gold: precision 1/2, recall 1/3. Answer: precision 2/3, recall 1. Joint: 1/3, 1/3, F1 1/3.
  facts = qa.set_overlap([("A", 0), ("B", 1)], [("A", 0), ("C", 0), ("D", 2)])
  found = qa.joint(qa.Overlap(2 / 3, 1.0, 4 / 5, 0.0), facts)
  assert (found.precision, found.recall, found.f1, found.exact) == pytest.approx((1 / 3, 1 / 3, 1 / 3, 0))
  right = qa.Overlap(1.0, 1.0, 1.0, 1.0)
  assert qa.joint(right, qa.set_overlap([("A", 0)], [("A", 0)])) == right
  assert qa.joint(qa.Overlap(0.0, 0.0, 0.0, 0.0), facts).f1 == 0  # a wrong answer
