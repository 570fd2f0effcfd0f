"""The episode: one turn, then two short answers (probes): one without the evidence, one from the evidence alone.

Probes start with exactly the sampled ids, so a section's place is found among the tokens.
"""

import asyncio
import bisect
import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ragrl_jax import structs
from ragrl_jax.recipes.lear.prompt import END, EXTRACTED, Parser, Prompt
from ragrl_jax.structs import Conversation, Episode, Example, Policy, Segment, Tools

if TYPE_CHECKING:
  from ragrl_jax.recipes.lear.recipe import Switches

ASK = "\n<answer>"
CLOSE = f"\n{structs.THOUGHT}\n\n"  # ends a thought that the chat template opened


@dataclasses.dataclass(frozen=True)
class Span:
  """The place of a section.

  Attributes:
    body_tokens: number of tokens that contain a part of the body, without the tags and the white space at its ends.
    end, rest: ids[:end] and then the text `rest` are everything up to the end of the section.
    lead, first, tail: the text `lead`, ids[first:end] and the text `tail` are `<name>body</name>`.

  The texts are "" unless a token crosses the begin or the end of the section.
  """

  body_tokens: int
  end: int
  rest: str
  lead: str
  first: int
  tail: str


def find_span(tokenizer: Any, ids: Sequence[int], parser: Parser, name: str) -> Span | None:
  """The first complete section of this name among the ids; None if there is none."""
  text, ends = _letters(tokenizer, ids)
  pair = parser.pair(text, name)
  if pair is None:
    return None
  whole, inner = slice(pair.start, pair.end), slice(pair.start + len(f"<{name}>"), pair.end - len(f"</{name}>"))
  return _span(text, ends, whole, inner)


def whole_span(tokenizer: Any, ids: Sequence[int], parser: Parser) -> Span | None:
  """The span of all ids, without the model's thought and EOS, as the body of an <extract> section; None if empty."""
  text, ends = _letters(tokenizer, ids)
  reply = parser.reply(text, "extract")
  start = parser.begin(text, reply)
  if not reply.strip():
    return None
  whole = slice(start, start + len(reply))
  span = _span(text, ends, whole, whole)
  return dataclasses.replace(span, lead=f"<extract>{span.lead}", tail=f"{span.tail}</extract>")


def _letters(tokenizer: Any, ids: Sequence[int]) -> tuple[str, list[int]]:
  """(text of the ids with one letter per byte, where each id ends in it). Tags are ASCII, positions are the tokens'."""
  pieces = [tokenizer.token_bytes(token) for token in ids]
  return b"".join(pieces).decode("latin-1"), list(itertools.accumulate(map(len, pieces)))


def _span(text: str, ends: list[int], whole: slice, inner: slice) -> Span:
  """The span of text[whole], a section, whose body is text[inner] without white space at its ends."""
  body = text[inner].encode("latin-1")  # bytes, since half of a letter may look like white space
  begin = inner.start + len(body) - len(body.lstrip())
  stop, starts = begin + len(body.strip()), [0, *ends[:-1]]
  end = bisect.bisect_left(ends, whole.stop)
  end += ends[end] == whole.stop  # a following EOS has no bytes and is left out
  rest = _text(text[ends[end - 1] if end else 0 : whole.stop])
  first = min(bisect.bisect_left(starts, whole.start), end)  # at the end: one or two tokens contain the whole section
  lead = _text(text[whole.start : starts[first] if first < end else whole.stop])
  tail = rest if first < end else ""
  count = bisect.bisect_left(starts, stop) - bisect.bisect_right(ends, begin) if stop > begin else 0
  return Span(count, end, rest, lead=lead, first=first, tail=tail)


def cut_span(tokenizer: Any, span: Span, body: str, words: int) -> Span:
  """The span of a section with this body. If the body has more than `words` words, the rest is cut off."""
  if len(body.split()) <= words:
    return span
  short = first_words(body, words)
  text = f"<extract>{short}</extract>"
  return dataclasses.replace(span, body_tokens=len(tokenizer.encode(short)), lead=text, first=span.end, tail="")


def first_words(text: str, words: int | None) -> str:
  """The text up to the end of this number of words; the whole text if it has no more, or if `words` is None."""
  matches = list(itertools.islice(re.finditer(r"\S+", text), words)) if words else []
  return text[: matches[-1].end()] if matches else text


def _text(letters: str) -> str:
  return letters.encode("latin-1").decode(errors="replace")


def make_play(prompt: Prompt, parser: Parser, switches: "Switches"):
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
    conversation = policy.start(prompt.messages(example))
    turn = await parser.say(conversation, ends)
    # A thought that was cut off has no closing tag among its ids, so its text tells that nothing in it is a section.
    find = lambda name: find_span(policy.tokenizer, turn.ids, parser, name) if parser.pair(turn.text, name) else None
    found = {name: find(name) if name in parser.sections else None for name in ("reason", "extract")}
    if not parser.sections and parser.written(turn.text):
      found["extract"] = whole_span(policy.tokenizer, turn.ids, parser)
    if max_evidence_words and (extract := found["extract"]):
      found["extract"] = cut_span(policy.tokenizer, extract, parser.written(turn.text), max_evidence_words)
    facts["passage_tokens"] = count(policy.tokenizer, prompt.context(example))
    for fact, name in (("reason_tokens", "reason"), ("evidence_tokens", parser.evidence or "extract")):
      facts[fact] = span.body_tokens if (span := found.get(name)) else 0
    probes = {}
    if found["reason"] is not None and "r" in answers:
      probes["reason_answer"] = without_evidence(conversation, policy, turn, found["reason"])
    if found["extract"] is not None and "e" in answers:
      messages = prompt.messages(dataclasses.replace(example, passages=()))
      lead = CLOSE * structs.opened(conversation.segments[:1])
      probes["extract_answer"] = from_evidence(policy, messages, turn, found["extract"], lead=lead)
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
      return conversation.end("extract" if turn.stop == EXTRACTED else None, **facts)
    return conversation.end("answer" if turn.stop == END else None, **facts)

  return play


def without_evidence(conversation: Conversation, policy: Policy, turn: Segment, reason: Span) -> Conversation:
  """A conversation that continues the episode from the end of its reason. The cache already has this prefix."""
  prefix = conversation.segments[0].ids + turn.ids[: reason.end]
  fork = conversation.fork(at=len(prefix))
  if fork.observe(reason.rest + ASK):
    return fork
  # `observe` refuses text that leaves no room for a whole turn. A probe is shorter, and may use what is left.
  return policy.start(prefix + tuple(policy.tokenizer.encode(reason.rest + ASK)))


def from_evidence(
  policy: Policy, messages: list[dict[str, str]], turn: Segment, extract: Span, *, lead: str
) -> Conversation:
  """A conversation that begins with the question without passages and the sampled tokens of the evidence.

  lead: text between them: CLOSE if the chat template opens a thought, since the evidence is none.
  """
  tokenizer = policy.tokenizer
  return policy.start(
    (
      *tokenizer.render(messages),
      *tokenizer.encode(lead + extract.lead),
      *turn.ids[extract.first : extract.end],
      *tokenizer.encode(extract.tail + ASK),
    )
  )
