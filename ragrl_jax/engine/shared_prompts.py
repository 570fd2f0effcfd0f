"""The prompts of groups. Each is computed once, and its samples share its pages. Bookkeeping on the host only."""

from ragrl_jax.engine.conversations import ConversationState
from ragrl_jax.engine.messages import Group

PROMPT = -1  # the number of a prompt's own record, which no caller uses


class Prompts:
  """The prompts that further samples may share.

  Attributes:
    fills: prompts that are not computed yet.
  """

  def __init__(self):
    # Samples of one group may begin with different ids (a play may edit its prompt), so the ids are part of the key.
    self._prompts: dict[tuple[Group, tuple[int, ...]], ConversationState] = {}
    self._left: dict[Group, int] = {}  # number of samples that have not left their group; without an entry, all
    self.fills: list[ConversationState] = []

  def __len__(self) -> int:
    return len(self._prompts)

  def has(self, conversation: ConversationState) -> bool:
    """Whether the conversation would share an existing prompt."""
    return conversation.group is not None and (conversation.group, tuple(conversation.ids)) in self._prompts

  def find(self, conversation: ConversationState) -> ConversationState | None:
    """The prompt that the conversation shares, perhaps a new one; None if it computes its prompt itself."""
    group = conversation.group
    if group is None or not conversation.missing:
      return None
    key = group, tuple(conversation.ids)
    # The last sample of a group has nothing to share its prompt with.
    if key not in self._prompts and self._left.get(group, group.size) > 1:
      self._prompts[key] = ConversationState(PROMPT, list(conversation.ids), conversation.key, episode=PROMPT)
      self.fills.append(self._prompts[key])
    return self._prompts.get(key)

  def leave(self, group: Group) -> list[ConversationState]:
    """One sample leaves the group. Returns the prompts that no further sample will share."""
    left = self._left.pop(group, group.size) - 1
    if left > 0:
      self._left[group] = left
      return []
    return [self._prompts.pop(key) for key in [key for key in self._prompts if key[0] == group]]

  def drop(self) -> ConversationState | None:
    """Gives up the oldest computed prompt to free pages; the next sample computes it again. None if there is none."""
    for key, prompt in self._prompts.items():
      if prompt not in self.fills:
        return self._prompts.pop(key)
    return None
