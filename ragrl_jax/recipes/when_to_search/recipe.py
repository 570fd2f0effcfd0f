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
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.judging import references
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.parts import Prompt, find_answer, say
from ragrl_jax.recipes.search_agent import STOPS, Parser
from ragrl_jax.recipes.when_to_search.reward import ANSWER, Reward, to_judge
from ragrl_jax.settings.fields import setting
from ragrl_jax.structs import Episode, Example, Policy, Segment, Tools

KNOWN = 0.3  # share of the questions that are answered from memory, if the rows do not say which ones are known
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


def make_play(prompt: Prompt, parser: Parser, switches: Switches):
  """The coroutine with these settings."""
  max_searches = switches.max_searches

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    talk = policy.start(prompt.messages(example))
    why = None
    for searches in range(max_searches + 1):  # n searches, n + 1 generations; the last one can only answer
      said = await say(talk, STOPS)
      action, text = parser.act(said.text) or ("", "")
      if action == "answer":
        why = "answer"
      if action != "search" or not text:  # an invalid action ends the episode
        break
      if searches == max_searches:
        why = "searches"
        break
      found = await tools.search(text)
      shown = passages.block(found, tokenizer=policy.tokenizer, max_passage_tokens=switches.max_passage_tokens)
      if not talk.observe(shown, query=text, found=found):
        why = "budget"
        break
    episode = talk.end(why)  # frees its pages while judge and encoder work
    return dataclasses.replace(episode, facts=await facts(example, episode, tools))

  async def facts(example: Example, episode: Episode, tools: Tools) -> dict[str, Any]:
    """`correct`: the verdict on an answer that equals no gold; `query_vectors`: the vectors of several queries."""
    known: dict[str, Any] = {}
    said = find_answer(parser, episode) or ""
    answer = to_judge(said, example.golds)
    if switches.judges and answer and example.golds and not qa.exact_match(said, example.golds):
      # Texts are normalised, as for the paper's judge. This gives fewer different pairs, so fewer calls.
      golds = [normalize(gold, "squad") or gold for gold in example.golds]
      (known["correct"],) = await tools.judge([(references(golds), answer)])
    if switches.similarity == "encoder" and episode.num_searches > 1:
      known["query_vectors"] = await tools.embed([search.query or "" for search in episode.searches])
    return known

  return play


def settled_step(rows: Sequence[Mapping[str, Any]], *, metric: str, patience: int) -> int | None:
  """The step of the evaluation at which `metric` had stopped rising (`schedules.stopped_rising`); None if it still rises.

  The result depends only on the logged rows, which are read from metrics.jsonl. So a resumed run finds the same step as
  a run that was never killed.

  Args:
    rows: rows of metrics.jsonl, oldest first. Rows without the metric, or with one that is not finite, are ignored.
    metric: for example "evaluation/em"; higher is better.
    patience: evaluations without a rise, at least 1.
  """
  seen = [row for row in rows if isinstance(row.get(metric), int | float) and math.isfinite(row[metric])]
  curve = [row[metric] for row in seen]
  ends = (end for end in range(1, len(curve) + 1) if schedules.stopped_rising(curve[:end], patience=patience))
  return next((seen[end - 1]["step"] for end in ends), None)


def write_script(example: Example, segments: Sequence[Segment], rng: random.Random, *, searches: int) -> str:
  """See `Recipe.script`. meta["known"] says whether the answer is known. searches: the most searches."""
  answer, first = scripts.answer(example), len(segments) == 1
  known = example.meta.get("known")
  if first and (not searches or (rng.random() < KNOWN if known is None else known)):
    return f"<think> I know this. </think><reflect> It is {answer}. </reflect><answer> {answer} </answer>"
  new, query = scripts.next_query(example, segments)
  seen = scripts.quoted(new, "Doc") or "The results do not say it."
  said = "<think> I do not know this. </think>" if first else f"<reflect> {seen} </reflect>"
  if query:
    return f"{said}<search> {scripts.keywords(query)} </search>"
  return f"{said}<answer> {answer} </answer>"


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
    stops=STOPS,
    switches=switches,
    next_recipe=next_recipe if switches.settle_metric else None,
    waits_for=switches.settle_metric,
    encodes=switches.similarity == "encoder",
    script=functools.partial(write_script, searches=switches.max_searches),
    searches=switches.max_searches > 0,
    **recipe_lib.scoring(Reward(parser, switches)),
  )
  return recipe
