"""Parts that recipes share: parsers, a prompt with the question alone, one-turn episodes, a reward for the answer."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text import tags
from ragrl_jax.judging import references
from ragrl_jax.prompting import wording
from ragrl_jax.recipes import recipe
from ragrl_jax.structs import MODEL, Conversation, Episode, Example, Passage, Policy, Segment, Tools

Play = Callable[[Example, Policy, Tools], Awaitable[Episode]]


class Parser(recipe.Parser):
  """A parser without searches. A subclass adds `answer`, and `stops` if turns end on stop strings."""

  def stop(self, text: str) -> str:
    """The stop string that a model turn ends on, white space aside; "eos" if there is none."""
    stops: Sequence[str] = getattr(self, "stops", ())
    return next((stop for stop in stops if text.rstrip().endswith(stop)), "eos")

  def observed(self, reply: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(None, None): no text of the environment is a search result."""
    return None, None


@dataclasses.dataclass(frozen=True)
class SectionParser(Parser):
  """Model text → its sections, `<name>…</name>`, of a reply that is written in one turn.

  Attributes:
    sections: the names that make up a reply, in order.
  """

  sections: tuple[str, ...]
  stops: tuple[str, ...] = ("</answer>",)

  def reply(self, text: str, name: str) -> str:
    """Where the section of this name is: after the thought, unless it is the thought.

    In a format with a thought, one that is never closed hides nothing.
    """
    mark = structs.THOUGHT if "think" in self.sections else "think>"
    said = text if name == "think" or mark not in text else spoken(text)
    return said if said == text else said.lstrip()

  def begin(self, text: str, reply: str) -> int:
    """Where this `reply` begins in the text."""
    return 0 if reply == text else text.index(reply, max(0, text.rfind(structs.THOUGHT)))

  def pair(self, text: str, name: str) -> tags.Pair | None:
    """The first complete section of this name in the `reply`."""
    reply = self.reply(text, name)
    result, before = self._pair(reply, name), self.begin(text, reply)
    return result and dataclasses.replace(result, start=result.start + before, end=result.end + before)

  def _pair(self, text: str, name: str) -> tags.Pair | None:
    return tags.first_match(text, name)

  async def say(self, conversation: Conversation, stop: Sequence[str]) -> Segment:
    """The model's reply, see `parts.say`."""
    return await say(conversation, stop, every="think" not in self.sections)

  def section(self, text: str, name: str) -> str | None:
    """The body of the section of this name, stripped; None if there is none."""
    pair = self.pair(text, name)
    return None if pair is None else pair.body.strip()

  def answer(self, text: str) -> str | None:
    """The body of the answer's section, stripped; None if there is none."""
    return self.section(text, "answer")


class Prompt:
  """One user message, or the messages of the user's file with {question}.

  Args:
    instructions: a key of `known` ("none" shows only the question), or file:PATH.
    known: the recipe's wordings.
    marked: every question ends with "?", as in Search-R1's data.

  Raises:
    ValueError: see `wording.resolve`.
  """

  def __init__(self, instructions: str, known: Mapping[str, str], *, marked: bool = False):
    setting = "config.switches.instructions"
    self._wording = wording.resolve(instructions, known, setting=setting, needs=("question",))
    self._read = asked if marked else str.strip

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The chat messages that open the episode."""
    return self._wording.messages(question=self._read(example.question))


def one_turn(prompt: recipe.Prompt) -> Play:
  """The coroutine of a recipe whose model replies once, without tools."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    conversation = policy.start(prompt.messages(example))
    await conversation.generate()
    return conversation.end()

  return play


def asked(question: str) -> str:
  """The question as in Search-R1's data: it ends with "?"."""
  question = question.strip()
  return question if question.endswith("?") else f"{question}?"


