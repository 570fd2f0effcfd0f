"""Learning When to Search: see README.md."""

import dataclasses
import functools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core import schedules
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import queries
from ragrl_jax.core.text import tags
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.data import columns
from ragrl_jax.judging import references
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import recipe as recipe_lib, scripts, search_agent
from ragrl_jax.recipes.parts import Prompt, find_answer, say
from ragrl_jax.recipes.search_agent import Parser
from ragrl_jax.settings.fields import Reads, setting
from ragrl_jax.structs import MODEL, Episode, Example, Policy, Segment, Tools

KNOWN = 0.3  # share of the questions that are answered from memory, if the rows do not say which ones are known
TERMS = ("answer_explore", "answer_economise", "search", "format")
ANSWER = ("staged", "unified", "none")
INSTRUCTIONS = {
  "paper": (
    "Answer the question by this protocol.\n"
    "1. Begin with <think> … </think>: a short sketch of the reasoning, from what you know yourself. Do not take it "
    "for granted that tools are needed.\n"
    "2. If what you know is enough, sum it up in <reflect> … </reflect> and give the answer in <answer> … </answer>. "
    "In that case you must not search.\n"
    "3. Only if what you know is really not enough, write a query in <search> … </search>: a few keywords with names, "
    "dates, places and concepts, as brief as possible, and no question in natural language.\n"
    "4. What is found comes back in <information> … </information>. If it is reliable and enough, put it together with "
    "your reasoning in <reflect> … </reflect>, then answer.\n"
    "5. If it is not enough, or contradicts what you know, say so in <reflect> … </reflect>, and search again with "
    "another query if that is necessary.\n"
    "6. The answer in <answer> … </answer> is short and clear. Your own reasoning comes first; a search is the last "
    "resort.\n"
    "Question: {question}\n"
  ),
  "short": (
    "First <think> </think>. If you know the answer: <reflect> </reflect><answer> </answer>. Else "
    "<search> keywords </search>, then <reflect> </reflect> on what was found, and search again or answer.\n"
    "Question: {question}\n"
  ),
  "none": "{question}",
}


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  max_searches: int = setting(5, "most searches", unit="searches", least=0)
  max_passage_tokens: int | None = setting(800, "longer passages are cut; five fill 4096", unit="tokens", least=1)
  beta: float = setting(0.3, "β: value of a search in the answer's reward")
  answer: str = setting("staged", "the answer's reward; unified: both dependencies on searches at once", choices=ANSWER)
  stage_two_from: int | None = setting(
    301, "first step of stage 2; stage 1 has 60 % of 500 steps; None: there is no stage 2", unit="steps", least=0
  )
  settle_metric: str = setting(
    "", 'stage 2 begins earlier when this metric stops rising, for example "evaluation/em"; empty: it does not'
  )
  settle_patience: int = setting(3, "evaluations without a rise", unit="evaluations", least=1)
  correctness: str = setting("judge", "answers that equal no gold; exact: they are wrong", choices=("judge", "exact"))
  search_weight: float = setting(1.0, "weight of the searches' reward")
  conciseness: str = setting("keywords", "rule for a concise query", choices=queries.CONCISE)
  similarity: str = setting(
    "encoder",
    "similarity of queries: of their vectors (config.retrieval.query_encoder), or of character trigrams",
    choices=("encoder", "ngrams"),
  )
  halve: bool = setting(False, "the printed formula, half the mean")
  guarded: bool = setting(False, 'the tricks of README.md\'s "Unearned reward" earn nothing')

  @property
  def judges(self) -> bool:
    """Whether the judge decides about answers that equal no gold."""
    return self.correctness == "judge"

  def reads(self) -> Reads:
    yield "switches.settle_patience", "switches.settle_metric", bool
    yield "switches.stage_two_from switches.settle_metric", "switches.answer", lambda answer: answer == "staged"


def in_shape(episode: Episode) -> bool:
  """Whether the format is think reflect answer, or think (search results reflect) … answer.

  A think may precede later searches. The only answer comes last.

  Source: When to Search sec. 3.3; its second example searches right after a reflection.
  """
  return search_agent.in_shape(episode, ("think", "search", "reflect", "answer"), "TRA|TSIR(T?SIR)*A")


def wordless(episode: Episode) -> bool:
  """Whether a think or a reflection has no letter and no digit."""
  texts = [segment.text for segment in episode.turns if segment.owner == MODEL]
  return any(not search_agent.says(pair.body) for text in texts for pair in tags.pairs(text, ("think", "reflect")))


