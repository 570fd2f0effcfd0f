"""A scripted policy over any tokenizer, and its tools, for tests of conversations as token ids."""

import json

from ragrl_jax import structs
from ragrl_jax.chat.client import Completion
from ragrl_jax.structs import ENVIRONMENT, MODEL, Segment
from ragrl_jax.testing import scripted


def call(name, **arguments):
  """A call as Qwen's template writes it."""
  return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


class ChatPolicy(scripted.ScriptedPolicy):
  """A scripted policy whose conversations are token ids. Every reply ends with EOS, unless it is cut."""

  def __init__(self, tokenizer, replies, room=10_000):
    super().__init__(replies, room=room, tokenizer=tokenizer)

  def start(self, prompt):
    return ChatTalk(self, tuple(prompt if isinstance(prompt[0], int) else self.tokenizer.render(prompt)))


class ChatTalk(scripted.ScriptedConversation):
  """See `structs.Conversation`."""

  def __init__(self, policy, ids):
    self.policy, self.segments = policy, (Segment(ENVIRONMENT, ids, policy.tokenizer.decode(ids)),)

  async def generate(self, *, stop=(), max_new_tokens=None, greedy=False, ends=lambda text: True):
    """The next reply."""
    said = await super().generate(stop=stop, ends=ends)
    if said.stop == "budget":
      return said
    ids, why = (*said.ids, *self.policy.tokenizer.eos_ids[: said.stop == "eos"]), said.stop
    if max_new_tokens is not None and len(ids) > max_new_tokens:
      ids, why = ids[:max_new_tokens], "length"
    said = Segment(MODEL, ids, self.policy.tokenizer.decode(ids), (-0.5,) * len(ids), why)
    self.segments = (*self.segments[:-1], said)
    return said

  def observe(self, text, *, query=None, found=None):
    """Appends text or ids."""
    ids = self.policy.tokenizer.encode(text) if isinstance(text, str) else text
    if len(ids) >= self.room():
      return False
    said = Segment(ENVIRONMENT, tuple(ids), self.policy.tokenizer.decode(ids), query=query, found=found)
    self.segments += (said,)
    return True


class Tools:
  """See `structs.Tools`. A search finds one passage, which repeats the query, or fails; every verdict is the same."""

  def __init__(self, fails=False, verdict=1.0):
    self.fails, self.verdict, self.asked = fails, verdict, []

  async def search(self, query, k=None):
    self.asked.append(query)
    if self.fails:
      raise structs.ToolFailed("the index is gone")
    return (structs.Passage("p", "Rome", f"{query} is in Italy.", 1.0),)

  async def judge(self, pairs, term=""):
    return (self.verdict,) * len(pairs)


class Teacher:
  """A chat client that replies by the question in the prompt: {question: text, or an exception that is raised}."""

  def __init__(self, answers):
    self.answers, self.asked = answers, []

  async def ask(self, messages):
    self.asked.append(messages[-1]["content"])
    said = next(answer for question, answer in self.answers.items() if question in self.asked[-1])
    if isinstance(said, Exception):
      raise said
    return Completion(said)
