"""Text that JSON may have brought and UTF-8 cannot hold."""


def well_formed(text: str) -> str:
  """The text with halves of surrogate pairs joined, and lone ones (JSON may hold them) as U+FFFD."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
  return text
