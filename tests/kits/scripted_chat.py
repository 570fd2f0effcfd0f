"""A scripted policy over any tokenizer, and its tools, for tests of conversations as token ids."""

import json

from ragrl_jax import structs
from ragrl_jax.chat.client import Completion
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Segment


def call(name, **arguments):
  """A call as Qwen's template writes it."""
  return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


class ChatPolicy:
  """See `structs.Policy`. Every reply ends with EOS, unless it is cut at a stop string.

  Args:
    tokenizer: the policy's.
    replies: the texts, in order.
    room: tokens of a conversation.
  """

  def __init__(self, tokenizer, replies, room=10_000):
    self.tokenizer, self.replies, self.most = tokenizer, list(replies), room
    self.talks = []

  def start(self, prompt):
    """See `structs.Policy`."""
    ids = prompt if isinstance(prompt[0], int) else self.tokenizer.render(prompt)
    self.talks.append(ChatTalk(self, [Segment(ENVIRONMENT, tuple(ids), self.tokenizer.decode(ids))]))
    return self.talks[-1]


class ChatTalk:
  """See `structs.Conversation`."""

  def __init__(self, policy, segments):
    self.policy, self._segments = policy, segments

  @property
  def segments(self):
    """The segments so far."""
    return tuple(self._segments)

  def room(self):
    """Tokens left."""
    return self.policy.most - sum(len(segment.ids) for segment in self._segments)

  async def generate(self, *, stop=(), max_new_tokens=None, greedy=False, ends=None):
    """The next reply."""
    if self.room() < 1:
      return Segment(MODEL, (), "", stop="budget")
    text = self.policy.replies.pop(0)
    ends = min(((text.find(one) + len(one), one) for one in stop if one in text), default=None)
    text, why = (text, "eos") if ends is None else (text[: ends[0]], ends[1])
    ids = (*self.policy.tokenizer.encode(text), *self.policy.tokenizer.eos_ids[: why == "eos"])
    if max_new_tokens is not None and len(ids) > max_new_tokens:
      ids, why = ids[:max_new_tokens], "length"
    text = self.policy.tokenizer.decode(ids)
    self._segments.append(Segment(MODEL, ids, text, (-0.5,) * len(ids), why))
    return self._segments[-1]

  def observe(self, text, *, query=None, found=None):
    """Appends text or ids."""
    ids = self.policy.tokenizer.encode(text) if isinstance(text, str) else text
    if len(ids) >= self.room():
      return False
    self._segments.append(Segment(ENVIRONMENT, tuple(ids), self.policy.tokenizer.decode(ids), query=query, found=found))
    return True

  def end(self, reason=None, **facts):
    """The episode so far."""
    said = [segment for segment in self._segments if segment.owner == MODEL]
    return Episode(self.segments, facts=facts, ended=reason or (said[-1].stop if said else ""))


class Tools:
  """See `structs.Tools`. A search finds one passage, which repeats the query, or fails; every verdict is the same."""

  def __init__(self, fails=False, verdict=1.0):
    self.fails, self.verdict, self.asked = fails, verdict, []

  async def search(self, query, k=None):
    """See `structs.Tools`."""
    self.asked.append(query)
    if self.fails:
      raise structs.ToolFailed("the index is gone")
    return (structs.Passage("p", "Rome", f"{query} is in Italy.", 1.0),)

  async def judge(self, pairs, term=""):
    """See `structs.Tools`."""
    return (self.verdict,) * len(pairs)


class Teacher:
  """A chat client that replies by the question in the prompt: {question: text, or an exception that is raised}."""

  def __init__(self, answers):
    self.answers, self.asked = answers, []

  async def ask(self, messages):
    """See `chat.client.Client`."""
    self.asked.append(messages[-1]["content"])
    said = next(answer for question, answer in self.answers.items() if question in self.asked[-1])
    if isinstance(said, Exception):
      raise said
    return Completion(said)