@dataclasses.dataclass(frozen=True)
class AnswerReward:
  """Scores one episode by its last answer alone: for agents and untrained baselines.

  Attributes:
    kind: "em"; "f1"; or "judge": the judge decides about answers that equal no gold.
  """

  parser: recipe.Parser
  kind: Any = "em"

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`answer` 0 to 1; None if a tool failed, or if a verdict is missing."""
    return dict(answer=None if episode.ended == "failed" else self.earned(example, episode))

  def earned(self, example: Example, episode: Episode) -> float | None:
    """The term `answer` of an episode that did not fail."""
    if self.kind == "f1":
      return qa.f1(last_answer(self.parser, episode) or "", example.golds)
    return self.outcome(example, episode)

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    return dict(answer=1.0)

  def outcome(self, example: Example, episode: Episode) -> float | None:
    """Whether the last answer is right, 0 or 1; None if a verdict is missing."""
    answer = last_answer(self.parser, episode) or ""
    if self.kind != "judge" or not answer or qa.exact_match(answer, example.golds):
      return qa.exact_match(answer, example.golds)
    verdict = episode.facts.get("correct")
    return None if verdict is None else float(verdict >= 0.5)


def answer_fields(play: Play, reward: AnswerReward) -> dict[str, Any]:
  """The fields of `Recipe` that play and score an episode; a judge gives its verdict in play."""
  judges = reward.kind == "judge"
  play = judge_answer(play, reward.parser) if judges else play
  return dict(parser=reward.parser, play=play, judges_golds=judges, **recipe.scoring(reward))


def spoken(text: str) -> str:
  """What the model says after its thoughts: an answer inside a `<think>` block is none.

  A chat template may open the first block, so a closing tag needs no opening one. A block without an end hides what
  follows.
  """
  return text.rpartition("</think>")[2].partition("<think>")[0]


async def say(talk: Conversation, stop: Sequence[str], *, every: bool = False) -> Segment:
  """The model's next turn, as recipes read it (`structs.tagged`). Stop strings in its own thought end nothing.

  Args:
    every: in every thought. False: only in one that the chat template opened, because in this recipe's format the model
      writes `<think>` itself, and what it does before it ends the thought counts, as in the authors' code.
  """
  prefix = structs.THINK * structs.opened(talk.segments)
  outside = lambda turn: (prefix + turn).rfind(structs.THINK) <= (prefix + turn).rfind(structs.THOUGHT)
  turn = await talk.generate(stop=stop, ends=outside) if prefix or every else await talk.generate(stop=stop)
  return tagged(talk, turn)


def tagged(talk: Conversation, turn: Segment) -> Segment:
  """The conversation's newest turn, as recipes read it (`structs.tagged`)."""
  # Without room for a token, the turn is not among the segments.
  return structs.tagged(talk.segments)[-1] if talk.segments[-1] is turn else turn


def find_answer(parser: recipe.Parser, episode: Episode) -> str | None:
  """The model's last answer. Each turn is read separately, so tags of two turns never form a pair."""
  answers = (parser.answer(s.text) for s in reversed(structs.tagged(episode.segments)) if s.owner == MODEL)
  return next((answer for answer in answers if answer is not None), None)


def last_answer(parser: recipe.Parser, episode: Episode) -> str | None:
  """The fact `answer`, of another generator or of a method that chooses one; else the model's last answer."""
  return episode.facts["answer"] if "answer" in episode.facts else find_answer(parser, episode)


def judge_answer(play: Play, parser: recipe.Parser, *, style: str = "squad") -> Play:
  """The coroutine, followed by the judge's verdict on an answer that equals no gold in this style (fact `correct`)."""

  async def play_and_judge(example: Example, policy: Policy, tools: Tools) -> Episode:
    episode = await play(example, policy, tools)
    reply = last_answer(parser, episode)
    # A question by `ragrl ask` has no golds.
    if not reply or not example.golds or qa.exact_match(reply, example.golds, style=style):
      return episode
    (verdict,) = await tools.judge([(references(example.golds), reply)])
    return dataclasses.replace(episode, facts={**episode.facts, "correct": verdict})

  return play_and_judge
