"""Builds the player of a model behind a server (config.endpoint). See `player.py`."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from ragrl_jax import judging, structs
from ragrl_jax.chat import client as client_lib
from ragrl_jax.prompting.marked import MarkedTokenizer
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.rollout import dispatch, endpoint_client, endpoint_rollout
from ragrl_jax.run import checks, environment_tools, prepared
from ragrl_jax.settings import Endpoint, Settings


@dataclasses.dataclass
class EndpointPlayer:
  """The parts that play a recipe; see `player.Player`.

  Attributes:
    tokenizer: counts and cuts texts. The server has another one.
    recipe: also measures the cost of each question (`priced`).
    described: the server's settings, which are stored with every score.
  """

  tokenizer: Any
  recipe: Recipe
  retriever: Any
  judges: Mapping[str, judging.Judge]
  rollout: endpoint_rollout.EndpointRollout
  described: Mapping[str, Any]


def check(config: Settings, recipe: Recipe) -> None:
  """Makes every check that needs neither index nor questions.

  Raises:
    ValueError: there is no tokenizer, or no key for OpenAI's server; the address is invalid; a setting has no effect on
      the server; or the recipe needs a tool that the config does not name.
  """
  checks.tools(config, recipe)
  if not config.prompting.tokenizer:
    raise ValueError(
      "config.prompting.tokenizer is empty: with config.endpoint.model it measures texts. Name the folder of any "
      "tokenizer, such as Qwen's, or 'bytes'."
    )
  if config.prompting.thinking != "default" and config.endpoint.protocol != endpoint_client.COMPLETIONS:
    raise ValueError(
      f"config.prompting.thinking={config.prompting.thinking!r}: it has no effect on a chat server, which uses its own "
      "template. Use 'default', and set the server's own parameter (config.endpoint.more in a config file)."
    )
  rollout, endpoint = config.rollout, config.endpoint
  sent = dict(top_p=rollout.top_p < 1 and "top_p" not in endpoint.omitted, top_k=rollout.top_k > 0)
  if twice := [name for name in endpoint.more if sent.get(name)]:
    raise ValueError(
      f"config.endpoint.more sets {twice[0]}, which sampled answers have from config.rollout.{twice[0]}: leave it out."
    )
  _client(endpoint)


def build(config: Settings, recipe: Recipe, keep: pathlib.Path) -> EndpointPlayer:
  """Makes a player of checked settings. The server's answers go to the file `keep`, or to config.endpoint.cache.

  Raises:
    ValueError: an input cannot be read.
  """
  endpoint, rollout, queue = config.endpoint, config.rollout, dispatch.Dispatch()
  base = prepared.tokenizer(config, recipe)
  tokenizer = base if endpoint.protocol == endpoint_client.COMPLETIONS else MarkedTokenizer(base)
  client, cache = _client(endpoint), endpoint.cache or keep
  server = endpoint_client.Server(
    client_lib.CachedClient(client, cache, sampling=dict(endpoint.more), setting="config.endpoint.cache"),
    endpoint.protocol,
    rollout.context,
    limit=endpoint.limit,
    omit=endpoint.omitted,
    logprobs=endpoint.logprobs,
    concurrency=endpoint.concurrency,
  )
  retriever, judges, tools = environment_tools.tools(config, recipe, queue)
  runner = endpoint_rollout.EndpointRollout(
    server,
    tokenizer,
    recipe.stops,
    recipe.play,
    tools,
    seed=config.seed,
    sampling=rollout.sampling,
    reserve=rollout.least_room,
    dispatch=queue,
  )
  recipe = priced(recipe, endpoint.input_price, endpoint.output_price)
  return EndpointPlayer(tokenizer, recipe, retriever, judges, runner, _described(endpoint, client))


def priced(recipe: Recipe, input_price: float, output_price: float) -> Recipe:
  """The recipe with additional measures of each question: calls, tokens_in, tokens_out, cost.

  Cached answers count like answers of the server. Token counts and cost are None if the server does not report tokens.
  The prices are those of a million tokens.
  """

  def measures(example: structs.Example, episode: structs.Episode) -> Mapping[str, float | None]:
    numbers = {} if recipe.measures is None else dict(recipe.measures(example, episode))
    usage = episode.facts.get(endpoint_rollout.USAGE, {})
    tokens_in, tokens_out = usage.get("tokens_in"), usage.get("tokens_out")
    counted = tokens_in is not None and tokens_out is not None
    cost = (tokens_in * input_price + tokens_out * output_price) / 1e6 if counted else None
    return numbers | dict(calls=usage.get("calls"), tokens_in=tokens_in, tokens_out=tokens_out, cost=cost)

  return dataclasses.replace(recipe, measures=measures)


def _client(endpoint: Endpoint) -> client_lib.Client:
  key = os.environ.get(endpoint.key_variable, "")
  if not key and not endpoint.url:
    raise ValueError(
      f"the environment variable {endpoint.key_variable!r} holds no key (config.endpoint.key_variable), and without "
      "config.endpoint.url the server is OpenAI's, which requires one."
    )
  try:
    return client_lib.Client(
      endpoint.url,
      endpoint.model,
      key=key,
      timeout_s=endpoint.timeout_s,
      deadline_s=endpoint.deadline_s,
      retries=endpoint.retries,
    )
  except ValueError as error:
    raise ValueError(f"{error} (config.endpoint.url, config.endpoint.key_variable)") from None


def _described(endpoint: Endpoint, client: client_lib.Client) -> dict[str, Any]:
  names = ("protocol", "limit", "omit", "logprobs", "input_price", "output_price")
  fields = {name: getattr(endpoint, name) for name in names}
  return dict(url="" if client.where == "OpenAI" else client.where, more=dict(endpoint.more), **fields)
