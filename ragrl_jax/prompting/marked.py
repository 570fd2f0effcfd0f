"""Conversations as token ids for servers that take chat messages: a special id marks where each message begins."""

from collections.abc import Mapping, Sequence

from ragrl_jax.prompting.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant")


class MarkedTokenizer(Tokenizer):
  """A tokenizer whose chats can be decoded to messages. Three further ids without bytes mark messages by role.

  See `prompting.tokenizer.Tokenizer`. The base tokenizer only counts and cuts tokens; the server uses its own.

  Args:
    base: tokenizer of the messages' texts.
  """

  def __init__(self, base: Tokenizer):
    self._base, self.pad_id, self.eos_ids, self.bos = base, base.pad_id, base.eos_ids, ()  # the server writes its own
    self._marks = {role: base.vocab_size + number for number, role in enumerate(ROLES)}
    self._roles = {mark: role for role, mark in self._marks.items()}
    self.vocab_size = base.vocab_size + len(ROLES)
    self.control_names = {**base.control_names, **{mark: f"<{role}>" for mark, role in self._roles.items()}}

  def encode(self, text: str) -> list[int]:
    return self._base.encode(text)

  def token_bytes(self, token: int) -> bytes:
    return b"" if token in self._roles else self._base.token_bytes(token)

  def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Ids of chat messages, each after its mark, and the mark of the assistant's next turn.

    Raises:
      ValueError: a role is not in ROLES.
    """
    ids: list[int] = []
    for message in messages:
      if message["role"] not in self._marks:
        raise ValueError(f"a message has the role {message['role']!r}: it must be one of {', '.join(ROLES)}.")
      ids += [self._marks[message["role"]], *self.encode(message["content"])]
    return [*ids, self._marks["assistant"]]

  def answered(self, text: str) -> list[int]:
    """Ids of a user's message after the assistant's turn, and the mark of the assistant's next turn."""
    return [self._marks["user"], *self.encode(text), self._marks["assistant"]]

  def messages(self, ids: Sequence[int]) -> list[dict[str, str]]:
    """The chat messages of the ids. The last one is the assistant's open turn, whose text may be "".

    Raises:
      ValueError: the ids do not begin with a mark.
    """
    places = [place for place, token in enumerate(ids) if token in self._roles]
    if not places or places[0]:
      raise ValueError("these ids are not a chat: the first must be a role's mark. Start a conversation from messages.")
    return [
      dict(role=self._roles[ids[start]], content=self._base.decode(ids[start + 1 : end]))
      for start, end in zip(places, [*places[1:], len(ids)])
    ]
