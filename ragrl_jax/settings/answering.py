"""Settings for evaluating a model behind a server."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax.settings import fields
from ragrl_jax.settings.fields import Rules, Section, setting


@dataclasses.dataclass(frozen=True)
class Endpoint(Section):
  """A model behind an OpenAI-compatible server. In evaluations it answers instead of a checkpoint."""

  PATH = "endpoint"

  model: str = setting("", "the model's name at the server; empty: a checkpoint answers")
  url: str = setting("", '"http(s)://host/v1"; empty: OpenAI\'s server')
  key_variable: str = setting("OPENAI_API_KEY", "environment variable with the key, which is never stored")
  protocol: str = setting(
    "chat",
    "chat: search results become user messages; continue: a chat whose last message the server continues, as in vLLM; "
    "completions: one text, rendered with the chat template of config.prompting.tokenizer",
    choices=("chat", "continue", "completions"),
  )
  limit: str = setting(
    "max_tokens", "request's field for a turn's length", choices=("max_tokens", "max_completion_tokens")
  )
  omit: str = setting("", "fields that the server refuses, separated by commas: temperature, top_p, stop")
  more: Mapping[str, Any] = fields.mapping("further fields of every call, such as reasoning_effort")
  logprobs: bool = setting(False, "request log-probabilities, for recipes that use them")
  cache: str = setting("", "file that caches answers between evaluations; empty: a file of this evaluation")
  concurrency: int = setting(16, "most calls at the same time", unit="calls", least=1)
  timeout_s: float = setting(600.0, "most time for a call", unit="seconds", above=0)
  deadline_s: float = setting(1800.0, "most time for an answer: all its calls and waits", unit="seconds", above=0)
  retries: int = setting(5, "retries of a failed call", unit="calls", least=0)
  input_price: float = setting(0.0, "price of the questions", unit="currency per million tokens", least=0)
  output_price: float = setting(0.0, "price of the answers", unit="currency per million tokens", least=0)

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    odd = [name for name in self.omitted if name not in ("temperature", "top_p", "stop")]
    yield not odd, f"config.endpoint.omit={self.omit!r}: {odd[:1]} must be temperature, top_p or stop."

  @property
  def omitted(self) -> tuple[str, ...]:
    """The names in `omit`."""
    return tuple(name.strip() for name in self.omit.split(",") if name.strip())
