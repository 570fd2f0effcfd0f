import json
import pathlib

import pytest

from ragrl_jax.core.text.normalize import normalize

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden" / "answers.json").read_text())


def test_by_hand():
  for text, style, expected in [
    # The underscore is punctuation. Deleting it joins "the" and "us"; replacing it by a space frees the article.
    ("The_U.S.", "squad", "theus"),
    ("The_U.S.", "spaced", "u s"),
    ("state-of-the-art", "squad", "stateoftheart"),
    ("state-of-the-art", "spaced", "state of art"),
    ("a.m.", "squad", "am"),
    ("a.m.", "spaced", "m"),
    ("  The\tcat\n sat ", "squad", "cat sat"),
    ("O’Neill", "squad", "o’neill"),  # not ASCII punctuation
    ("O’Neill", "spaced", "o neill"),
    ("Theatre an analysis", "squad", "theatre analysis"),  # only whole words are articles
    ("The The", "squad", ""),
    ("The U.S., an A-team", "filco", "u.s., -team"),  # punctuation stays, and an article ends at it
    ("The  Cat", "filco", "cat"),
    ("", "spaced", ""),
    (" The_U.S. ", "none", " The_U.S. "),
  ]:
    assert normalize(text, style) == expected


def test_agrees_with_the_published_scripts():
  for row in GOLDEN["rows"]:
    assert normalize(row["prediction"], "squad") == row["hotpotqa"]["normalized"], row
    assert normalize(row["prediction"], "spaced") == row["triviaqa"]["normalized"], row


def test_unknown_style():
  with pytest.raises(ValueError, match="'squad', 'spaced', 'filco' or 'none'"):
    normalize("x", "Squad")
