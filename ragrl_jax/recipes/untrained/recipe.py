"""Untrained baselines: see README.md."""

import dataclasses
import functools
from typing import Any

from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes import parts, recipe as recipe_lib
from ragrl_jax.recipes.untrained import several
from ragrl_jax.recipes.untrained.prompt import DOCUMENTS, END, INSTRUCTIONS, METHODS, Parser, Prompt
from ragrl_jax.settings.fields import Rules, setting
from ragrl_jax.structs import Episode, Example, Policy, Tools

FIRST = ("rag", "ircot", "iter_retgen")  # methods that begin with a search for the question
GIVEN = ("rag", "cot", "self_ask", "sure", "recomp", "filco")  # methods that can read the question's own passages
JOINED = ("sure", "flare", "adaptive", "recomp", "filco")  # methods whose episodes join several conversations


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """The paper's values. README.md says where the authors' code differs."""

  method: str = setting("rag", "how the question is answered", choices=METHODS)
  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  correctness: str = setting("exact", "answers that equal no gold; exact: they are wrong", choices=("exact", "judge"))
  documents: str = setting("search", "given: the question's own passages; nothing is searched", choices=DOCUMENTS)
  max_searches: int = setting(1, "most searches, for methods that search more than once", unit="searches", least=0)
  max_passage_tokens: int | None = setting(None, "longer retrieved passages are cut", unit="tokens", least=1)
  classifier: str = setting("model", "adaptive: who classifies the questions", choices=("model", "judge"))
  sure_above: float = setting(0.8, "flare: sentences with a less likely token become queries", above=0, most=1)
  mask_below: float = setting(0.4, "flare: queries leave out less likely tokens", above=0, most=1)

  def rules(self) -> Rules:
    yield (
      self.documents == "search" or self.method in GIVEN,
      f"switch documents='given' with method={self.method!r}: own passages are for {', '.join(GIVEN)} "
      "(config.switches.documents).",
    )


def make_loop(prompt: Prompt, parser: Parser, *, max_searches: int, max_passage_tokens: int | None):
  """The coroutine of methods with one conversation: perhaps a first search, then write, and search again with that."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    conversation = policy.start(prompt.messages(example))
    question = example.question.strip()
    query, searches_left = question if parser.method in FIRST and max_searches else None, max_searches
    while True:
      if query is not None:
        searches_left -= 1
        results = await tools.search(query)
        block = passages.block(results, tokenizer=policy.tokenizer, max_passage_tokens=max_passage_tokens)
        if not conversation.observe(block, query=query, found=results):
          return conversation.end("budget")
      stops = parser.stops if searches_left else (END,)  # after the last search, the model can only answer
      turn = await parts.say(conversation, stops, every=True)
      query = parser.query(turn.text, question) if searches_left and turn.stop in stops else None
      if query is None and (turn.stop == END or turn.stop not in stops):
        return conversation.end("answer" if turn.stop == END else None)
      if query is None:  # the model needs no search, so the same turn continues
        searches_left = 0

  return play


def make_play(prompt: Prompt, parser: Parser, switches: Switches):
  """The coroutine of the method that the switches name."""
  method = switches.method
  if method == "sure":
    return several.make_sure(prompt, switches)
  if method == "flare":
    return several.make_flare(prompt, parser, switches)
  looped = functools.partial(make_loop, max_passage_tokens=switches.max_passage_tokens)
  words = "paper" if wording.is_file(switches.instructions) else switches.instructions  # a file is the first prompt's
  if method in several.REFINED:
    return several.make_refined(prompt, Prompt("rag", words, documents="given"), switches)
  if method == "adaptive":
    limits = {"A": 0, "B": 1, "C": switches.max_searches}
    routes = {
      label: looped(Prompt(name, words), Parser(name), max_searches=limits[label])
      for label, name in several.ROUTES.items()
    }
    return several.make_adaptive(prompt, routes, classifier=switches.classifier)
  return looped(prompt, parser, max_searches=switches.max_searches if switches.documents == "search" else 0)


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "closed_book": dict(method="closed_book", max_searches=0),
  "cot": dict(method="cot", max_searches=0),
  "ircot": dict(method="ircot", max_searches=4),
  "iter_retgen": dict(method="iter_retgen", max_searches=2),
  "self_ask": dict(method="self_ask", max_searches=4),
  "skr": dict(method="skr"),
  "sure": dict(method="sure"),
  "flare": dict(method="flare", max_searches=8),
  "adaptive": dict(method="adaptive", max_searches=4),
  "recomp": dict(method="recomp"),
  "filco": dict(method="filco"),
  "given": dict(documents="given"),  # with cot, self_ask, sure, recomp or filco; alone it is RAG
}


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  method, has_documents = switches.method, switches.documents == "given"
  prompt, parser = Prompt(method, switches.instructions, switches.documents), Parser(method)
  play = make_play(prompt, parser, switches)
  # The model's tokens in its drafts are not in the episode.
  unrecorded = lambda example, episode: dict(draft_tokens=episode.facts.get("draft_tokens"))
  return recipe_lib.Recipe(
    name="untrained",
    prompt=prompt,
    stops=parser.stops,
    switches=switches,
    judged=("complexity",) if method == "adaptive" and switches.classifier == "judge" else (),
    evidence=(lambda example, episode: episode.facts.get("refined", "")) if method in several.REFINED else None,
    searches=switches.max_searches > 0 and not has_documents,
    needs_passages=has_documents,
    measures=unrecorded if method == "flare" else None,
    trainable=method not in JOINED,
    **parts.answer_fields(play, parts.AnswerReward(parser, switches.correctness)),
  )
