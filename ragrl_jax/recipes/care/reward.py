"""Paid for the answer, the shape, and quotes that really stand in the context."""

from collections.abc import Mapping

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import quotes
from ragrl_jax.recipes.care.parser import Parser
from ragrl_jax.recipes.care.prompt import Prompt
from ragrl_jax.structs import Episode, Example

TERMS = ("accuracy", "format", "retrieval")
SILENCE = 0.2  # what the authors' code pays for no quote at all


class Reward:
  """Scores one episode.

  Args:
    prompt, parser: what was shown; what is read.
    accuracy: "f1" or "set_f1" (see `score`).
    retrieval: "strict", "mean" or "repo" (see `retrieval`).
    weights: of the terms, by name.
  """

  def __init__(self, prompt: Prompt, parser: Parser, *, accuracy: str, retrieval: str, weights: Mapping[str, float]):
    self.prompt = prompt
    self.parser = parser
    self.accuracy = accuracy
    self.mode = retrieval
    self.term_weights = dict(weights)

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`accuracy` 0 to 1, `format` 0 or 1, `retrieval` 0 to 1.

    Accuracy is token F1: "f1" with SQuAD's normalisation and counts, the best over the golds; "set_f1" over sets of
    words as they are written, against the first gold.

    Source: CARE sec. 3.3; "set_f1", the authors' code.
    """
    if episode.ended == "failed":
      return dict.fromkeys(TERMS)
    text = episode.model_text
    answer = self.parser.answer(text) or ""
    if self.accuracy == "f1":
      right = qa.f1(answer, example.golds)
    else:
      right = qa.f1(answer, example.golds[:1], style="none", unit="word_set")
    return dict(accuracy=right, format=float(self.parser.in_shape(text)), retrieval=self.retrieval(example, text))

  def retrieval(self, example: Example, text: str) -> float:
    """ "strict": 1 if there are quotes and each stands in a passage, else 0. "mean": the share of quotes that do.
    "repo": over the quotes, the mean of 1 for one that stands in the user's message (its white space as it is), 0.5
    for one that nearly does (`quotes.soft`), 0 for the rest; 0.2 if there is no quote at all."""
    said = self.parser.quotes(text)
    if self.mode == "repo":
      if not said:
        return SILENCE
      shown = self.prompt.messages(example)[-1]["content"]
      return sum(1.0 if quote in shown else 0.5 * quotes.soft(quote, shown) for quote in said) / len(said)
    shown = self.prompt.context(example)
    real = [quotes.exact(quote, shown) for quote in said]
    if not said:
      return 0.0
    return float(all(real)) if self.mode == "strict" else sum(real) / len(real)

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    del step  # the same throughout
    return self.term_weights

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the answer, 0 or 1, without any shaping."""
    return qa.exact_match(self.parser.answer(episode.model_text) or "", example.golds)

  def evidence(self, example: Example, episode: Episode) -> str:
    """The quotes, joined: what tables hold against the gold sentences."""
    del example
    return " ".join(self.parser.quotes(episode.model_text))
