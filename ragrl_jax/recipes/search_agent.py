"""A search agent's turns with Search-R1's tags: queries, answers and results.

Every recipe that searches reads its model by these rules. They keep the model's and the environment's text apart.
"""

import dataclasses
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes.parts import find_answer, say
from ragrl_jax.structs import ENVIRONMENT, MODEL, THINK, THOUGHT, Conversation, Episode, Example, Passage, Segment

_ACTIONS = ("search", "answer")

# Opening tags of results, and of actions, of other agents (ReSearch, DeSA, Search-o1, tool calls).
_FOREIGN_RESULTS = re.compile(
  r"\s*(<(?:results?|documents?|docs|context|evidence|observation|retrieval|tool_response)>|<\|begin_search_result\|>)"
)
_FOREIGN_TURN = re.compile(r"\\boxed\{|<\|begin_search_query\|>|<(?:tool_call|query|retrieve)>")

# The environment's text after a turn that neither searches nor answers.
NOTICE = (
  "\nThat was no valid action. To search, I put a query between <search> and </search>; to answer, I put the answer "
  "between <answer> and </answer>. Another try.\n"
)
NOTICES = {"paper": NOTICE}


def notice(choice: str, known: Mapping[str, str] = NOTICES) -> str:
  """The notice that config.switches.notice names: a key of `known`, or file:PATH.

  Raises:
    ValueError: see `wording.resolve`.
  """
  return wording.resolve(choice, known, setting="config.switches.notice", roles=False).text()


def own(text: str) -> str:
  """The model's text without the result blocks that it wrote itself: they bring no results, and tags in them are none.

  A tag that it never closes is a mention, and so is the text after it the model's, as in Search-R1's qa_em.py.
  """
  return tags.without(text, passages.OPEN, passages.CLOSE)


def acted(text: str) -> str:
  """The model's `own` text without its complete thoughts: a query or an answer that it only thinks of is none."""
  return tags.without(own(text), THINK, THOUGHT)


