"""The tools of an episode: searches, judges and embeddings, collected into batches that run in threads.

`EpisodeTools` are those of one episode.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ragrl_jax import structs
from ragrl_jax.chat.client import daemon
from ragrl_jax.judging.judge_api import Judge
from ragrl_jax.structs import Passage, ToolFailed

LONGEST = 1 << 20  # most characters of a passage's title and of its text, more than fit into a context


class RetrievalTools:
  """`structs.Tools` over a retriever and, if there are any, judges.

  Simultaneous requests form one batch. While every worker is busy, the next batch grows.

  Args:
    retriever: `search(queries, k)` returns a list of passages for each query; called from several threads. If None, a
      search raises ValueError.
    top_k: passages per search, if it does not ask for another number.
    timeout_s: time limit of a batch in seconds; after it, its searches fail.
    workers: most batches of searches at the same time.
    judges: by reward term, "" for terms without their own. Each has its own limits; called from several threads.
    encode: texts → float32 [texts, dimensions]; called from one thread at a time.
  """

  def __init__(
    self,
    retriever: Any,
    *,
    top_k: int = 3,
    timeout_s: float = 30.0,
    workers: int = 8,
    max_batch: int = 512,
    judges: Mapping[str, Judge] | None = None,
    encode: Callable[[Sequence[str]], np.ndarray] | None = None,
  ):
    self.top_k, self._encode, self._retriever = top_k, encode, retriever
    limits = dict(max_batch=max_batch, timeout_s=timeout_s, setting="config.retrieval.timeout_s")
    self._searches = _Batches(
      lambda queries, k: _short(retriever.search(queries, k)), "search", workers=workers, **limits
    )
    self._readings = _Batches(
      lambda requests, k: _short(retriever.read(requests, k)), "open or find", workers=workers, **limits
    )
    if encode is not None:
      self._vectors = _Batches(lambda texts, _: _unit(encode(texts)), "the encoder of queries", workers=1, **limits)
    judges = dict(judges or {})
    # Two terms may share one judge. Their pairs then share its batches and its limits.
    batches = {id(judge): _verdicts(judge) for judge in judges.values()}
    self._judges = {term: batches[id(judge)] for term, judge in judges.items()}

  async def search(self, query: str, k: int | None = None) -> tuple[Passage, ...]:
    """The k best passages. Raises ToolFailed if there is no answer in time, and ValueError without a retriever."""
    if self._retriever is None:
      raise ValueError(
        "this run has no retriever, but its recipe searches: name an index's folder or an address "
        "(config.retrieval.index), or questions that bring their passages (config.data)."
      )
    return tuple(await self._searches.ask(query, self.top_k if k is None else k))

  async def open(self, name: str, k: int | None = None) -> tuple[Passage, ...]:
    """See `structs.Tools`. Raises ToolFailed if there is no answer in time."""
    return await self._read(name, "", k)

  async def find(self, name: str, words: str, k: int | None = None) -> tuple[Passage, ...]:
    """See `structs.Tools`. Raises ToolFailed if there is no answer in time, and ValueError without words."""
    if not words.strip():
      raise ValueError("find needs words to look for; `open` shows the document.")
    return await self._read(name, words, k)

  async def _read(self, name: str, words: str, k: int | None) -> tuple[Passage, ...]:
    if not hasattr(self._retriever, "read"):
      raise ValueError(
        "this run's retriever opens no documents, but its recipe does: name an index's folder or the address of "
        "`ragrl serve-index` (config.retrieval.index)."
      )
    return tuple(await self._readings.ask((name, words), self.top_k if k is None else k))

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    """One verdict per pair. Raises ToolFailed if the term's judge gives none in time, ValueError without a judge."""
    if (judge := self._judges.get(term, self._judges.get(""))) is None:
      raise ValueError("this run has no judge, but its recipe asks for verdicts: set config.judge.kind.")
    return tuple(await asyncio.gather(*(judge.ask(tuple(pair), 0) for pair in pairs)))

  async def embed(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    """See `structs.Tools`. Raises ToolFailed if there is no answer in time."""
    if self._encode is None:
      raise ValueError(
        "this run has no encoder of queries, but its recipe compares their vectors: name one "
        "(config.retrieval.query_encoder), or compare characters (config.switches.similarity='ngrams')."
      )
    return tuple(await asyncio.gather(*(self._vectors.ask(text, 0) for text in texts)))


def _short(answers: Sequence[Sequence[Passage]]) -> list[list[Passage]]:
  """The passages, cut to LONGEST characters: text of any length would stop the event loop that formats it."""
  cut = lambda p: dataclasses.replace(p, title=p.title[:LONGEST], text=p.text[:LONGEST])
  return [[cut(p) if max(len(p.title), len(p.text)) > LONGEST else p for p in passages] for passages in answers]


def _verdicts(judge: Judge) -> "_Batches":
  pace = judge.pace
  return _Batches(
    lambda pairs, _: judge.judge(pairs), "judge", workers=pace.workers, max_batch=pace.batch,
    timeout_s=pace.deadline_s, setting="config.judge.timeout_s",
  )  # fmt: skip


def _unit(vectors: np.ndarray) -> list[tuple[float, ...]]:
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  unit = np.asarray(vectors, np.float64) / np.where(lengths > 0, lengths, 1)  # a zero vector stays zero
  # Four decimals, because vectors are facts of an episode, which are logged and stored in checkpoints.
  return [tuple(row) for row in np.round(unit, 4).tolist()]


class _Batches:
  """Collects single questions into batches for a blocking function.

  `function(questions, option)` runs in a thread. Everything else happens on the event loop. Questions of one batch have
  the same option.
  """

  def __init__(self, function, name: str, *, workers: int, max_batch: int, timeout_s: float, setting: str):
    self._function, self._name, self._setting = function, name, setting
    self._idle, self._max, self._timeout_s = workers, max_batch, timeout_s
    # A batch that timed out keeps running in its thread, and keeps its permit until it ends: a slow server is spared.
    self._permits = threading.Semaphore(workers)
    self._waiting: dict[int, list[tuple[Any, asyncio.Future]]] = {}
    self._planned = False
    self._running: set[asyncio.Task] = set()

  async def ask(self, question: Any, option: int) -> Any:
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    self._waiting.setdefault(option, []).append((question, answer))
    # call_soon runs after the coroutines that are ready now, so their questions join this batch.
    if not self._planned:
      self._planned = True
      loop.call_soon(self._send)
    return await answer

  def _send(self) -> None:
    self._planned = False
    while self._idle and self._waiting:
      option = next(iter(self._waiting))  # the oldest first; the rest of it goes to the end
      # The episodes of the others were cancelled.
      questions = [(question, answer) for question, answer in self._waiting.pop(option) if not answer.done()]
      batch, later = questions[: self._max], questions[self._max :]
      if later:
        self._waiting[option] = later
      if not batch:
        continue
      self._idle -= 1
      work = daemon(self._once, [q for q, _ in batch], option, name=f"tools-{self._name}")
      task = asyncio.get_running_loop().create_task(asyncio.wait_for(asyncio.wrap_future(work), self._timeout_s))
      self._running.add(task)
      task.add_done_callback(lambda task, batch=batch, option=option: self._returned(task, batch, option))

  def _once(self, questions: list[Any], option: int) -> Sequence[Any]:
    """The answers. The samples of a group often ask the same: each different question is asked once."""
    different = list(dict.fromkeys(questions))
    try:
      if not self._permits.acquire(timeout=self._timeout_s):
        raise TimeoutError  # nobody waits for the answers any more
      try:
        answers = self._function(different, option)
      finally:
        self._permits.release()
    except BaseException as raised:
      if isinstance(raised, Exception) and not isinstance(raised, (StopIteration, concurrent.futures.CancelledError)):
        raise
      # A future takes no StopIteration, an error that is no Exception would end the event loop, and a CancelledError
      # would look like a search that this program has cancelled.
      raise RuntimeError(f"{type(raised).__name__}: {raised}") from raised
    if len(answers) != len(different):
      raise ToolFailed(f"{self._name} gave {len(answers)} answers to {len(different)} questions.")
    answer_of = dict(zip(different, answers))
    return [answer_of[question] for question in questions]

  def _returned(self, task: asyncio.Task, batch: list[tuple[Any, asyncio.Future]], option: int) -> None:
    self._running.discard(task)
    self._idle += 1
    # A failed or slow server raises ToolFailed, which masks the episode. Any other error is a bug and ends the run.
    if task.cancelled():
      error = ToolFailed(f"{self._name} was cancelled.")
    elif isinstance(error := task.exception(), TimeoutError):
      error = ToolFailed(f"{self._name} gave no answer within {self._timeout_s:g} s ({self._setting}).")
    elif isinstance(error, OSError):
      error = ToolFailed(f"{self._name} failed: {error}")
    if error is None:
      for (_, future), answer in zip(batch, task.result()):
        _set(future, answer)
    else:
      self._refuse(batch, option, error)
    self._send()

  def _refuse(self, batch: list[tuple[Any, asyncio.Future]], option: int, error: BaseException) -> None:
    """Fails the questions that the error names and asks the others again. Fails all questions if it names none."""
    # Questions a b c and an error that names b: b fails, a and c join the next batch.
    named = set(getattr(error, "queries", ()))
    failed = [(q, future) for q, future in batch if q in named] or batch
    for _, future in failed:
      _set(future, error=error)
    if others := [(q, future) for q, future in batch if named and q not in named and failed is not batch]:
      self._waiting.setdefault(option, []).extend(others)


def _set(future: asyncio.Future, answer: Any = None, error: BaseException | None = None) -> None:
  if future.done():  # its episode was cancelled
    return
  if error is None:
    future.set_result(answer)
  else:
    future.set_exception(error)


class Waits:
  """Two counters, of searches and of judgements in progress, and the seconds of waiting for judges alone."""

  def __init__(self):
    self._state = 0, 0, 0.0, 0.0  # searches, judgements; seconds up to the last change, and its time

  def judging_s(self) -> float:
    """Seconds in which judgements and no searches were in progress. Any thread may read it."""
    # Reading one tuple needs no lock, because the event loop replaces the whole state at once.
    searches, judgements, seconds, changed = self._state
    return seconds + (time.perf_counter() - changed if judgements and not searches else 0.0)

  @contextlib.contextmanager
  def counted(self, *, searches: int = 0, judgements: int = 0) -> Iterator[None]:
    """Counts so many as in progress until the block ends."""
    self._add(searches, judgements)
    try:
      yield
    finally:
      self._add(-searches, -judgements)

  def _add(self, searches: int, judgements: int) -> None:
    seconds = self.judging_s()
    self._state = self._state[0] + searches, self._state[1] + judgements, seconds, time.perf_counter()


class EpisodeTools:
  """Tools for one episode, over those of all episodes, which have all other attributes. A session shares its `waits`.

  Attributes:
    no_verdict: why a judge first gave no verdict; "" if every pair got one.
  """

  def __init__(self, tools: Any, waits: Waits | None = None):
    self._tools, self._waits, self.no_verdict = tools, waits or Waits(), ""

  def __getattr__(self, name: str) -> Any:
    return getattr(self._tools, name)

  async def search(self, query: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    """See `structs.Tools`."""
    with self._waits.counted(searches=1):
      return await self._tools.search(query, k)

  async def open(self, name: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    """See `structs.Tools`."""
    with self._waits.counted(searches=1):
      return await self._tools.open(name, k)

  async def find(self, name: str, words: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    """See `structs.Tools`."""
    with self._waits.counted(searches=1):
      return await self._tools.find(name, words, k)

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    """See `structs.Tools`."""
    reason = ""
    try:
      with self._waits.counted(judgements=1):
        verdicts = await self._tools.judge(pairs, term)
      if None in verdicts:
        reason = "the judge's answer could not be read (the log shows the first such), or the pair was too long"
      return verdicts
    except structs.ToolFailed as failure:
      reason = str(failure) or type(failure).__name__
      raise
    finally:
      self.no_verdict = self.no_verdict or reason
