"""CARE (EMNLP 2025): see README.md."""

import dataclasses
import functools
from typing import Any

from ragrl_jax.recipes import parts
from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.care import curriculum, demonstrate
from ragrl_jax.recipes.care.parser import READINGS, Parser
from ragrl_jax.recipes.care.prompt import ASKED, INSTRUCTIONS, Prompt
from ragrl_jax.recipes.care.reward import Reward
from ragrl_jax.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  instructions: str = setting(
    "paper", "system prompt; none: context and question only", choices=INSTRUCTIONS, files=True
  )
  asked: str = setting("paper", "the user message around context and question", choices=ASKED, files=True)
  system: str = setting("", "the model's own system prompt, placed before ours")
  titles: bool = setting(True, "show each passage's title")
  answer: str = setting(
    "last",
    'last: what follows the last "Answer:" after the thinking; first: the first anywhere; whole: the whole reply',
    choices=READINGS,
  )
  unmarked: bool = setting(False, 'a reply without "Answer:" is an answer as a whole')
  shape: str = setting("quotes", "the format; thinking: it needs no quote", choices=("quotes", "thinking"))
  accuracy: str = setting("f1", "f1: SQuAD's; set_f1: over sets of raw words", choices=("f1", "set_f1"))
  retrieval: str = setting(
    "strict",
    "strict: 1 if every quote is real, else 0; mean: the share of real quotes; repo: near ones count half",
    choices=("strict", "mean", "repo"),
  )
  quote_words: int = setting(0, "shortest quote, which must also not cut a word; 0: no limit", unit="words", least=0)
  guarded: bool = setting(False, "format and retrieval pay nothing for the tricks in README.md")
  accuracy_weight: float = setting(0.7, "weight of the term accuracy")
  format_weight: float = setting(0.1, "weight of the term format")
  retrieval_weight: float = setting(0.2, "weight of the term retrieval")
  easy_rate: float = setting(1.0, "η; share of easy questions: max(easy_floor, 1 - η · step / easy_steps)")
  easy_floor: float = setting(0.0, "smallest share of easy questions", unit="share")
  easy_steps: int | None = setting(None, "length of the curriculum; None: the run's own steps", unit="steps", least=1)


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "repo": dict(answer="first", accuracy="set_f1", retrieval="repo", easy_rate=0.5, easy_floor=0.5, easy_steps=10_000),
  "mean": dict(retrieval="mean"),
  "no_retrieval": dict(retrieval_weight=0.0, shape="thinking", easy_rate=0.0),
  "easy_only": dict(easy_rate=0.0),
  "original": dict(instructions="none", answer="whole"),
}


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  prompt = Prompt(switches.instructions, switches.system, switches.titles, switches.asked)
  parser = Parser(switches.answer, unmarked=switches.unmarked, quoting=switches.shape == "quotes")
  return recipe_lib.Recipe(
    name="care",
    prompt=prompt,
    parser=parser,
    play=parts.one_turn(prompt),
    stops=(),
    switches=switches,
    script=functools.partial(demonstrate.script, which=switches.answer),
    mixture=curriculum.build(rate=switches.easy_rate, floor=switches.easy_floor, total=switches.easy_steps),
    needs_passages=True,
    **recipe_lib.scoring(Reward(prompt, parser, switches)),
  )