@dataclasses.dataclass(frozen=True)
class Parser:
  """Model text → action.

  Attributes:
    actions: names of the pairs that are actions. "open" (the number of a result) and "find" (words) read documents.
    action: which complete pair of a turn is its action: the "last" one (its text then contains no tag of its own name),
      or the "first" match of `<(search|answer)>(.*?)</\\1>`, as in Search-R1's code. "first" also lets the last answer
      begin at its first opening tag, as the code of its reward does.
  """

  action: str = "last"
  actions: tuple[str, ...] = _ACTIONS

  @property
  def stops(self) -> tuple[str, ...]:
    """The stop strings of a turn: the closing tags of all actions."""
    return tuple(f"</{name}>" for name in self.actions)

  @property
  def facts(self) -> dict[str, str]:
    """What an episode's record says about how it was read: the action, unless it is the usual one."""
    return {} if self.action == "last" else dict(action=self.action)

  def act(self, text: str) -> tuple[str, str] | None:
    """("search", query) or ("answer", answer), stripped, or another of `actions`; None without a valid action.

    See `acted` for tags in thoughts, and `own` for a block of results that the model wrote.
    """
    reply = acted(text)
    pair = tags.last(reply, self.actions) if self.action == "last" else tags.first_match(reply, self.actions)
    return None if pair is None else (pair.name, pair.body.strip())

  def search(self, text: str) -> str | None:
    """The query, if the turn's action is a search."""
    action = self.act(text)
    return action[1] if action is not None and action[0] == "search" else None

  def answer(self, text: str) -> str | None:
    """The last complete answer in the text, or None. "" is an answer."""
    pairs = tags.pairs(acted(text), "answer", opening=self.action)
    return pairs[-1].body.strip() if pairs else None

  def stop(self, text: str) -> str:
    """The stop string that a turn of a transcript ends on, or "eos".

    Raises:
      ValueError: it acts in another agent's tags only, so that every score of it would be 0.
    """
    if (foreign := _FOREIGN_TURN.search(text)) is not None and tags.last(text, self.actions) is None:
      raise ValueError(_foreign(foreign[0], "search in <search> </search> and answer in <answer> </answer>"))
    return next((stop for stop in self.stops if text.rstrip().endswith(stop)), "eos")

  def observed(self, reply: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(query, passages) of a result block; (None, None) for a notice.

    A block in another format, as in other systems' transcripts, is one passage without a title.

    Raises:
      ValueError: results are in another agent's tags, and would not count as a search.
    """
    if (foreign := _FOREIGN_RESULTS.match(text)) is not None:
      raise ValueError(_foreign(foreign[1], "bring results in <information> </information>"))
    results, body = passages.parse_block(text), text.strip()
    if results is None and body.startswith(passages.OPEN) and body.endswith(passages.CLOSE):
      results = (Passage("1", "", body[len(passages.OPEN) : -len(passages.CLOSE)].strip()),)
    return (None, None) if results is None else (self.search(reply), results)


def _foreign(tag: str, ours: str) -> str:
  return f"this is another agent's transcript, with {tag!r}: turns must {ours}. Rewrite its tags before it is scored."


Read = Callable[[str, str], Awaitable[tuple[str, Sequence[Passage]] | None]]


async def play_turns(
  conversation: Conversation, parser: Parser, read: Read, notice: str, switches: Any, *, tokenizer: Any
) -> str:
  """Plays turns until one answers; returns why they ended.

  Args:
    read: (name, text) of another action → (query, passages), or None for an invalid one.
    notice: the environment's text after a turn without a valid action.
    switches: the recipe's, with `max_searches` and `max_passage_tokens`.
  """
  for turn in range(switches.max_searches + 1):  # n searches, n + 1 generations; the last one can only answer
    reply = await say(conversation, parser.stops)
    action = parser.act(reply.text)
    if action is not None and action[0] == "answer":
      return "answer"
    if turn == switches.max_searches:
      break
    result = None if action is None else await read(*action)
    if result is None:
      has_room = conversation.observe(notice)
    else:
      query, found = result
      block = passages.block(found, tokenizer=tokenizer, max_passage_tokens=switches.max_passage_tokens)
      has_room = conversation.observe(block, query=query, found=found)
    if not has_room:
      return "budget"
  return "searches"


def in_shape(episode: Episode, names: Sequence[str] = ("think", "search", "answer"), shape: str = "T(SIT)*A") -> bool:
  """Whether the format is right: by default think, any number of (search, results, think), answer.

  Between the sections there is only white space. Results must be the environment's. A result block that the model wrote
  itself breaks the format, and so does a notice.

  Args:
    names: allowed names of a model's section.
    shape: a regular expression over their first letters, with I for results and N for other texts of the environment.

  Source: the default is that of Search-R1's qa_em_format.py (v0.3).
  """
  letters = ""
  for segment in episode.turns:
    if segment.owner == ENVIRONMENT:
      letters += "N" if segment.found is None else "I"
      continue
    parts = tags.sections(segment.text, (*names, "information"))
    if parts is None or any(part.name == "information" for part in parts):
      return False
    letters += "".join(part.name[0].upper() for part in parts)
  return re.fullmatch(shape, letters) is not None


def thought(turns: Sequence[Segment]) -> list[str]:
  """The bodies of the model's think blocks, in order. A block inside another section does not count."""
  texts = (own(segment.text) for segment in turns if segment.owner == MODEL)
  return [part.body for text in texts for part in tags.outer(text, ("think", *_ACTIONS)) if part.name == "think"]


def says(text: str) -> bool:
  """Whether the text has a letter or a digit. ".", white space and U+200B alone do not count."""
  return any(sign.isalnum() for sign in text)


def unthought(episode: Episode) -> bool:
  """Whether no thought of the episode has a letter or a digit."""
  return not any(map(says, thought(episode.turns)))


def hollow(episode: Episode) -> bool:
  """Whether the format is right (`in_shape`), but a thought has no letter or digit."""
  return in_shape(episode) and not all(map(says, thought(episode.turns)))


@dataclasses.dataclass(frozen=True)
class Reward:
  """What Search-R1's reward pays for, and VERITAS's, which builds on it: an exact match, and perhaps the format.

  Attributes:
    parser: reads the model's text. Only the model's own words are read as its answer, and never the prompt's.
    switches: the recipe's, with `guarded`, `structure_weight` and `final_share`.
  """

  parser: Parser
  switches: Any

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the last answer, 0 or 1, without any shaping."""
    answer = find_answer(self.parser, episode)
    return 0.0 if answer is None else qa.exact_match(answer, example.golds)

  def earned(self, example: Example, episode: Episode) -> float:
    """The term `answer` without the guard, 0 or 1."""
    return self.outcome(example, episode)

  def score_answer(self, example: Example, episode: Episode) -> float:
    """The term `answer`. If guarded, an answer without a thought earns nothing."""
    return 0.0 if self.switches.guarded and unthought(episode) else self.earned(example, episode)

  def score_format(self, example: Example, episode: Episode) -> float:
    """The term `format`: 1 in shape, `final_share` for a wrong answer out of shape, else 0.

    If guarded, only the shape of a right answer is paid for, and only with a word in each thought.

    Source: Search-R1's qa_em_format.py (v0.3).
    """
    shaped = in_shape(episode)
    if self.switches.guarded:
      return float(bool(self.score_answer(example, episode)) and shaped and not hollow(episode))
    return 1.0 if shaped else self.switches.final_share * self._wrong(example, episode)

  def _wrong(self, example: Example, episode: Episode) -> bool:
    return find_answer(self.parser, episode) is not None and not self.outcome(example, episode)

  def find_tricks(self, example: Example, episode: Episode, *, format: bool) -> dict[str, bool]:
    """The tricks that these terms pay for, and whether the episode uses them; `format`: the format is paid for."""
    result = dict(unthought=bool(self.earned(example, episode)) and unthought(episode))
    return result | (dict(hollow=hollow(episode), consoled=self._wrong(example, episode)) if format else {})
