"""The reward: for the answer, the format, and quotes that really occur in the context."""

from collections.abc import Mapping

from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import quotes
from ragrl_jax.recipes.care.parser import Parser
from ragrl_jax.recipes.care.prompt import Prompt
from ragrl_jax.structs import Episode, Example

TERMS = ("accuracy", "format", "retrieval")
SILENCE = 0.2  # what the authors' code pays for no quote at all
GUARDED_WORDS = 4  # least words of a quote that `guarded` pays for
GUARDED_SHARE = 0.5  # of the context's words: what `guarded` pays for quoting at most


class Reward:
  """Scores one episode.

  Args:
    prompt, parser: what was shown; what is read.
    accuracy: "f1" or "set_f1" (see `score`).
    retrieval: "strict", "mean" or "repo" (see `retrieval`).
    weights: of the terms, by name.
    quote_words: least words of a quote, which then must not cut a word either; 0: any text of the context is a quote.
    guarded: pay for none of the tricks of `unearned`.
  """

  def __init__(
    self,
    prompt: Prompt,
    parser: Parser,
    *,
    accuracy: str,
    retrieval: str,
    weights: Mapping[str, float],
    quote_words: int = 0,
    guarded: bool = False,
  ):
    self.prompt = prompt
    self.parser = parser
    self.accuracy = accuracy
    self.mode = retrieval
    self.term_weights = dict(weights)
    self.quote_words = max(quote_words, GUARDED_WORDS) if guarded else quote_words
    self.guarded = guarded

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`accuracy` 0 to 1, `format` 0 or 1, `retrieval` 0 to 1.

    Accuracy is token F1: "f1" with SQuAD's normalisation and counts, the best over the golds; "set_f1" over sets of
    words as they are written, against the first gold.

    With `guarded` a reply with one of the tricks of `unearned` has format 0 and retrieval 0.

    Source: CARE sec. 3.4; "set_f1", the authors' code.
    """
    if episode.ended == "failed":
      return dict.fromkeys(TERMS)
    text = episode.model_text
    terms: dict[str, float | None] = dict(
      accuracy=self.right(example, text),
      format=float(self.parser.in_shape(text)),
      retrieval=self.retrieval(example, text),
    )
    if self.guarded and any(self.unearned(example, episode).values()):
      terms |= dict(format=0.0, retrieval=0.0)
    return terms

  def right(self, example: Example, text: str) -> float:
    """How right the answer is; a missing one is wrong."""
    answer = self.parser.answer(text) or ""
    if self.accuracy == "f1":
      return qa.f1(answer, example.golds)
    return qa.f1(answer, example.golds[:1], style="none", unit="word_set")

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
    real = [self._stands(quote, shown) for quote in said]
    if not said:
      return 0.0
    return float(all(real)) if self.mode == "strict" else sum(real) / len(real)

  def _stands(self, quote: str, shown: tuple[str, ...]) -> bool:
    if self.quote_words:
      return quotes.whole_words(quote, shown, self.quote_words)
    return quotes.exact(quote, shown)

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks that earn the terms of format and retrieval without evidence; see README.md.

    `short_quote`: a quote of the context has fewer than GUARDED_WORDS words, or begins or ends inside one.
    `bulk_quote`: the quotes hold more than GUARDED_SHARE of the context's words. `stray_tag`: a retrieval tag belongs
    to no quote. `quote_outside`: something is quoted outside the first block of thinking. `unanswered`: the answer
    shares nothing with the golds.
    """
    text, shown = episode.model_text, self.prompt.context(example)
    said = dict.fromkeys(self.parser.quotes(text))
    inside = self.parser.quotes(self.parser.thinking(text))
    quoted, context = sum(map(quotes.words, said)), sum(map(quotes.words, shown))
    return dict(
      short_quote=any(
        quotes.exact(quote, shown) and not quotes.whole_words(quote, shown, GUARDED_WORDS) for quote in said
      ),
      bulk_quote=quoted > GUARDED_SHARE * context,
      stray_tag=self.parser.strays(text),
      quote_outside=len(self.parser.quotes(text)) > len(inside),
      unanswered=self.right(example, text) == 0.0,
    )

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    del step  # the same throughout
    return self.term_weights

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the answer, 0 or 1, without any shaping."""
    return qa.exact_match(self.parser.answer(episode.model_text) or "", example.golds)

  def evidence(self, example: Example, episode: Episode) -> str:
    """The quotes, joined; tables compare them with the gold sentences."""
    del example
    return " ".join(self.parser.quotes(episode.model_text))
