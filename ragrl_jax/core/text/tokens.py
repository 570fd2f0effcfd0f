"""Splits text of any script into tokens and words, and searches for answers in passages by DPR's rule."""

import functools
import re
import unicodedata
from collections.abc import Iterable

# Blocks as parts of a pattern's brackets. Korean has spaces, but none before its particles.
CJK = (
  r"\u1100-\u11ff\u2e80-\u2fd5\u3005-\u3007\u3041-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff"
  r"\uf900-\ufaff\U0001b000-\U0001b167\U00020000-\U000323af"
)
# Scripts without spaces between words: these, Thai, Lao, Myanmar, Khmer and Tai.
UNSPACED = CJK + r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf"

_ASCII_TOKEN = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")
_ASCII_WORD = re.compile(r"\w+", re.ASCII)


@functools.cache
def members(*kinds: str) -> str:
  """All characters whose general category begins with one of these letters, as a part of a pattern's brackets."""
  parts: list[list[int]] = []
  for code in (*range(0x20000), *range(0xE0100, 0xE01F0)):  # no mark and no sign is elsewhere
    if unicodedata.category(chr(code)).startswith(kinds):
      if parts and parts[-1][1] == code - 1:
        parts[-1][1] = code
      else:
        parts.append([code, code])
  return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in parts)


@functools.cache
def pattern(text: str) -> re.Pattern:
  """A pattern in which MARKS, SIGNS, CJK and UNSPACED stand for parts of brackets."""
  classes = dict(MARKS=members("M"), SIGNS=members("P", "S"), UNSPACED=UNSPACED, CJK=CJK)
  return re.compile(re.sub("|".join(classes), lambda match: classes[match[0]], text))


def joined(text: str, *, cased: bool = False) -> str:
  """DPR's tokens of a text, with one space between them.

  A token is a run of letters, digits and marks, or another single sign that is no space. The tokens are those of
  Unicode's form NFD, in lower case unless `cased`: "A singer/songwriter" is "a singer / songwriter".

  Source: SimpleTokenizer of DPR's evaluation (arXiv 2004.04906).
  """
  if text.isascii():
    matches = _ASCII_TOKEN.findall(text)
  else:  # \w includes the underscore, which is a sign
    matches = pattern(r"[\wMARKS]+|[SIGNS]").findall(unicodedata.normalize("NFD", text).replace("_", " _ "))
  return " ".join(matches) if cased else " ".join(matches).lower()


def holds(text: str, phrases: Iterable[str]) -> bool:
  """Whether a text contains one of the phrases as whole tokens, all of them from `joined`. "" is in no text."""
  padded = f" {text} "
  return any(f" {phrase} " in padded for phrase in phrases if phrase)


def words(text: str) -> list[str]:
  """The words of a text: runs of letters, digits, marks and underscores. In scripts without spaces each sign is one."""
  if text.isascii():
    return _ASCII_WORD.findall(text)
  return pattern(r"(?=\w)[UNSPACED][MARKS]*|[^\WUNSPACED]+(?:[MARKS]+[^\WUNSPACED]*)*").findall(text)


def spaced(text: str) -> str:
  """The text with single spaces, also around each sign of the scripts without spaces, where each is a word."""
  if not text.isascii():
    text = pattern("[UNSPACED][MARKS]*").sub(r" \g<0> ", text)
  return " ".join(text.split())


def cuts(text: str, place: int) -> bool:
  """Whether a word of the text continues from the sign before this place to the sign at it."""
  around = text[max(place - 1, 0) : place + 1]
  return (
    len(around) == 2 and pattern(r"[\wMARKS][MARKS]|(?![UNSPACED])[\wMARKS](?![UNSPACED])\w").match(around) is not None
  )
