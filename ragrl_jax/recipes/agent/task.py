"""What a program is given, and what it returns."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import httpx

from ragrl_jax.structs import Passage

MODEL = "policy"  # the model's name; requests may give any


@functools.cache
def _client() -> httpx.Client:
  """One client, since making one takes longer than a request. The environment's proxies are not for this machine."""
  return httpx.Client(limits=httpx.Limits(max_connections=None), trust_env=False)


@dataclasses.dataclass(frozen=True)
class Task:
  """One episode, as its program sees it. The right answers are not in it.

  Attributes:
    id, question, passages: the example's.
    base_url: of the endpoint that answers for this episode alone, for an OpenAI client; it ends in /v1.
    api_key: any text would do: the episode's key is in `base_url`.
    model: a model's name for requests.
    timeout_s: seconds that the program has.
  """

  id: str
  question: str
  passages: tuple[Passage, ...]
  base_url: str
  api_key: str = "none"
  model: str = MODEL
  timeout_s: float = 600.0

  def search(self, query: str, k: int | None = None) -> list[dict[str, Any]]:
    """Passages ({"id", "title", "text", "score"}) from the run's own index (config.retrieval), best first. It waits.

    The same by HTTP: POST `base_url`/search {"query": …, "k": 3} → {"passages": […]}.

    Raises:
      httpx.HTTPStatusError: the search failed, or the run has no index.
    """
    return self.post("search", query=query, k=k)["passages"]

  def post(self, page: str, **body: Any) -> Any:
    """The JSON that the endpoint answers to a request, without an OpenAI client. It waits.

    Raises:
      httpx.HTTPStatusError: the request was refused.
    """
    said = _client().post(f"{self.base_url}/{page}", json=body, timeout=self.timeout_s)
    if said.is_error:
      raise httpx.HTTPStatusError(f"{said.status_code}: {said.text[:500]}", request=said.request, response=said)
    return said.json()

  def json(self) -> str:
    """The task as one line of JSON, which a command reads on its standard input."""
    return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Result:
  """What a program has returned.

  Attributes:
    answer: its answer; None for none.
    reward: its own reward, for config.switches.reward='program'; None for none.
    facts: anything else, kept with the episode.
  """

  answer: str | None = None
  reward: float | None = None
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read(returned: Any) -> Result:
  """Reads what a program returned: a text, None, or a mapping with "answer", "reward" and facts of JSON.

  Raises:
    ValueError: it is none of these.
  """
  if returned is None or isinstance(returned, str):
    return Result(returned)
  if not isinstance(returned, Mapping):
    raise ValueError(f"it returned {type(returned).__name__}: it must be a text, None or a mapping with 'answer'.")
  answer, reward = returned.get("answer"), returned.get("reward")
  if not (answer is None or isinstance(answer, str)):
    raise ValueError(f"its answer is {answer!r:.80}: it must be a text or None.")
  number = isinstance(reward, int | float) and reward == reward and abs(reward) != float("inf")
  if not (reward is None or number):
    raise ValueError(f"its reward is {reward!r:.80}: it must be a finite number or None.")
  try:
    facts = json.loads(json.dumps({key: value for key, value in returned.items() if key not in ("answer", "reward")}))
  except (TypeError, ValueError, RecursionError) as error:
    raise ValueError(f"its facts are no JSON ({error}).") from None
  return Result(answer, None if reward is None else float(reward), facts)
