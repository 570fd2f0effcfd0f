"""Parses requests to an OpenAI-compatible server: JSON → `Asked`, or an error with what to change."""

import dataclasses
import functools
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.prompting.tokenizer import Tokenizer
from ragrl_jax.protocol.http_answer import Refused
from ragrl_jax.structs import Sampling

CHAT, TEXT = "chat", "text"
ROLES = ("system", "developer", "user", "assistant", "tool")
# Fields that are ignored, and fields that must have the value without effect.
UNUSED = ("metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")
NEUTRAL = dict(
  best_of=(1,), echo=(False,), frequency_penalty=(0,), logit_bias=({},), modalities=(["text"],), presence_penalty=(0,),
  repetition_penalty=(1,), response_format=({"type": "text"},), suffix=("",), top_logprobs=(0,),
)  # fmt: skip
FIELDS = {
  *("model", "max_tokens", "n", "temperature", "top_p", "top_k", "seed", "stop", "stream", "stream_options"),
  *("logprobs", "return_token_ids", "include_stop_str_in_output"),
}
OF_CHAT = {
  *("messages", "max_completion_tokens", "tools", "tool_choice"),
  *("continue_final_message", "add_generation_prompt"),
}
MAX_STOPS, MAX_STOP = 16, 256  # number of stop strings, characters in each
COLDEST = 1e-6  # temperatures below are greedy: their logits would overflow
PROMPT = "prompt must be a text, a list of token ids, or a list of either."
COMPLETION_TOKENS = 16  # OpenAI's default of max_tokens for text completions


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """One call: the function's name, and its arguments as JSON."""

  name: str
  arguments: str


@dataclasses.dataclass(frozen=True)
class Tools:
  """The tools of a request, and how calls are found in a reply. The defaults are those of a request without tools.

  Attributes:
    shown: the tools in the template's form.
    ends: stop strings that stay in the text, such as the closing mark of a tool call if only one call is allowed.
    forced: the beginning of a forced tool call, which is also the end of the prompt. Empty if no call is forced.
    begin: the text of a reply so far → where a call in it begins or may begin.
    calls: the text of a whole reply → (the text before the calls, the calls).
  """

  shown: tuple[Any, ...] = ()
  ends: tuple[str, ...] = ()
  forced: str = ""
  begin: Callable[[str], int] = len
  calls: Callable[[str], tuple[str, list[ToolCall]]] = lambda text: (text, [])


