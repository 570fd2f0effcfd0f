"""The engine's own record of a conversation. Only the engine's thread reads or writes it.

    open() ──► idle, no pages ── submit() ──► waiting ◄────────────────────────────────┐
                    ▲                            │ there is room                       │
                    │ swapped out                ▼                                     │ swapped out for an
                idle, with pages ─ submit() ─► prefilling ── all but the newest ──► ready   older conversation
                    ▲                                          token cached           │ a lane is free
                    │                                                                 ▼
                    └──────────────── stop string, EOS or budget ◄───────────────  decoding

No field stores the state: `turn` says whether a turn is under way, and the replica's queues and lanes say how far it
is. `submit()` goes straight to ready if nothing is to be prefilled. `close()` releases the pages of an idle
conversation at once, those of any other one when its turn has ended.
"""

import dataclasses

import numpy as np

from ragrl_jax.engine.messages import Group, Turn

NO_LANE = -1


@dataclasses.dataclass(eq=False)
class ConversationState:
  """What the engine knows of one conversation.

  Attributes:
    number: the caller's number for it.
    ids: every token so far. All but the last must be in the cache before the next one can be drawn.
    key: two int32: its random numbers are drawn with them.
    episode: number of its episode's first conversation.
    replica: where it is computed.
    urgent: others may be waiting for it (it has siblings, or it was swapped out): it may swap others out.
    group: the samples that share its prompt, until it has left them.
    arrival: when it first came into the cache, as a number that rises; older conversations are never swapped out for
      younger ones while they have a turn.
    cached: tokens in the cache, or in `swapped`.
    pages: the pages that hold them, in order, and the page that the next one goes to.
    swapped: the keys and values of each page, while it is swapped out.
    turn: the turn under way.
    drawn: log-probabilities of the turn's tokens so far; those tokens are the last of `ids`.
    automaton: state of the stop automaton after them.
    lane: its lane, or NO_LANE.
    closed: no turn follows the one under way.
  """

  number: int
  ids: list[int]
  key: tuple[int, int]
  episode: int
  replica: int = 0
  urgent: bool = False
  group: Group | None = None
  arrival: int = 0
  cached: int = 0
  pages: list[int] = dataclasses.field(default_factory=list)
  swapped: tuple[np.ndarray, ...] = ()
  turn: Turn | None = None
  drawn: list[float] = dataclasses.field(default_factory=list)
  automaton: int = 0
  lane: int = NO_LANE
  closed: bool = False

  @property
  def missing(self) -> int:
    """Tokens to be prefilled before the next one can be drawn."""
    # ids a b c d, cached a b: c is missing, and d enters the cache in the step that draws its successor.
    return len(self.ids) - 1 - self.cached

  @property
  def budget(self) -> int:
    """Tokens that the turn under way may still draw."""
    assert self.turn is not None
    return self.turn.budget - len(self.drawn)
