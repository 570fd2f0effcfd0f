"""Methods of several conversations: SuRe, RECOMP and FilCo, Adaptive-RAG, FLARE.

Each prompt starts a new conversation, and the episode has all of them in order; that of FLARE has what it kept.
"""

import asyncio
import dataclasses
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ragrl_jax.core.rewards import quotes
from ragrl_jax.core.text import beginnings, tags
from ragrl_jax.prompting import passages
from ragrl_jax.recipes import parts
from ragrl_jax.recipes.search_agent import own
from ragrl_jax.recipes.untrained.prompt import END, Parser, Prompt
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage, Policy, Segment, ToolFailed, Tools

if TYPE_CHECKING:
  from ragrl_jax.recipes.untrained.recipe import Switches


async def ask(policy: Policy, text: str) -> Episode:
  """The reply to one prompt, as a separate conversation. See `spoken`."""
  conversation = policy.start([dict(role="user", content=text)])
  await conversation.generate()
  return conversation.end()


def spoken(reply: Episode) -> str:
  """The model's text, without its thoughts and without result blocks that it wrote itself."""
  return own(parts.spoken(reply.model_text))


async def ask_about_documents(
  prompt: Prompt, switches: "Switches", example: Example, policy: Policy, tools: Tools, *, stop: tuple[str, ...] = ()
) -> tuple[Episode, tuple[Passage, ...]]:
  """(reply to the method's first prompt, the documents as the prompt shows them)."""
  conversation, results = policy.start(prompt.messages(example)), example.passages
  if switches.documents == "search":
    query = example.question.strip()
    results = await tools.search(query)
    block = passages.block(results, tokenizer=policy.tokenizer, max_passage_tokens=switches.max_passage_tokens)
    if not conversation.observe(block, query=query, found=results):
      return conversation.end("budget"), ()
    results = passages.parse_block(block) or ()  # later prompts show the same shortened documents
  await parts.say(conversation, stop, every=True)
  return conversation.end(), results


def join(*parts: Episode, ended: str, **facts: Any) -> Episode:
  """Joins conversations to one episode, for evaluations. No policy is trained on it (`Recipe.trainable`)."""
  segments = tuple(segment for part in parts for segment in part.segments)
  return dataclasses.replace(parts[-1], segments=segments, facts=facts, ended=ended)


CANDIDATES = 2
_SUMMARISE = (
  "Documents:\n{documents}\nWrite a short passage, from these documents alone, that supports the following answer to "
  "the question as well as they allow.\nQuestion: {question}\nAnswer: {answer}\nPassage:"
)
_VALID = (
  "Question: {question}\nAnswer: {answer}\nPassage: {summary}\n"
  "Does the passage support this answer to the question? Say True or False."
)
_COMPARE = (
  "Passage 1: {first}\nPassage 2: {second}\nQuestion: {question}\n"
  "Which of the two passages tells more that answers the question? Say Passage 1 or Passage 2."
)
_CHOICE = re.compile(r"passage\s*([12])", re.IGNORECASE)
_TRUTH = re.compile(r"\b(true|false)\b", re.IGNORECASE)


def make_sure(prompt: Prompt, switches: "Switches"):
  """The coroutine. The fact `answer` is one of the facts `candidates`, whose `points` are a fact, too.

  A candidate gets 1 point if its summary is judged valid. Against each other candidate it gets 1 point if its summary
  is preferred, and 0.5 if the two orders contradict each other or both replies name neither. The first of equal
  candidates wins.

  Source: SuRe (arXiv 2404.13081) sec. 3, with its two candidates.
  """

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    question = example.question.strip()
    first, documents = await ask_about_documents(prompt, switches, example, policy, tools)
    bodies = (pair.body.strip() for pair in tags.pairs(spoken(first), "answer"))
    candidates = list(dict.fromkeys(body for body in bodies if body))[:CANDIDATES]
    if len(candidates) < CANDIDATES:  # nothing to choose from
      best_answer = candidates[0] if candidates else None
      return join(first, ended="answer" if best_answer else first.ended, answer=best_answer, candidates=candidates)
    shown = passages.numbered(documents, titles=True)
    prompts = [_SUMMARISE.format(documents=shown, question=question, answer=one) for one in candidates]
    replies = await asyncio.gather(*(ask(policy, text) for text in prompts))
    summaries = [passages.neutral(spoken(one).strip()) for one in replies]
    valid = [
      _VALID.format(question=question, answer=one, summary=text)
      for one, text in zip(candidates, summaries, strict=True)
    ]
    orders = [
      _COMPARE.format(first=one, second=other, question=question) for one, other in (summaries, summaries[::-1])
    ]
    verdicts = await asyncio.gather(*(ask(policy, text) for text in (*valid, *orders)))
    said = [spoken(verdict) for verdict in verdicts]
    points = [float((match := _TRUTH.search(text)) is not None and match[1].lower() == "true") for text in said[:2]]
    preferred = sum(_preferred(text) * sign for text, sign in zip(said[2:], (1, -1)))  # above 0: the first candidate
    points = [
      point + (0.5 if not preferred else float(wins)) for point, wins in zip(points, (preferred > 0, preferred < 0))
    ]
    best = candidates[max(range(CANDIDATES), key=lambda one: points[one])]
    return join(first, *replies, *verdicts, ended="answer", answer=best, candidates=candidates, points=points)

  return play


