"""Plays a recipe without a model: a policy that follows a script, tools that answer from lists, and a tape.

The tape records everything in order, so that a test can compare it with a literal:

    episode, tape = scripted.play(recipe, example, ["<search> x </search>", "<answer> y </answer>"], [(passage,)])
    assert tape[1:3] == [("generate", ("</search>", "</answer>"), "<search> x </search>"), ("search", "x")]
"""

import asyncio
import concurrent.futures
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage, Segment


class ScriptedPolicy:
  """Gives the texts of a script in turn. It cuts each after the first stop string, as an engine would.

  Args:
    script: the model's texts, one per turn. A text without a stop string ends with "eos". A pair (text,
      log-probability of each token) can replace a text, for plays that use log-probabilities; the default is 0. A
      function of the conversation's segments can replace the list.
    room: tokens that fit into the context.
    tokenizer: makes the ids; None: one token per byte.

  Attributes:
    tape: the events: ("start", prompt), ("generate", stops, text), ("observe", text), ("fork", text),
      ("search", query), ("judge", pairs), ("embed", texts), ("full", text), ("end", why).
  """

  def __init__(
    self,
    script: Sequence[str | tuple[str, Sequence[float]]] | Callable[[Sequence[Segment]], str],
    *,
    room: int = 100_000,
    tokenizer: Any = None,
  ):
    self.tokenizer = tokenizer or ByteTokenizer()
    self.script = script if callable(script) else list(script)
    self.tape: list[tuple] = []
    self.room = room

  def start(self, prompt: Sequence[Mapping[str, str]] | Sequence[int]) -> "ScriptedConversation":
    """See `structs.Policy`."""
    text = self.tokenizer.decode(prompt) if isinstance(prompt[0], int) else "".join(m["content"] for m in prompt)
    self.tape.append(("start", text))
    return ScriptedConversation(self, text)


class ScriptedConversation:
  """A conversation of a ScriptedPolicy. See `structs.Conversation`."""

  def __init__(self, policy: ScriptedPolicy, prompt: str):
    self.policy = policy
    self.segments = (Segment(ENVIRONMENT, self._ids(prompt), prompt),)

  def _ids(self, text: str) -> tuple[int, ...]:
    return tuple(self.policy.tokenizer.encode(text))

  def room(self) -> int:
    """Tokens left in the context."""
    return self.policy.room - sum(len(s.ids) for s in self.segments)

  async def generate(
    self,
    *,
    stop: Sequence[str] = (),
    max_new_tokens: int | None = None,
    greedy: bool = False,
    ends: Callable[[str], bool] = lambda text: True,
  ) -> Segment:
    """The script's next text, cut after the first stop string that ends the turn."""
    if self.room() < 1:
      self.policy.tape.append(("full", ""))
      return Segment(MODEL, (), "", stop="budget")
    script = self.policy.script
    drawn = script(self.segments) if callable(script) else script.pop(0)
    text, logprobs = (drawn, None) if isinstance(drawn, str) else drawn
    found = sorted((match.end(), s) for s in stop for match in re.finditer(re.escape(s), text))
    end, why = next((one for one in found if ends(text[: one[0]])), (len(text), "eos"))
    text = text[:end]
    self.policy.tape.append(("generate", tuple(stop), text))
    ids = self._ids(text)
    said = Segment(MODEL, ids, text, (0.0,) * len(ids) if logprobs is None else tuple(logprobs[: len(ids)]), why)
    self.segments += (said,)
    return said

  def observe(
    self, text: str | Sequence[int], *, query: str | None = None, found: Sequence[Passage] | None = None
  ) -> bool:
    """Appends text of the environment, or its ids; False if it does not fit."""
    text = text if isinstance(text, str) else self.policy.tokenizer.decode(text)
    found = None if found is None else tuple(found)
    if len(self._ids(text)) >= self.room():
      self.policy.tape.append(("full", text))
      return False
    self.policy.tape.append(("observe", text))
    self.segments += (Segment(ENVIRONMENT, self._ids(text), text, query=query, found=found),)
    return True

  def fork(self, at: int) -> "ScriptedConversation":
    """A new conversation that begins with the first `at` tokens of this one."""
    text = self.policy.tokenizer.decode([i for s in self.segments for i in s.ids][:at])
    self.policy.tape.append(("fork", text))
    return ScriptedConversation(self.policy, text)

  def end(self, reason: str | None = None, **facts: Any) -> Episode:
    """The episode so far; it ended for the reason `reason`."""
    reason = reason or self.segments[-1].stop
    self.policy.tape.append(("end", reason))
    return Episode(self.segments, facts=facts, ended=reason)


class ScriptedTools:
  """Answers every search, `open` and `find` with the next of its results, and every pair with the next verdict.

  Args:
    policy: its tape records the calls.
    results: passages for each of these; an exception is raised instead.
    verdicts: one per judged pair.
  """

  def __init__(
    self,
    policy: ScriptedPolicy,
    results: Sequence[Sequence[Passage] | Exception],
    verdicts: Sequence[float | None] = (),
  ):
    self.policy = policy
    self.results = list(results)
    self.verdicts = list(verdicts)

  async def search(self, query: str, k: int | None = None) -> tuple[Passage, ...]:
    """The next result; raises it if it is an exception."""
    return self._next("search", query)

  async def open(self, name: str, k: int | None = None) -> tuple[Passage, ...]:
    """The next result; raises it if it is an exception."""
    return self._next("open", name)

  async def find(self, name: str, words: str, k: int | None = None) -> tuple[Passage, ...]:
    """The next result; raises it if it is an exception."""
    return self._next("find", name, words)

  def _next(self, *call: str) -> tuple[Passage, ...]:
    self.policy.tape.append(call)
    result = self.results.pop(0)
    if isinstance(result, Exception):
      raise result
    return tuple(result)

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    """The next verdicts, one per pair."""
    self.policy.tape.append(("judge", tuple(pairs)))
    return tuple(self.verdicts.pop(0) for _ in pairs)

  async def embed(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    """One vector per text: (its length, 1)."""
    self.policy.tape.append(("embed", tuple(texts)))
    return tuple((float(len(text)), 1.0) for text in texts)


def run(episode: Coroutine[Any, Any, Any]) -> Any:
  """The coroutine's result. It runs in a separate thread, because a notebook's thread already has an event loop."""
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    return thread.submit(asyncio.run, episode).result()


def play(
  recipe,
  example: Example,
  script: Sequence[str | tuple[str, Sequence[float]]],
  results: Sequence[Sequence[Passage] | Exception] = (),
  *,
  room: int = 100_000,
  verdicts: Sequence[float | None] = (),
) -> tuple[Episode, list[tuple]]:
  """(episode, tape) of one scripted episode. See `ScriptedPolicy` and `ScriptedTools`."""
  policy = ScriptedPolicy(script, room=room)
  episode = run(recipe.play(example, policy, ScriptedTools(policy, results, verdicts)))
  return episode, policy.tape
