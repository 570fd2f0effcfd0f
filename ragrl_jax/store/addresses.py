"""Removes credentials from addresses, for logs, saved settings and error messages."""

import re
import urllib.parse
from typing import Any

_ADDRESS = re.compile(r"""(?<![\w+.-])[\w+.-]++://(?:(?!,[A-Za-z][\w+.-]*+://)[^\s"'<>])+""")
_CREDENTIALS = re.compile(r"(?<=://)[^/?#]*@")
_NAME = re.compile(r"(?<=[?&;#])[^=&;#]*(?==)")  # of a parameter of the query or the fragment
_CAPITALS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # "AWSAccessKeyId" → AWS, Access, Key, Id

# What a parameter's name says if its value is secret: one of PARTS anywhere in a word, as in "accesstoken". Ordinary
# words that have such a part by chance are taken out before; a word that nobody thought of is taken for a secret.
_PARTS = r"auth key token session secret passw passphrase pwd cred code sigs?\b \bsig signature jwt bearer".split()
_PARTS += [
  r"\b(?:access|activation|api|app|client|confirmation|device|function|invite|login|master|otp|pass|pin|request|reset|"
  r"secret|security|share|url|user|verification)sign\b"
]
_ORDINARY = re.compile(
  r"\b(?:co)?author(?!i[sz])|key(?:board|frame|note|phrase|space|word)|\b(?:don|hoc|mon|tur)key|tokeni[sz]|"
  r"\b(?:max|min|num) ?(?:new ?)?tokens\b|\b(?:ob|pos)session|\bsecretar|\bsacred|cred(?:ib|it)|"
  r"\b(?:post|zip|bar|country|area|lang|uni|en|de)code|\bcodecs?\b|\bsign(?:al|if|up)|\bsigmas?\b"
)
_SECRET = re.compile("|".join(_PARTS))


def without_credentials(text: str) -> str:
  """The text without the secrets of its addresses: "http://me:s3cret@host/v1?api_key=s3cret" → "http://host/v1".

  A parameter is secret if a word of its name says so, as in api_key, apiKey and apikey. Others stay, such as author, as
  does an "@" in the path, as in "http://host/a@b".
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
  names = "|".join(re.escape(name) for name in dict.fromkeys(_NAME.findall(address)) if _is_secret(name))
  if not names:
    return address
  bare = re.sub(rf"(?<=[?&;#])(?:{names})=[^&;#]*(?:[&;]|(?=#)|$)", "", address)
  return re.sub(r"[?&;#]+(?=#|$)", "", bare)


def _is_secret(name: str) -> bool:
  name = urllib.parse.unquote(name)
  words = [*_CAPITALS.findall(name), *re.findall("[A-Za-z]+", name)]  # the second for "PassWord"
  return bool(_SECRET.search(_ORDINARY.sub("", " ".join(words).lower())))
