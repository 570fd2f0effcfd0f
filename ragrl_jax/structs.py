"""The records that the packages of this library exchange, and the three Protocols that a recipe's `play` uses.

    Example → (prompting) token ids → (rollout) Episode → (recipe) terms → (pack) Batch → (learner) TrainState

Records are frozen; `dataclasses.replace` makes a changed copy.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

MODEL, ENVIRONMENT = "model", "environment"
TRUNCATED = ("length", "budget")  # why a turn, or its episode, ended that ran out of tokens
THINK, THOUGHT = "<think>", "</think>"  # the tags around a thought
NO_VERDICT = "no_verdict"  # name of the fact with the reason for a missing verdict; such an episode is not scored


@dataclasses.dataclass(frozen=True)
class Passage:
  """One retrievable text. `score` is the retriever's (higher is better); None if the passage was not searched for."""

  id: str
  title: str
  text: str
  score: float | None = None


CHUNK = "#"  # separates a document's id from the number of a passage that was cut from it: "d#0"


def document_of(name: str) -> tuple[str, int | None]:
  """Splits a passage's id into (document's id, number of the passage); (id, None) if the passage is not a chunk."""
  document, mark, number = name.rpartition(CHUNK)
  return (document, int(number)) if mark and number.isascii() and number.isdigit() else (name, None)


