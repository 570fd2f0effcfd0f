"""Search-R1 (arXiv 2503.09516): see README.md."""

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import recipe as recipe_lib, scripts, search_agent
from ragrl_jax.recipes.parts import Prompt, find_answer
from ragrl_jax.recipes.search_agent import NOTICES, Parser, hollow, in_shape
from ragrl_jax.settings.fields import Rules, setting
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage, Policy, Segment, Tools

# Texts that a tokenizer trained for this format keeps as one piece each.
MARKS = tuple(f"<{slash}{tag}>" for tag in ("think", "search", "information", "answer") for slash in ("", "/"))
INSTRUCTIONS = {
  "paper": (
    "You will be asked a question. Whenever you have read something new, the question included, reason about it first, "
    "between <think> and </think>. If a piece of knowledge is missing, ask the search engine for it: write "
    "<search> your query </search>, and the best results come back between <information> and </information>. Search "
    "as many times as it takes. As soon as nothing more is needed, give the answer, short and without explanations, "
    "between <answer> and </answer>, like this: <answer> Lisbon </answer>.\nQuestion: {question}\n"
  ),
  "short": (
    "Reason in <think> </think>, search with <search> query </search>, answer in <answer> </answer>.\n"
    "Question: {question}\n"
  ),
  "no_search": (
    "You will be asked a question. Reason about it first, between <think> and </think>. Then give the answer, short "
    "and without explanations, between <answer> and </answer>, like this: <answer> Lisbon </answer>.\n"
    "Question: {question}\n"
  ),
  "browse": (
    "You will be asked a question. Whenever you have read something new, the question included, reason about it first, "
    "between <think> and </think>. If a piece of knowledge is missing, ask the search engine for it: write "
    "<search> your query </search>, and the best results come back between <information> and </information>, numbered "
    "Doc 1, Doc 2 and so on. To read more of the document that a result is from, write its number: <open> 2 </open>. "
    "To find words in the document that you have opened, write <find> the words </find>. As soon as nothing more is "
    "needed, give the answer, short and without explanations, between <answer> and </answer>, like this: "
    "<answer> Lisbon </answer>.\nQuestion: {question}\n"
  ),
  "none": "{question}",
}

# The environment's text after a turn without a valid action, if documents can be opened.
BROWSE_NOTICE = (
  "\nThat was no valid action. To search, I put a query between <search> and </search>; to read on, a result's number "
  "between <open> and </open>; to find words in the open document, the words between <find> and </find>; to answer, I "
  "put the answer between <answer> and </answer>. Another try.\n"
)
OUR_NOTICES = NOTICES | {"browse": BROWSE_NOTICE}


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  notice: str = setting("paper", "text after a turn without a valid action", choices=OUR_NOTICES, files=True)
  max_searches: int = setting(4, "most turns before the forced answer; NQ's quick start has 2", unit="turns", least=0)
  max_passage_tokens: int | None = setting(166, "longer passages are cut; three fill 500", unit="tokens", least=1)
  action: str = setting("last", "which of several complete pairs in a turn counts", choices=("last", "first"))
  match: str = setting("em", "the answer earns 1 if it equals a gold, or its F1 with one", choices=("em", "f1"))
  no_search_penalty: float = setting(0.0, "what an episode without a search loses; Search-R1++ has 0.1", least=0)
  no_answer_penalty: float = setting(0.0, "what an episode without an answer loses; Search-R1++ has 0.1", least=0)
  format: bool = setting(False, "reward the format too")
  structure_weight: float = setting(0.2, "with `format`: weight of the format; the answer has the rest")
  final_share: float = setting(0.5, "share of that weight for a wrong answer in a wrong format", unit="share")
  retrieval_weight: float = setting(0.0, "with `format`: weight of finding a gold, for a wrong answer in shape")
  browse: bool = setting(False, "<open> and <find> read the documents around results; they count as searches")
  guarded: bool = setting(False, 'the tricks of README.md\'s "Unearned reward" earn nothing')

  @property
  def stepped(self) -> bool:
    return True

  def rules(self) -> Rules:
    yield (
      not (self.browse and self.format),
      "config.switches.browse=True with format=True: the format does not allow opened documents. Choose one.",
    )
    yield (
      not (self.format and (self.match == "f1" or self.no_search_penalty or self.no_answer_penalty)),
      "config.switches.format=True with match='f1' or a penalty: the reward for the format is a published table of its "
      "own, by exact match. Set format=False, or match='em' and both penalties to 0.",
    )
    weights = ("structure_weight", "final_share", "retrieval_weight")
    changed = [name for name in weights if getattr(self, name) != getattr(type(self), name)]
    yield (
      self.format or not changed,
      f"config.switches.format=False, but {', '.join(changed)} is set: the format is not rewarded. Set format=True.",
    )
    yield (
      not self.no_search_penalty or self.max_searches > 0,
      f"config.switches.no_search_penalty={self.no_search_penalty} with max_searches=0: no episode can search. Raise "
      "max_searches, or set the penalty to 0.",
    )


