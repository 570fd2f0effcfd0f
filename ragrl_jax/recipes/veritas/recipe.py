"""VERITAS (TMLR, OpenReview mZ0gGlXe1F): see README.md."""

import asyncio
import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Any

from ragrl_jax.core.rewards import faithful
from ragrl_jax.judging import prompts
from ragrl_jax.recipes import parts, recipe as recipe_lib, scripts, search_agent
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.recipes.search_agent import NOTICES, Parser, notice
from ragrl_jax.recipes.steps import steps
from ragrl_jax.recipes.veritas import distil
from ragrl_jax.recipes.veritas.reward import Reward
from ragrl_jax.settings.fields import Reads, Rules, setting
from ragrl_jax.structs import Episode, Example, Passage, Policy, Segment, Tools

INSTRUCTIONS = {
  "paper": (
    "Answer the question below. Reason between <think> and </think> first, and again every time new information has "
    "come in. If you find that you lack knowledge, call a search engine with <search> your query </search>; its best "
    "results come back between <information> and </information>. You may search as often as you like. Once no more "
    "knowledge is needed, put the answer between <answer> and </answer>, without any detail around it. For example, "
    "<answer> Lisbon </answer>. Question: {question}\n"
  ),
  "short": (
    "Reason in <think> </think> about everything new, search with <search> query </search>, answer in "
    "<answer> </answer>.\nQuestion: {question}\n"
  ),
  "none": "{question}",
}


DIGITS = tuple(name for name, prompt in prompts.PROMPTS.items() if prompt.read is prompts.read_digit)
PAPERS_EPOCH = (79_168 + 90_447) / 512  # steps per epoch in the paper (NQ and HotpotQA); a run replaces it (`paced`)
JUDGED = dict(information_think="judge_information", think_search="judge_search", think_answer="judge_answer")


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  task: str = setting("agent", "judge: training of the reward model (distil.py)", choices=("agent", "judge"))
  judge_prompt: str = setting("information_think", "task judge: its question, in judging/prompts.py", choices=DIGITS)
  judge_wording: str = setting("", "wording of that question; empty: the default wording", choices=("",), files=True)
  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  notice: str = setting("paper", "text after a turn without a valid action", choices=NOTICES, files=True)
  max_searches: int = setting(4, "most turns before the forced answer", unit="turns", least=0)
  max_passage_tokens: int | None = setting(166, "longer passages are cut; three fill 500", unit="tokens", least=1)
  action: str = setting("last", "which of several complete pairs in a turn counts", choices=("last", "first"))
  information_think_weight: float = setting(0.05, "weight of the verdicts on (results, thought)")
  think_answer_weight: float = setting(0.02, "weight of the verdict on (thought, answer)")
  think_search_weight: float = setting(
    0.0, "weight of the verdicts on (thought, query); in the paper this term is high without a reward"
  )
  ramp_start_epochs: float = setting(
    1.0,
    "T1: the start of the weights' ramp; a step counts as prompts_per_step questions, even if a filter draws more",
    unit="epochs",
    least=0,
  )
  ramp_end_epochs: float = setting(1.5, "T2: its end", unit="epochs", least=0)
  ramp_start: int | None = setting(None, "T1 in steps, instead of epochs", unit="steps", least=0)
  ramp_end: int | None = setting(None, "T2 in steps", unit="steps", least=0)
  judge_information: bool = setting(True, "ask the judge about (results, thought)")
  judge_search: bool = setting(False, "ask the judge about (thought, query)")
  judge_answer: bool = setting(False, "ask the judge about (thought, answer), instead of Sub-EM")
  sub_em: str = setting("letters", 'letters: the thought "know" holds the answer "no"', choices=("letters", "words"))
  turn_credit: bool = setting(False, "reward each verdict in its thought's turn, not at the end")
  structure_weight: float = setting(0.0, "weight of the format; 0.2: the baseline that rewards it")
  final_share: float = setting(0.5, "share of that weight for a wrong answer in a wrong format", unit="share")
  guarded: bool = setting(False, 'the tricks of README.md\'s "Unearned reward" earn nothing')

  @property
  def stepped(self) -> bool:
    return True

  def rules(self) -> Rules:
    yield (
      (self.ramp_start is None) == (self.ramp_end is None),
      f"switches ramp_start={self.ramp_start} and ramp_end={self.ramp_end}: set both, in steps, or neither "
      "(config.switches.ramp_start, config.switches.ramp_end).",
    )
    for unit in ("", "_epochs"):
      start, end = self[f"ramp_start{unit}"], self[f"ramp_end{unit}"]
      yield (
        start is None or end is None or end >= start,
        f"switch ramp_end{unit}={end}: it must be at least {start}, ramp_start{unit} (config.switches.ramp_end{unit}).",
      )
    yield (
      self.structure_weight != 0 or self.final_share == type(self).final_share,
      f"switch final_share={self.final_share} with structure_weight=0: the format is not rewarded. Set "
      "structure_weight (config.switches.structure_weight).",
    )
    for term in ("information_think", "think_search"):
      weight, asks = self[f"{term}_weight"], JUDGED[term]
      yield (
        not weight or self[asks],
        f"switch {term}_weight={weight} needs verdicts, but no judge is asked for them: set {asks} "
        f"(config.switches.{asks}).",
      )

  def reads(self) -> Reads:
    yield "switches.judge_prompt switches.judge_wording", "switches.task", lambda task: task == "judge"
    yield "switches.sub_em", "switches.judge_answer", lambda asks: not asks
    yield "switches.ramp_start_epochs switches.ramp_end_epochs", "switches.ramp_start", lambda start: start is None
    yield "switches.turn_credit", "switches.information_think_weight", bool

  def ramp(self, epoch: float) -> tuple[int, int]:
    """(T1, T2) in steps, for an epoch of `epoch` steps."""
    if self.ramp_start is not None and self.ramp_end is not None:
      return self.ramp_start, self.ramp_end
    return round(self.ramp_start_epochs * epoch), round(self.ramp_end_epochs * epoch)