@dataclasses.dataclass(frozen=True)
class Example:
  """One question with its right answers (`golds`) and passages.

  `supporting` holds positions in `passages`; `evidence` holds (position, sentence) pairs; `meta` holds other columns.
  """

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
    logprobs: for model segments, the sampler's log-probability of each id; empty for the environment.
    stop: for model segments, the stop string that ended it, "eos", or "length" when the token budget ran out.
    query: for the result of a search, its query; else None.
    found: for the result of a search, the returned passages; else None.
    routes: for model segments of a model with experts, the experts that the router chose in the state that sampled each
      id: the same number of int16 for each id (layers times experts per token), as bytes in the machine's order; else
      empty.
  """

  owner: str
  ids: tuple[int, ...]
  text: str
  logprobs: tuple[float, ...] = ()
  stop: str = ""
  query: str | None = None
  found: tuple[Passage, ...] | None = None
  routes: bytes = b""


@dataclasses.dataclass(frozen=True)
class Episode:
  """What happened for one example, in order. The first segment is the prompt.

  Attributes:
    segments: in order of time, each written by the model or by the environment.
    facts: by name, the results of other model calls (verdicts, probe answers, query vectors).
    version: version of the weights that sampled all its tokens.
    ended: why it ended: the name of a stop string ("answer" and others), "eos", "length" (the turn's token budget ran
      out), "budget" (no room for the next turn), "searches" (the last allowed generation gave no answer), "turns" (it
      called tools instead), "requests" (an agent's program asked too often), "silent" (the program asked nothing),
      "failed".
    failure: error message of the tool that failed, if ended == "failed". Such an episode is masked and counted, never
      scored.
    prompt_index: running number of the prompt in this run; episodes with the same one are a group.
    sample: its number in the group.
    example_id: id of the example it answers.
    starts: positions of the segments that begin another conversation, except the first one. Its tokens do not continue
      the earlier ones. In training every conversation is a separate row, and the rows share one reward.
  """

  segments: tuple[Segment, ...]
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  version: int = 0
  ended: str = ""
  failure: str = ""
  prompt_index: int = 0
  sample: int = 0
  example_id: str = ""
  starts: tuple[int, ...] = ()

  @property
  def conversations(self) -> tuple[tuple[Segment, ...], ...]:
    """The segments of each conversation, in order. Nearly all episodes have one."""
    edges = (0, *self.starts, len(self.segments))
    return tuple(self.segments[start:end] for start, end in zip(edges, edges[1:]))

  @property
  def turns(self) -> tuple[Segment, ...]:
    """All segments but the prompt, as recipes read them: see `tagged`."""
    return tagged(self.segments)[1:]

  @property
  def model_text(self) -> str:
    """The joined text of all model segments, as recipes read them: see `tagged`."""
    return "".join(s.text for s in tagged(self.segments) if s.owner == MODEL)

  @property
  def searches(self) -> tuple[Segment, ...]:
    """The environment segments that answer an executed search, empty results included."""
    return tuple(s for s in self.turns if s.owner == ENVIRONMENT and s.found is not None)

  @property
  def num_searches(self) -> int:
    """Number of executed searches."""
    return len(self.searches)

  @property
  def num_tokens(self) -> int:
    """Number of tokens, the prompt's included."""
    return sum(len(s.ids) for s in self.segments)

  @property
  def num_model_tokens(self) -> int:
    """Number of tokens that the model sampled."""
    return sum(len(s.ids) for s in self.segments if s.owner == MODEL)

  @classmethod
  def from_text(
    cls, recipe, example: Example, turns: Sequence[tuple[str, str]], facts=None, tokenizer=None
  ) -> "Episode":
    """An episode from its transcript, for tests and for scoring transcripts of other systems.

    Args:
      recipe: a recipe (`recipes.get(name)`). Its prompt becomes the first segment; its parser reads the turns.
      turns: ("model" | "environment", text) in order, without the prompt. The `<think>` of a thought that the chat
        template has opened is left out.
      facts: answers of judges and probes, by name.
      tokenizer: encodes the texts; if None, the ids are the text's bytes (0 to 255).

    Raises:
      ValueError: another owner than these two, or a text that the parser refuses as another agent's.
    """
    encode = (lambda text: tuple(text.encode())) if tokenizer is None else (lambda text: tuple(tokenizer.encode(text)))
    messages = recipe.prompt.messages(example)
    if tokenizer is None:
      prompt = "\n\n".join(m["content"] for m in messages)
      ids = encode(prompt)
    else:
      ids = tuple(tokenizer.render(messages))
      prompt = tokenizer.decode(ids)
    segments, said = [Segment(ENVIRONMENT, ids, prompt)], ""
    for owner, text in turns:
      if owner == MODEL and text.startswith(THINK) and opened(segments):
        text = text.removeprefix(THINK).lstrip("\n")  # the template also begins the thought's first line
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


def opened(segments: Sequence[Segment]) -> bool:
  """Whether the model is inside a thought that the chat template opened at the prompt's end, as Qwen3.5's does."""
  is_open = False
  for segment in segments:
    if segment.owner == MODEL:
      is_open = is_open and THOUGHT not in segment.text
    else:
      is_open = is_open or segment.text[-32:].rstrip().endswith(THINK)
  return is_open


def tagged(segments: Sequence[Segment]) -> tuple[Segment, ...]:
  """The segments, in which a thought that the chat template opened has both tags, as if the model had written them.

  A thought that the token budget cut off ends with its segment, so nothing in it is an answer.
  """
  made = list(segments)
  for place, segment in enumerate(segments):
    if segment.owner == MODEL and opened(segments[:place]):
      text = f"{THINK}{segment.text}{'' if THOUGHT in segment.text else THOUGHT}"
      made[place] = dataclasses.replace(segment, text=text)
  return tuple(made)


@dataclasses.dataclass(frozen=True)
class Sampling:
  """Sampling settings of a generation. The defaults are in `settings.Rollout`.

  Attributes:
    temperature: divides the logits; 0 is greedy (log-probabilities are then recorded at temperature 1).
    top_k: keep the k likeliest tokens; 0 keeps all.
    top_p: keep the smallest set of likeliest tokens with this probability mass; 1 keeps all.
    max_new_tokens: largest number of tokens per generation (one turn).
  """

  temperature: float
  top_k: int
  top_p: float
  max_new_tokens: int


class Conversation(Protocol):
  """A growing list of tokens between policy and environment. Tokens are the record, text is a view."""

  @property
  def segments(self) -> tuple[Segment, ...]:
    """The segments so far, the prompt first."""
    ...

  async def generate(
    self,
    *,
    stop: Sequence[str] = (),
    max_new_tokens: int | None = None,
    greedy: bool = False,
    ends: Callable[[str], bool] = lambda text: True,
  ) -> Segment:
    """Samples until a stop string is complete (its last token is kept whole), EOS, or the token budget is spent.

    ends: whether a stop string ends the turn, which has this text so far.
    """
    ...

  def observe(
    self, text: str | Sequence[int], *, query: str | None = None, found: Sequence[Passage] | None = None
  ) -> bool:
    """Appends the environment's text, or its token ids.

    Returns False, and appends nothing, if there is no room for them and an answer.
    """
    ...

  def room(self) -> int:
    """Number of tokens that still fit into the context; the next generation must fit into them too."""
    ...

  def fork(self, at: int) -> "Conversation":
    """A new conversation that starts with the first `at` tokens of this one."""
    ...

  def end(self, reason: str | None = None, **facts: Any) -> Episode:
    """Closes the conversation, returns its episode with these facts; `reason` defaults to the last segment's stop."""
    ...


class Policy(Protocol):
  """The policy as a recipe sees it: it starts conversations."""

  tokenizer: Any

  def start(self, prompt: Sequence[Mapping[str, str]] | Sequence[int]) -> Conversation:
    """A new conversation from chat messages ({"role", "content"}) or from token ids."""
    ...


class Tools(Protocol):
  """The tools that a recipe's `play` may await."""

  async def search(self, query: str, k: int | None = None) -> tuple[Passage, ...]:
    """The k best passages (config.retrieval.top_k if None). Raises ToolFailed after the last retry or the deadline."""
    ...

  async def open(self, name: str, k: int | None = None) -> tuple[Passage, ...]:
    """k passages of a document, in order: the one with this id and its neighbours; none if the id is unknown."""
    ...

  async def find(self, name: str, words: str, k: int | None = None) -> tuple[Passage, ...]:
    """The first k passages with these words in the document of this passage. Fails as `search` does."""
    ...

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    """One verdict in [0, 1] per (premise, claim) pair, from this term's judge; None if the judge gave no verdict."""
    ...

  async def embed(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    """One unit vector per text, rounded to four decimals, because facts are logged. ValueError without an encoder."""
    ...


class ToolFailed(RuntimeError):
  """A tool gave no answer within its retries and deadline. Its episode is masked and counted, never scored as 0."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TeacherRows:
  """The rows of a `Batch` once more, as its teacher reads them: [R, S], with prompts that the policy does not see.

  Attributes:
    tokens, positions, until: int32 [R, S], see `Batch`. The rows are trees.
    twins: int32 [R, T]; where each of the batch's tokens is in its row here; 0 for those of prompts but the last.
  """

  tokens: np.ndarray | jax.Array
  positions: np.ndarray | jax.Array
  until: np.ndarray | jax.Array
  twins: np.ndarray | jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
  """Packed rows: what the model reads, `[R, T]`, and what the loss reads, `[R, L]`.

  If nothing is shared, both are the same tokens: L is T, and element t of every array belongs to token t. Sequences
  that share beginnings are trees: a row holds each shared token once, and [R, L] every sequence's trained tokens, each
  turn's with the token behind it.

  Attributes:
    tokens: int32 [R, T], ids. Padding is never inferred from them.
    positions: int32 [R, T]; the token's position in its own sequence.
    segment_ids: int32 [R, L]; 0 is padding, 1, 2, … are the sequences of a row.
    loss_mask: bool [R, L]; True where the policy sampled the token. The first token of a sequence is never trained.
    advantages: float32 [R, L]; 0 on untrained tokens. In SFT, the token's weight.
    sampler_logprobs, old_logprobs, ref_logprobs: float32 [R, L]; recorded by the sampler, by the policy at the start of
      the update, and by the reference policy.
    values, returns: float32 [R, L]; the critic's values and its targets (zeros without a critic).
    teaching: float32 [R, L]; the weight of the teacher's term; 0 where it has none.
    until: int32 [R, T]; the row's end of the token's subtree: tokens t to until - 1 attend to token t, and no others; 0
      is padding. None if nothing is shared.
    states: int32 [R, T]; the index of the token before this one, whose state predicts it; -1 if no sequence trains it.
    places: int32 [R, L]; the index in the row of the token that the entry speaks of.

          a b c d e, a b c f g    tokens a b c d e f g    until 7 7 7 5 5 7 7    positions 0 1 2 3 4 3 4
                                  states . . . 2 3 2 5    places 3 4 5 6         segment_ids 1 1 2 2

    routes: int16 [R, T, n]; the experts of all layers that the sampler's router chose in the state that drew the token,
      -1 where it drew none. In a tree they are those of the state at t - 1, if it drew a token in any sequence. None
      for models without experts, and in SFT.
  """

  tokens: np.ndarray | jax.Array
  segment_ids: np.ndarray | jax.Array
  positions: np.ndarray | jax.Array
  loss_mask: np.ndarray | jax.Array
  advantages: np.ndarray | jax.Array
  sampler_logprobs: np.ndarray | jax.Array
  old_logprobs: np.ndarray | jax.Array
  ref_logprobs: np.ndarray | jax.Array
  values: np.ndarray | jax.Array
  returns: np.ndarray | jax.Array
  teaching: np.ndarray | jax.Array
  until: np.ndarray | jax.Array | None = None
  states: np.ndarray | jax.Array | None = None
  places: np.ndarray | jax.Array | None = None
  routes: np.ndarray | jax.Array | None = None
