"""The engine's own record of a conversation. Only the engine's thread reads or writes it.

    open() ──► idle, no row ── submit() ──► waiting for a row
                    ▲                             │ a row is free, or another conversation is swapped out
                    │ swapped out                 ▼
               idle, with a row ─ submit() ─► prefilling ── all but the newest token cached ──► ready
                    ▲                                                                             │ a lane is free
                    │                                                                             ▼
                    └──────────────── stop string, EOS or budget ◄──────────────────────────── decoding

No field stores the state: `turn` says whether a turn is under way, and the engine's queues and lanes say how far it is.
`submit()` goes straight to ready if nothing is to be prefilled. `close()` frees an idle conversation at once, any other
one when its turn has ended. A closed parent keeps its row until its forks have copied from it.
"""

import dataclasses

from ragrl_jax.engine.messages import Group, Turn
from ragrl_jax.models.cache import Cache

NO_ROW = -1


@dataclasses.dataclass(eq=False)
class ConversationState:
  """What the engine knows of one conversation.

  Attributes:
    number: the caller's number for it.
    ids: every token so far. All but the last must be in the cache before the next one can be drawn.
    key: two int32: its random numbers are drawn with them.
    episode: number of its episode's first conversation.
    has_siblings: its episode has opened other conversations, which may be waiting for this one.
    group: the samples that share its prompt, until it has left them.
    parent: the conversation whose first `shared` tokens it has yet to copy.
    pending_forks: forks that have yet to copy from it.
    cached: tokens in the cache.
    row: its cache row, or NO_ROW.
    host_copy: its row's keys and values, while it is swapped out.
    turn: the turn under way.
    drawn: log-probabilities of the turn's tokens so far; those tokens are the last of `ids`.
    closed: no turn follows the one under way.
  """

  number: int
  ids: list[int]
  key: tuple[int, int]
  episode: int
  has_siblings: bool = False
  group: Group | None = None
  parent: "ConversationState | None" = None
  shared: int = 0
  pending_forks: int = 0
  cached: int = 0
  row: int = NO_ROW
  host_copy: Cache | None = None
  turn: Turn | None = None
  drawn: list[float] = dataclasses.field(default_factory=list)
  closed: bool = False

  @property
  def missing(self) -> int:
    """Tokens to be prefilled before the next one can be drawn."""
    # ids a b c d, cached a b: c is missing, and d enters the cache in the step that draws its successor.
    return len(self.ids) - 1 - self.cached
