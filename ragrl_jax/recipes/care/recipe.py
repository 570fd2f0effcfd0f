"""CARE (EMNLP 2025): see README.md."""

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ragrl_jax.core import schedules
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import quotes
from ragrl_jax.core.text import forms
from ragrl_jax.recipes import parts, recipe as recipe_lib, scripts
from ragrl_jax.recipes.care.prompt import ASKED, INSTRUCTIONS, READINGS, Parser, Prompt
from ragrl_jax.settings.fields import Reads, setting
from ragrl_jax.structs import Episode, Example, Segment

TERMS = ("accuracy", "format", "retrieval")
SILENCE = 0.2  # retrieval term of a reply without quotes in the authors' code
GUARDED_WORDS = 4  # least words of a quote, with `guarded`
GUARDED_SHARE = 0.5  # largest share of the context's words in the quotes, with `guarded`


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
    "strict: 1 if there are quotes, all of them real, else 0; mean: the share of real ones; repo: near ones count half",
    choices=("strict", "mean", "repo"),
  )
  quote_words: int = setting(0, "shortest quote, which must also not cut a word; 0: no limit", unit="words", least=0)
  guarded: bool = setting(False, "format and retrieval pay nothing for the tricks in README.md")
  accuracy_weight: float = setting(0.7, "weight of the term accuracy")
  format_weight: float = setting(0.1, "weight of the term format")
  retrieval_weight: float = setting(0.2, "weight of the term retrieval")
  # CARE sec. 3.4 and Algorithm 1: the first step has only easy questions (short contexts), the last one almost none. In
  # the authors' code half of the questions are easy after 10,000 steps.
  easy_rate: float = setting(1.0, "η; share of easy questions: max(easy_floor, 1 - η · step / easy_steps)")
  easy_floor: float = setting(0.0, "smallest share of easy questions", unit="share")
  easy_steps: int | None = setting(None, "length of the curriculum; None: the run's own steps", unit="steps", least=1)

  def reads(self) -> Reads:
    yield "switches.quote_words", "switches.retrieval", lambda retrieval: retrieval != "repo"
    yield "switches.easy_rate switches.easy_floor switches.easy_steps", "data.hard", bool


@dataclasses.dataclass(frozen=True)
class Reward:
  """Scores one episode."""

  prompt: Prompt
  parser: Parser
  switches: Switches

  def score(self, example: Example, episode: Episode) -> dict[str, float | None]:
    """`accuracy` 0 to 1, `format` 0 or 1, `retrieval` 0 to 1.

    Accuracy is token F1. "f1" uses SQuAD's normalisation and counts, and takes the best gold. "set_f1" compares sets of
    unnormalised words with the first gold.

    With `guarded`, a reply with one of the tricks of `unearned` has format 0 and retrieval 0.

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
    if self.switches.guarded and any(self.unearned(example, episode).values()):
      terms |= dict(format=0.0, retrieval=0.0)
    return terms

  def right(self, example: Example, text: str) -> float:
    """The F1 of the answer, as `accuracy` says; 0 if there is no answer."""
    answer = self.parser.answer(text) or ""
    if self.switches.accuracy == "f1":
      return qa.f1(answer, example.golds)
    return qa.f1(answer, example.golds[:1], style="none", unit="word_set")

  def retrieval(self, example: Example, text: str) -> float:
    """The term `retrieval`.

    "strict": 1 if there are quotes and each is in a passage, else 0. "mean": the share of quotes that are in a passage.
    "repo": the mean over the quotes of 1 for a quote in the user's message (with its white space unchanged), 0.5 for a
    near match (`quotes.soft`), and 0 otherwise; SILENCE without quotes.
    """
    cited = self.parser.quotes(text)
    if self.switches.retrieval == "repo":
      if not cited:
        return SILENCE
      context, cited = forms.typed(self.prompt.messages(example)[-1]["content"]), list(map(forms.typed, cited))
      near = lambda quote: 1.0 if quote and quote in context else 0.5 * quotes.soft(quote, context)
      return sum(map(near, cited)) / len(cited)
    context = self.prompt.context(example)
    real = [self._stands(quote, context) for quote in cited]
    if not cited:
      return 0.0
    return float(all(real)) if self.switches.retrieval == "strict" else sum(real) / len(real)

  def _stands(self, quote: str, context: tuple[str, ...]) -> bool:
    words = max(self.switches.quote_words, GUARDED_WORDS) if self.switches.guarded else self.switches.quote_words
    return quotes.whole_words(quote, context, words) if words else quotes.exact(quote, context)

  def unearned(self, example: Example, episode: Episode) -> dict[str, bool]:
    """The tricks that earn format and retrieval without evidence, and whether the episode uses each; see README.md.

    `short_quote`: a quote of the context has fewer than GUARDED_WORDS words, or begins or ends inside a word; with
    "repo", which pays more than quotes of the context, any quote of so few words.
    `bulk_quote`: the quotes contain more than GUARDED_SHARE of the context's words. `stray_tag`: a retrieval tag is
    part of no quote. `quote_outside`: a quote is outside the first block of thinking. `unanswered`: the answer shares
    no word with the golds.
    """
    text, shown = episode.model_text, self.prompt.context(example)
    all_quotes = self.parser.quotes(text)
    distinct = dict.fromkeys(all_quotes)
    thought_quotes = self.parser.quotes(self.parser.thinking(text))
    quoted, context = sum(map(quotes.words, distinct)), sum(map(quotes.words, shown))
    cut = lambda quote: quotes.exact(quote, shown) and not quotes.whole_words(quote, shown, GUARDED_WORDS)
    near = lambda quote: self.switches.retrieval == "repo" and quotes.words(quote) < GUARDED_WORDS
    return dict(
      short_quote=any(cut(quote) or near(quote) for quote in distinct),
      bulk_quote=quoted > GUARDED_SHARE * context,
      stray_tag=self.parser.strays(text),
      quote_outside=len(all_quotes) > len(thought_quotes),
      unanswered=self.right(example, text) == 0.0,
    )

  def weights(self, step: int) -> Mapping[str, float]:
    """The weight of each term; the same at every step."""
    return {term: self.switches[f"{term}_weight"] for term in TERMS}

  def outcome(self, example: Example, episode: Episode) -> float:
    """Exact match of the answer, 0 or 1, unshaped."""
    return qa.exact_match(self.parser.answer(episode.model_text) or "", example.golds)

  def evidence(self, example: Example, episode: Episode) -> str:
    """The quotes, joined by spaces. Tables compare them with the gold sentences."""
    return " ".join(self.parser.quotes(episode.model_text))


def write_script(example: Example, segments: Sequence[Segment], rng: random.Random, *, which: str) -> str:
  """See `Recipe.script`. which: how the answer is read; with "whole" the reply is the answer alone."""
  facts, answer = scripts.facts(example), scripts.answer(example)
  if which == "whole":
    return answer
  quotes = " ".join(f"The context says <retrieval> {fact.sentence} </retrieval>" for fact in facts)
  return f"<think> {quotes} So it is {answer}. </think> Answer: {answer}"


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
    script=functools.partial(write_script, which=switches.answer),
    mixture=lambda step, steps: schedules.decay(
      step, switches.easy_steps or steps, rate=switches.easy_rate, floor=switches.easy_floor
    ),
    needs_passages=True,
    **recipe_lib.scoring(Reward(prompt, parser, switches)),
  )
