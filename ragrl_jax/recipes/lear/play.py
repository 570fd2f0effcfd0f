"""The episode: one turn, and two short answers without the evidence and without everything else."""

import asyncio
import dataclasses
from typing import Any

from ragrl_jax.recipes.lear import spans
from ragrl_jax.recipes.lear.parser import END, EXTRACTED, Parser
from ragrl_jax.recipes.lear.prompt import Prompt
from ragrl_jax.structs import Conversation, Episode, Example, Policy, Segment, Tools

ASK = "\n<answer>"


def build(prompt: Prompt, parser: Parser, *, answers: str, stop_at: str, top_k: int, probe_tokens: int):
  """The coroutine under these settings.

  Args:
    prompt, parser: see there.
    answers: which probes are asked: "r" from the reason, "e" from the evidence.
    stop_at: "answer"; or "extract": stop there, as the paper does outside of training, and answer from the evidence.
    top_k: passages searched for where the example brings none; 0: it is answered without any.
    probe_tokens: of a probe's answer, at most.
  """

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    if top_k and not example.passages:
      example = dataclasses.replace(example, passages=await tools.search(example.question, top_k))
    talk = policy.start(prompt.messages(example))
    said = await talk.generate(stop=(EXTRACTED if stop_at == "extract" else END,))
    found = {name: spans.find(policy.tokenizer, said.ids, parser, name) for name in ("reason", "extract")}
    facts: dict[str, Any] = dict(passage_tokens=len(policy.tokenizer.encode(prompt.context(example))))
    for fact, name in (("reason_tokens", "reason"), ("evidence_tokens", parser.evidence)):
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
    facts |= {name: answer.text.removesuffix(END).strip() for name, answer in zip(probes, told)}
    if stop_at == "extract":
      facts["answer"] = facts.get("extract_answer")
      return talk.end("extract" if said.stop == EXTRACTED else None, **facts)
    return talk.end("answer" if said.stop == END else None, **facts)

  return play


def without_evidence(talk: Conversation, policy: Policy, said: Segment, reason: spans.Span) -> Conversation:
  """The episode up to the end of its reason, then an answer: a prefix of what the cache holds already."""
  prefix = talk.segments[0].ids + said.ids[: reason.end]
  fork = talk.fork(at=len(prefix))
  if fork.observe(reason.rest + ASK):
    return fork
  # An observation leaves room for a whole turn; a probe is shorter and can do with what there is.
  return policy.start(prefix + tuple(policy.tokenizer.encode(reason.rest + ASK)))


def from_evidence(policy: Policy, messages: list[dict[str, str]], said: Segment, extract: spans.Span) -> Conversation:
  """The question without passages, the evidence as it was sampled, then an answer."""
  words = policy.tokenizer
  return policy.start(
    (
      *words.render(messages),
      *words.encode(extract.lead),
      *said.ids[extract.first : extract.last],
      *words.encode(extract.tail + ASK),
    )
  )
