"""The holders of each page of a replica's cache, and the prompts whose pages samples share. On the host only."""

from collections.abc import Iterable

from ragrl_jax.engine.messages import ConversationState, Group

PROMPT = -1  # the number of a prompt's own record, which no caller uses


class Pages:
  """Counts the holders of every page. A page without holders is free."""

  def __init__(self, number: int):
    self._holders = [0] * number
    self._free = list(range(number))[::-1]

  @property
  def free(self) -> int:
    """Number of pages without holders."""
    return len(self._free)

  def take(self) -> int:
    """A free page, which now has one holder. Raises ValueError if there is none."""
    if not self._free:
      raise ValueError(f"all {len(self._holders)} pages are held: release some first.")
    page = self._free.pop()
    self._holders[page] = 1
    return page

  def share(self, pages: Iterable[int]) -> list[int]:
    """Adds a holder to each of these pages, and returns them. Raises ValueError if one of them is free."""
    shared = list(pages)
    self._check(shared)
    for page in shared:
      self._holders[page] += 1
    return shared

  def release(self, pages: Iterable[int]) -> None:
    """Removes a holder from each of these pages. Raises ValueError if one of them is free."""
    released = list(pages)
    self._check(released)
    for page in released:
      self._holders[page] -= 1
      if not self._holders[page]:
        self._free.append(page)

  def shared(self, page: int) -> bool:
    """Whether the page has several holders. It must not be written to then."""
    return self._holders[page] > 1

  def _check(self, pages: list[int]) -> None:
    if free := [page for page in pages if not self._holders[page]]:
      raise ValueError(f"pages {free} are free: nobody can share or release them.")


class Prompts:
  """The prompts of groups. Each is computed once, and its samples share its pages.

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

  def find(self, conversation: ConversationState, *, full: bool = False) -> ConversationState | None:
    """The prompt that the conversation shares, a new one unless it is `full`; None if it computes its prompt itself."""
    group = conversation.group
    if group is None or not conversation.missing:
      return None
    key = group, tuple(conversation.ids)
    # The last sample of a group has nothing to share its prompt with.
    if key not in self._prompts and self._left.get(group, group.size) > 1 and not full:
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