def _preferred(text: str) -> int:
  """1 if the reply prefers passage 1, -1 for passage 2, 0 if it names neither."""
  choice = _CHOICE.search(text)
  return 0 if choice is None else 1 if choice[1] == "1" else -1


REFINED = {"recomp": "summary", "filco": "extract"}  # method → the tag of the refined text
MOST_COUNTED = 1 << 14  # tokens of documents beyond which the counts of an episode do not go
_END = re.compile(r"(?<=[.!?])\s+|\n+")


def make_refined(prompt: Prompt, reader: Prompt, switches: "Switches"):
  """The coroutine. Facts: `refined`, its length `evidence_tokens`, and the documents' length `passage_tokens`.

  If the refined text is empty, the reader answers without documents.

  Args:
    reader: asks for the answer; it shows the refined text as the only document.
    switches: method "recomp": a summary in the model's words; "filco": sentences of the documents, no others.

  Source: RECOMP (arXiv 2310.04408) sec. 2, its abstractive compressor; FilCo (arXiv 2311.08377) sec. 3. Their models
  were trained for it; here the policy is asked.
  """
  tag = REFINED[switches.method]

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    first, documents = await ask_about_documents(prompt, switches, example, policy, tools, stop=(f"</{tag}>",))
    if first.ended == "budget":
      return first
    body = tags.last(spoken(first), tag)
    text = "" if body is None else body.body.strip()
    if switches.method == "filco":
      text = " ".join(find_copied(text, documents))
    kept_passages = (Passage("refined", "", text),) if text else ()
    conversation = policy.start(reader.over(dataclasses.replace(example, passages=kept_passages), kept_passages))
    turn = await parts.say(conversation, (END,), every=True)
    encode = policy.tokenizer.encode
    count = lambda text: len(encode(beginnings.for_ids(text, MOST_COUNTED, encode)))
    return join(
      first,
      conversation.end(),
      ended="answer" if turn.stop == END else turn.stop,
      refined=text,
      evidence_tokens=count(text),
      passage_tokens=count(passages.numbered(documents, titles=True)),
    )

  return play


def find_copied(text: str, documents: tuple[Passage, ...]) -> list[str]:
  """The distinct sentences of the text that a document contains (`quotes.exact`), whatever their case."""
  sources = [f"{passages.neutral(one.title)}\n{passages.neutral(one.text)}".lower() for one in documents]
  sentences = dict.fromkeys(part.strip() for part in _END.split(text))
  return [one for one in sentences if quotes.exact(one.lower(), sources)]


ROUTES = {"A": "closed_book", "B": "rag", "C": "ircot"}  # label of the paper's classifier → method
NEED = "</need>"
_CLAIMS = (
  "General knowledge is enough to answer the question; no document is needed.",
  "One search for documents is enough to answer the question.",
)


def read_label(text: str) -> str:
  """The label in a text: the text itself, or the last capital A, B or C that is a word; B without one."""
  if (label := text.strip().upper()) in ROUTES:
    return label
  return next(iter(re.findall(r"\b[ABC]\b", text)[::-1]), "B")


def make_adaptive(
  prompt: Prompt, routes: Mapping[str, Callable[[Example, Policy, Tools], Awaitable[Episode]]], *, classifier: str
):
  """The coroutine. The fact `complexity` is A, B or C; a reply without a label counts as B.

  Args:
    prompt: asks the model for the label.
    routes: label → the coroutine that answers.
    classifier: "model": the policy gives the label; "judge": the judge is asked about two claims on the question. A
      question without its verdict fails, since no label is known.

  Source: Adaptive-RAG (arXiv 2403.14403) sec. 3.2. Its classifier is a T5 model that was trained for it.
  """

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    before = []
    if classifier == "judge":
      question = f"Question: {example.question.strip()}"
      without, with_one = await tools.judge([(question, claim) for claim in _CLAIMS], "complexity")
      if without is None or (with_one is None and without < 0.5):
        raise ToolFailed("the judge gave no verdict on the complexity of the question")
      label = "A" if without >= 0.5 else "B" if with_one and with_one >= 0.5 else "C"
    else:
      conversation = policy.start(prompt.messages(example))
      turn = await parts.say(conversation, (NEED,), every=True)
      before.append(conversation.end())
      pair = tags.last(turn.text, "need")
      label = read_label(pair.body if pair else "")
    part = await routes[label](example, policy, tools)
    return join(*before, part, ended=part.ended, complexity=label)

  return play


