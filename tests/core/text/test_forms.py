"""The forms of Unicode that texts get before they are compared. Answers: test_normalize.py."""

from printed import HYPHENS, SPACES, printed

from ragrl_jax.core.text import forms

TYPED = """O'Brien's "best-known" novel of 1939-40, at -5 degrees - or so. """


def test_printed_text_is_what_a_keyboard_types():
  for wide in (False, True):
    shown = printed(TYPED * 3, wide=wide)
    assert shown != TYPED * 3 == forms.typed(shown) == forms.typed(TYPED * 3)
    assert forms.plain(shown.upper()) == (TYPED * 3).lower()
  assert forms.typed(f"a{HYPHENS}b{SPACES}c") == f"a{'-' * 9}b{' ' * 5}c"
  assert forms.typed("co\u00adop\u200b no… ½ ² 東京。ʻ") == "coop no... ½ ² 東京。ʻ"  # the last ones are other signs
