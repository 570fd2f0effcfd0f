"""Settings of a model behind a server that answers questions in an evaluation."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ragrl_jax.settings import fields
from ragrl_jax.settings.fields import Rules, Section, setting


@dataclasses.dataclass(frozen=True)
class Endpoint(Section):
  """A model behind a server of OpenAI's protocol, which answers in place of a checkpoint. For evaluations."""

  PATH = "endpoint"

  model: str = ""  # its name at that server; empty: a checkpoint answers
  url: str = ""  # "http(s)://host/v1"; empty: OpenAI's own
  key_variable: str = "OPENAI_API_KEY"  # environment variable with the key; the key is never stored
  # "chat": what is found comes as a user's message; "continue": a chat whose last message the server continues, as vLLM
  # does; "completions": one text, with the chat template of config.prompting.tokenizer
  protocol: str = setting("chat", choices=("chat", "continue", "completions"))
  limit: str = setting("max_tokens", choices=("max_tokens", "max_completion_tokens"))  # its name for a turn's length
  omit: str = ""  # what the server does not take, with commas between: temperature, top_p, stop
  more: Mapping[str, Any] = fields.mapping()  # sent with every call besides, such as reasoning_effort
  logprobs: bool = False  # ask for log-probabilities, for recipes that look at them
  cache: str = ""  # folder that keeps answers between evaluations; empty: a folder of this evaluation
  concurrency: int = setting(16, least=1)  # calls at the same time
  timeout_s: float = setting(600.0, above=0)  # seconds a call may take
  deadline_s: float = setting(1800.0, above=0)  # seconds all calls for one answer may take, waits included
  retries: int = setting(5, least=0)  # retries of a failed call
  input_price: float = setting(0.0, least=0)  # of a million tokens in the questions
  output_price: float = setting(0.0, least=0)  # of a million tokens in the answers, in the same currency

  def rules(self) -> Rules:
    """See `Checked.rules`."""
    odd = [name for name in self.omitted if name not in ("temperature", "top_p", "stop")]
    yield not odd, f"config.endpoint.omit={self.omit!r}: {odd[:1]} is none of temperature, top_p, stop."

  @property
  def omitted(self) -> tuple[str, ...]:
    """The names in `omit`."""
    return tuple(name.strip() for name in self.omit.split(",") if name.strip())
