"""Repairs text with surrogates, which JSON may contain and UTF-8 cannot encode."""


def well_formed(text: str) -> str:
  """The text with surrogate pairs joined to one character, and lone surrogates replaced by U+FFFD."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
  return text
