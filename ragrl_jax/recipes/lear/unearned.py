"""Finds replies that the published reward pays for without merit: README.md, "Unearned reward"."""

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text.normalize import normalize
from ragrl_jax.recipes.lear.parser import Parser
from ragrl_jax.structs import Episode, Example

LEAST_WORDS = 3  # words of the evidence that are in no gold
LEAST_GROUNDED = 0.5  # share of the evidence's words that are in the prompt
LEAST_DISTINCT = 0.3  # share of distinct words in a reason
LONG = 30  # words; a shorter reason may repeat itself


def tricks(example: Example, episode: Episode, parser: Parser, *, right: bool) -> dict[str, bool]:
  """The tricks, and whether the episode uses each.

  "shape_alone": in shape, but no answer shares a word with a gold, so shape and lengths alone are paid. "bare_answer":
  the evidence contains a gold and fewer than LEAST_WORDS other words, so nothing was extracted. "made_up": less than
  LEAST_GROUNDED of the evidence's words are in the prompt. "padded_reason": the reason has more than LONG words, and
  less than LEAST_DISTINCT of them are distinct.

  Args:
    example: the question.
    episode: the reply. Its first segment is the prompt with the passages.
    parser: reads the reply.
    right: whether a scored answer shares a word with a gold.
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