def make_play(prompt: Prompt, parser: Parser, switches: Switches, notice: str):
  """The coroutine. notice: the environment's text after a turn without a valid action."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    talk, act = policy.start(prompt.messages(example)), Reader(tools).act
    ended = await search_agent.play_turns(talk, parser, act, notice, switches, tokenizer=policy.tokenizer)
    return talk.end(ended, **parser.facts)

  return play


class Reader:
  """Searches, opens and finds for one episode. It remembers the last results and the open document."""

  def __init__(self, tools: Tools):
    self._tools = tools
    self._shown: tuple[Passage, ...] = ()
    self._open: str | None = None  # id of a passage of the open document

  async def act(self, kind: str, text: str) -> tuple[str, tuple[Passage, ...]] | None:
    """(query, passages); None for an invalid action: an unknown number, no words, or no open document."""
    if kind == "search":
      query, results = text, await self._tools.search(text)
    elif kind == "open":
      number = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
      if not 1 <= number <= len(self._shown):
        return None
      self._open = self._shown[number - 1].id
      query, results = f"open {self._open}", await self._tools.open(self._open)
    else:
      if self._open is None or not text:
        return None
      query, results = f"find {text} in {self._open}", await self._tools.find(self._open, text)
    self._shown = tuple(results)
    return query, self._shown


class Reward(search_agent.Reward):
  """Scores one episode: for a right answer, with switches also for its actions, its format and for finding the gold."""

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`answer` and `format` 0 to 1; `retrieval`, `no_search` and `no_answer` 0 or 1. None if a tool had failed.

    With weights (0.8, 0.2, retrieval_weight) this is the published table: right 1 (in shape) or 0.8; wrong 0.2 plus
    retrieval (in shape) or 0.1; no answer 0.

    Source: Search-R1's qa_em.py and qa_em_format.py (v0.3); F1 with both penalties, Search-R1++ (arXiv 2602.19526).
    """
    if episode.ended == "failed":
      return dict.fromkeys(self.weights(0))
    terms: dict[str, float | None] = dict(answer=self.score_answer(example, episode))
    if self.switches.no_search_penalty:
      terms["no_search"] = float(not episode.searches)
    if self.switches.no_answer_penalty:
      terms["no_answer"] = float(find_answer(self.parser, episode) is None)
    if self.switches.format:
      shaped = in_shape(episode) and not (self.switches.guarded and hollow(episode))
      pays = shaped and not self.outcome(example, episode)
      terms["format"] = self.score_format(example, episode)
      terms["retrieval"] = float(pays and gold_was_found(self.parser, example, episode))
    return terms

  def earned(self, example: Example, episode: Episode) -> float:
    """The term `answer` without the guard: exact match or F1."""
    if self.switches.match == "em":
      return self.outcome(example, episode)
    return qa.f1(find_answer(self.parser, episode) or "", example.golds)

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    if not self.switches.format:
      penalties = dict(no_search=-self.switches.no_search_penalty, no_answer=-self.switches.no_answer_penalty)
      return dict(answer=1.0) | {name: weight for name, weight in penalties.items() if weight}
    shape = self.switches.structure_weight
    return dict(answer=1.0 - shape, format=shape, retrieval=self.switches.retrieval_weight)

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks that this reward pays for, and whether the episode does them (README.md, "Unearned reward")."""
    return self.find_tricks(example, episode, format=self.switches.format)


def gold_was_found(parser: Parser, example: Example, episode: Episode) -> bool:
  """Whether a shown passage contains a normalised gold. A gold in a part that was cut off does not count."""
  shown = [passage for search in episode.searches for passage in parser.observed("", search.text)[1] or ()]
  texts = [normalize(f"{passage.title} {passage.text}", "squad") for passage in shown]
  golds = [gold for gold in (normalize(gold, "squad") for gold in example.golds) if gold]
  return any(gold in text for text in texts for gold in golds)


def write_script(example: Example, segments: Sequence[Segment], rng: random.Random, *, searches: int) -> str:
  """See `Recipe.script`. searches: the most searches; without any, it answers at once."""
  answer = scripts.answer(example)
  if not searches:
    return f"<think> I remember {answer}. </think><answer> {answer} </answer>"
  new, query = scripts.next_query(example, segments)
  first = len(segments) == 1
  remark = "I have to search for this." if first else scripts.quoted(new, "Doc") or "This does not say it."
  if query:
    return f"<think> {remark}{'' if first else ' I search on.'} </think><search> {query} </search>"
  return f"<think> {remark} So the answer is {answer}. </think><answer> {answer} </answer>"


def demonstrate(
  example: Example, search: Callable[[str], Sequence[Passage]], rng: random.Random, *, fault: float = 0.65
) -> list[tuple[str, str]]:
  """Plays one question of `data.synthetic` for the warm start, correctly or with a fault.

  The fault is to stop: the answer is the result of an earlier hop (not for questions of one hop).

  Args:
    example: with its decomposition in meta.
    search: query → passages, best first, from the live retriever, so that demonstrations show its results.
    rng: draws the faults.
    fault: share of questions played with a fault.

  Returns:
    ("model" | "environment", text) turns, as `structs.Episode.from_text` takes them.
  """
  hops, answer = list(example.meta["decomposition"]), example.golds[0]
  # The choice among one draws a number, as it did among several faults: a seed's demonstrations stay the same.
  if rng.random() < fault and rng.choice(("stop",)) and len(hops) > 1:
    hops = hops[: rng.randint(1, len(hops) - 1)]
    answer = hops[-1]["object"]
  turns, thought = [], f"<think> {' '.join(hop['relation'] for hop in example.meta['decomposition'])} </think>"
  for hop in hops:
    turns.append((MODEL, f"{thought}<search> {write_query(hop)} </search>"))
    turns.append((ENVIRONMENT, passages.block(search(write_query(hop)))))
    thought = ""
  return [*turns, (MODEL, f"{thought}<answer> {answer} </answer>")]


def write_query(hop: Mapping[str, Any]) -> str:
  """The query of a demonstration."""
  return f"{hop['relation']} {hop['subject']}"


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "grpo": {},  # the algorithms differ in their configs, not in the recipe
  "ppo": {},
  "format": dict(format=True),
  "repo": dict(action="first"),
  "r1": dict(instructions="no_search", max_searches=0),
  "browse": dict(browse=True, instructions="browse", notice="browse"),
}


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  prompt = Prompt(switches.instructions, INSTRUCTIONS, marked=True)
  parser = Parser(switches.action, ("search", "open", "find", "answer") if switches.browse else ("search", "answer"))
  notice = search_agent.notice(switches.notice, OUR_NOTICES)
  return recipe_lib.Recipe(
    name="search_r1",
    prompt=prompt,
    parser=parser,
    play=make_play(prompt, parser, switches, notice),
    stops=parser.stops,
    switches=switches,
    script=functools.partial(write_script, searches=switches.max_searches),
    searches=switches.max_searches > 0,
    **recipe_lib.scoring(Reward(parser, switches)),
  )
