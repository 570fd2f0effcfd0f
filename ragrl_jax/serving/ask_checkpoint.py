"""Asks a checkpoint single questions with its run's recipe, and reports events while the answers are generated.

An event is a dict with "event", "sample" (the number of the answer), and these fields:

    prompt       text
    said         text: the model's text since the last such event
    searching    query
    found        query, passages: {id, title, text, score}
    notice       text: other text of the environment
    judging      pairs: number of steps sent to a judge
    answer       answer, ended, failure, no_verdict (why a step got no verdict, ""), outcome, searches, tokens, seconds,
                 version, trace (see `report.kept_traces.compact`), episode (see `store.episodes.played`)
"""

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.core.rewards import faithful
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.engine.messages import Group, Turn, TurnEnded
from ragrl_jax.protocol.text_stream import TextStream
from ragrl_jax.recipes import parts, steps as steps_lib
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.report import kept_traces
from ragrl_jax.rollout import collect, conversation
from ragrl_jax.rollout.tools import EpisodeTools
from ragrl_jax.run import questions
from ragrl_jax.run.player import Player
from ragrl_jax.serving.engine_thread import EngineThread, Slice
from ragrl_jax.settings import Settings
from ragrl_jax.store import episodes

Tell = Callable[[dict[str, Any]], None]


def in_conversation(earlier: Sequence[tuple[str, str]], question: str) -> str:
  """A question behind `earlier` (question, answer) pairs, the oldest first: recipes expect one single question."""
  history = "".join(f"Earlier question: {before}\nEarlier answer: {answer}\n" for before, answer in earlier)
  return f"{history}Question now: {question}" if history else question


def agreement(answers: Sequence[str | None]) -> list[dict[str, Any]]:
  """[{answer, count, share}], the most frequent first. Answers are compared by exact match. None means no answer."""
  keys = [None if answer is None else normalize(answer, "squad") for answer in answers]
  first = dict(zip(reversed(keys), reversed(answers)))
  counts = Counter(keys).most_common()
  return [dict(answer=first[key], count=count, share=count / len(keys)) for key, count in counts]


def judged(config: Settings) -> tuple[str, ...]:
  """The terms about steps for which the config names a judge."""
  kind = lambda term: config.judges.get(term, {}).get("kind") or config.judge.kind
  return tuple(term for term in steps_lib.TERMS if kind(term) not in ("none", "exact"))  # "exact" compares answers


def check_passages(recipe: Recipe, example: structs.Example, *, has_index: bool) -> None:
  """Raises a ValueError if the question lacks passages that the recipe shows, and that it does not search for."""
  if recipe.needs_passages and not example.passages and not (recipe.searches and has_index):
    raise ValueError(
      f"{recipe.name} needs questions with passages: take one from a file (--data FILE --id ID; `ragrl retrieve` "
      "writes one), or use a checkpoint of a recipe that searches an index (config.retrieval.index)."
    )


class Asker:
  """A checkpoint that answers questions. Its engine runs in its own thread until `close`.

  Args:
    player: with weights, and with a judge for each term of `judged`.
    name: of the checkpoint, to show to users.
  """

  def __init__(self, player: Player, name: str):
    if not isinstance(player.rollout, collect.Rollout):
      raise ValueError("several hosts: questions can be asked on one host only (config.mesh).")
    self.player, self.name = player, name
    self._rollout, self._texts = player.rollout, conversation.TextCache(player.tokenizer)
    self.thread = EngineThread(player.engine, player.rollout.dispatch)
    self.thread.start()

  def close(self) -> None:
    """Ends the thread."""
    self.thread.close()

  def check(self, example: structs.Example) -> None:
    """Raises a ValueError if the question is empty or too long, or lacks passages."""
    if not example.question.strip():
      raise ValueError("the question is empty.")
    recipe = self.player.recipe
    check_passages(recipe, example, has_index=self.player.retriever is not None)
    questions.check_room(self.player.settings, self.player.tokenizer, recipe, [example], "the question")

  async def ask(
    self, example: structs.Example, *, samples: int = 1, greedy: bool = True, seed: int | None = None, tell: Tell
  ) -> list[dict[str, Any]]:
    """Samples several answers to a question at the same time; returns their "answer" events in order.

    Args:
      example: the question, with passages and correct answers if known.
      greedy: take the most likely token, so all answers are equal; else sample with the settings of config.rollout.
      seed: of the sampling; config.seed by default.
      tell: called with every event, on this event loop.

    It raises ValueErrors as `check` does.
    """
    self.check(example)
    group = Group(next(self.thread.numbers), samples) if samples > 1 else None
    seed = self._rollout.seed if seed is None else seed
    ask_sample = lambda sample: self._answer(example, sample, group, greedy, seed, tell)
    return await asyncio.gather(*map(ask_sample, range(samples)))

  async def _answer(self, example, sample: int, group: Group | None, greedy: bool, seed: int, tell: Tell):
    start, rollout, recipe = time.perf_counter(), self._rollout, self.player.recipe
    live = _Live(self.thread, sample, tell)
    live.policy = conversation.Policy(
      live,
      self._texts,
      keys=(seed, 0, 0, sample),
      sampling=dataclasses.replace(rollout.sampling, temperature=0.0) if greedy else rollout.sampling,
      group=group,
      reserve=rollout.reserve,
      example_id=example.id,
    )
    tools = _Tools(rollout.tools, live.tell)
    episode = await collect.played(rollout.play, collect.Request(example, 0, sample), live.policy, tools)
    live.look()
    episode = await self._judged(episode, tools)
    row = episodes.played(example, episode)
    event = dict(
      event="answer",
      sample=sample,
      answer=parts.last_answer(recipe.parser, episode),
      ended=episode.ended,
      failure=episode.failure,
      no_verdict=tools.no_verdict,
      outcome=recipe.outcome(example, episode) if example.golds and episode.ended != "failed" else None,
      searches=episode.num_searches,
      tokens=episode.num_model_tokens,
      seconds=round(time.perf_counter() - start, 3),
      version=episode.version,
      trace=kept_traces.compact(row),
      episode=row,
    )
    tell(event)
    return event

  async def _judged(self, episode: structs.Episode, tools: "_Tools") -> structs.Episode:
    """The episode with verdicts on its steps. Asks the judges, if there are any, what the recipe has not asked."""
    if episode.ended == "failed":
      return episode
    facts = dict(episode.facts)
    steps = steps_lib.steps(episode.turns, facts.get("action", "last"))
    for name in steps_lib.TERMS:
      if name in self.player.judges and name not in facts and (pairs := faithful.whole(getattr(steps, name))):
        facts[name] = await tools.judge(pairs, name)
    if tools.no_verdict:
      facts[structs.NO_VERDICT] = tools.no_verdict
    return dataclasses.replace(episode, facts=facts)


