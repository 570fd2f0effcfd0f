"""The holders of each page of a replica's cache. Bookkeeping on the host only."""

from collections.abc import Iterable


class Pages:
  """Counts the holders of every page. A page without holders is free.

  Args:
    number: number of pages in the cache.
  """

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
