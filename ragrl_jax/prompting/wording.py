"""Wordings: texts with placeholders, this library's by name or a user's by file. Every prompt is one of them.

Published prompts are their authors' sentences, and ours are paraphrases. A checkpoint that was trained on the authors'
is asked in them by a file of the user's own: `config.switches.instructions=file:PATH`.

A file is UTF-8 text. `{question}` stands for the question; which placeholders there are, the setting says. Other braces
stay as they are, and `{{question}}` stands for `{question}`. A file whose first line is `[system]`, `[user]` or
`[assistant]` holds a message of that role under each such line; any other file is one user message. The newline that
ends the file, or the line before the next role, is not part of the text: for one, leave an empty line.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterable, Mapping

from ragrl_jax.settings.fields import FILE

_PLACE = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")
_ROLE = re.compile(r"^\[(system|user|assistant)\]$\n?", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Wording:
  """Chat messages, or one text, with placeholders.

  Attributes:
    parts: (role, text) of each message.
  """

  parts: tuple[tuple[str, str], ...]

  def messages(self, **values: str) -> list[dict[str, str]]:
    """The chat messages, with a value for each placeholder. Braces in a value are text."""
    return [dict(role=role, content=_filled(text, values)) for role, text in self.parts]

  def text(self, **values: str) -> str:
    """The text of the only message, filled in likewise."""
    ((_, text),) = self.parts
    return _filled(text, values)

  @property
  def places(self) -> frozenset[str]:
    """The names of its placeholders."""
    return frozenset(found[2] for _, text in self.parts for found in _PLACE.finditer(text) if found[2])


def chosen(
  choice: str,
  known: Mapping[str, str],
  *,
  setting: str,
  needs: Iterable[str] = (),
  may: Iterable[str] = (),
  roles: bool = True,
) -> Wording:
  """The wording that a setting names.

  Args:
    choice: a key of `known`, or "file:PATH". The file is read at each call, not when the wording is used.
    known: this library's wordings by name.
    setting: its path, such as "config.switches.instructions", for messages.
    needs: placeholders that a file must have. Ours may lack them: a bare question needs no passages.
    may: placeholders that it may have besides.
    roles: whether a file may hold several messages; without, its text is taken as it is.

  Raises:
    ValueError: neither a known name nor a file that can be read; a placeholder that is missing or unknown.
  """
  if not is_file(choice):
    if choice not in known:
      raise ValueError(f"{setting}={choice!r}: it must be {', '.join(map(repr, known))} or 'file:PATH'.")
    return Wording((("user", known[choice]),))
  needs, says = tuple(needs), f"{setting}={choice}"
  text = _read(choice, says)
  found = _parted(text, says) if roles else Wording((("user", text),))
  allowed = dict.fromkeys((*needs, *may))
  listed = ", ".join(f"{{{name}}}" for name in allowed) or "none"
  if unknown := sorted(found.places - allowed.keys()):
    raise ValueError(
      f"{says}: {{{unknown[0]}}} is no placeholder here; there is {listed}. Write {{{{{unknown[0]}}}}} for these "
      "letters themselves."
    )
  if missing := [name for name in needs if name not in found.places]:
    raise ValueError(f"{says}: the placeholder {{{missing[0]}}} is missing in it.")
  return found


def is_file(choice: str) -> bool:
  """Whether a setting names a file."""
  return choice.startswith(FILE)


def _read(choice: str, says: str) -> str:
  path = pathlib.Path(choice.removeprefix(FILE)).expanduser()
  try:
    text = path.read_text(encoding="utf-8-sig")
  except UnicodeDecodeError as error:
    raise ValueError(f"{says}: the file must be UTF-8 text ({error.reason} at byte {error.start}).") from None
  except OSError as error:
    raise ValueError(f"{says}: the file cannot be read ({error.strerror}).") from None
  if not text.strip():
    raise ValueError(f"{says}: the file is empty.")
  return text.removesuffix("\n")


def _parted(text: str, says: str) -> Wording:
  if not _ROLE.match(text):
    return Wording((("user", text),))
  _, *found = _ROLE.split(text)
  *before, last = zip(found[::2], found[1::2])
  parts = (*((role, said.removesuffix("\n")) for role, said in before), last)
  if empty := [role for role, said in parts if not said.strip()]:
    raise ValueError(f"{says}: the message under [{empty[0]}] is empty.")
  return Wording(parts)


def _filled(text: str, values: Mapping[str, str]) -> str:
  # One pass, and not str.format: a value may hold braces, and what it holds is never filled in.
  return _PLACE.sub(functools.partial(_place, values), text)


def _place(values: Mapping[str, str], found: re.Match[str]) -> str:
  return "{" + found[1] + "}" if found[1] else values[found[2]]
