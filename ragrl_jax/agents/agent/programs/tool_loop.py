"""A search agent with the official `openai` client alone: the model calls a tool until it answers."""

import asyncio
import functools
import json
from typing import Any

from ragrl_jax.agents.agent.task import Task

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"name": "search", "description": "Finds passages.", "parameters": QUERY}
TOOLS: list[Any] = [{"type": "function", "function": SEARCH}]
MAX_SEARCHES = 3


@functools.cache
def client() -> Any:
  """One client for all episodes, because making a client costs more than an episode's requests."""
  import openai

  # A step starts all episodes at once, so connecting may take longer than the client's default of five seconds.
  return openai.AsyncOpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=0, timeout=600.0)


async def run(task: Task) -> str | None:
  """Lets the model search until it answers, at most `MAX_SEARCHES` times."""
  completions = client().with_options(base_url=task.base_url).chat.completions
  messages: list[Any] = [{"role": "user", "content": task.question}]
  for _ in range(MAX_SEARCHES + 1):
    message = (await completions.create(model=task.model, messages=messages, tools=TOOLS)).choices[0].message
    if not message.tool_calls:
      return message.content
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls:
      query = json.loads(call.function.arguments).get("query", "")
      passages = await asyncio.to_thread(task.search, str(query))
      text = "".join(f" {passage['text']}" for passage in passages)
      messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
  return None
