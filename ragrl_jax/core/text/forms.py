"""Unicode: texts that look the same get one form before they are compared."""

import re
import unicodedata

_PRESENTED = re.compile("[\ufb00-\uffef]")  # ligatures, glyphs of Arabic, full-width and half-width signs
# Letters of other alphabets that look like a Latin one, in lower case, and these Latin letters.
_ALIKE = str.maketrans("аԁеһіјӏорԛѕсуѵԝхɡοανρıօ", "adehijlopqscyvwxgoavpio")


def composed(text: str) -> str:
  """The text in Unicode's form NFC, with each presentation form (U+FB00 to U+FFEF) as the plain signs that it shows.

  "e" and a combining acute become "é", the ligature "ﬁ" two letters, the full-width "Ａ１" the usual "A1". Other signs
  stay, so "½" and "1/2", or "²" and "2", still differ. ASCII text does not change.
  """
  if text.isascii():
    return text
  if _PRESENTED.search(text):
    text = _PRESENTED.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
  return unicodedata.normalize("NFC", text)


def plain(text: str) -> str:
  """A stricter form, for texts that must not pass as different: NFKC, without case, look-alikes as Latin letters."""
  return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).translate(_ALIKE)
