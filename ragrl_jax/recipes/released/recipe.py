"""Released agents: each is told how to think, search and answer, searches in its own tags, and reads in the same turn.

See README.md.
"""

import dataclasses
import re
from typing import Any

from ragrl_jax.core.text import tags
from ragrl_jax.prompting import passages, wording
from ragrl_jax.recipes import parts, recipe as recipe_lib, search_agent
from ragrl_jax.recipes.parts import Prompt
from ragrl_jax.recipes.released.agents import AGENTS, ANSWER, Agent, boxed
from ragrl_jax.settings.fields import setting
from ragrl_jax.structs import Episode, Example, Passage, Policy, Tools

END = ANSWER[1]
INSTRUCTIONS = ("paper", "short", "none")
_ANSWERS = {
  "tags": "the answer, short and without explanations, between <answer> and </answer>",
  "boxed": "the answer between <answer> and </answer>, and in it, as \\boxed{}, the short answer alone",
  "box": "the short answer, and nothing else, in \\boxed{}",
}
NOTHING = "No helpful information found."
DIGESTS = {
  "paper": (
    "Somebody reasons about a question and has searched. Read the documents that were found, and tell from them, and "
    "from nothing else, what helps with this query and carries the reasoning on. Reply with the line "
    f"'Final information:' and what helps below it; if nothing does, write {NOTHING}\n"
    "Reasoning so far:\n{reasoning}\n\nQuery: {query}\n\nDocuments:\n{documents}\n"
  )
}
LAST = 4  # steps of the reasoning that are always shown
_MARK = re.compile(r"final information\W*", re.IGNORECASE)
TOLD = 5  # additional turns for an agent that is told that no searches are left
NO_MORE = "\nNo searches are left: searching is not allowed any more.\n"
AGAIN = "\nThis query was searched for before: its results are above.\n"


@dataclasses.dataclass(frozen=True)
class Switches(recipe_lib.Switches):
  """README.md lists the settings of the agents' authors."""

  agent: str = setting("search_r1", "whose tags, prompt and limits", choices=AGENTS)
  instructions: str = setting("paper", "text before the question; none: nothing", choices=INSTRUCTIONS, files=True)
  notice: str = setting("paper", "text after a turn without an action", choices=search_agent.NOTICES, files=True)
  digest: str = setting("paper", "prompt for reading documents", choices=DIGESTS, files=True)
  correctness: str = setting("exact", "answers that equal no gold; exact: they are wrong", choices=("exact", "judge"))
  documents: str = setting("search", "given: searches return all of the question's own", choices=("search", "given"))
  max_searches: int = setting(4, "most searches", unit="searches", least=0)
  max_passage_tokens: int | None = setting(None, "longer documents are cut", unit="tokens", least=1)

  @property
  def stepped(self) -> bool:
    return AGENTS[self.agent].thinks


def wordings(agent: Agent) -> dict[str, str]:
  """The agent's wordings by the names of INSTRUCTIONS, for `parts.Prompt`."""
  answer = _ANSWERS[agent.answered]
  thinks = "" if agent.answered == "box" else "Reason first, between <think> and </think>. "
  refines = "After every search, write down between <refine> and </refine> what matters in the documents. "
  query, results = " your query ".join(agent.query), " and ".join(agent.results)
  instructions = (
    f"Answer the question below, step by step. {thinks}Whenever a piece of knowledge is missing, search for it: write "
    f"{query}, and results come between {results}. "
    f"Search as many times as it takes. {refines if '<refine>' in agent.others else ''}As soon as nothing is missing, "
    f"give {answer}.\nQuestion: {{question}}\n"
  )
  short = f"Search in {agent.query[0]} {agent.query[1]}; give {answer}.\nQuestion: {{question}}\n"
  return {"paper": instructions, "short": short, "none": "{question}"}


@dataclasses.dataclass(frozen=True)
class Parser(parts.Parser):
  """Reads the replies of an agent."""

  agent: Agent

  @property
  def stops(self) -> tuple[str, ...]:
    """The stop strings of a turn. An agent that answers in a box ends with its turn."""
    return (self.agent.query[1],) if self.agent.answered == "box" else (self.agent.query[1], END)

  def query(self, text: str) -> str | None:
    """The last query of a turn, with single spaces; None without a query.

    An empty one is a query for Search-R1 and the agents on its code, which search for it, and none for the others.
    """
    opening, closing = self.agent.query
    before, closed, _ = self.own(text).rpartition(closing)
    if not closed or opening not in before:
      return None
    query = " ".join(before.rpartition(opening)[2].split())
    return query if query or self.agent.notice else None

  def answer(self, text: str) -> str | None:
    """The last complete answer in a turn, or None. A box before a query does not count."""
    reply = self.own(text)
    if self.agent.answered == "box":
      return boxed(reply.rpartition(self.agent.query[1])[2])
    pair = tags.last(reply, "answer")
    if pair is None:
      return None
    box = boxed(pair.body) if self.agent.answered == "boxed" else None
    return pair.body.strip() if box is None else box

  def own(self, text: str) -> str:
    """The text without result blocks that the model wrote itself. A tag that it never closes is a mention."""
    return tags.without(text, *self.agent.results)

  def observed(self, reply: str, text: str) -> tuple[str | None, tuple[Passage, ...] | None]:
    """(query, passages) of a result block; (None, None) for a notice. A block in a foreign format is one passage."""
    contents = self.agent.inside(text)
    if contents is None:
      return None, None
    parsed = passages.parse_block(f"{passages.OPEN}{contents}{passages.CLOSE}")
    return self.query(reply), (Passage("1", "", contents.strip()),) if parsed is None else parsed


