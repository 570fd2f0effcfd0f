"""The episode: one turn, then two short answers (probes): one without the evidence, one from the evidence alone."""

import asyncio
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from ragrl_jax.recipes.lear import spans
from ragrl_jax.recipes.lear.parser import END, EXTRACTED, Parser
from ragrl_jax.recipes.lear.prompt import Prompt
from ragrl_jax.structs import Conversation, Episode, Example, Policy, Segment, Tools

if TYPE_CHECKING:
  from ragrl_jax.recipes.lear.recipe import Switches

ASK = "\n<answer>"


def build(prompt: Prompt, parser: Parser, switches: "Switches"):
  """The coroutine with these settings."""
  answers, stop_at, top_k = switches.answers, switches.stop_at, switches.top_k
  probe_tokens, max_evidence_words = switches.probe_tokens, switches.max_evidence_words
  # The samples of a group show the same passages, so they are counted once. A policy never changes its tokenizer.
  count = functools.lru_cache(maxsize=256)(lambda tokenizer, text: len(tokenizer.encode(text)))
  ends = {"answer": (END,), "extract": (EXTRACTED,)}[stop_at] if parser.sections else ()

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    facts: dict[str, Any] = {}
    if top_k and not example.passages:
      example = dataclasses.replace(example, passages=await tools.search(example.question, top_k))
      facts["retrieved"] = [(passage.title, passage.text) for passage in example.passages]
    talk = policy.start(prompt.messages(example))
    said = await talk.generate(stop=ends)
    found = {name: spans.find(policy.tokenizer, said.ids, parser, name) for name in ("reason", "extract")}
    if not parser.sections:
      found["extract"] = spans.whole(policy.tokenizer, said.ids)
    if max_evidence_words and (extract := found["extract"]):
      found["extract"] = spans.cut(policy.tokenizer, extract, parser.written(said.text), max_evidence_words)
    facts["passage_tokens"] = count(policy.tokenizer, prompt.context(example))
    for fact, name in (("reason_tokens", "reason"), ("evidence_tokens", parser.evidence or "extract")):
      facts[fact] = span.body_tokens if (span := found.get(name)) else 0
    probes = {}
    if found["reason"] is not None and "r" in answers:
      probes["reason_answer"] = without_evidence(talk, policy, said, found["reason"])
    if found["extract"] is not None and "e" in answers:
      probes["extract_answer"] = from_evidence(
        policy, prompt.messages(dataclasses.replace(example, passages=())), said, found["extract"]
      )
    told = await asyncio.gather(
      *(probe.generate(stop=(END,), max_new_tokens=probe_tokens, greedy=True) for probe in probes.values())
    )
    # An answer without its closing tag is empty, as in the full reply.
    facts |= {
      name: answer.text.removesuffix(END).strip() if answer.stop == END else "" for name, answer in zip(probes, told)
    }
    if stop_at == "extract":
      if "e" in answers:
        facts["answer"] = facts.get("extract_answer")
      return talk.end("extract" if said.stop == EXTRACTED else None, **facts)
    return talk.end("answer" if said.stop == END else None, **facts)

  return play


def without_evidence(talk: Conversation, policy: Policy, said: Segment, reason: spans.Span) -> Conversation:
  """A conversation that continues the episode from the end of its reason. The cache already has this prefix."""
  prefix = talk.segments[0].ids + said.ids[: reason.end]
  fork = talk.fork(at=len(prefix))
  if fork.observe(reason.rest + ASK):
    return fork
  # `observe` refuses text that leaves no room for a whole turn. A probe is shorter, and may use what is left.
  return policy.start(prefix + tuple(policy.tokenizer.encode(reason.rest + ASK)))


def from_evidence(policy: Policy, messages: list[dict[str, str]], said: Segment, extract: spans.Span) -> Conversation:
  """A conversation that begins with the question without passages and the sampled tokens of the evidence."""
  tokenizer = policy.tokenizer
  return policy.start(
    (
      *tokenizer.render(messages),
      *tokenizer.encode(extract.lead),
      *said.ids[extract.first : extract.last],
      *tokenizer.encode(extract.tail + ASK),
    )
  )
