"""Episodes of several conversations: each prompt starts a new one, and the episode has all of them in order."""

import dataclasses
from typing import Any

from ragrl_jax.prompting import passages
from ragrl_jax.recipes.search_agent import own
from ragrl_jax.recipes.untrained.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Passage, Policy, Tools


async def ask(policy: Policy, text: str, *, stop: tuple[str, ...] = ()) -> Episode:
  """The reply to one prompt, as a separate conversation. See `spoken`."""
  talk = policy.start([dict(role="user", content=text)])
  await talk.generate(stop=stop)
  return talk.end()


def spoken(reply: Episode) -> str:
  """The model's text, without its thoughts and without result blocks that it wrote itself."""
  return own(reply.model_text.rpartition("</think>")[2])


async def ask_about_documents(
  prompt: Prompt,
  example: Example,
  policy: Policy,
  tools: Tools,
  *,
  stop: tuple[str, ...],
  search: bool,
  max_passage_tokens: int | None,
) -> tuple[Episode, tuple[Passage, ...]]:
  """(reply to the method's first prompt, the documents as the prompt shows them).

  Args:
    search: search for the question; otherwise the prompt shows the example's own passages.
    stop: stop strings of the reply.
    max_passage_tokens: longer documents are cut.
  """
  talk, found = policy.start(prompt.messages(example)), example.passages
  if search:
    query = example.question.strip()
    found = await tools.search(query)
    shown = passages.block(found, tokenizer=policy.tokenizer, max_passage_tokens=max_passage_tokens)
    if not talk.observe(shown, query=query, found=found):
      return talk.end("budget"), ()
    found = passages.parse_block(shown) or ()  # later prompts show the same shortened documents
  await talk.generate(stop=stop)
  return talk.end(), found


def joined(*parts: Episode, ended: str, **facts: Any) -> Episode:
  """Joins conversations to one episode, for evaluations. No policy is trained on it (`Recipe.trainable`)."""
  segments = tuple(segment for part in parts for segment in part.segments)
  return dataclasses.replace(parts[-1], segments=segments, facts=facts, ended=ended)