class ToolReader(Protocol):
  """Reads the tools and the calls of requests, for one chat template (`agents.calls.served`)."""

  def tools(self, fields: Mapping[str, Any]) -> Tools:
    """The tools of a request, whose fields are `fields`. Raises Refused if they are not supported."""

  def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages in the template's form. Raises ValueError if a call's arguments are not a JSON object."""


@dataclasses.dataclass(frozen=True)
class Asked:
  """A request.

  Attributes:
    kind: CHAT or TEXT.
    prompts: token ids of each prompt; a chat has one.
    n: replies per prompt.
    sampling: sampling parameters; temperature 0 is greedy. max_new_tokens is the limit per reply.
    seed: seeds the random numbers, together with the index of the prompt and that of the reply.
    stops: strings that end a reply.
    keep_stop: whether the reply's text includes the stop string.
    stream, usage: whether the reply is streamed, and whether its last event has the token counts.
    logprobs, token_ids: whether the reply includes log-probabilities, and token ids.
    tools: the tools that a reply may call.
    messages: the messages of a chat, in the template's form.
    opened: the beginning of the assistant's turn: a message to continue, or a forced call.
    limited: whether the request itself limits the tokens of a reply.
  """

  kind: str
  prompts: tuple[tuple[int, ...], ...]
  n: int
  sampling: Sampling
  seed: int
  stops: tuple[str, ...]
  keep_stop: bool
  stream: bool
  usage: bool
  logprobs: bool
  token_ids: bool
  tools: Tools = Tools()
  messages: tuple[dict[str, Any], ...] = ()
  opened: str = ""
  limited: bool = True


@dataclasses.dataclass(frozen=True)
class Served:
  """Properties of the server that requests are checked against.

  Attributes:
    name: the model's name; "" accepts any name.
    rows: token ids of a prompt are below it: rows of the model's embedding.
    context: largest number of tokens of a prompt and its reply together.
    max_tokens: largest number of tokens of a reply.
    max_replies: largest number of replies per request, over all its prompts.
    tools: reads tools and calls; None: requests must have none.
  """

  name: str
  tokenizer: Tokenizer
  rows: int
  context: int
  max_tokens: int
  max_replies: int
  tools: ToolReader | None = None

  @functools.cached_property
  def longest(self) -> int:
    """Most characters of a prompt: as many as the longest tokens that fit into the context have."""
    tokenizer = self.tokenizer
    names = max(map(len, tokenizer.control_names.values()), default=0)
    return self.context * max(names, *(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)))


def read(body: bytes, kind: str, served: Served) -> Asked:
  """Parses the body of a request of this kind, CHAT or TEXT.

  Raises:
    Refused: the body is not a JSON object; a field is unknown, or has a value that is not supported; or the server has
      another model.
  """
  try:
    fields: Any = json.loads(body)
  except (ValueError, RecursionError):
    raise Refused(400, "the body must be JSON.") from None
  if not isinstance(fields, dict):
    raise Refused(400, "the body must be a JSON object.")
  fields = _Fields({name: value for name, value in fields.items() if value is not None})  # null is the same as missing
  _check_names(fields, kind)
  if served.name and fields.get("model") != served.name:
    message = f"the model {fields.get('model')!r:.80} is not served here: ask for {served.name!r} (GET /v1/models)."
    raise Refused(404, message, param="model", code="model_not_found")
  tools = _tools(fields, served) if kind == CHAT else Tools()
  prompts, messages, opened = _chat(fields, served, tools) if kind == CHAT else (_texts(fields, served), (), "")
  n = fields.number("n", 1, least=1, most=served.max_replies, whole=True)
  if n * len(prompts) > served.max_replies:
    raise _bad("n", f"{n} replies to each of {len(prompts)} prompts: at most {served.max_replies} replies per request.")
  options = fields.get("stream_options", {})
  if not isinstance(options, dict):
    raise _bad("stream_options", "stream_options must be an object.")
  temperature = fields.number("temperature", 1.0, least=0, most=2)
  return Asked(
    kind,
    prompts,
    int(n),
    Sampling(
      temperature if temperature >= COLDEST else 0.0,
      max(int(fields.number("top_k", 0, least=-1, most=2**31 - 1, whole=True)), 0),  # -1 and 0 both keep all tokens
      fields.number("top_p", 1.0, least=0, most=1) or 1e-9,  # 0 keeps only the most likely token
      _length(fields, kind, served, max(map(len, prompts))),
    ),
    int(fields.number("seed", secrets.randbits(62), least=-(2**63), most=2**63 - 1, whole=True)),
    _stops(fields),
    fields.flag("include_stop_str_in_output"),
    fields.flag("stream"),
    bool(options.get("include_usage")),
    _logprobs(fields, kind),
    fields.flag("return_token_ids"),
    tools,
    messages,
    opened,
    any(name in fields for name in ("max_tokens", "max_completion_tokens")),
  )


def _tools(fields: Mapping[str, Any], served: Served) -> Tools:
  if served.tools is not None:
    return served.tools.tools(fields)
  if fields.get("tools") or fields.get("tool_choice", "none") not in ("auto", "none"):
    message = "this model's chat template has no known format of tool calls: leave out tools and tool_choice."
    raise _bad("tools", message)
  return Tools()


def _bad(param: str, message: str, code: str | None = None) -> Refused:
  return Refused(400, message, param=param, code=code)


class _Fields(dict[str, Any]):
  """The fields of a request, which are checked as they are read."""

  def number(self, name: str, default: float, *, least: float, most: float, whole: bool = False) -> float:
    """A number from `least` to `most`. Raises Refused if the field has another value."""
    value = self.get(name, default)
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
      words = "a whole number" if whole else "a number"
      raise _bad(name, f"{name}={value!r:.80}: it must be {words} from {least:g} to {most:g}.")
    return value

  def flag(self, name: str) -> bool:
    """True or false; a missing field is false. Raises Refused if the field has another value."""
    value = self.get(name, False)
    if not isinstance(value, bool):
      raise _bad(name, f"{name}={value!r:.80}: it must be true or false.")
    return value


def _check_names(fields: Mapping[str, Any], kind: str) -> None:
  names = FIELDS | (OF_CHAT if kind == CHAT else {"prompt"}) | set(UNUSED)
  for name, value in fields.items():
    if name in NEUTRAL and value not in NEUTRAL[name]:
      allowed = json.dumps(NEUTRAL[name][0])
      raise _bad(name, f"{name}={value!r:.80} is not supported: leave it out, or set it to {allowed}.")
    if name not in names and name not in NEUTRAL:
      raise _bad(name[:80], f"unknown field {name!r:.80}: leave it out.")


def _length(fields: _Fields, kind: str, served: Served, prompt: int) -> int:
  room = _room(prompt, served, "messages" if kind == CHAT else "prompt")
  name = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
  if name not in fields:
    return min(room, served.max_tokens, COMPLETION_TOKENS if kind == TEXT else room)
  limit = int(fields.number(name, 0, least=1, most=served.max_tokens, whole=True))
  if limit > room:
    message = f"{name}={limit}: at most {room}, since the prompt has {prompt} of {served.context} tokens."
    raise _bad(name, message, "context_length_exceeded")
  return limit


def _room(prompt: int, served: Served, param: str) -> int:
  """Tokens for the reply to a prompt of so many tokens. Raises Refused if there are none."""
  if prompt >= served.context:
    message = f"the prompt has {prompt} tokens: prompt and reply together may have {served.context}."
    raise _bad(param, message, "context_length_exceeded")
  return served.context - prompt


def _stops(fields: Mapping[str, Any]) -> tuple[str, ...]:
  stops = fields.get("stop", [])
  stops = [stops] if isinstance(stops, str) else stops
  fine = isinstance(stops, list) and all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP for stop in stops)
  if not fine or len(stops) > MAX_STOPS:
    message = f"stop must be a string or a list of at most {MAX_STOPS} strings, each of 1 to {MAX_STOP} characters."
    raise _bad("stop", message)
  try:
    "".join(stops).encode()
  except UnicodeEncodeError:
    raise _bad("stop", "stop contains half of a surrogate pair: it must be valid Unicode.") from None
  return tuple(stops)


def _logprobs(fields: _Fields, kind: str) -> bool:
  if kind == CHAT:
    return fields.flag("logprobs")
  if "logprobs" not in fields:
    return False
  fields.number("logprobs", 0, least=0, most=1, whole=True)
  return True


# ---- prompts ---------------------------------------------------------------------------------------------------------


def _texts(fields: Mapping[str, Any], served: Served) -> tuple[tuple[int, ...], ...]:
  """The prompts of a text completion: a string, token ids, or a list of either."""
  prompt = fields.get("prompt")
  is_single = isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(type(i) is int for i in prompt))
  prompts = [prompt] if is_single else prompt
  if not isinstance(prompts, list) or not prompts:
    raise _bad("prompt", PROMPT)
  if len(prompts) > served.max_replies:
    raise _bad("prompt", f"{len(prompts)} prompts: at most {served.max_replies} per request.")
  return tuple(_ids(value, served) for value in prompts)


def _ids(prompt: Any, served: Served) -> tuple[int, ...]:
  if isinstance(prompt, str):
    _check_fits(prompt, served, "prompt")
    ids = _whole(prompt, served.tokenizer)
  elif isinstance(prompt, list) and all(type(i) is int for i in prompt):
    ids = prompt
  else:
    raise _bad("prompt", PROMPT)
  if wrong := next((i for i in ids if not 0 <= i < served.rows), None):
    raise _bad("prompt", f"the prompt has the token id {wrong}: this model's ids are 0 to {served.rows - 1}.")
  if not ids:
    raise _bad("prompt", "the prompt is empty: it must have at least one token.")
  _room(len(ids), served, "prompt")  # at once: further prompts are not tokenized
  return tuple(ids)


def _check_fits(text: str, served: Served, param: str) -> None:
  """Refuses a prompt that is far too long for the context, before it is tokenized: 8 MB take 12 s and 1.5 GB.

  A long text's beginning is tokenized first. With more than twice the context's tokens in it, the whole cannot fit.
  """
  most = 16 * served.context
  if len(text) > most and (
    len(text) > served.longest or len(served.tokenizer.encode(text[:most])) > 2 * served.context
  ):
    message = f"the prompt has {len(text)} characters: prompt and reply together may have {served.context} tokens."
    raise _bad(param, message, "context_length_exceeded")


def _texts_of(message: Mapping[str, Any]) -> str:
  """A message's texts, with its calls as JSON."""
  return "".join(
    value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in message.values()
  )


