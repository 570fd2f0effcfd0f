"""Replies of demonstrations and probes, by script: of rows with supporting passages, and on the made-up world."""

import random
from collections.abc import Sequence

from ragrl_jax.data.synthetic import World
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.lear.play import ASK
from ragrl_jax.recipes.lear.prompt import SECTIONS
from ragrl_jax.structs import MODEL, Example, Segment

FAULTS = ("stop", "wrong", "copy")
# Texts that a tokenizer trained for this format keeps as one piece each.
MARKS = tuple(f"<{slash}{tag}>" for tag in ("reason", "extract", "answer") for slash in ("", "/"))


def demonstrate(
  example: Example,
  world: World,
  rng: random.Random,
  *,
  reply: str = "rational",
  fault: float = 0.65,
  kinds: Sequence[str] = ("stop",),
) -> list[tuple[str, str]]:
  """Answers one question of `data.synthetic` that has passages, correctly or with a fault.

  Args:
    example: with passages, and its decomposition in meta.
    world: the world of the question.
    rng: draws the faults.
    reply: a key of SECTIONS; "vanilla", "rational" and "rationale" are the arms of the paper's study of evidence
      (sec. 2.2).
    fault: share of questions answered with a fault.
    kinds: the kinds of fault: "stop" reads and answers an earlier hop (not for questions of one hop); "wrong" a random
      passage; "copy" copies all passages as evidence.

  Returns:
    One ("model", text) turn, as for `structs.Episode.from_text`.

  Raises:
    ValueError: a kind is not in FAULTS, or the reply is unknown.
  """
  if reply not in SECTIONS:
    raise ValueError(f"reply={reply!r}: use {', '.join(SECTIONS)}.")
  kind, hops, answer = scripts.draw_fault(example, kinds, FAULTS, fault, rng, world)
  steps = [(hop["relation"], hop["subject"], hop["object"], hop["sentence"]) for hop in hops]
  evidence = " ".join(sentence for *_, sentence in steps)
  if kind == "copy":
    evidence = " ".join(passage.text for passage in example.passages)
  reason = " ".join(f"{relation} of {subject}? {sentence} So {found}." for relation, subject, found, sentence in steps)
  bodies = dict(reason=reason, extract=evidence, answer=answer)
  said = "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in SECTIONS[reply])
  return [(MODEL, said or f"{reason} The answer is {answer}.")]


def script(example: Example, segments: Sequence[Segment], rng: random.Random, *, reply: str) -> str:
  """See `Recipe.script`. reply: a key of SECTIONS."""
  del rng  # there is one way to write it
  facts, answer = scripts.facts(example), scripts.answer(example)
  if segments[-1].text.endswith(ASK):  # a probe
    return f" {answer} </answer>"
  seen = " ".join(
    f"Passage {fact.number}{f', {fact.title},' * bool(fact.title)} helps with {scripts.keywords(fact.question)}."
    for fact in facts
  )
  reason, evidence = f"{seen} It is {answer}.", " ".join(fact.sentence for fact in facts)
  bodies = dict(reason=reason, extract=evidence, answer=answer)
  return "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in SECTIONS[reply]) or f"{evidence} {reason}"
