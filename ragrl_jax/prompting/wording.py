"""Wordings: the texts of prompts, with placeholders. This library's are chosen by name, a user's own by file.

This library's prompts paraphrase the published ones. For a checkpoint that was trained on the authors' prompt, put that
prompt into a file, and set for example `config.switches.instructions=file:PATH`.

A file is UTF-8 text. `{question}` stands for the question; each setting has its own placeholders. Other braces stay as
they are, and `{{question}}` stands for the text `{question}`. A file whose first line is `[system]`, `[user]` or
`[assistant]` has several messages, each under a line with its role. Any other file is one user message. The last
newline of a message is not part of its text: to end a text with a newline, add an empty line.
"""

import dataclasses
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
    """The text of the only message, with a value for each placeholder."""
    ((_, text),) = self.parts
    return _filled(text, values)

  @property
  def places(self) -> frozenset[str]:
    """The names of the placeholders."""
    return frozenset(match[2] for _, text in self.parts for match in _PLACE.finditer(text) if match[2])


def resolve(
  choice: str,
  wordings: Mapping[str, str],
  *,
  setting: str,
  needs: Iterable[str] = (),
  may: Iterable[str] = (),
  roles: bool = True,
) -> Wording:
  """The wording that a setting names.

  Args:
    choice: a key of `wordings`, or "file:PATH". The file is read at each call, not when the wording is used.
    wordings: this library's wordings by name.
    setting: its path, such as "config.switches.instructions", for messages.
    needs: placeholders that a file must have. This library's wordings may lack them.
    may: further placeholders that a file may have.
    roles: whether a file may have several messages; if not, the whole file is one text.

  Raises:
    ValueError: `choice` is neither a known name nor a readable file; or a placeholder is missing or unknown.
  """
  if not is_file(choice):
    if choice not in wordings:
      raise ValueError(f"{setting}={choice!r}: it must be {', '.join(map(repr, wordings))} or 'file:PATH'.")
    return Wording((("user", wordings[choice]),))
  needs, label = tuple(needs), f"{setting}={choice}"
  text = _read(choice, label)
  result = _parted(text, label) if roles else Wording((("user", text),))
  allowed = dict.fromkeys((*needs, *may))
  options = ", ".join(f"{{{name}}}" for name in allowed) or "none"
  if unknown := sorted(result.places - allowed.keys()):
    raise ValueError(
      f"{label}: {{{unknown[0]}}} is not a placeholder here; there is {options}. Write {{{{{unknown[0]}}}}} for this "
      "text itself."
    )
  if lacking := [name for name in needs if name not in result.places]:
    raise ValueError(f"{label}: the placeholder {{{lacking[0]}}} is missing in the file.")
  return result


def is_file(choice: str) -> bool:
  """Whether a setting names a file."""
  return choice.startswith(FILE)


def path_of(choice: str) -> pathlib.Path:
  """The path in "file:PATH"."""
  return pathlib.Path(choice.removeprefix(FILE)).expanduser()


def _read(choice: str, label: str) -> str:
  path = path_of(choice)
  try:
    text = path.read_text(encoding="utf-8-sig")
  except UnicodeDecodeError as error:
    raise ValueError(f"{label}: the file must be UTF-8 text ({error.reason} at byte {error.start}).") from None
  except OSError as error:
    raise ValueError(f"{label}: the file cannot be read ({error.strerror}).") from None
  if not text.strip():
    raise ValueError(f"{label}: the file is empty.")
  return text.removesuffix("\n")


def _parted(text: str, label: str) -> Wording:
  if not _ROLE.match(text):
    return Wording((("user", text),))
  _, *fields = _ROLE.split(text)
  *before, last = zip(fields[::2], fields[1::2])
  parts = (*((role, body.removesuffix("\n")) for role, body in before), last)
  if empty := [role for role, body in parts if not body.strip()]:
    raise ValueError(f"{label}: the message under [{empty[0]}] is empty.")
  return Wording(parts)


def _filled(text: str, values: Mapping[str, str]) -> str:
  # One pass, and not str.format: braces in a value are text and never placeholders.
  return _PLACE.sub(lambda match: f"{{{match[1]}}}" if match[1] else values[match[2]], text)
