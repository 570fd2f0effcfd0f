"""The argument of a program, and its result."""

import dataclasses
import functools
import json
import sys
from collections.abc import Mapping
from typing import Any

import httpx

from ragrl_jax.structs import Passage

MODEL = "policy"  # the model's name in replies; requests may use any name


@functools.cache
def _client() -> httpx.Client:
  """One shared client, because making one takes longer than a request.

  It ignores the environment's proxies: the endpoint is on this machine.
  """
  return httpx.Client(limits=httpx.Limits(max_connections=None), trust_env=False)


@dataclasses.dataclass(frozen=True)
class Task:
  """One episode, as its program sees it. It does not contain the right answers.

  Attributes:
    id, question, passages: those of the example.
    base_url: the endpoint's address for this episode, for any OpenAI client; it ends in /v1.
    api_key: any text is accepted; the episode's secret key is in `base_url`.
    model: the model's name for requests; any name is accepted.
    timeout_s: seconds that the program may take.
  """

  id: str
  question: str
  passages: tuple[Passage, ...]
  base_url: str
  api_key: str = "none"
  model: str = MODEL
  timeout_s: float = 600.0

  def search(self, query: str, k: int | None = None) -> list[dict[str, Any]]:
    """Searches the run's own index for k passages (None: config.retrieval.top_k), and blocks until they arrive.

    They are {"id", "title", "text", "score"}, best first. The same over HTTP: POST `base_url`/search
    {"query": …, "k": 3} → {"passages": […]}.

    Raises:
      httpx.HTTPStatusError: the search failed, or the run has no index.
    """
    return self.post("search", query=query, k=k)["passages"]

  def post(self, page: str, **body: Any) -> Any:
    """Sends a request without an OpenAI client, and blocks until the reply arrives, which is read from JSON.

    Raises:
      httpx.HTTPStatusError: the request was refused.
    """
    reply = _client().post(f"{self.base_url}/{page}", json=body, timeout=self.timeout_s)
    if reply.is_error:
      raise httpx.HTTPStatusError(f"{reply.status_code}: {reply.text[:500]}", request=reply.request, response=reply)
    return reply.json()

  def json(self) -> str:
    """The task as one line of JSON, which a command reads from its standard input."""
    return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of a program.

  Attributes:
    answer: the answer; None if there is none.
    reward: the program's own reward, for config.switches.reward='program'; None if there is none.
    facts: other JSON values, stored with the episode.
  """

  answer: str | None = None
  reward: float | None = None
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


LONGEST = 1 << 20  # most characters of an answer, whose rest is cut off, and of all facts as JSON
OWN = frozenset({"error", "rewrites", "requests", "tool_calls", "searches"})  # facts that the recipe itself adds


def read(returned: Any) -> Result:
  """Reads what a program returned: a text, None, or a mapping with "answer", "reward" and other JSON values (facts).

  Raises:
    ValueError: the value is none of these, "reward" is not a finite number, or a fact has a name of OWN.
  """
  if returned is None or isinstance(returned, str):
    return Result(returned and returned[:LONGEST])
  if not isinstance(returned, Mapping):
    raise ValueError(f"it returned {type(returned).__name__}: it must be a text, None or a mapping with 'answer'.")
  answer, reward = returned.get("answer"), returned.get("reward")
  if not (answer is None or isinstance(answer, str)):
    raise ValueError(f"its answer is {answer!r:.80}: it must be a text or None.")
  number = isinstance(reward, int | float) and -sys.float_info.max <= reward <= sys.float_info.max
  if not (reward is None or number):
    raise ValueError(f"its reward is {reward!r:.80}: it must be a finite number or None.")
  if reserved := sorted(OWN & returned.keys()):
    raise ValueError(f"it returned {reserved[0]!r}, a name that the recipe uses for its own counts: use another one.")
  try:
    facts = json.dumps({key: value for key, value in returned.items() if key not in ("answer", "reward")})
  except (TypeError, ValueError, RecursionError) as error:
    raise ValueError(f"its facts are no JSON ({error}): return only JSON values.") from None
  if len(facts) > LONGEST:
    raise ValueError(f"its facts have {len(facts)} characters as JSON: they may have {LONGEST}.")
  return Result(answer and answer[:LONGEST], None if reward is None else float(reward), json.loads(facts))
