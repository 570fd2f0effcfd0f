"""The smallest program: it asks the model the question, and its reply is the answer."""

from ragrl_jax.recipes.agent.task import Task


def run(task: Task) -> str | None:
  """One request, with nothing but the question."""
  said = task.post("chat/completions", model=task.model, messages=[dict(role="user", content=task.question)])
  return said["choices"][0]["message"]["content"]
