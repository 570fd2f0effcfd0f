"""A search agent of OpenAI's Agents SDK (pip install openai-agents), which knows nothing of being trained."""

import asyncio
import functools
from typing import Any

from ragrl_jax.recipes.agent.programs.tool_loop import MAX_SEARCHES, client
from ragrl_jax.recipes.agent.task import Task


@functools.cache
def tool() -> Any:
  """The search, as the library's tool."""
  import agents

  agents.set_tracing_disabled(True)

  async def search(context: Any, query: str) -> str:
    """Finds passages."""
    found = await asyncio.to_thread(context.context.search, query)
    return "".join(f" {passage['text']}" for passage in found)

  # The library reads types at run time, and it is not installed where this file is only read.
  search.__annotations__["context"] = agents.RunContextWrapper[Task]
  return agents.function_tool(search)


async def run(task: Task) -> str | None:
  """Asks the agent. A model that makes no sense to the library has not answered; that is no fault of the program."""
  import agents

  model = agents.OpenAIChatCompletionsModel(task.model, client().with_options(base_url=task.base_url))
  agent = agents.Agent("searcher", model=model, tools=[tool()])
  try:
    return (await agents.Runner.run(agent, task.question, context=task, max_turns=MAX_SEARCHES + 1)).final_output
  except (agents.ModelBehaviorError, agents.MaxTurnsExceeded):
    return None
