"""Removes credentials from addresses, for logs, saved settings and error messages."""

import re

_CREDENTIALS = re.compile(r"""(?<=://)[^/?#\s"'<>]*@""")


def without_credentials(text: str) -> str:
  """The text without "USER:SECRET@" in any address: "http://me:s3cret@host/v1" → "http://host/v1".

  An "@" in the path, as in "http://host/a@b", stays.
  """
  return _CREDENTIALS.sub("", text)