def _whole(prompt: str, tokenizer: Tokenizer) -> list[int]:
  """The ids of a text that the client has rendered: control tokens that it names count as such, and BOS is first."""
  encode = getattr(tokenizer, "encode_template", tokenizer.encode)
  ids, bos = [*encode(well_formed(prompt))], tokenizer.bos
  return ids if tuple(ids[: len(bos)]) == bos else [*bos, *ids]


def _chat(fields: Mapping[str, Any], served: Served, tools: Tools):
  """A chat, rendered by the model's template: `Asked.prompts`, `messages` and `opened`."""
  messages = fields.get("messages")
  if not isinstance(messages, list) or not messages:
    raise _bad("messages", "messages must be a list of at least one message.")
  read = [_message(one, number) for number, one in enumerate(messages)]
  open_text = tools.forced
  if fields.get("continue_final_message"):
    if read[-1]["role"] != "assistant" or read[-1].get("tool_calls") or open_text:
      message = "continue_final_message: the last message must be the assistant's, with text only and no forced call."
      raise _bad("continue_final_message", message)
    open_text = read.pop()["content"]
  elif not fields.get("add_generation_prompt", True):
    message = "add_generation_prompt=false needs continue_final_message=true, since a reply is the assistant's turn."
    raise _bad("add_generation_prompt", message)
  try:
    _check_fits("".join([*map(_texts_of, read), _texts_of(dict(tools=tools.shown)), open_text]), served, "messages")
    if served.tools is None and any(one.get("tool_calls") for one in read):
      raise ValueError("this model's chat template has no known format of tool calls: leave out tool_calls.")
    rendered: list[Any] = read if served.tools is None else served.tools.messages(read)
    render: Any = served.tokenizer.render
    ids = render(rendered, list(tools.shown)) if tools.shown else render(rendered)
  except (ValueError, RecursionError) as error:  # refused by the template, or nested too deeply
    raise _bad("messages", " ".join(str(error).split())) from None
  ids = [*ids, *served.tokenizer.encode(open_text)]
  if not ids:
    raise _bad("messages", "the messages give an empty prompt: it must have at least one token.")
  return (tuple(ids),), tuple(rendered), open_text


def _message(message: Any, number: int) -> dict[str, Any]:
  where = f"messages[{number}]"
  if not isinstance(message, dict) or message.get("role") not in ROLES:
    raise _bad(where, f"{where} must have a role: one of {', '.join(ROLES)}.")
  result = {name: message[name] for name in ("name", "tool_call_id") if isinstance(message.get(name), str)}
  result["role"] = "system" if message["role"] == "developer" else message["role"]
  result["content"] = _content(message.get("content"), where)
  if calls := message.get("tool_calls"):
    if message["role"] != "assistant" or not isinstance(calls, list):
      raise _bad(f"{where}.tool_calls", f"{where}.tool_calls must be a list in an assistant message.")
    result["tool_calls"] = calls
  return result


def _content(content: Any, where: str) -> str:
  """A message's text, given as a string or in parts."""
  if content is None:
    return ""
  if isinstance(content, str):
    return content
  text = lambda part: isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
  if isinstance(content, Sequence) and all(map(text, content)):
    return "".join(part["text"] for part in content)
  raise _bad(f"{where}.content", f"{where}.content must be a string, or parts of type 'text'.")
