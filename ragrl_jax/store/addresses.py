"""Removes credentials from addresses, for logs, saved settings and error messages."""

import re
from typing import Any

_ADDRESS = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*://(?:(?!,[A-Za-z][A-Za-z0-9+.-]*://)[^\s"'<>])+""")
_CREDENTIALS = re.compile(r"(?<=://)[^/?#]*@")
# A parameter of the query or the fragment whose name says that its value is secret.
_SECRET = re.compile(
  r"(?<=[?&;#])[^=&;#]*(?:key|token|secret|passw|pwd|sig|auth|cred|(?<!en)code|session|jwt|bearer)[^=&;#]*=[^&;#]*(?:[&;]|(?=#)|$)",
  re.IGNORECASE,
)


def without_credentials(text: str) -> str:
  """The text without the secrets of its addresses: "http://me:s3cret@host/v1?api_key=s3cret" → "http://host/v1".

  Parameters of other names stay, and so does an "@" in the path, as in "http://host/a@b".
  """
  return _ADDRESS.sub(lambda match: _strip(match[0]), text)


def everywhere(value: Any) -> Any:
  """The JSON value with `without_credentials` applied to all texts in it."""
  if isinstance(value, dict):
    return {name: everywhere(item) for name, item in value.items()}
  if isinstance(value, list | tuple):
    return [everywhere(item) for item in value]
  return without_credentials(value) if isinstance(value, str) else value


def _strip(address: str) -> str:
  address = _CREDENTIALS.sub("", address)
  bare = _SECRET.sub("", address)
  return address if bare == address else re.sub(r"[?&;#]+(?=#|$)", "", bare)