async def digest(policy: Policy, how: wording.Wording, reasoning: str, query: str, documents: str) -> tuple[str, int]:
  """(the model's digest of the documents, number of its tokens)."""
  conversation = policy.start(how.messages(reasoning=reasoning, query=query, documents=documents))
  turn = await conversation.generate()
  text = parts.spoken(parts.tagged(conversation, turn).text)
  conversation.end()
  return passages.neutral(_MARK.split(text)[-1].strip()) or NOTHING, len(turn.ids)


def shortened(reasoning: str, agent: Agent) -> str:
  """The first step, the last LAST steps, and those with a query or results; "..." replaces the others. Steps are lines.

  Source: Search-o1 (arXiv 2501.05366), its code's extract of earlier steps.
  """
  steps = [line for line in reasoning.split("\n") if line.strip()]
  marks = (agent.query[0], agent.results[0])
  result: list[str] = []
  for number, step in enumerate(steps):
    if not number or number >= len(steps) - LAST or any(mark in step for mark in marks):
      result.append(step)
    elif result[-1] != "...":
      result.append("...")
  return "\n".join(result)


def make_play(prompt: Prompt, parser: Parser, switches: Switches):
  """The coroutine. With documents="given" a search returns all of the example's own passages."""
  notice = search_agent.notice(switches.notice)
  needs = ("reasoning", "query", "documents")
  words = wording.resolve(switches.digest, DIGESTS, setting="config.switches.digest", needs=needs)
  agent, max_searches = parser.agent, switches.max_searches

  async def play(example: Example, policy: Policy, tools: Tools) -> Episode:
    conversation, question = policy.start(prompt.messages(example)), example.question.strip()
    past_queries: set[str] = set()
    facts = dict(digest_tokens=0) if agent.digests else {}

    async def results(query: str) -> tuple[str, tuple[Passage, ...] | None]:
      """(the block after a query, the passages if there was a search)."""
      if agent.digests and (len(past_queries) == max_searches or query in past_queries):
        return agent.block(AGAIN if query in past_queries else NO_MORE), None
      past_queries.add(query)
      found = example.passages if switches.documents == "given" else await tools.search(query)
      block = agent.shown(found, policy.tokenizer, switches.max_passage_tokens)
      if agent.digests:
        text = "".join(segment.text for segment in conversation.segments[1:])
        reasoning = shortened(f"Question: {question}\n{text}", agent)
        block, tokens = await digest(policy, words, reasoning, query, block)
        facts["digest_tokens"] += tokens
      return agent.block(block), found

    turns = max_searches + 1 + (TOLD if agent.digests else 0)
    for turn in range(turns):
      said = await conversation.generate(stop=parser.stops)
      query = parser.query(said.text)
      if said.stop == END or (query is None and not agent.notice):
        return conversation.end("answer" if said.stop == END or parser.answer(said.text) is not None else None, **facts)
      if turn == turns - 1:
        break
      block, found = (notice, None) if query is None else await results(query)
      if not conversation.observe(block, query=query if found is not None else None, found=found):
        return conversation.end("budget", **facts)
    return conversation.end("searches", **facts)

  return play


PRESETS: dict[str, dict[str, Any]] = {
  "paper": {},
  "search_r1": dict(agent="search_r1"),
  "desa": dict(agent="desa"),
  "autorefine": dict(agent="autorefine", max_searches=5),
  "research": dict(agent="research", max_searches=8),
  "r1_searcher": dict(agent="r1_searcher", max_searches=8),
  "search_o1": dict(agent="search_o1", max_searches=10),
  "simpledeepsearcher": dict(agent="simpledeepsearcher", max_searches=10),
  "given": dict(documents="given"),  # combined with an agent
}


def build(switches: Switches) -> recipe_lib.Recipe:
  """The recipe with these switches."""
  agent, has_documents = AGENTS[switches.agent], switches.documents == "given"
  prompt, parser = Prompt(switches.instructions, wordings(agent), marked=agent.asks), Parser(agent)
  play = make_play(prompt, parser, switches)
  # The model's tokens in its digests are not in the episode.
  unrecorded = lambda example, episode: dict(digest_tokens=episode.facts.get("digest_tokens"))
  return recipe_lib.Recipe(
    name="released",
    prompt=prompt,
    stops=parser.stops,
    switches=switches,
    searches=switches.max_searches > 0 and not has_documents,
    measures=unrecorded if agent.digests else None,
    needs_passages=has_documents,
    **parts.answer_fields(play, parts.AnswerReward(parser, switches.correctness)),
  )
