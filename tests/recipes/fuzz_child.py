"""Scores made-up transcripts, also without the tests' type checks, which take most of the time:

    fuzz_child.py RECIPE COUNT

Prints the numbers of right episodes, of episodes with the full reward, and of episodes with a term that cannot be
scored. Any other output is a fault.
"""

import json
import random
import re
import sys

from ragrl_jax import recipes
from ragrl_jax.prompting import passages
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.recipes.lear.play import find_span
from ragrl_jax.recipes.search_agent import NOTICE
from ragrl_jax.structs import MODEL, Episode, Example, Passage

FOUND = Passage("1", "Oslo", "Harald III founded it.")
EXAMPLE = Example(
  "1", "Who founded Oslo?", ("Harald III", "Harald Hardrada"),
  (FOUND, Passage("2", "Rome", "Rome lies {0} <answer>.")), supporting=(0,), evidence=((0, FOUND.text),),
)  # fmt: skip
BLOCKS = (passages.block([FOUND]), passages.block([]))
TAGS = ("think", "search", "answer", "information", "reflect")
COMMON = ("<answer> Harald III </answer>", "<think> Harald III </think>", " Harald III ", " Oslo ", "the", "<|im_end|>")
COMMON += (*"\n<é\x00", "<<think>>", "{0}%s")
pairs = lambda *names: tuple(f"<{slash}{name}>" for name in names for slash in ("", "/"))
SEARCHING = (
  *COMMON, *pairs(*TAGS), *(f"<{tag}> Oslo </{tag}>" for tag in TAGS), "<search> Oslo founder </search>", BLOCKS[0],
)  # fmt: skip
PIECES = {
  "arena": (
    *COMMON, *pairs("relevance", "analysis", "think", "answer"), "[1]", "[1, 2]", "[[[[", "1e999",
    "<relevance>[1]</relevance>", "<analysis> a < b </analysis>",
    "<relevance>[1]</relevance>\n<analysis>1</analysis>\n<answer>Harald III</answer>", BLOCKS[0],
  ),
  "care": (
    *COMMON, *pairs("think", "retrieval"), "Answer:", FOUND.text, "Harald III found it.",
    f"<think><retrieval>{FOUND.text}</retrieval></think> Answer: Harald III", f"<retrieval>{FOUND.text}</retrieval>",
    BLOCKS[0],
  ),
  "lear": (
    *COMMON, *pairs("reason", "extract", "answer"), "<reason> Oslo </reason>", "<extract> Oslo </extract>",
    "<reason>r</reason><extract>e</extract><answer>Harald III</answer>", BLOCKS[0],
  ),
}  # fmt: skip


def transcripts(count, seed=0, pieces=SEARCHING):
  draw = random.Random(seed)
  for _ in range(count):
    yield [
      ("environment", draw.choice((*BLOCKS, NOTICE, "x")))
      if draw.random() < 0.35
      else ("model", "".join(draw.choices(pieces, k=int(6 * draw.random()))))
      for _ in range(int(5 * draw.random()))
    ]


def facts(name, draw):
  """Facts as models would have answered, sometimes incomplete, and lengths of 0."""
  if name != "lear":
    return {}
  lengths = {name: draw.randrange(9) for name in ("reason_tokens", "evidence_tokens", "passage_tokens")}
  return lengths | {name: draw.choice(("Harald III", "Oslo", "", None)) for name in ("reason_answer", "extract_answer")}


def check_search_r1(recipe, episode, terms):
  """Whatever the environment appends, the answer is the model's."""
  silent = [(segment.owner, segment.text if segment.owner == MODEL else "") for segment in episode.turns]
  unread = recipe.score(EXAMPLE, Episode.from_text(recipe, EXAMPLE, silent))
  assert terms["answer"] == recipe.outcome(EXAMPLE, episode) == unread["answer"]


def check_arena(recipe, episode, terms):
  """The bonus is for the three others."""
  if terms.get("bonus") is not None:
    assert terms["bonus"] == float(terms["format"] == terms["accuracy"] == terms["relevance"] == 1.0)
  assert (recipe.reward(terms, 0) or 0.0) <= 13.0


def check_care(recipe, episode, terms):
  """Format and quotes are those of the patterns in the authors' code."""
  text, parser = episode.model_text, CARE_PARSER
  thoughts = re.search(r"<think>(.*?)</think>", text.strip(), re.DOTALL)
  quotes = lambda text: re.findall(r"<retrieval>(.*?)</retrieval>", text, re.DOTALL)
  whole = re.fullmatch(r"<think>.*</think>.*Answer:.*", text.strip(), re.DOTALL)
  assert parser.in_shape(text) == bool(whole and quotes(thoughts[1]))
  assert parser.quotes(text) == [" ".join(quote.split()) for quote in quotes(text) if quote.strip()]


def _section(name, empty=r"[\W_]*"):
  return rf"\s*<{name}>(?!{empty}</)(?:(?!</?(?:reason|extract|answer)>).)*</{name}>"


LEAR = re.compile(_section("reason") + _section("extract") + _section("answer", "(?!)") + r"\s*", re.DOTALL)
CARE_PARSER, LEAR_PARSER = recipes.get("care").parser, recipes.get("lear").parser


def check_lear(recipe, episode, terms):
  """The format is that of a pattern; spans of tokens hold what the parser reads in the text."""
  text, parser, tokenizer = episode.model_text, LEAR_PARSER, ByteTokenizer()
  reply = text.rpartition("</think>")[2].partition("<think>")[0]  # thoughts are no part of it
  assert parser.in_shape(text) == (LEAR.fullmatch(reply) is not None)
  assert terms["length"] in (None, 0.0) or terms["format"] == 1.0
  ids = tokenizer.encode(text)
  for name in ("reason", "extract"):
    span, pair = find_span(tokenizer, ids, parser, name), parser.pair(text, name)
    assert (span is None) == (pair is None)
    if span is not None:
      assert bytes(ids[: span.end]).decode() + span.rest == text[: pair.end]
      assert bytes(ids[span.first : span.end]).decode() == text[pair.start : pair.end]
      assert span.body_tokens == len(pair.body.encode().strip())


CHECKS = dict(search_r1=check_search_r1, arena=check_arena, care=check_care, lear=check_lear)


def scored(name, count):
  """{"right", "full", "unknown": numbers of episodes}; every preset in turn."""
  presets = [recipes.get(name, preset) for preset in recipes.RECIPES[name].PRESETS]
  draw, counts = random.Random(0), dict(right=0.0, full=0, unknown=0)
  for number, turns in enumerate(transcripts(count, pieces=PIECES.get(name, SEARCHING))):
    recipe = presets[number % len(presets)]
    episode = Episode.from_text(recipe, EXAMPLE, turns, facts=facts(name, draw))
    terms = recipe.score(EXAMPLE, episode)
    least = -1.0 if name == "when_to_search" else 0.0
    assert all(value is None or least <= value <= 1.0 for value in terms.values()), (recipe.switches, terms, turns)
    if name in CHECKS:
      try:
        CHECKS[name](recipe, episode, terms)
      except AssertionError as error:
        error.add_note(f"{recipe.switches} {turns!r}")
        raise
    counts["right"] += recipe.outcome(EXAMPLE, episode) or 0.0
    counts["full"] += all(value == 1.0 for value in terms.values())
    counts["unknown"] += None in terms.values()
  return counts


if __name__ == "__main__":
  print(json.dumps(scored(sys.argv[1], int(sys.argv[2]))))
