from printed import HYPHENS, SPACES, printed
from refusals import refused

from ragrl_jax.core.text import forms
from ragrl_jax.core.text.normalize import normalize


def test_by_hand():
  for text, style, expected in [
    # The underscore is punctuation. Deleting it joins "the" and "us"; replacing it by a space frees the article.
    ("The_U.S.", "squad", "theus"), ("The_U.S.", "spaced", "u s"), ("state-of-the-art", "squad", "stateoftheart"),
    ("state-of-the-art", "spaced", "state of art"), ("a.m.", "squad", "am"), ("a.m.", "spaced", "m"),
    ("  The\tcat\n sat ", "squad", "cat sat"),
    ("O’Neill", "squad", "o’neill"),  # not ASCII punctuation
    ("O’Neill", "spaced", "o neill"),
    ("Theatre an analysis", "squad", "theatre analysis"),  # only whole words are articles
    ("The The", "squad", ""),
    ("The U.S., an A-team", "filco", "u.s., -team"),  # punctuation stays, and an article ends at it
    ("The  Cat", "filco", "cat"), ("", "spaced", ""), (" The_U.S. ", "none", " The_U.S. "),
  ]:  # fmt: skip
    assert normalize(text, style) == expected
  refused("'squad', 'spaced', 'filco' or 'none'", normalize, "x", "Squad")


TYPED = """O'Brien's "best-known" novel of 1939-40, at -5 degrees - or so. """


def test_printed_text_is_what_a_keyboard_types():
  for wide in (False, True):
    shown = printed(TYPED * 3, wide=wide)
    assert shown != TYPED * 3 == forms.typed(shown) == forms.typed(TYPED * 3)
    assert forms.plain(shown.upper()) == (TYPED * 3).lower()
  assert forms.typed(f"a{HYPHENS}b{SPACES}c") == f"a{'-' * 9}b{' ' * 5}c"
  assert forms.typed("co\u00adop\u200b no… ½ ² 東京。ʻ") == "coop no... ½ ² 東京。ʻ"  # the last ones are other signs
