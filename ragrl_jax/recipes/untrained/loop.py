"""Methods with one conversation: perhaps a first search, then write, and search again with the written text."""

from ragrl_jax.prompting import passages
from ragrl_jax.recipes.untrained.parser import END, Parser
from ragrl_jax.recipes.untrained.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Policy, Tools

FIRST = ("rag", "ircot", "iter_retgen")  # methods that begin with a search for the question


def build(prompt: Prompt, parser: Parser, *, max_searches: int, max_passage_tokens: int | None):
  """The coroutine with these settings."""

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    talk = policy.start(prompt.messages(example))
    question = example.question.strip()
    query, left = question if parser.method in FIRST and max_searches else None, max_searches
    while True:
      if query is not None:
        left -= 1
        found = await tools.search(query)
        shown = passages.block(found, tokenizer=policy.tokenizer, max_passage_tokens=max_passage_tokens)
        if not talk.observe(shown, query=query, found=found):
          return talk.end("budget")
      stops = parser.stops if left else (END,)  # after the last search, the model can only answer
      said = await talk.generate(stop=stops)
      query = parser.query(said.text, question) if left and said.stop in stops else None
      if query is None and (said.stop == END or said.stop not in stops):
        return talk.end("answer" if said.stop == END else None)
      if query is None:  # the model needs no search, so the same turn continues
        left = 0

  return play
