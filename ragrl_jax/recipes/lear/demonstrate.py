"""A scripted, imperfect player of the made-up world: what SFT warms a model up with, in any of the four replies."""

import random
from collections.abc import Sequence

from ragrl_jax.data.synthetic import World
from ragrl_jax.recipes.lear.prompt import SECTIONS
from ragrl_jax.recipes.recipe import draw_fault
from ragrl_jax.structs import MODEL, Example

FAULTS = ("stop", "wrong", "copy")
# What a tokenizer trained for this format keeps as one piece each.
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
  """Answers one question of `data.synthetic` that brings its passages, well or with a fault.

  Args:
    example: with passages, and its decomposition in meta.
    world: it is about.
    rng: draws the faults.
    reply: a key of SECTIONS; "vanilla", "rational" and "rationale" are the arms of the paper's study of what evidence
      is worth (sec. 2.2).
    fault: share of questions answered with one.
    kinds: which: "stop" reads and answers an earlier hop (a question of one hop has none); "wrong" a passage drawn at
      random; "copy" takes all passages for evidence.

  Returns:
    One ("model", text) turn, as `structs.Episode.from_text` takes it.

  Raises:
    ValueError: a kind that is none of FAULTS, or an unknown reply.
  """
  if reply not in SECTIONS:
    raise ValueError(f"reply={reply!r}: use {', '.join(SECTIONS)}.")
  steps = [(hop["relation"], hop["subject"], hop["object"], hop["sentence"]) for hop in example.meta["decomposition"]]
  answer = example.golds[0]
  kind = draw_fault(kinds, FAULTS, fault, rng)
  if kind == "stop" and len(steps) > 1:
    steps = steps[: rng.randint(1, len(steps) - 1)]
    answer = steps[-1][2]
  elif kind == "wrong":
    passage = rng.choice([passage for passage in example.passages if world.stated[passage.id]])
    fact, sentence = world.stated[passage.id][0], world.sentences[passage.id][0]
    steps, answer = [(fact.relation, fact.subject, fact.object, sentence)], fact.object
  evidence = " ".join(sentence for *_, sentence in steps)
  if kind == "copy":
    evidence = " ".join(passage.text for passage in example.passages)
  reason = " ".join(f"{relation} of {subject}? {sentence} So {found}." for relation, subject, found, sentence in steps)
  bodies = dict(reason=reason, extract=evidence, answer=answer)
  return [(MODEL, "\n".join(f"<{name}> {bodies[name]} </{name}>" for name in SECTIONS[reply]))]
