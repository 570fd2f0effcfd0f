"""The messages between the engine and its callers, and the engine's own record of a conversation.

Every message is frozen, so two threads can hold the same one.

    caller → engine    Engine.open(Open), submit(Turn), close(conversation), leave(Group)
    engine → caller    TurnEnded, from Engine.step

The caller numbers its conversations. It keeps its own list of a conversation's tokens, and the engine keeps another.
"""

import dataclasses

import numpy as np

NO_LANE = NO_SLOT = -1


@dataclasses.dataclass(frozen=True)
class Group:
  """The samples of one prompt. The engine computes the prompt once for all of them.

  Attributes:
    number: of the prompt; unique among the groups that are played at the same time.
    size: number of samples. Each leaves the group once: when its conversation has the prompt, when that conversation is
      closed, or by `Engine.leave`. The prompt's keys and values are freed when the last sample has left.
  """

  number: int
  size: int


@dataclasses.dataclass(frozen=True)
class Open:
  """Opens a conversation. Nothing is computed before its first turn.

  Attributes:
    conversation: the caller's number for it; unique among the open ones.
    ids: its first tokens, at least one.
    key: two int32. Together with a token's position they determine the random number for that token.
    first: number of the episode's first conversation; None if this is the first. The conversations of an episode may
      wait for each other. So the engine never makes one of them wait for rows that the others hold.
    group: the samples that begin with the same ids; None for a prompt of its own.
    parent: number of the open, idle conversation whose first tokens `ids` repeats. A fork copies them from its cache.
  """

  conversation: int
  ids: tuple[int, ...]
  key: tuple[int, int]
  first: int | None = None
  group: Group | None = None
  parent: int | None = None


@dataclasses.dataclass(frozen=True)
class Turn:
  """Requests one generation of an open, idle conversation.

  Attributes:
    new_ids: tokens that the environment has appended since the last turn.
    budget: the largest number of tokens to sample.
    accept: the stop strings that end the turn, as bits (`Stops.mask`).
    temperature, top_k, top_p: as in `structs.Sampling`.
    resumed: it goes on where the last turn's budget ended, so a stop string may have begun there. `new_ids` is empty.
  """

  conversation: int
  new_ids: tuple[int, ...] = ()
  budget: int = 1
  accept: int = 0
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  resumed: bool = False


@dataclasses.dataclass(frozen=True)
class TurnEnded:
  """The result of a turn.

  Attributes:
    ids, logprobs: the sampled tokens, and the log-probability of each.
    stop: index of the stop in `Stops.names`, or lanes.FULL if the budget is spent.
    routes: the router's choices for these tokens, see `structs.Segment`.
  """

  conversation: int
  ids: tuple[int, ...]
  logprobs: tuple[float, ...]
  stop: int
  routes: bytes = b""


@dataclasses.dataclass(eq=False)
class ConversationState:
  """The engine's record of one conversation. Only the engine's thread reads or writes it.

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

  Attributes:
    ids: every token so far. All but the last must be in the cache before the next one can be sampled.
    key: two int32 that determine its random numbers.
    episode: number of its episode's first conversation.
    urgent: other conversations may wait for it (it has siblings, or it was swapped out), so it may swap others out.
    group: the samples that share its prompt; None after it has left them.
    arrival: its rank in the order of first entering the cache. Older conversations are never swapped out for younger
      ones during a turn.
    cached: number of tokens in the cache, or in `swapped`.
    pages: the pages of these tokens, in order, and the page of the next token.
    prefills: (first, last) token of each prefill. All other tokens in the cache were sampled.
    histories: at each prefill, `prefills` and all ids, as bytes. They are kept while the conversation is in the cache.
    slot: the slot of its memories in a hybrid's delta layers, or NO_SLOT.
    swapped: the keys and values of each page, while it is swapped out.
    memory: its memories, likewise.
    logprobs: log-probabilities of the turn's tokens so far, which are the last of `ids`.
    routes: the experts of these tokens, as in `messages.TurnEnded`.
    automaton: state of the stop automaton after these tokens.
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
  prefills: list[tuple[int, int]] = dataclasses.field(default_factory=list)
  histories: list[bytes] = dataclasses.field(default_factory=list)
  slot: int = NO_SLOT
  swapped: tuple[np.ndarray, ...] = ()
  memory: tuple[np.ndarray, ...] = ()
  turn: Turn | None = None
  logprobs: list[float] = dataclasses.field(default_factory=list)
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
    return self.turn.budget - len(self.logprobs)
