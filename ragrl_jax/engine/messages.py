"""The messages between the engine and its callers. Every record is frozen, so two threads can hold the same one.

    caller → engine    Engine.open(Open), submit(Turn), close(conversation), leave(Group)
    engine → caller    TurnEnded, from Engine.step

The caller numbers its conversations. It keeps its own list of a conversation's tokens, and the engine keeps another.
"""

import dataclasses


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
