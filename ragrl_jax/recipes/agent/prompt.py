"""The question alone. A program adds its own instructions in its requests."""

from ragrl_jax.structs import Example


class Prompt:
  """Example → the chat messages of a program that only asks the question. Other programs write their own messages."""

  def messages(self, example: Example) -> list[dict[str, str]]:
    """The question as the user's message."""
    return [dict(role="user", content=example.question)]
