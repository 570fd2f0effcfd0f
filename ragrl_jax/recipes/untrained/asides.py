"""Episodes of several conversations: each prompt starts anew, and the record has all of them in order."""

import dataclasses
from typing import Any

from ragrl_jax.prompting import passages
from ragrl_jax.recipes.untrained.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Passage, Policy, Tools


async def ask(policy: Policy, text: str, *, stop: tuple[str, ...] = ()) -> Episode:
  """The reply to one prompt, as a conversation of its own; `model_text` is the reply."""
  talk = policy.start([dict(role="user", content=text)])
  await talk.generate(stop=stop)
  return talk.end()


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
  """(the reply to the method's first prompt, the documents that it shows).

  Args:
    search: search for the question; otherwise the prompt shows the example's own passages.
    stop, max_passage_tokens: of the reply, and of each document.
  """
  talk, found = policy.start(prompt.messages(example)), example.passages
  if search:
    query = example.question.strip()
    found = await tools.search(query)
    shown = passages.block(found, tokenizer=policy.tokenizer, max_passage_tokens=max_passage_tokens)
    if not talk.observe(shown, query=query, found=found):
      return talk.end("budget"), found
  await talk.generate(stop=stop)
  return talk.end(), found


def joined(*parts: Episode, ended: str, **facts: Any) -> Episode:
  """One episode of these conversations: for evaluations. No policy is trained on it (`Recipe.trainable`)."""
  segments = tuple(segment for part in parts for segment in part.segments)
  return dataclasses.replace(parts[-1], segments=segments, facts=facts, ended=ended)
