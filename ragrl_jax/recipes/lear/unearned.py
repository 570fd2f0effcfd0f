"""Finds replies that the published reward pays for without merit: README.md, "Unearned reward"."""

from collections.abc import Sequence

from ragrl_jax.recipes.lear import grounding
from ragrl_jax.recipes.lear.parser import Parser
from ragrl_jax.structs import Episode, Example, Passage

LEAST_DISTINCT = 0.3  # share of distinct words in a reason
LONG = 30  # words; a shorter reason may repeat itself
EVIDENCE = ("bare_answer", "made_up", "beside_the_point")


def tricks(example: Example, episode: Episode, parser: Parser) -> dict[str, bool]:
  """The tricks of README.md, and whether the episode uses each; those of the evidence only if replies extract some."""
  text, passages = episode.model_text, shown(example, episode)
  evidence = parser.section(text, "extract") if "extract" in parser.sections else None
  judge = grounding.Judge(passages, example.question, example.golds)
  of_evidence = judge.tricks(evidence) if evidence else dict.fromkeys(EVIDENCE, False)
  reason = parser.section(text, "reason") or ""
  said = grounding.words(reason)
  quoted = grounding.quoted(said, passages)
  return of_evidence | dict(
    padded_reason=len(said) > LONG and len(set(said)) < LEAST_DISTINCT * len(said),
    copied_reason=2 * quoted > len(said) and 2 * quoted > grounding.size(passages),
  )


def shown(example: Example, episode: Episode) -> tuple[Passage, ...]:
  """The passages that the prompt shows: the question's own, or the retrieved ones, which `play` keeps as a fact."""
  found: Sequence[Sequence[str]] = episode.facts.get("retrieved", ())
  return example.passages or tuple(Passage("", title, text) for title, text in found)
