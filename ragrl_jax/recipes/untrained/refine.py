"""Refined documents: the model first shortens the documents, then answers from the shortened text alone."""

import dataclasses
import re

from ragrl_jax.core.rewards import quotes
from ragrl_jax.core.text import beginnings, tags
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.untrained import asides
from ragrl_jax.recipes.untrained.parser import END
from ragrl_jax.recipes.untrained.prompt import Prompt
from ragrl_jax.structs import Episode, Example, Passage, Policy, Tools

REFINED = {"recomp": "summary", "filco": "extract"}  # method → the tag of the refined text
MOST_COUNTED = 1 << 14  # tokens of documents beyond which the counts of an episode do not go
_END = re.compile(r"(?<=[.!?])\s+|\n+")


def build(prompt: Prompt, reader: Prompt, method: str, *, search: bool, max_passage_tokens: int | None):
  """The coroutine. Facts: `refined`, its length `evidence_tokens`, and the documents' length `passage_tokens`.

  If the refined text is empty, the reader answers without documents.

  Args:
    prompt: asks for the refinement.
    reader: asks for the answer; it shows the refined text as the only document.
    method: "recomp": a summary in the model's words; "filco": sentences of the documents; other sentences are dropped.

  Source: RECOMP (arXiv 2310.04408) sec. 2, its abstractive compressor; FilCo (arXiv 2311.08377) sec. 3. Their models
  were trained for it; here the policy is asked.
  """
  tag = REFINED[method]

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    first, found = await asides.ask_about_documents(
      prompt, example, policy, tools, stop=(f"</{tag}>",), search=search, max_passage_tokens=max_passage_tokens
    )
    if first.ended == "budget":
      return first
    body = tags.last(asides.spoken(first), tag)
    text = "" if body is None else body.body.strip()
    if method == "filco":
      text = " ".join(copied(text, found))
    left = (Passage("refined", "", text),) if text else ()
    talk = policy.start(reader.over(dataclasses.replace(example, passages=left), left))
    said = await talk.generate(stop=(END,))
    encode = policy.tokenizer.encode
    count = lambda text: len(encode(beginnings.for_ids(text, MOST_COUNTED, encode)))
    return asides.joined(
      first,
      talk.end(),
      ended="answer" if said.stop == END else said.stop,
      refined=text,
      evidence_tokens=count(text),
      passage_tokens=count(passages.numbered(found, titles=True)),
    )

  return play


def copied(text: str, documents: tuple[Passage, ...]) -> list[str]:
  """The distinct sentences of the text that a document contains (`quotes.exact`), whatever their case."""
  sources = [f"{passages.neutral(one.title)}\n{passages.neutral(one.text)}".lower() for one in documents]
  sentences = dict.fromkeys(part.strip() for part in _END.split(text))
  return [one for one in sentences if quotes.exact(one.lower(), sources)]


def evidence(example: Example, episode: Episode) -> str:
  """The refined text."""
  del example
  return episode.facts.get("refined", "")