class _Live:
  """Sends one answer's conversations to the engine's thread, and reports their new text.

  It is a `rollout.engine_client.Client`. Every method is called on the event loop, and none of them waits.
  """

  def __init__(self, thread: EngineThread, sample: int, tell: Tell):
    engine = thread.engine
    self.tokenizer, self.stops = engine.tokenizer, engine.stops
    self.context, self.version, self.numbers = engine.context, engine.version, thread.numbers
    self.open, self.close, self.leave = thread.open, thread.close_conversation, thread.leave
    self._thread, self._sample, self._tell = thread, sample, tell
    self._seen: dict[int, int] = {}  # number of reported segments, by conversation
    self.policy: Any = None

  def tell(self, event: str, **more: Any) -> None:
    """Reports an event of this sample."""
    self._tell(dict(event=event, sample=self._sample, **more))

  def submit(self, turn: Turn) -> asyncio.Future[TurnEnded]:
    """Starts a turn, and reports its text while it is sampled; the joined texts are the turn's. A future of its end."""
    self.look()
    loop, text, slices = asyncio.get_running_loop(), TextStream(self.tokenizer), []
    answer: asyncio.Future[TurnEnded] = loop.create_future()

    def take(piece: Slice | BaseException) -> None:
      if answer.done():  # its episode was cancelled
        return
      if isinstance(piece, BaseException):
        answer.set_exception(piece)
        return
      slices.append(piece)
      text.feed(piece.ids)
      if new_text := text.piece(last=piece.stop is not None):
        place = next(i for i, talk in enumerate(self.policy.conversations) if talk.number == turn.conversation)
        self.tell("said", conversation=place, text=new_text)
      if piece.stop is not None:
        ids, logprobs = (tuple(itertools.chain(*parts)) for parts in zip(*((one.ids, one.logprobs) for one in slices)))
        answer.set_result(TurnEnded(turn.conversation, ids, logprobs, piece.stop))

    def hear(piece: Slice | BaseException) -> bool:
      with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(take, piece)
      return True

    self._thread.submit(turn, hear)
    return answer

  def look(self) -> None:
    """Reports the environment's new segments."""
    for place, talk in enumerate(self.policy.conversations):
      segments, count = talk.segments, self._seen.get(place, 0)
      self._seen[place] = len(segments)
      for at, segment in enumerate(segments[count:], start=count):
        if segment.owner == structs.MODEL:  # was reported while it was sampled
          continue
        if segment.found is not None:
          passages = [dataclasses.asdict(passage) for passage in segment.found]
          self.tell("found", conversation=place, query=segment.query, passages=passages)
        else:
          self.tell("notice" if at else "prompt", conversation=place, text=segment.text)


class _Tools(EpisodeTools):
  """Reports searches and judgements before they start. A judge that fails gives no verdict, and ends no answer."""

  def __init__(self, tools: structs.Tools, tell: Callable[..., None]):
    super().__init__(tools)
    self._tell = tell

  async def search(self, query: str, k: int | None = None) -> tuple[structs.Passage, ...]:
    self._tell("searching", query=query)
    return await super().search(query, k)

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    self._tell("judging", pairs=len(pairs))
    try:
      return await super().judge(pairs, term)
    except structs.ToolFailed:
      return (None,) * len(pairs)
