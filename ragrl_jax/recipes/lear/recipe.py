"""LEAR (Learning to Extract Rational Evidence): see README.md."""

import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Any

from ragrl_jax.core.metrics import qa
from ragrl_jax.recipes import recipe as recipe_lib, scripts
from ragrl_jax.recipes.lear import play as play_lib
from ragrl_jax.recipes.lear.prompt import END, EXTRACTED, INSTRUCTIONS, SECTIONS, Parser, Prompt
from ragrl_jax.recipes.lear.reward import Reward
from ragrl_jax.settings.fields import Reads, Rules, setting
from ragrl_jax.structs import Example, Segment

PAID = {"r": "reason", "e": "extract", "f": "answer"}  # letter of `answers` → the section that the answer is taken from


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says which of them are ours, because the paper gives none."""

  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  reply: str = setting(
    "rational",
    "sections: rational: reason, extract, answer; vanilla: extract, answer; rationale: reason, answer; direct: answer; "
    "reason_extract and extract: without an answer; thoughts: free text",
    choices=SECTIONS,
  )
  titles: bool = setting(True, "show each passage's title")
  top_k: int = setting(5, "passages to search for if the question brings none; 0: no search", unit="passages", least=0)
  stop_at: str = setting(
    "answer", "the end of the turn; extract: the answer is taken from the evidence only", choices=("answer", "extract")
  )
  answers: str = setting(
    "ref",
    "answers that are scored: r from the reason, e from the evidence, f of the full reply; empty (stop_at=extract): "
    "none",
  )
  probe_tokens: int = setting(64, "longest answer from the reason or the evidence", unit="tokens", least=1)
  unit: str = setting("word", "unit of F1; the published tables seem to use char", choices=("word", "char"))
  tau: float = setting(0.5, "τ of the reward for the reason's length", above=0)
  gamma: float = setting(0.5, "γ of the reward for the evidence's length", least=0)
  omega: float = setting(0.9, "ω of the reward for the evidence's length", least=0, most=1)
  answer_weight: float = setting(0.8, "weight of the term answer")
  length_weight: float = setting(0.1, "weight of the term length")
  format_weight: float = setting(0.1, "weight of the term format")
  max_evidence_words: int | None = setting(None, "longer evidence is cut", unit="words", least=1)
  recall: str = setting(
    "words",
    "how evidence and reason hold a gold: as whole words, or as letters, also inside words",
    choices=qa.CONTAINS,
  )
  guarded: bool = setting(False, 'the replies of README.md\'s "Unearned reward" earn nothing')

  def rules(self) -> Rules:
    sections = SECTIONS[self.reply] or ("extract",)
    stops = self.stop_at == "extract"
    yield (
      (bool(self.answers) or stops) and all(PAID.get(letter) in sections for letter in self.answers),
      f"switch answers={self.answers!r}: it must be one or more of the letters r, e, f for the sections "
      f"{', '.join(sections)} of reply={self.reply!r} (config.switches.answers).",
    )
    yield (
      not stops or self.answers in ("e", ""),
      f"switch stop_at='extract' with answers={self.answers!r}: there the only answer is the one from the evidence; "
      "set config.switches.answers='e', or '' for none.",
    )
    yield (
      stops or "answer" in sections,
      f"switch reply={self.reply!r} with stop_at='answer': such a reply has no answer; set "
      "config.switches.stop_at='extract'.",
    )

  def reads(self) -> Reads:
    yield "switches.probe_tokens", "switches.answers", lambda answers: {*answers} & {"r", "e"}
    yield "switches.omega switches.gamma", "switches.reply", lambda reply: "extract" in SECTIONS[reply]
    yield "switches.tau", "switches.reply", lambda reply: {*SECTIONS[reply]} >= {"reason", "extract"}


def write_script(example: Example, segments: Sequence[Segment], rng: random.Random, *, reply: str) -> str:
  """See `Recipe.script`. reply: a key of SECTIONS."""
  facts, answer = scripts.facts(example), scripts.answer(example)
  if segments[-1].text.endswith(play_lib.ASK):  # a probe
    return f" {answer} </answer>"
  seen = " ".join(
    f"Passage {fact.number}{f', {fact.title},' * bool(fact.title)} helps with {scripts.keywords(fact.question)}."
    for fact in facts
  )
  reason, evidence = f"{seen} It is {answer}.", " ".join(fact.sentence for fact in facts)
  bodies = dict(reason=reason, extract=evidence, answer=answer)
  return "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in SECTIONS[reply]) or f"{evidence} {reason}"


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "inference": dict(stop_at="extract", answers="e"),
  "answers_r": dict(answers="r"),
  "answers_e": dict(answers="e"),
  "answers_f": dict(answers="f"),
  "answers_er": dict(answers="re"),
  "answers_ef": dict(answers="ef"),
  "vanilla": dict(reply="vanilla", answers="ef"),
  "rationale": dict(reply="rationale", answers="rf"),
  "generator": dict(reply="direct", answers="f"),
  "study_rational": dict(reply="reason_extract", stop_at="extract", answers="", max_evidence_words=100),
  "study_vanilla": dict(reply="extract", stop_at="extract", answers="", max_evidence_words=100),
  "filter": dict(reply="extract", stop_at="extract", answers="e"),
  "thoughts": dict(reply="thoughts", stop_at="extract", answers="e"),
}


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  sections = SECTIONS[switches.reply]
  prompt = Prompt(switches.instructions, switches.reply, switches.titles)
  parser = Parser(tuple(name for name in sections if name != "answer" or switches.stop_at == "answer"))
  scoring = recipe_lib.scoring(Reward(parser, switches))
  if switches.reply == "direct":  # without evidence
    scoring |= dict.fromkeys(("evidence", "unearned", "measures"))
  return recipe_lib.Recipe(
    name="lear",
    prompt=prompt,
    parser=parser,
    play=play_lib.make_play(prompt, parser, switches),
    stops=(END, EXTRACTED),
    switches=switches,
    script=functools.partial(write_script, reply=switches.reply),
    searches=switches.top_k > 0,
    needs_passages=switches.top_k > 0,
    **scoring,
  )
