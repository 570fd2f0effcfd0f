"""VERITAS (TMLR, OpenReview mZ0gGlXe1F): see README.md."""

import dataclasses
from typing import Any

from ragrl_jax.judging import prompts
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.veritas import distil
from ragrl_jax.recipes.veritas import play as play_lib
from ragrl_jax.recipes.veritas.parser import STOPS, Parser
from ragrl_jax.recipes.veritas.prompt import INSTRUCTIONS, Prompt
from ragrl_jax.recipes.veritas.reward import Reward
from ragrl_jax.settings.fields import Rules, setting

DIGITS = tuple(name for name, prompt in prompts.PROMPTS.items() if prompt.read is prompts.read_digit)
JUDGED = dict(information_think="judge_information", think_search="judge_search", think_answer="judge_answer")


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  task: str = setting("agent", choices=("agent", "judge"))  # "judge": training of the reward model (distil.py)
  # task "judge": the question, a name of judging/prompts.py
  judge_prompt: str = setting("information_think", choices=DIGITS)
  instructions: str = setting("paper", choices=tuple(INSTRUCTIONS))  # "none": the question only
  max_searches: int = setting(4, least=0)  # turns before the forced answer
  max_passage_tokens: int | None = setting(166, least=1)  # a longer passage is cut; three make Search-R1's 500
  action: str = setting("last", choices=("last", "first"))  # which of several complete pairs in a turn
  information_think_weight: float = 0.05
  think_answer_weight: float = 0.02
  think_search_weight: float = 0.0  # the paper found it high without a reward
  ramp_start: int = setting(331, least=0)  # T1: one epoch of 169,615 questions at 512 a step
  ramp_end: int = setting(497, least=0)  # T2: half an epoch later
  judge_information: bool = True  # ask the judge about (results, thought)
  judge_search: bool = False  # about (thought, query)
  judge_answer: bool = False  # about (thought, answer), in place of Sub-EM
  turn_credit: bool = False  # pay each verdict where its thought stands, not at the end
  structure_weight: float = 0.0  # 0.2: the baseline that pays for shape
  final_share: float = 0.5  # of it, for a wrong answer out of shape

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    yield (
      self.ramp_end >= self.ramp_start,
      f"switch ramp_end={self.ramp_end}: it must be at least {self.ramp_start}, ramp_start (config.switches.ramp_end).",
    )
    for term in ("information_think", "think_search"):
      weight, asks = self[f"{term}_weight"], JUDGED[term]
      yield (
        not weight or self[asks],
        f"switch {term}_weight={weight} pays for verdicts that nobody is asked for: set {asks} "
        f"(config.switches.{asks}).",
      )


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


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe under these switches."""
  if switches.task == "judge":
    asks = distil.Prompt(switches.judge_prompt)
    return recipe_lib.Recipe(
      name="veritas",
      prompt=asks,
      parser=distil.Parser(),
      play=distil.build(asks),
      stops=(),
      score=distil.score,
      weights=lambda step: dict(answer=1.0),
      outcome=distil.outcome,
      switches=switches,
    )
  prompt, parser = Prompt(switches.instructions), Parser(switches.action)
  judged = tuple(term for term, switch in JUDGED.items() if switches[switch])
  reward = Reward(
    parser,
    faithful_weights={term: switches[f"{term}_weight"] for term in JUDGED},
    ramp=(switches.ramp_start, switches.ramp_end),
    judged=judged,
    sub_em=not switches.judge_answer,
    structure_weight=switches.structure_weight,
    final_share=switches.final_share,
  )
  play = play_lib.build(
    prompt, parser, max_searches=switches.max_searches, max_passage_tokens=switches.max_passage_tokens, judged=judged
  )
  return recipe_lib.Recipe(
    name="veritas",
    prompt=prompt,
    parser=parser,
    play=play,
    stops=STOPS,
    score=reward.score,
    weights=reward.weights,
    outcome=reward.outcome,
    switches=switches,
    judged=judged,
    credit=reward.credit if switches.turn_credit else None,
    searches=switches.max_searches > 0,
  )
