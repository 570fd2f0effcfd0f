"""Text as it is printed, not typed: curly quotes, dashes, spaces that do not break, full-width letters and digits."""

import itertools

HYPHENS = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d"
SPACES = "\u00a0\u202f\u2009\u3000 "


def printed(text, *, wide=True):
  """The text with other signs that look like its own. wide: every second word from four letters on is full-width."""
  signs = {" ": SPACES, "-": HYPHENS, "'": "’\u02bc\uff07‘", '"': "“”„‟"}
  cycles = {sign: itertools.cycle(others) for sign, others in signs.items()}
  made = []
  for number, word in enumerate(text.split(" ")):
    full = 0xFEE0 if wide and number % 2 and len(word) > 3 else 0
    shown = (chr(ord(sign) + full * (sign.isascii() and sign.isalnum())) for sign in word)
    made.append("".join(next(cycles[sign]) if sign in cycles else sign for sign in shown))
  return "".join(word + next(cycles[" "]) for word in made[:-1]) + made[-1]
