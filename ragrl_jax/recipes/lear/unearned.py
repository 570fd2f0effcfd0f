"""Replies that the published reward pays for without their being worth it: README.md, "Unearned reward"."""

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.recipes.lear.parser import Parser
from ragrl_jax.structs import Episode, Example

LEAST_WORDS = 3  # of evidence besides the golds' own words
LEAST_GROUNDED = 0.5  # share of the evidence's words that stand in the prompt
LEAST_DISTINCT = 0.3  # share of a reason's words that are different ones
LONG = 30  # words of a reason that may repeat itself before its share is looked at


def tricks(example: Example, episode: Episode, parser: Parser, *, right: bool) -> dict[str, bool]:
  """Which of the tricks the episode does.

  "shape_alone": in shape, and no answer shares a word with a gold: it is paid for its shape and lengths. "bare_answer":
  the evidence is an answer, with fewer than three words beside a gold's: nothing was extracted. "made_up": less than
  half of the evidence's words stand in the prompt, passages and question. "padded_reason": of a long reason less than
  0.3 of the words are different ones.

  Args:
    example: the question.
    episode: the reply; its first segment is the prompt with the passages that were shown.
    parser: reads it.
    right: whether an answer that counts has a word of a gold.
  """
  text = episode.model_text
  evidence = normalize(parser.written(text), "squad").split()
  reason = normalize(parser.section(text, "reason") or "", "squad").split()
  shown = set(normalize(episode.segments[0].text, "squad").split()) if episode.segments else set()
  golds = [set(normalize(gold, "squad").split()) for gold in example.golds]
  holds = qa.has_answer(" ".join(evidence), example.golds)
  beside = min((sum(word not in gold for word in evidence) for gold in golds), default=len(evidence))
  return dict(
    shape_alone=parser.in_shape(text) and not right,
    bare_answer=holds and beside < LEAST_WORDS,
    made_up=bool(evidence) and sum(word in shown for word in evidence) < LEAST_GROUNDED * len(evidence),
    padded_reason=len(reason) > LONG and len(set(reason)) < LEAST_DISTINCT * len(reason),
  )
