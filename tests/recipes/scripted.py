"""A policy that says what a script says, and a tape of everything that happens: for playing recipes without a model."""

from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Segment


class Bytes:
  """The plainest tokenizer: a token a byte."""

  def render(self, messages):
    return self.encode("".join(message["content"] for message in messages))

  def encode(self, text):
    return list(text.encode())

  def token_bytes(self, token):
    return bytes([token])


class ScriptedPolicy:
  """Says the script's texts in turn, each cut after the first stop string asked for, as an engine would.

  script: what the model would write, a text a turn; "eos" behind a text that completes no stop.
  room: bytes that fit into the context.
  """

  def __init__(self, script, *, room=100_000):
    self.tokenizer = Bytes()
    self.script = list(script)
    self.tape = []
    self.room = room

  def start(self, prompt):
    text = bytes(prompt).decode() if isinstance(prompt[0], int) else "".join(m["content"] for m in prompt)
    self.tape.append(("start", text))
    return ScriptedConversation(self, text)


class ScriptedConversation:
  def __init__(self, policy, prompt):
    self.policy = policy
    self.segments = (Segment(ENVIRONMENT, tuple(prompt.encode()), prompt),)

  def room(self):
    return self.policy.room - sum(len(s.ids) for s in self.segments)

  async def generate(self, *, stop=(), max_new_tokens=None, greedy=False):
    if self.room() < 1:
      self.policy.tape.append(("full", ""))
      return Segment(MODEL, (), "", stop="budget")
    text = self.policy.script.pop(0)
    ends = [(text.find(s) + len(s), s) for s in stop if s in text]
    end, why = min(ends, default=(len(text), "eos"))
    text = text[:end]
    self.policy.tape.append(("generate", tuple(stop), text))
    said = Segment(MODEL, tuple(text.encode()), text, (0.0,) * len(text.encode()), why)
    self.segments += (said,)
    return said

  def observe(self, text, *, query=None, found=None):
    if len(text.encode()) >= self.room():
      self.policy.tape.append(("full", text))
      return False
    self.policy.tape.append(("observe", text))
    self.segments += (Segment(ENVIRONMENT, tuple(text.encode()), text, query=query, found=found),)
    return True

  def fork(self, at):
    text = bytes([i for s in self.segments for i in s.ids][:at]).decode()
    self.policy.tape.append(("fork", text))
    return ScriptedConversation(self.policy, text)

  def end(self, why=None, **facts):
    why = why or self.segments[-1].stop
    self.policy.tape.append(("end", why))
    return Episode(self.segments, facts=facts, ended=why)


class ScriptedTools:
  """Answers every search with the next of its results and every pair with the next verdict; all goes on the tape."""

  def __init__(self, policy, results, verdicts=()):
    self.policy = policy
    self.results = list(results)
    self.verdicts = list(verdicts)

  async def search(self, query, k=None):
    self.policy.tape.append(("search", query))
    result = self.results.pop(0)
    if isinstance(result, Exception):
      raise result
    return tuple(result)

  async def judge(self, pairs, term=""):
    self.policy.tape.append(("judge", tuple(pairs)))
    return tuple(self.verdicts.pop(0) for _ in pairs)

  async def embed(self, texts):
    self.policy.tape.append(("embed", tuple(texts)))
    return tuple((float(len(text)), 1.0) for text in texts)


def play(recipe, example, script, results=(), *, room=100_000, verdicts=()):
  """(episode, tape) of one scripted episode."""
  import asyncio

  policy = ScriptedPolicy(script, room=room)
  episode = asyncio.run(recipe.play(example, policy, ScriptedTools(policy, results, verdicts)))
  return episode, policy.tape
