"""A search agent in OpenAI's Agents SDK (pip install openai-agents). Its code does not depend on the training."""

import asyncio
import functools
from typing import Any

from ragrl_jax.agents.agent.programs.tool_loop import MAX_SEARCHES, client
from ragrl_jax.agents.agent.task import Task


@functools.cache
def tool() -> Any:
  """The search as a tool of the SDK."""
  import agents

  agents.set_tracing_disabled(True)

  async def search(context: Any, query: str) -> str:
    """Finds passages."""
    passages = await asyncio.to_thread(context.context.search, query)
    return "".join(f" {passage['text']}" for passage in passages)

  # The SDK reads the annotation at run time. It is set here, so that this file can be imported without the SDK.
  search.__annotations__["context"] = agents.RunContextWrapper[Task]
  return agents.function_tool(search)


async def run(task: Task) -> str | None:
  """Runs the agent. If the SDK cannot use the model's output, the result is None, which is scored as no answer."""
  import agents

  model = agents.OpenAIChatCompletionsModel(task.model, client().with_options(base_url=task.base_url))
  agent = agents.Agent("searcher", model=model, tools=[tool()])
  try:
    return (await agents.Runner.run(agent, task.question, context=task, max_turns=MAX_SEARCHES + 1)).final_output
  except (agents.ModelBehaviorError, agents.MaxTurnsExceeded):
    return None
