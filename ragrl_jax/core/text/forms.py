"""Unicode: texts that look the same get one form before they are compared."""

import re
import unicodedata

_PRESENTED = re.compile("[\ufb00-\uffef]")  # ligatures, glyphs of Arabic, full-width and half-width signs
# Letters of other alphabets that look like a Latin one, in lower case, and these Latin letters.
_ALIKE = str.maketrans("аԁеһіјӏорԛѕсуѵԝхɡοανρıօ", "adehijlopqscyvwxgoavpio")
# What a keyboard types for quotation marks, hyphens, dashes and the minus, spaces and dots. The rest is not seen.
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_TYPED = str.maketrans(
  "‘’‚‛ʼ“”„‟\u2010\u2011\u2012\u2013\u2014\u2015\u2212" + _SPACES,
  "'''''\"\"\"\"-------" + " " * len(_SPACES),
  "\u00ad\u200b\u2060\ufeff",
) | {ord("…"): "..."}


def composed(text: str) -> str:
  """The text in Unicode's form NFC, with each presentation form (U+FB00 to U+FFEF) as the plain signs that it shows.

  "e" and a combining acute become "é", the ligature "ﬁ" two letters, the full-width "Ａ１" the usual "A1". Other signs
  stay, so "½" and "1/2", or "²" and "2", still differ. ASCII text does not change.
  """
  if text.isascii():
    return text
  if _PRESENTED.search(text):
    text = _PRESENTED.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
  return unicodedata.normalize("NFC", text)


def typed(text: str) -> str:
  """`composed`, with quotation marks, hyphens, dashes, minus signs and spaces as a keyboard types them.

  For copies of a text: "O’Brien – 1879" is "O'Brien - 1879". Soft hyphens and signs without width are left out.
  """
  return text if text.isascii() else composed(text).translate(_TYPED)


def plain(text: str) -> str:
  """A stricter form, for texts that must not pass as different: `typed`, NFKC, no case, look-alikes as Latin."""
  return typed(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())).translate(_ALIKE)


def safe(text: str) -> str:
  """The text with control characters as escapes, so that it cannot move a terminal's cursor or change its title."""
  return "".join(letter if _is_plain(letter) else letter.encode("unicode_escape").decode() for letter in text)


def _is_plain(letter: str) -> bool:
  """Whether a terminal only shows it: what Python prints, and other scripts' spaces and joiners of letters."""
  return letter.isprintable() or letter in "\u200c\u200d" or unicodedata.category(letter) == "Zs"


def well_formed(text: str) -> str:
  """The text with surrogate pairs joined to one character, and lone surrogates replaced by U+FFFD."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
  return text


def without_last(runs: re.Pattern[str], text: str) -> str:
  r"""The text without the run of the pattern that ends it. With \Z in the pattern, many runs take quadratic time."""
  return runs.sub(lambda run: "" if run.end() == len(text) else run[0], text)
