"""The smallest program: it sends the question to the model, and the model's reply is the answer."""

from ragrl_jax.agents.agent.task import Task


def run(task: Task) -> str | None:
  """Sends one request that contains only the question."""
  reply = task.post("chat/completions", model=task.model, messages=[dict(role="user", content=task.question)])
  return reply["choices"][0]["message"]["content"]