@dataclasses.dataclass(frozen=True)
class Reward:
  """Scores one episode: the answer (depending on the number of searches), queries, and the format."""

  parser: Parser
  switches: Switches

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """The terms, with RC executed searches and β = 0.3.

    `answer_explore`: right 1, wrong −1 + β·RC. `answer_economise`: right 1 − β·RC, wrong −1. ("unified": both are
    1 − β·RC and −1 + β·RC.) `search`: minus the similarity of two or more queries; for one query 0 if it is brief, else
    −1; without a query 0. `format`: 1 in the right format, else −1. A term is None if a tool failed, or if a verdict or
    vectors are missing.

    Source: When to Search sec. 3.3, eqs. 6 to 12.
    """
    if episode.ended == "failed":
      return dict.fromkeys(TERMS)
    pay = self.switches.beta * episode.num_searches
    right = self.correct(example, episode)
    explore = economise = None
    if right is not None:
      explore, economise = (1.0, 1.0 - pay) if right else (-1.0 + pay, -1.0)
      if self.switches.answer == "unified":
        explore = economise = 1.0 - pay if right else -1.0 + pay
      if self.switches.guarded and not right:
        explore, economise = min(explore, 0.0), min(economise, 0.0)
    return dict(
      answer_explore=explore,
      answer_economise=economise,
      search=self.searching(example, episode),
      format=1.0 if in_shape(episode) and not (self.switches.guarded and wordless(episode)) else -1.0,
    )

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term at a step. Stage 1 uses `answer_explore`, stage 2 `answer_economise`."""
    second = self.switches.stage_two_from is not None and bool(schedules.stage(step, (self.switches.stage_two_from,)))
    paid = float(self.switches.answer != "none")
    return dict(
      answer_explore=0.0 if second else paid,
      answer_economise=paid if second else 0.0,
      search=self.switches.search_weight,
      format=1.0,
    )

  def outcome(self, example: Example, episode: Episode) -> float | None:
    """1 if the answer is right; None if it needs a verdict and has none, because it is then unknown."""
    right = self.correct(example, episode)
    return None if right is None else float(right)

  def correct(self, example: Example, episode: Episode) -> bool | None:
    """Whether the answer equals a gold, or the judge called it right; None without a needed verdict."""
    answer = find_answer(self.parser, episode) or ""
    if qa.exact_match(answer, example.golds):
      return True
    refused = self.switches.guarded and hedged(answer, example.golds)
    if refused or not self.switches.judges or not to_judge(answer, example.golds):
      return False
    verdict = episode.facts.get("correct")
    return None if verdict is None else verdict >= 0.5

  def searching(self, example: Example, episode: Episode) -> float | None:
    """The term `search`, in [-1, 1]: a single query should be brief, several should differ; None without vectors.

    It is above 0 only for queries with opposite vectors, and never if guarded.
    """
    if episode.num_searches < 2:
      return 0.0 if self._brief(example, episode) else -1.0
    if (alike := self._similarity(episode)) is None:
      return None
    if not self.switches.guarded:
      return -alike
    return min(-alike, 0.0) if self._brief(example, episode) else -1.0

  def _brief(self, example: Example, episode: Episode) -> bool:
    """Whether all queries are concise. Question words inside a title (of the question or of a result) are allowed."""
    titles = [*queries.names_in(example.question), *(p.title for s in episode.searches for p in s.found or ())]
    return all(queries.CONCISE[self.switches.conciseness](search.query or "", titles) for search in episode.searches)

  def _similarity(self, episode: Episode) -> float | None:
    vectors = episode.facts.get("query_vectors")
    if self.switches.similarity == "ngrams":
      vectors = queries.ngram_vectors([search.query or "" for search in episode.searches])
    return None if vectors is None else queries.mean_similarity(vectors, halve=self.switches.halve)

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks of README.md's "Unearned reward", and whether the episode uses them.

    "paid_failure": a wrong answer with so many searches that stage 1 rewards it. "hidden_question": a query that is not
    brief, besides another query. "opposite_queries": queries with opposite vectors. "wordless": the right format, with
    a think or a reflection without a letter or digit. "hedged": an answer that names several, or a long text, that the
    judge called right.
    """
    several = episode.num_searches > 1
    right, answer = self.correct(example, episode), find_answer(self.parser, episode) or ""
    exact = bool(qa.exact_match(answer, example.golds))
    hedge = not exact and (episode.facts.get("correct") or 0.0) >= 0.5 and hedged(answer, example.golds)
    return dict(
      paid_failure=right is False and self.switches.beta * episode.num_searches > 1.0,
      hidden_question=several and not self._brief(example, episode),
      opposite_queries=several and (self._similarity(episode) or 0.0) < 0.0,
      wordless=in_shape(episode) and wordless(episode),
      hedged=self.switches.judges and hedge,
    )


def to_judge(answer: str, golds: Sequence[str]) -> str:
  """The answer for the judge, normalised as in the paper; "" if there is nothing to judge.

  If a gold becomes empty by normalising ("The The"), a right answer may too. Then the answer is not normalised.
  """
  text = normalize(answer, "squad")
  return text if text or all(normalize(gold, "squad") for gold in golds) else answer.strip()


def hedged(answer: str, golds: Sequence[str]) -> bool:
  """Whether an answer names several ("or"), or has more than ten words and three times as many as every gold."""
  words, golds_words = normalize(answer, "squad").split(), [normalize(gold, "squad").split() for gold in golds]
  longest = max(map(len, golds_words), default=0)
  return ("or" in words and not any("or" in gold for gold in golds_words)) or len(words) > max(10, 3 * longest)


