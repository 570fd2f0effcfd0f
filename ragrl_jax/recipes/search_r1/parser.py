"""Model text → action. Written against `prompt.py`; sees the model's words only."""

import dataclasses

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages
from ragrl_jax.structs import Passage

STOPS = ("</search>", "</answer>")
_ACTIONS = ("search", "answer")


@dataclasses.dataclass(frozen=True)
class Parser:
  """
  Attributes:
    action: which complete pair of a turn is its action: the "last" one (a query or answer then holds no tag of its own
      name), or the "first" match of `<(search|answer)>(.*?)</\\1>`, as the authors' code has it.
  """

  action: str = "last"

  def act(self, text: str) -> tuple[str, str] | None:
    """("search", query) or ("answer", answer), stripped; None where the turn takes no valid action.

    What the model writes between <information> tags is no search result and takes no action either.
    """
    said = tags.without(text, "information")
    found = tags.last(said, _ACTIONS) if self.action == "last" else tags.first_match(said, _ACTIONS)
    return None if found is None else (found.name, found.body.strip())

  def search(self, text: str) -> str | None:
    """The query, if the turn's action is to search."""
    action = self.act(text)
    return action[1] if action is not None and action[0] == "search" else None

  def answer(self, text: str) -> str | None:
    """The last complete answer of the text, or None. "" is an answer."""
    found = tags.last(tags.without(text, "information"), "answer")
    return None if found is None else found.body.strip()

  def stop(self, text: str) -> str:
    """The stop string a turn ends on, or "eos"."""
    return next((stop for stop in STOPS if text.rstrip().endswith(stop)), "eos")

  def observed(self, said: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(query, passages) of a result block; (None, None) for a notice.

    A block in another style than ours, as transcripts from elsewhere may have, is one passage without a title.
    """
    found, body = passages.parse_block(text), text.strip()
    if found is None and body.startswith(passages.OPEN) and body.endswith(passages.CLOSE):
      found = (Passage("1", "", body[len(passages.OPEN):-len(passages.CLOSE)].strip()),)
    return (None, None) if found is None else (self.search(said), found)
