"""FLARE: writes sentence by sentence. A sentence with an unlikely token becomes a query, and is written again."""

import dataclasses
import math
import re
from typing import Any

from ragrl_jax.prompting import passages
from ragrl_jax.recipes import parts
from ragrl_jax.recipes.untrained.prompt import END, Parser, Prompt
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Policy, Segment, Tools

SENTENCE_TOKENS, SENTENCES = 64, 32  # most tokens of a draft, most sentences of an answer
_SENTENCE = re.compile(r"\s*\S.*?[.!?](?=\s)", re.DOTALL)


def make_play(
  prompt: Prompt,
  parser: Parser,
  *,
  max_searches: int,
  max_passage_tokens: int | None,
  sure_above: float,
  mask_below: float,
):
  """The coroutine. The episode has the kept sentences and their documents, but no drafts.

  The fact `draft_tokens` counts the model's other tokens: rejected drafts, and text after a sentence. The fact `answer`
  is set if the answer spans several sentences ("U.S. Senator"), because turns are otherwise read separately.

  Args:
    sure_above: a draft is kept if all its tokens have at least this probability.
    mask_below: less likely tokens are left out of the query.

  Source: FLARE (arXiv 2305.06983) sec. 3.2, with masked sentences as queries; the first search is for the question, and
  new documents replace the old ones.
  """

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    tokenizer, question = policy.tokenizer, example.question.strip()
    bare = tuple(tokenizer.render(prompt.over(example, ())))
    record = [Segment(ENVIRONMENT, bare, tokenizer.decode(bare))]
    written: tuple[int, ...] = ()
    sampled = 0

    async def sentence(opening: tuple[int, ...]) -> tuple[Segment, Episode]:
      """(next sentence after these tokens and the kept sentences, its conversation)."""
      talk = policy.start(opening + written)
      nonlocal sampled
      said = await talk.generate(stop=(END,), max_new_tokens=SENTENCE_TOKENS)
      sampled += len(said.ids)
      if len(said.logprobs) != len(said.ids):
        raise ValueError("flare needs log-probabilities, but there are none: set config.endpoint.logprobs=True.")
      return _first(said, tokenizer), talk.end()

    async def informed(query: str) -> tuple[Segment, Episode]:
      found = await tools.search(query)
      shown = passages.block(found, tokenizer=tokenizer, max_passage_tokens=max_passage_tokens)
      record.append(Segment(ENVIRONMENT, tuple(tokenizer.encode(shown)), shown, query=query, found=tuple(found)))
      cut = passages.parse_block(shown) or ()  # the documents as they are shown, cut
      return await sentence(tuple(tokenizer.render(prompt.over(example, cut))))

    said, part = await (informed(question) if max_searches else sentence(bare))
    searches, ended = int(max_searches > 0), "length"
    for _ in range(SENTENCES):
      if said.ids:
        record.append(said)
        written += said.ids
      if said.stop or not said.ids:
        ended = "answer" if said.stop == END else said.stop
        break
      said, part = await sentence(bare)
      if searches < max_searches and min(said.logprobs, default=0.0) < math.log(sure_above):
        searches += 1
        said, part = await informed(_query(said, tokenizer, mask_below) or question)
    facts: dict[str, Any] = dict(draft_tokens=sampled - len(written))
    whole = dataclasses.replace(part, segments=tuple(record), ended=ended, facts=facts)
    answer = parser.answer(tokenizer.decode(written))
    if answer is not None and answer != parts.last_answer(parser, whole):
      facts["answer"] = answer
    return whole

  return play


def _first(said: Segment, tokenizer) -> Segment:
  """The first sentence of a draft, in whole tokens. Its stop is "" if the draft continues or was cut off."""
  found = _SENTENCE.match(said.text)
  if found is None or (END in said.text and "<answer>" in found[0]):
    return said if said.stop != "length" else dataclasses.replace(said, stop="")
  # Compared as text: bytes that are not UTF-8 have another length there.
  texts = (tokenizer.decode(said.ids[:number]) for number in range(1, len(said.ids)))
  keep = next((number for number, text in enumerate(texts, 1) if len(text) >= found.end()), len(said.ids))
  ids = said.ids[:keep]
  return Segment(MODEL, ids, tokenizer.decode(ids), logprobs=said.logprobs[:keep])


def _query(said: Segment, tokenizer, mask_below: float) -> str:
  """The sentence without its unlikely tokens and without tags."""
  likely = (token for token, logprob in zip(said.ids, said.logprobs) if logprob >= math.log(mask_below))
  text = b"".join(map(tokenizer.token_bytes, likely)).decode(errors="ignore")
  return " ".join(re.sub(r"</?\w+>", " ", text).split())
