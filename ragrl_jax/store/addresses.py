"""Addresses without the credentials that may stand in them: what logs, saved settings and error messages show."""

import re

_CREDENTIALS = re.compile(r"""(?<=://)[^/?#\s"'<>]*@""")


def without_credentials(text: str) -> str:
  """The text with "USER:SECRET@" taken out of every address in it: "http://me:s3cret@host/v1" → "http://host/v1".

  An address's own "@", as in "http://host/a@b", stays.
  """
  return _CREDENTIALS.sub("", text)
