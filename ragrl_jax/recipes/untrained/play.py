"""The episode of each method. `loop.py` has the methods with one conversation; other methods have their own files."""

import functools

from ragrl_jax.prompting import wording
from ragrl_jax.recipes.untrained import adaptive, flare, loop, refine, sure
from ragrl_jax.recipes.untrained.parser import Parser
from ragrl_jax.recipes.untrained.prompt import Prompt


def build(prompt: Prompt, parser: Parser, switches):
  """The coroutine of the method that the switches name."""
  method, search, searches = switches.method, switches.documents == "search", switches.max_searches
  cut = dict(max_passage_tokens=switches.max_passage_tokens)
  if method == "sure":
    return sure.build(prompt, search=search, **cut)
  if method == "flare":
    limits = dict(sure_above=switches.sure_above, mask_below=switches.mask_below)
    return flare.build(prompt, parser, max_searches=searches, **limits, **cut)
  looped = functools.partial(loop.build, **cut)
  words = "paper" if wording.is_file(switches.instructions) else switches.instructions  # a file is the first prompt's
  if method in refine.REFINED:
    return refine.build(prompt, Prompt("rag", words, documents="given"), method, search=search, **cut)
  if method == "adaptive":
    limits = {"A": 0, "B": 1, "C": searches}
    routes = {
      label: looped(Prompt(name, words), Parser(name), max_searches=limits[label])
      for label, name in adaptive.ROUTES.items()
    }
    return adaptive.build(prompt, routes, classifier=switches.classifier)
  return looped(prompt, parser, max_searches=searches if search else 0)