def make_play(prompt: Prompt, parser: Parser, switches: Switches, notice: str, judged: Sequence[str]):
  """The coroutine. notice: the environment's text after a turn without a valid action; judged: the judged terms."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    async def search(name: str, query: str) -> tuple[str, Sequence[Passage]] | None:
      return (query, await tools.search(query)) if query else None

    talk = policy.start(prompt.messages(example))
    ended = await search_agent.play_turns(talk, parser, search, notice, switches, tokenizer=policy.tokenizer)
    episode = talk.end(ended)  # frees its pages while the judge reads
    return dataclasses.replace(episode, facts=parser.facts | await verdicts(episode, tools))

  async def verdicts(episode: Episode, tools: Tools) -> dict[str, tuple[float | None, ...]]:
    """For each judged term, one verdict for each of its complete pairs, in order."""
    results = steps(episode.turns, parser.action)
    pairs = {name: faithful.whole(getattr(results, name)) for name in judged}
    answers = await asyncio.gather(*(tools.judge(wanted, term) for term, wanted in pairs.items() if wanted))
    lists = iter(answers)
    return {name: tuple(next(lists)) if wanted else () for name, wanted in pairs.items()}

  return play


def write_script(example: Example, segments: Sequence[Segment], rng: random.Random, *, searches: int) -> str:
  """See `Recipe.script`. searches: the most searches; without any, it answers at once."""
  answer = scripts.answer(example)
  if not searches:
    return f"<think> I remember {answer}. </think><answer> {answer} </answer>"
  new, query = scripts.next_query(example, segments)
  seen, found = scripts.quoted(new, "Doc"), segments[-1].found
  if not seen and found is not None:
    seen = f"Doc 1 is about {found[0].title}, and no result says it." if found else "Nothing was found."
  if query:
    return f"<think> {f'{seen} I need to find out: {query}'.strip()} </think><search> {query} </search>"
  return f"<think> {seen} So the answer is {answer}. </think><answer> {answer} </answer>"


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "em": dict(information_think_weight=0.0, think_answer_weight=0.0, judge_information=False),
  "em_it": dict(think_answer_weight=0.0),
  "em_ta": dict(information_think_weight=0.0, judge_information=False),
  "em_format": dict(
    information_think_weight=0.0, think_answer_weight=0.0, judge_information=False, structure_weight=0.2
  ),
  "reward_model": dict(task="judge"),
  "no_ramp": dict(ramp_start=0, ramp_end=0),
  "repo": dict(action="first"),
}


def build(switches: Switches, epoch: float = PAPERS_EPOCH) -> recipe_lib.Recipe:
  """The recipe with these switches. epoch: steps of one pass over the questions."""
  if switches.task == "judge":
    asks = distil.Prompt(switches.judge_prompt, switches.judge_wording)
    scored = parts.answer_fields(parts.one_turn(asks), parts.AnswerReward(distil.Parser()))
    return recipe_lib.Recipe(name="veritas", prompt=asks, stops=(), switches=switches, **scored)
  prompt, parser = Prompt(switches.instructions, INSTRUCTIONS, marked=True), Parser(switches.action)
  judged = tuple(term for term, switch in JUDGED.items() if switches[switch])
  reward = Reward(parser, switches, judged, switches.ramp(epoch))
  return recipe_lib.Recipe(
    name="veritas",
    prompt=prompt,
    parser=parser,
    play=make_play(prompt, parser, switches, notice(switches.notice), judged),
    stops=parser.stops,
    switches=switches,
    judged=judged,
    credit=reward.credit if switches.turn_credit else None,
    paced=functools.partial(build, switches),
    script=functools.partial(write_script, searches=switches.max_searches),
    searches=switches.max_searches > 0,
    **recipe_lib.scoring(reward),
  )
