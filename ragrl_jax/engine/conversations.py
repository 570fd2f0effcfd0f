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
  """The engine's record of one conversation.

  Attributes:
    number: the caller's number for it.
    ids: every token so far. All but the last must be in the cache before the next one can be sampled.
    key: two int32 that determine its random numbers.
    episode: number of its episode's first conversation.
    replica: the replica that computes it.
    urgent: other conversations may wait for it (it has siblings, or it was swapped out), so it may swap others out.
    group: the samples that share its prompt; None after it has left them.
    arrival: its rank in the order of first entering the cache. Older conversations are never swapped out for younger
      ones during a turn.
    cached: number of tokens in the cache, or in `swapped`.
    pages: the pages of these tokens, in order, and the page of the next token.
    swapped: the keys and values of each page, while it is swapped out.
    turn: the present turn.
    drawn: log-probabilities of the turn's tokens so far, which are the last of `ids`.
    routes: the experts of these tokens, as in `messages.TurnEnded`.
    automaton: state of the stop automaton after these tokens.
    lane: its lane, or NO_LANE.
    closed: no further turn follows.
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
  routes: bytes = b""
  automaton: int = 0
  lane: int = NO_LANE
  closed: bool = False

  @property
  def missing(self) -> int:
    """Number of tokens to prefill before the next one can be sampled."""
    # ids a b c d, cached a b: c is missing. d enters the cache in the step that samples its successor.
    return len(self.ids) - 1 - self.cached

  @property
  def budget(self) -> int:
    """Number of tokens that the present turn may still sample."""
    assert self.turn is not None
    return self.turn.budget - len(self.drawn)
