"""A search agent in pydantic-ai (pip install 'pydantic-ai-slim[openai]'). Its code does not depend on the training."""

import asyncio
import functools
from typing import Any

from ragrl_jax.agents.agent.programs.tool_loop import MAX_SEARCHES, client
from ragrl_jax.agents.agent.task import Task


@functools.cache
def agent() -> Any:
  """The agent: it has one tool, and its answers are texts."""
  import pydantic_ai

  result = pydantic_ai.Agent(deps_type=Task)

  async def search(context: Any, query: str) -> str:
    """Finds passages."""
    passages = await asyncio.to_thread(context.deps.search, query)
    return "".join(f" {passage['text']}" for passage in passages)

  # pydantic-ai reads the annotation at run time. It is set here, so that this file can be imported without pydantic-ai.
  search.__annotations__["context"] = pydantic_ai.RunContext[Task]
  result.tool(search)
  return result


async def run(task: Task) -> str | None:
  """Runs the agent. If pydantic-ai cannot use the model's output, the result is None, which is scored as no answer."""
  import pydantic_ai
  from pydantic_ai.models.openai import OpenAIChatModel
  from pydantic_ai.providers.openai import OpenAIProvider

  provider = OpenAIProvider(openai_client=client().with_options(base_url=task.base_url))
  limits = pydantic_ai.UsageLimits(request_limit=MAX_SEARCHES + 1)
  try:
    return (
      await agent().run(
        task.question, model=OpenAIChatModel(task.model, provider=provider), deps=task, usage_limits=limits
      )
    ).output
  except (pydantic_ai.UnexpectedModelBehavior, pydantic_ai.UsageLimitExceeded):
    return None
