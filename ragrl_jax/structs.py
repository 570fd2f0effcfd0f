"""The records that travel between rooms, and the three contracts a recipe plays against.

    Example → (prompting) token ids → (rollout) Episode → (recipe) terms → (pack) Batch → (learner) TrainState

Records are frozen: whoever needs another one makes it with `dataclasses.replace`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

MODEL, ENVIRONMENT = "model", "environment"
NO_VERDICT = "no_verdict"  # the fact that says why a judge gave no verdict on an episode, which is then not scored


@dataclasses.dataclass(frozen=True)
class Passage:
  """One retrievable text. `score` is the retriever's own (higher is better), None where nothing was searched."""

  id: str
  title: str
  text: str
  score: float | None = None


@dataclasses.dataclass(frozen=True)
class Example:
  """One question. `supporting` holds positions in `passages`; `evidence` (position, sentence) pairs."""

  id: str
  question: str
  golds: tuple[str, ...]
  passages: tuple[Passage, ...] = ()
  supporting: tuple[int, ...] = ()
  source: str = ""
  hops: int | None = None
  evidence: tuple[tuple[int, str], ...] = ()
  meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Segment:
  """A stretch of tokens with one owner. The ids are the record; `text` is a view of them.

  Attributes:
    owner: MODEL (sampled by the policy, trained) or ENVIRONMENT (prompt, search results, notices: never trained).
    ids: token ids, as sampled or as encoded; EOS is kept where it was sampled.
    text: the ids' text without EOS and padding; added tokens (`<think>` may be one) stay.
    logprobs: model segments: the sampler's log-probability of each id. Empty for the environment.
    stop: model segments: the stop string that ended it, "eos", or "length" when the budget ran out.
    query: environment segments: the search this answers, else None.
    found: environment segments: the passages that search returned, else None.
  """

  owner: str
  ids: tuple[int, ...]
  text: str
  logprobs: tuple[float, ...] = ()
  stop: str = ""
  query: str | None = None
  found: tuple[Passage, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Episode:
  """What happened for one example, in order. The first segment is the prompt.

  Attributes:
    segments: in order of time; each the model's or the environment's from birth.
    facts: what a model had to be asked for (verdicts, probe answers, query vectors), by name.
    version: of the weights that sampled every token of it.
    ended: why: "answer" or another stop string's name the recipe ends on, "eos", "length" (its turn's budget),
      "budget" (no room left for the next turn), "searches" (the last allowed generation did not answer), "failed".
    failure: the message of a tool that failed for good (ended == "failed"): masked and counted, never scored.
    prompt_index: running number of the prompt drawn in this run: the group it belongs to.
    sample: its number in the group.
    example_id: of the example it answers.
  """

  segments: tuple[Segment, ...]
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  version: int = 0
  ended: str = ""
  failure: str = ""
  prompt_index: int = 0
  sample: int = 0
  example_id: str = ""

  @property
  def turns(self) -> tuple[Segment, ...]:
    """All but the prompt."""
    return self.segments[1:]

  @property
  def model_text(self) -> str:
    """Everything the model wrote, joined; environment segments are left out."""
    return "".join(s.text for s in self.segments if s.owner == MODEL)

  @property
  def searches(self) -> tuple[Segment, ...]:
    """The environment segments that answer an executed search, empty results included."""
    return tuple(s for s in self.turns if s.owner == ENVIRONMENT and s.found is not None)

  @property
  def num_searches(self) -> int:
    return len(self.searches)

  @property
  def num_tokens(self) -> int:
    return sum(len(s.ids) for s in self.segments)

  @property
  def num_model_tokens(self) -> int:
    return sum(len(s.ids) for s in self.segments if s.owner == MODEL)

  @classmethod
  def from_text(cls, recipe, example: Example, turns: Sequence[tuple[str, str]], facts=None, tokenizer=None) -> Episode:
    """An episode from its transcript: for tests and for scoring transcripts from elsewhere.

    Args:
      recipe: a recipe (`recipes.get(name)`); its prompt stands before the turns, its parser reads queries and blocks.
      example: the question it answers.
      turns: ("model" | "environment", text) in order, the prompt left out.
      facts: what judges or probes said, by name.
      tokenizer: what makes ids of the texts; bytes (ids 0 to 255) if None.

    Raises:
      ValueError: an owner that is neither of the two.
    """
    encode = (lambda text: tuple(text.encode())) if tokenizer is None else (lambda text: tuple(tokenizer.encode(text)))
    messages = recipe.prompt.messages(example)
    if tokenizer is None:
      prompt = "\n\n".join(m["content"] for m in messages)
      segments = [Segment(ENVIRONMENT, encode(prompt), prompt)]
    else:
      ids = tuple(tokenizer.render(messages))
      segments = [Segment(ENVIRONMENT, ids, tokenizer.decode(ids))]
    said = ""
    for owner, text in turns:
      ids = encode(text)
      if owner == MODEL:
        segments.append(Segment(MODEL, ids, text, logprobs=(0.0,) * len(ids), stop=recipe.parser.stop(text)))
        said = text
      elif owner == ENVIRONMENT:
        query, found = recipe.parser.observed(said, text)
        segments.append(Segment(ENVIRONMENT, ids, text, query=query, found=found))
      else:
        raise ValueError(f"turn owner {owner!r}: it must be {MODEL!r} or {ENVIRONMENT!r}.")
    last = segments[-1]
    ended = last.stop if last.owner == MODEL else "budget"
    return cls(tuple(segments), facts=dict(facts or {}), ended=ended, example_id=example.id)


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How a generation draws its tokens.

  Attributes:
    temperature: divides the logits; 0 is greedy (log-probabilities are then recorded at temperature 1).
    top_k: keep the k likeliest tokens; 0 keeps all.
    top_p: keep the smallest set of likeliest tokens with this mass; 1 keeps all.
    max_new_tokens: at most so many tokens a generation (a turn).
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  max_new_tokens: int = 256


class Conversation(Protocol):
  """A growing list of tokens between policy and environment. Tokens are the record, text is a view."""

  @property
  def segments(self) -> tuple[Segment, ...]: ...

  async def generate(
    self, *, stop: Sequence[str] = (), max_new_tokens: int | None = None, greedy: bool = False
  ) -> Segment:
    """Samples until a stop string is completed (kept whole), EOS, the turn's budget or the end of the context."""

  def observe(self, text: str, *, query: str | None = None, found: Sequence[Passage] | None = None) -> bool:
    """Appends the environment's text. False, and nothing appended, when no room is left for it and an answer."""

  def room(self) -> int:
    """Tokens that still fit into the context, the next generation's included."""

  def fork(self, at: int) -> Conversation:
    """A new conversation over the first `at` tokens of this one."""

  def end(self, why: str | None = None, **facts: Any) -> Episode:
    """Closes it. `why` defaults to the last generation's stop."""


class Policy(Protocol):
  tokenizer: Any

  def start(self, prompt: Sequence[Mapping[str, str]] | Sequence[int]) -> Conversation:
    """A new conversation from chat messages ({"role", "content"}) or from token ids."""


class Tools(Protocol):
  async def search(self, query: str, k: int | None = None) -> tuple[Passage, ...]:
    """The k best passages (the config's number if None). Raises ToolFailed when retries and deadline are spent."""

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    """One verdict in [0, 1] a (premise, claim) pair, by the judge of the term; None where none was to be had."""

  async def embed(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    """One vector of length 1 a text, to four decimals: facts are logged and kept. ValueError without an encoder."""


class ToolFailed(RuntimeError):
  """A tool gave no answer within its retries and deadline. Its episode is masked and counted, never scored as 0."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
  """Packed rows `[R, T]`; element t of every array speaks of token t.

  Attributes:
    tokens: int32 ids; padding is where segment_ids == 0, and is never inferred from the ids.
    segment_ids: int32; 0 is padding, 1, 2, … the sequences of a row.
    positions: int32; the place of the token in its own sequence.
    loss_mask: bool; True where the policy sampled the token. The first token of a sequence is never trained.
    advantages: float32; 0 where nothing is trained. In SFT, the token's weight.
    rewards: float32; what each token earns: an episode's reward on its last trained token, a turn's on the turn's.
    sampler_logprobs, old_logprobs, ref_logprobs: float32; as sampled, at the update's start, of the reference.
    values, returns: float32; the critic's (zeros without one).
    group_ids: int32; prompt index of the sequence a token belongs to, -1 for padding.
    prefix_ids: int32; the segment that a token sees besides its own. Sequences that begin alike share the beginning:
      it is a segment of its own, and theirs continue it, positions included. None where nothing is shared.

          tokens a b c|d e|d f   segments 1 1 1|2 2|3 3   positions 0 1 2|3 4|3 4   prefixes 1 1 1|1 1|1 1
  """

  tokens: np.ndarray | jax.Array
  segment_ids: np.ndarray | jax.Array
  positions: np.ndarray | jax.Array
  loss_mask: np.ndarray | jax.Array
  advantages: np.ndarray | jax.Array
  rewards: np.ndarray | jax.Array
  sampler_logprobs: np.ndarray | jax.Array
  old_logprobs: np.ndarray | jax.Array
  ref_logprobs: np.ndarray | jax.Array
  values: np.ndarray | jax.Array
  returns: np.ndarray | jax.Array
  group_ids: np.ndarray | jax.Array
  prefix_ids: np.ndarray | jax.Array | None = None