SENTENCE_TOKENS, SENTENCES = 64, 32  # most tokens of a draft, most sentences of an answer
_SENTENCE = re.compile(r"\s*\S.*?[.!?](?=\s)", re.DOTALL)


def make_flare(prompt: Prompt, parser: Parser, switches: "Switches"):
  """The coroutine: writes sentence by sentence. One with an unlikely token becomes a query, and is written again.

  The episode has the kept sentences and their documents, but no drafts.

  The fact `draft_tokens` counts the model's other tokens: rejected drafts, and text after a sentence. The fact `answer`
  is set if the answer spans several sentences ("U.S. Senator"), because turns are otherwise read separately.

  A draft is kept if all its tokens have at least the probability `sure_above`. A query leaves out those below
  `mask_below`.

  Source: FLARE (arXiv 2305.06983) sec. 3.2, with masked sentences as queries; the first search is for the question, and
  new documents replace the old ones.
  """

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    tokenizer, question = policy.tokenizer, example.question.strip()
    prompt_ids = tuple(tokenizer.render(prompt.over(example, ())))
    record = [Segment(ENVIRONMENT, prompt_ids, tokenizer.decode(prompt_ids))]
    kept_ids: tuple[int, ...] = ()
    sampled = 0

    async def sentence(opening: tuple[int, ...]) -> tuple[Segment, Episode]:
      """(next sentence after these tokens and the kept sentences, its conversation)."""
      conversation = policy.start(opening + kept_ids)
      nonlocal sampled
      turn = await conversation.generate(stop=(END,), max_new_tokens=SENTENCE_TOKENS)
      sampled += len(turn.ids)
      if len(turn.logprobs) != len(turn.ids):
        raise ValueError("flare needs log-probabilities, but there are none: set config.endpoint.logprobs=True.")
      return _first(turn, tokenizer), conversation.end()

    async def informed(query: str) -> tuple[Segment, Episode]:
      results = await tools.search(query)
      block = passages.block(results, tokenizer=tokenizer, max_passage_tokens=switches.max_passage_tokens)
      record.append(Segment(ENVIRONMENT, tuple(tokenizer.encode(block)), block, query=query, found=tuple(results)))
      cut = passages.parse_block(block) or ()  # the documents as they are shown, cut
      return await sentence(tuple(tokenizer.render(prompt.over(example, cut))))

    drafted, part = await (informed(question) if switches.max_searches else sentence(prompt_ids))
    searches, ended = int(switches.max_searches > 0), "length"
    for _ in range(SENTENCES):
      if drafted.ids:
        record.append(drafted)
        kept_ids += drafted.ids
      if drafted.stop or not drafted.ids:
        ended = "answer" if drafted.stop == END else drafted.stop
        break
      drafted, part = await sentence(prompt_ids)
      if searches < switches.max_searches and min(drafted.logprobs, default=0.0) < math.log(switches.sure_above):
        searches += 1
        drafted, part = await informed(_query(drafted, tokenizer, switches.mask_below) or question)
    facts: dict[str, Any] = dict(draft_tokens=sampled - len(kept_ids))
    episode = dataclasses.replace(part, segments=tuple(record), ended=ended, facts=facts)
    answer = parser.answer(tokenizer.decode(kept_ids))
    if answer is not None and answer != (parts.last_answer(parser, episode) or ""):
      facts["answer"] = answer
    return episode

  return play


def _first(draft: Segment, tokenizer) -> Segment:
  """The first sentence of a draft, in whole tokens. Its stop is "" if the draft continues or was cut off."""
  match = _SENTENCE.match(draft.text)
  if match is None or (END in draft.text and "<answer>" in match[0]):
    return draft if draft.stop != "length" else dataclasses.replace(draft, stop="")
  # Compared as text: bytes that are not UTF-8 have another length there.
  texts = (tokenizer.decode(draft.ids[:number]) for number in range(1, len(draft.ids)))
  keep = next((number for number, text in enumerate(texts, 1) if len(text) >= match.end()), len(draft.ids))
  ids = draft.ids[:keep]
  return Segment(MODEL, ids, tokenizer.decode(ids), logprobs=draft.logprobs[:keep])


def _query(draft: Segment, tokenizer, mask_below: float) -> str:
  """The sentence without its unlikely tokens and without tags."""
  likely = (token for token, logprob in zip(draft.ids, draft.logprobs) if logprob >= math.log(mask_below))
  text = b"".join(map(tokenizer.token_bytes, likely)).decode(errors="ignore")
  return " ".join(re.sub(r"</?\w+>", " ", text).split())
