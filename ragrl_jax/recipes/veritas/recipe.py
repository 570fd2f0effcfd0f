"""VERITAS (TMLR, OpenReview mZ0gGlXe1F): see README.md."""

from typing import Any

from ragrl_jax.judging import prompts
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.veritas import distil
from ragrl_jax.recipes.veritas import play as play_lib
from ragrl_jax.recipes.veritas.parser import STOPS, Parser
from ragrl_jax.recipes.veritas.prompt import INSTRUCTIONS, Prompt
from ragrl_jax.recipes.veritas.reward import Reward

PRESETS = {
  "paper": dict(
    task="agent",  # or "judge": the reward model's own training (distil.py)
    judge_prompt="information_think",  # of task "judge": what it is asked, a name of judging/prompts.py
    instructions="paper",  # "paper", "short", or "none" (the bare question)
    max_searches=4,  # turns before the forced answer
    max_passage_tokens=166,  # a longer passage is cut: three of them make Search-R1's 500
    action="last",  # or "first", of several complete pairs in one turn
    information_think_weight=0.05,
    think_answer_weight=0.02,
    think_search_weight=0.0,  # high all by itself
    ramp_start=331,  # T1: one epoch of 169,615 questions at 512 a step
    ramp_end=497,  # T2: half an epoch later
    judge_information=True,  # ask the judge about (results, thought)
    judge_search=False,  # about (thought, query)
    judge_answer=False,  # about (thought, answer), in place of Sub-EM
    turn_credit=False,  # pay each verdict where its thought stands, not at the end
    structure_weight=0.0,  # 0.2: the baseline that pays for shape
    final_share=0.5,  # of it, for a wrong answer out of shape
  ),
  "em": dict(information_think_weight=0.0, think_answer_weight=0.0, judge_information=False),
  "em_it": dict(think_answer_weight=0.0),
  "em_ta": dict(information_think_weight=0.0, judge_information=False),
  "em_format": dict(
    information_think_weight=0.0, think_answer_weight=0.0, judge_information=False, structure_weight=0.2
  ),
  "no_ramp": dict(ramp_start=0, ramp_end=0),
  "repo": dict(action="first"),
  "reward_model": dict(task="judge"),
}
DIGITS = tuple(name for name, prompt in prompts.PROMPTS.items() if prompt.read is prompts.read_digit)
JUDGED = dict(information_think="judge_information", think_search="judge_search", think_answer="judge_answer")


def build(variant: str | None = None, **switches: Any) -> recipe_lib.Recipe:
  """The recipe under one of PRESETS, or several joined by commas, with single switches overridden.

  Raises:
    ValueError: an unknown preset or switch, or a value that the switch does not take.
  """
  use = recipe_lib.settings("veritas", PRESETS, variant, switches)
  recipe_lib.choose("task", use["task"], ("agent", "judge"))
  recipe_lib.choose("judge_prompt", use["judge_prompt"], DIGITS)
  recipe_lib.choose("instructions", use["instructions"], tuple(INSTRUCTIONS))
  recipe_lib.choose("action", use["action"], ("last", "first"))
  recipe_lib.whole("max_searches", use["max_searches"], 0)
  if use["max_passage_tokens"] is not None:
    recipe_lib.whole("max_passage_tokens", use["max_passage_tokens"], 1)
  recipe_lib.whole("ramp_start", use["ramp_start"], 0)
  recipe_lib.whole("ramp_end", use["ramp_end"], use["ramp_start"])
  for term in ("information_think", "think_search"):
    if use[f"{term}_weight"] and not use[JUDGED[term]]:
      raise ValueError(
        f"switch {term}_weight={use[f'{term}_weight']} pays for verdicts that nobody is asked for: set "
        f"{JUDGED[term]} (config.switches.{JUDGED[term]})."
      )
  if use["task"] == "judge":
    asks = distil.Prompt(use["judge_prompt"])
    return recipe_lib.Recipe(
      name="veritas",
      prompt=asks,
      parser=distil.Parser(),
      play=distil.build(asks),
      stops=(),
      score=distil.score,
      weights=lambda step: dict(answer=1.0),
      outcome=distil.outcome,
      switches=use,
    )
  prompt, parser = Prompt(use["instructions"]), Parser(use["action"])
  judged = tuple(term for term, switch in JUDGED.items() if use[switch])
  reward = Reward(
    parser,
    faithful_weights={term: use[f"{term}_weight"] for term in JUDGED},
    ramp=(use["ramp_start"], use["ramp_end"]),
    judged=judged,
    sub_em=not use["judge_answer"],
    structure_weight=use["structure_weight"],
    final_share=use["final_share"],
  )
  play = play_lib.build(
    prompt, parser, max_searches=use["max_searches"], max_passage_tokens=use["max_passage_tokens"], judged=judged
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
    switches=use,
    judged=judged,
    credit=reward.credit if use["turn_credit"] else None,
    searches=use["max_searches"] > 0,
  )
