"""LEAR (Learning to Extract Rational Evidence): see README.md."""

from typing import Any

from ragrl_jax.recipes import recipe as recipe_lib
from ragrl_jax.recipes.lear import play as play_lib
from ragrl_jax.recipes.lear.parser import END, EXTRACTED, Parser
from ragrl_jax.recipes.lear.prompt import INSTRUCTIONS, SECTIONS, Prompt
from ragrl_jax.recipes.lear.reward import Reward

PRESETS = {
  "paper": dict(
    instructions="paper",  # "paper", "short", or "none" (question and passages alone)
    reply="rational",  # reason, extract, answer; "vanilla": extract, answer; "rationale": reason, answer;
    # "direct": answer
    titles=True,  # show each passage's title
    top_k=5,  # passages searched for where the question brings none; 0: none are
    stop_at="answer",  # "extract": end there and answer from the evidence alone
    answers="ref",  # paid: from the reason, from the evidence, in full; any of the three letters
    probe_tokens=64,  # of an answer from the reason or the evidence
    unit="word",  # of F1; "char" as the published tables seem to count
    tau=0.5,
    gamma=0.5,
    omega=0.9,
    answer_weight=0.8,
    length_weight=0.1,
    format_weight=0.1,
  ),
  "inference": dict(stop_at="extract", answers="e"),
  "answers_r": dict(answers="r"),
  "answers_e": dict(answers="e"),
  "answers_f": dict(answers="f"),
  "answers_er": dict(answers="re"),
  "answers_ef": dict(answers="ef"),
  "vanilla": dict(reply="vanilla", answers="ef"),
  "rationale": dict(reply="rationale", answers="rf"),
  "generator": dict(reply="direct", answers="f"),
}


def build(variant: str | None = None, **switches: Any) -> recipe_lib.Recipe:
  """The recipe under one of PRESETS, or several joined by commas, with single switches overridden.

  Raises:
    ValueError: an unknown preset or switch, or a value that the switch does not take.
  """
  use = recipe_lib.settings("lear", PRESETS, variant, switches)
  recipe_lib.choose("instructions", use["instructions"], INSTRUCTIONS)
  recipe_lib.choose("reply", use["reply"], tuple(SECTIONS))
  recipe_lib.choose("stop_at", use["stop_at"], ("answer", "extract"))
  recipe_lib.choose("unit", use["unit"], ("word", "char"))
  recipe_lib.whole("top_k", use["top_k"], 0)
  recipe_lib.whole("probe_tokens", use["probe_tokens"], 1)
  sections = SECTIONS[use["reply"]]
  at_extract = use["stop_at"] == "extract"
  there = {"r": "reason", "e": "extract", "f": "answer"}
  if not use["answers"] or any(there.get(letter) not in sections for letter in use["answers"]):
    raise ValueError(
      f"switch answers={use['answers']!r}: it must be one or more of the letters r, e, f for the "
      f"sections {', '.join(sections)} of reply={use['reply']!r} (config.switches.answers)."
    )
  if at_extract and use["answers"] != "e":
    raise ValueError(
      f"switch stop_at='extract' with answers={use['answers']!r}: there the only answer is the one from "
      "the evidence; set config.switches.answers='e'."
    )
  for name in ("tau", "gamma"):
    if not use[name] > 0:
      raise ValueError(f"switch {name}={use[name]!r}: it must be above 0 (config.switches.{name}).")
  prompt = Prompt(use["instructions"], use["reply"], use["titles"])
  parser = Parser(sections[:-1] if at_extract else sections)
  weights = {term: use[f"{term}_weight"] for term in ("answer", "length", "format")}
  reward = Reward(
    parser,
    answers=use["answers"],
    unit=use["unit"],
    tau=use["tau"],
    gamma=use["gamma"],
    omega=use["omega"],
    weights=weights,
  )
  play = play_lib.build(
    prompt, parser, answers=use["answers"], stop_at=use["stop_at"], top_k=use["top_k"], probe_tokens=use["probe_tokens"]
  )
  return recipe_lib.Recipe(
    name="lear",
    prompt=prompt,
    parser=parser,
    play=play,
    stops=(END, EXTRACTED),
    score=reward.score,
    weights=reward.weights,
    outcome=reward.outcome,
    switches=use,
    evidence=None if use["reply"] == "direct" else reward.evidence,
    searches=use["top_k"] > 0,
    needs_passages=use["top_k"] > 0,
  )