def make_play(prompt: Prompt, parser: Parser, switches: Switches):
  """The coroutine with these settings."""
  max_searches = switches.max_searches

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    conversation = policy.start(prompt.messages(example))
    reason = None
    for searches in range(max_searches + 1):  # n searches, n + 1 generations; the last one can only answer
      turn = await say(conversation, parser.stops)
      action, text = parser.act(turn.text) or ("", "")
      if action == "answer":
        reason = "answer"
      if action != "search" or not text:  # an invalid action ends the episode
        break
      if searches == max_searches:
        reason = "searches"
        break
      results = await tools.search(text)
      block = passages.block(results, tokenizer=policy.tokenizer, max_passage_tokens=switches.max_passage_tokens)
      if not conversation.observe(block, query=text, found=results):
        reason = "budget"
        break
    episode = conversation.end(reason)  # frees its pages while judge and encoder work
    return dataclasses.replace(episode, facts=await facts(example, episode, tools))

  async def facts(example: Example, episode: Episode, tools: Tools) -> dict[str, Any]:
    """`correct`: the verdict on an answer that equals no gold; `query_vectors`: the vectors of several queries."""
    result: dict[str, Any] = {}
    said = find_answer(parser, episode) or ""
    answer = to_judge(said, example.golds)
    if switches.judges and answer and example.golds and not qa.exact_match(said, example.golds):
      # Texts are normalised, as for the paper's judge. This gives fewer different pairs, so fewer calls.
      golds = [normalize(gold, "squad") or gold for gold in example.golds]
      (result["correct"],) = await tools.judge([(references(golds), answer)])
    if switches.similarity == "encoder" and episode.num_searches > 1:
      result["query_vectors"] = await tools.embed([search.query or "" for search in episode.searches])
    return result

  return play


def settled_step(rows: Sequence[Mapping[str, Any]], *, metric: str, patience: int) -> int | None:
  """The step of the evaluation at which `metric` had stopped rising (`stopped_rising`); None if it still rises.

  The result depends only on the logged rows, which are read from metrics.jsonl. So a resumed run finds the same step as
  a run that was never killed.

  Args:
    rows: rows of metrics.jsonl, oldest first. Rows without the metric, or with one that is not finite, are ignored.
    metric: for example "evaluation/em"; higher is better.
    patience: evaluations without a rise, at least 1.
  """
  measured = [row for row in rows if isinstance(row.get(metric), int | float) and math.isfinite(row[metric])]
  curve = [row[metric] for row in measured]
  ends = (end for end in range(1, len(curve) + 1) if schedules.stopped_rising(curve[:end], patience=patience))
  return next((measured[end - 1]["step"] for end in ends), None)


def write_script(example: Example, segments: Sequence[Segment], rng: random.Random, *, searches: int) -> str:
  """See `Recipe.script`. meta["known"] says whether the answer is known. searches: the most searches."""
  answer, first = scripts.answer(example), len(segments) == 1
  known = columns.truth(example.meta, "known")
  if first and (not searches or (rng.random() < KNOWN if known is None else known)):
    return f"<think> I know this. </think><reflect> It is {answer}. </reflect><answer> {answer} </answer>"
  new, query = scripts.next_query(example, segments)
  remark = scripts.quoted(new, "Doc") or "The results do not say it."
  text = "<think> I do not know this. </think>" if first else f"<reflect> {remark} </reflect>"
  if query:
    return f"{text}<search> {scripts.keywords(query)} </search>"
  return f"{text}<answer> {answer} </answer>"


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "exact": dict(correctness="exact"),
  "printed": dict(halve=True),
  "ngrams": dict(similarity="ngrams"),
  "no_search_reward": dict(search_weight=0.0),
  "no_stage_one": dict(stage_two_from=0),
  "no_stage_two": dict(stage_two_from=None),
  "no_answer_reward": dict(answer="none"),
  "unified": dict(answer="unified"),
}


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  prompt, parser = Prompt(switches.instructions, INSTRUCTIONS), Parser()

  def next_recipe(rows: Sequence[Mapping[str, Any]]) -> recipe_lib.Recipe:
    """Stage 2 begins at the step after the evaluation at which the metric had stopped rising."""
    last = settled_step(rows, metric=switches.settle_metric, patience=switches.settle_patience)
    if last is None:
      return recipe
    begin = last + 1 if switches.stage_two_from is None else min(last + 1, switches.stage_two_from)
    return build(dataclasses.replace(switches, stage_two_from=begin, settle_metric=""))

  recipe = recipe_lib.Recipe(
    name="when_to_search",
    prompt=prompt,
    parser=parser,
    play=make_play(prompt, parser, switches),
    judges_golds=switches.judges,
    stops=parser.stops,
    switches=switches,
    next_recipe=next_recipe if switches.settle_metric else None,
    waits_for=switches.settle_metric,
    encodes=switches.similarity == "encoder" and switches.max_searches > 1,
    script=functools.partial(write_script, searches=switches.max_searches),
    searches=switches.max_searches > 0,
    **recipe_lib.scoring(Reward(parser, switches)),
  )
  return recipe
