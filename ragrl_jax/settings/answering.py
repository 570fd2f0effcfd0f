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

  model: str = ""  # the model's name at the server; empty: a checkpoint answers
  url: str = ""  # "http(s)://host/v1"; empty: OpenAI's server
  key_variable: str = "OPENAI_API_KEY"  # environment variable with the key; the key is never stored
  # "chat": search results become user messages; "continue": a chat whose last message the server continues, as in vLLM;
  # "completions": one text, rendered with the chat template of config.prompting.tokenizer
  protocol: str = setting("chat", choices=("chat", "continue", "completions"))
  # the request's field for the length of a turn
  limit: str = setting("max_tokens", choices=("max_tokens", "max_completion_tokens"))
  omit: str = ""  # fields that the server refuses, separated by commas: temperature, top_p, stop
  more: Mapping[str, Any] = fields.mapping()  # further fields of every call, such as reasoning_effort
  logprobs: bool = False  # request log-probabilities, for recipes that use them
  cache: str = ""  # file that caches answers between evaluations; empty: a file of this evaluation
  concurrency: int = setting(16, least=1)  # most calls at the same time
  timeout_s: float = setting(600.0, above=0)  # most seconds of a call
  deadline_s: float = setting(1800.0, above=0)  # most seconds of all calls for one answer, including waits
  retries: int = setting(5, least=0)  # retries of a failed call
  input_price: float = setting(0.0, least=0)  # price of a million tokens in the questions
  output_price: float = setting(0.0, least=0)  # price of a million tokens in the answers, in the same currency

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    odd = [name for name in self.omitted if name not in ("temperature", "top_p", "stop")]
    yield not odd, f"config.endpoint.omit={self.omit!r}: {odd[:1]} must be temperature, top_p or stop."

  @property
  def omitted(self) -> tuple[str, ...]:
    """The names in `omit`."""
    return tuple(name.strip() for name in self.omit.split(",") if name.strip())
