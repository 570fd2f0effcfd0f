"""Adapters: the text of another search agent → turns in Search-R1's tags, which the recipes' parsers read.

    R1-Searcher's  <|begin_of_query|>q<|end_of_query|><|begin_of_documents|>d<|end_of_documents|><answer>a</answer>
    read as        ("model", "<search>q</search>"), ("environment", "<information>d</information>"),
                   ("model", "<answer>a</answer>")

A block of results directly after a query belongs to the environment, as a notice after a turn without an action does.
Any other block was written by the model, and does not count. A text without the adapter's tags, or with the tags of
another system, is an error and never scores zero.
"""

import re

from ragrl_jax.recipes.released.agents import AGENTS, ANSWER, SEARCH, THOUGHT, Agent, boxed
from ragrl_jax.structs import ENVIRONMENT, MODEL

Turns = list[tuple[str, str]]
_ASSISTANT = re.compile(r"<\|im_start\|>assistant\n|<\|start_header_id\|>assistant<\|end_header_id\|>\n+")
# What Search-R1's environment, and those built on it, say after a turn without an action. It explains the tags.
_NOTICE = re.compile(r"(\s*My previous action is invalid\..*?Let me try again\.\s*)", re.DOTALL)
_ENDS = re.compile(r"(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>|\s)+\Z")


def turns(text: str, system: str) -> Turns:
  """A transcript's turns, without its prompt.

  A block of results that was cut off ends before the next thought, query or answer.

  Args:
    text: everything after the prompt. If it has the assistant's mark of a chat template, only the text after the first
      mark is read.

  Raises:
    system: a name in `tags.AGENTS`.
  """
  adapter = AGENTS[system]
  if start := _ASSISTANT.search(text):
    text = text[start.end() :]
  text = _ENDS.sub("", text)
  found: Turns = []
  opening = _opening(adapter)
  while begun := opening.search(text):
    asked, after = text[: begun.start()] + adapter.query[1], text[begun.end() :]
    inside, text = _results(after, adapter)
    found += [(MODEL, asked), (ENVIRONMENT, inside)]
  found.append((MODEL, text))
  if not found[-1][1].strip() and len(found) > 1:
    found.pop()
  spoken = "".join(part for owner, part in found if owner == MODEL)
  _check(spoken, system, adapter)
  return [turn for owner, part in found for turn in _translated(owner, part, adapter)]


def searched(text: str, system: str) -> bool:
  """Whether the text has a query that is followed by results."""
  return _opening(AGENTS[system]).search(text) is not None


def _opening(adapter: Agent) -> re.Pattern:
  return re.compile(re.escape(adapter.query[1]) + r"\s*" + re.escape(adapter.results[0]))


def _results(text: str, adapter: Agent) -> tuple[str, str]:
  """(the block's contents, the text after it)."""
  closed = text.find(adapter.results[1])
  nexts = "|".join(map(re.escape, (THOUGHT[0], adapter.query[0], ANSWER[0], *adapter.others)))
  cut = re.search(rf"\n?(?:{nexts})", text)  # a line break that was results' may have been cut off, too
  following = text.find(adapter.results[0])
  if closed >= 0 and (following < 0 or closed < following):
    return text[:closed], text[closed + len(adapter.results[1]) :]
  return (text, "") if cut is None else (text[: cut.start()], text[cut.start() :])


def _check(spoken: str, system: str, adapter: Agent) -> None:
  """Refuses the model's text if it has none of the system's tags, or tags of another system."""
  own = {*adapter.query, *adapter.results, *adapter.others}
  for name, other in AGENTS.items():
    foreign = {other.query[0], other.results[0], *other.others} - own
    seen = sorted(tag for tag in foreign if tag in spoken)
    if seen:
      raise ValueError(f"it has {', '.join(seen)}, which {system} does not write: is it {name}'s?")
  marks = (adapter.query[0], r"\boxed{" if adapter.answered != "tags" else ANSWER[0], ANSWER[0], *THOUGHT)
  if not any(mark in spoken for mark in marks):
    raise ValueError(
      f"none of {system}'s tags is in it ({', '.join(dict.fromkeys(marks))}). If the model wrote this, give its row a "
      '"prediction", null for none.'
    )


def _translated(owner: str, text: str, adapter: Agent) -> Turns:
  """The turns of a part: one, or more if notices of the environment are in it."""
  if owner == ENVIRONMENT:
    return [(owner, block(text))]
  pieces = enumerate(_NOTICE.split(text))  # every second one is a notice
  return [(ENVIRONMENT, part) if at % 2 else (MODEL, said(part, adapter)) for at, part in pieces if part or not at]


def block(inside: str) -> str:
  """The environment's text with these results, in our tags."""
  inside = re.sub(r"</?information>", " ", inside)
  return f"\n\n<information>{inside}</information>\n\n"


def said(text: str, adapter: Agent) -> str:
  """The model's text with our tags."""
  for mine, ours in zip(adapter.query, SEARCH):
    text = text.replace(mine, ours)
  for mine, ours in zip(adapter.results, ("<information>", "</information>")):
    text = text.replace(mine, ours)  # a block written by the model: parsers ignore it
  if adapter.answered == "box" and not text.endswith(SEARCH[1]) and (answer := boxed(text)) is not None:
    text += f"{ANSWER[0]}{answer}{ANSWER[1]}"
  if adapter.answered == "boxed":
    text = re.sub(r"<answer>(.*?)</answer>", _unboxed, text, flags=re.DOTALL)
  return text


def _unboxed(found: re.Match) -> str:
  answer = boxed(found[1])
  return found[0] if answer is None else f"{ANSWER[0]}{answer}{ANSWER[1]}"
