"""Tokenizers from Hugging Face folders: byte-level BPE (Qwen, Llama 3) and SentencePiece types (Llama 2)."""

import itertools
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import tokenizers
import transformers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ragrl_jax.core.text.forms import well_formed
from ragrl_jax.prompting import chat as chat_lib, declared
from ragrl_jax.prompting.tokenizer import Tokenizer
from ragrl_jax.structs import THOUGHT

SPACE = "\u2581"  # stands for a space in pieces of SentencePiece types
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_TAG = re.compile(r"</?[A-Za-z][\w-]*>")
# Tags that mark a text or a turn in any folder that calls them special. Source: Llama 2 and Gemma 2 and 3.
_MARKS = re.compile(r"</?s>|<(bos|eos|pad|unk|mask|image_soft_token|(start|end)_of_(turn|image|audio))>")
# Marks that folders do not always call special: DeepSeek's <｜User｜>, and ChatML's in many fine-tuned models.
_BARS = re.compile(r"<[|｜].+[|｜]>")


class HuggingFaceTokenizer(Tokenizer):
  """Text ↔ ids by a fast tokenizer in a local folder. See `prompting.tokenizer.Tokenizer`.

  All EOS ids end a turn, and so does the token with which the role markers end the assistant's turn.

  There are two kinds of added tokens. *Control* tokens (`<|im_start|>`, BOS, EOS, padding …) have no bytes, and
  `encode` never returns them: `<|im_end|>` in a corpus is encoded as letters. All other added tokens are text, such as
  `<think>` and other tags, even those that the folder marks as special. But what the chat template writes around a
  user's message is a control token: a special tag, such as Gemma's `<start_of_turn>`, and any `<|…|>`, special or not.

  Args:
    folder: contains tokenizer.json, or a SentencePiece tokenizer.model with the files that declare its settings.
    chat: render messages with role markers; False renders plain text.
    markers: "template" uses the folder's chat template (plain text if it has none); "own" uses this library's markers,
      which only append.
    thinking: as config.prompting.thinking; templates get it as the variable `enable_thinking`, which Qwen3's supports.

  Attributes:
    bos: see `prompting.tokenizer.Tokenizer`.
    control: the texts of the control tokens.
    markers: the role markers in use; None for plain text.

  Raises:
    ValueError: the folder has no fast tokenizer, or one that cannot be used (WordPiece, no EOS id, control tokens that
      text can produce).
  """

  def __init__(
    self, folder: str | os.PathLike, *, chat: bool = True, markers: str = "template", thinking: str = "default"
  ):
    self._thinking, self._clock = thinking, chat_lib.stopped_clock()
    self._whole = load_whole(folder)
    settings = json.loads(self._whole.backend_tokenizer.to_str())
    added = {a["id"]: a for a in settings["added_tokens"]}
    if not chat or (markers == "template" and self._whole.chat_template is None):
      markers = None
    self.markers = markers
    if thinking == "off" and not self._can_be_silent():
      raise ValueError(
        f"config.prompting.thinking='off': the chat template at {folder} does not turn thoughts off, so a model would "
        "think as it was trained. Set config.prompting.markers='own' (with chat=True), whose turns begin with an empty "
        "thought, or thinking='default'."
      )
    self.eos_ids = _eos_ids(pathlib.Path(folder), self._whole)
    marks = self._marks(added)
    if (end := self._end_of_turn(added, marks)) is not None and end not in self.eos_ids:
      self.eos_ids += (end,)
      name = added[end]["content"]
      declared.say_once(f"{folder}: the role markers end a turn with {name}, which is no EOS there; it ends turns too.")
    self.pad_id = self.eos_ids[0] if self._whole.pad_token_id is None else self._whole.pad_token_id
    ids = {i for text, i in self._whole.get_vocab().items() if text != declared.IMAGE}
    self.vocab_size = 1 + max(ids)
    self.missing = frozenset(range(self.vocab_size)) - ids
    if max(self.eos_ids) >= self.vocab_size:
      raise ValueError(
        f"{folder}: EOS id {max(self.eos_ids)}, but the tokenizer knows {self.vocab_size} ids; correct "
        "eos_token_id in generation_config.json, or give the model's own tokenizer."
      )
    names = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # without lists like additional_special_tokens
    named = {*self.eos_ids, self.pad_id, *(getattr(self._whole, f"{name}_token_id") for name in names)} - {None}
    control = named | marks
    self.control = tuple(sorted(added[i]["content"] for i in control if i in added))
    self.control_names = {i: self._whole.convert_ids_to_tokens(i) for i in sorted(control)}
    self._bytes = _all_bytes(self._whole, settings, self.vocab_size, added, control)
    self._text = _continuing(settings, control)
    whole = self._whole("a", return_special_tokens_mask=True)
    put = itertools.takewhile(lambda pair: pair[1], zip(whole["input_ids"], whole["special_tokens_mask"]))
    self.bos = tuple(i for i, _ in put)
    _check_bos(pathlib.Path(folder), bool(self.bos))
    for text in self.control:
      if control & set(self.encode(text)):
        raise ValueError(
          f"{folder}: this {settings['model']['type']} tokenizer encodes the text {text!r} as a "
          "control token, so a document could end a turn. Use a BPE tokenizer."
        )

  def _end_of_turn(self, added: Mapping[int, dict], marks: set[int]) -> int | None:
    """The added token that the role markers write directly after the assistant's text; None if there is none."""
    messages = [dict(role="user", content="A question?"), dict(role="assistant", content="probe")]
    if self.markers == "own":
      text = chat_lib.own(
        messages, open_turn=False, known=[added[i]["content"] for i in marks.union(self.eos_ids) & added.keys()]
      )
    else:
      text = "" if self.markers is None else self._rendered(messages, False)
    closing = self.encode_template(text.rpartition("probe")[2].lstrip())
    return closing[0] if closing and closing[0] in added else None

  def _rendered(self, messages: chat_lib.Messages, opened: bool, **options: bool) -> str:
    """The messages by the folder's template; "" if it cannot render them (`template` says why)."""
    try:
      return self._applied(messages, opened, **options)
    except (ValueError, TypeError, jinja2.TemplateError):
      return ""

  def _can_be_silent(self) -> bool:
    """Whether thinking="off" opens the model's turn with an empty thought, or changes what the template writes."""
    if self.markers != "template":
      return self.markers == "own"
    question = [{"role": "user", "content": "probe"}]
    on, off = (self._rendered(question, True, enable_thinking=enabled) for enabled in (True, False))
    return on != off or not off or off.rstrip().endswith(THOUGHT)

  def _applied(self, messages: Sequence[Mapping[str, Any]], opened: bool, *, tools: Any = None, **options: bool) -> str:
    text = self._clock + self._whole.get_chat_template(tools=tools)
    return self._whole.apply_chat_template(
      messages, chat_template=text, tokenize=False, add_generation_prompt=opened, tools=tools, **options
    )

  def _marks(self, added: Mapping[int, dict]) -> set[int]:
    """The added tokens that are control tokens by what they look like, and by the folder's template."""
    turn, begin = self._around()

    def is_mark(text: str, special: bool) -> bool:
      if special and (not _TAG.fullmatch(text) or _MARKS.fullmatch(text)):
        return True
      return (text in turn or begin.startswith(text)) and bool(special or _BARS.fullmatch(text))

    return {i for i, a in added.items() if is_mark(a["content"], a["special"])}

  def _around(self) -> tuple[str, str]:
    """What the folder's template writes for a user's message, and what begins the assistant's turn after it."""
    # Only the beginning of that turn is a mark: templates of reasoning models go on with `<think>`, which is text.
    turn, texts = (self._rendered([{"role": "user", "content": "probe"}], opened) for opened in (False, True))
    return turn, texts.removeprefix(turn).lstrip()

  def encode(self, text: str) -> list[int]:
    """Token ids of the text alone, without BOS and EOS; control tokens that the text spells are encoded as letters."""
    return self._text.encode(well_formed(text), add_special_tokens=False).ids

  def encode_template(self, text: str) -> list[int]:
    """Token ids of a part of a template's text; control tokens in it become their own ids. No BOS is added."""
    return self._whole.encode(well_formed(text), add_special_tokens=False)

  def token_bytes(self, token: int) -> bytes:
    """The bytes that a token id stands for; empty for control tokens and for ids outside the vocabulary."""
    return self._bytes[token] if 0 <= token < self.vocab_size else b""

  def template(
    self, messages: chat_lib.Messages, *, open_turn: bool, tools: Sequence[Mapping[str, Any]] | None = None
  ) -> str:
    """The messages' text with role markers (`prompting.chat.Templated`), or as plain text without markers.

    Args:
      open_turn: end where the assistant's next turn begins.
      tools: JSON schemas of functions that the folder's template presents to the model (`agents.calls`).

    Raises:
      ValueError: the template refuses these messages.
    """
    messages = chat_lib.disarmed(messages, self.control)
    tools = chat_lib.disarmed_value(tools, self.control)  # an MCP server or a client has written them
    if self.markers is None:
      return chat_lib.plain(messages)
    if self.markers == "own":
      return chat_lib.own(messages, open_turn=open_turn, known=self.control, thinking=self._thinking)
    options = {} if self._thinking == "default" else dict(enable_thinking=self._thinking == "on")
    try:
      return self._applied(messages, open_turn, tools=tools, **options)
    except (ValueError, TypeError, jinja2.TemplateError) as error:  # ValueError: named templates without a default one
      roles = [m["role"] for m in messages]
      raise ValueError(
        f"the chat template refuses the roles {roles}: {error}. Set prompting.markers='own', or "
        "prompting.chat=False for bare text."
      ) from error

  def render(self, messages: chat_lib.Messages, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
    """Token ids of chat messages by the chat template, up to the start of the model's turn, with BOS if the model uses
    one. `tools` as in `template`.
    """
    ids = self.encode_template(self.template(messages, open_turn=True, tools=tools))
    return ids if self.markers == "template" else [*self.bos, *ids]  # a template writes BOS itself


def load_whole(folder: str | os.PathLike) -> transformers.PreTrainedTokenizerFast:
  """The folder's fast tokenizer as `transformers` has it.

  Raises:
    ValueError: the folder has none, or one whose added tokens have other ids than its files declare.
  """
  path = pathlib.Path(folder)
  as_it_says = (path / declared.JSON).is_file()  # whatever the model's type
  if not as_it_says and not (path / declared.SENTENCEPIECE).is_file():
    raise ValueError(
      f"{folder}: it has no tokenizer.json. Give a folder with a fast tokenizer (config.prompting."
      "tokenizer); `AutoTokenizer.from_pretrained(…).save_pretrained(folder)` writes one."
    )
  kind, more = transformers.PreTrainedTokenizerFast, {}
  if not as_it_says:
    kind, more = transformers.AutoTokenizer, dict(trust_remote_code=False)
  whole = declared.loaded(path, lambda: kind.from_pretrained(str(folder), local_files_only=True, **more))
  whole.chat_template = whole.chat_template or declared.processors_template(path)
  return whole


def _eos_ids(folder: pathlib.Path, tokenizer) -> tuple[int, ...]:
  """All EOS ids: those that the model's files declare, then the tokenizer's own."""
  ids = [*declared.eos_ids(folder), *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])]
  if not ids:
    raise ValueError(
      f"{folder}: no EOS id in generation_config.json, config.json or the tokenizer, so no turn could "
      "end. Name one as eos_token_id in generation_config.json."
    )
  return tuple(dict.fromkeys(ids))


def _check_bos(folder: pathlib.Path, put: bool) -> None:
  """Says if tokenizer_config.json and tokenizer.json disagree about BOS; the latter decides, as in transformers 5."""
  bos = declared.read(folder / declared.CONFIG).get("add_bos_token")
  if bos is not None and bool(bos) != put and (folder / "tokenizer.json").is_file():
    declared.say_once(
      f"{folder}: add_bos_token is {bos!r} in {declared.CONFIG}, but tokenizer.json puts {'a' if put else 'no'} BOS "
      "before a text: tokenizer.json decides. Chat templates write their own BOS."
    )


def _nodes(settings):
  """Yields every dict with a "type" in a tree of settings, parents first."""
  if isinstance(settings, dict) and "type" in settings:
    yield settings
  inside = settings.values() if isinstance(settings, dict) else settings
  for value in inside if isinstance(settings, dict | list) else ():
    yield from _nodes(value)


def _all_bytes(tokenizer, settings, size: int, added: Mapping[int, dict], control: set[int]) -> list[bytes]:
  """The bytes of every id, as a list over ids."""
  decoders = {node["type"] for node in _nodes(settings["decoder"])}
  if "ByteLevel" in decoders:
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}  # GPT-2's table
    read = lambda piece: b"".join(bytes([byte_of[c]]) if c in byte_of else c.encode() for c in piece)
    of_added = str.encode
  elif decoders & {"Metaspace", "ByteFallback"}:
    read = _read_sentencepiece
    of_added = lambda text: text.replace(SPACE, " ").encode()  # Gemma's added tokens include runs of spaces
  else:
    raise ValueError(
      f"a tokenizer with decoder {sorted(decoders)} cannot serve a policy: the bytes of its pieces are unknown. Use a "
      "byte-level BPE or SentencePiece-type tokenizer (WordPiece is for encoders)."
    )
  table = [b""] * size
  for piece, i in tokenizer.get_vocab().items():
    if i not in control:
      table[i] = of_added(added[i]["content"]) if i in added else read(piece)
  return table


def _read_sentencepiece(piece: str) -> bytes:
  byte = _BYTE_PIECE.fullmatch(piece)
  return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()


def _continuing(settings: dict, control: set[int]) -> tokenizers.Tokenizer:
  """The tokenizer for text inside a sequence: it adds no space in front and makes no control token from text."""
  for node in _nodes(settings["normalizer"]):
    if "normalizers" in node:
      node["normalizers"] = [n for n in node["normalizers"] if n["type"] != "Prepend"]
  if settings["normalizer"] and settings["normalizer"]["type"] == "Prepend":
    settings["normalizer"] = None
  for node in _nodes(settings["pre_tokenizer"]):
    if node["type"] == "Metaspace":
      node["prepend_scheme"] = "never"
    elif node["type"] == "ByteLevel":
      node["add_prefix_space"] = False
  for token in settings["added_tokens"]:
    token.update(special=token["id"] in control, lstrip=False, rstrip=False)
  text = tokenizers.Tokenizer.from_str(json.dumps(settings))
  text.encode_special_tokens = True  # spelled-out special tokens are encoded as letters
  text.no_truncation()
  text.no_padding()
  return text


def add_tokens(
  folder: str | os.PathLike, tokens: Sequence[str]
) -> tuple[transformers.PreTrainedTokenizerFast, tuple[int, ...]]:
  """Adds tokens, such as the tags of a format, to the folder's tokenizer. Each is always one id.

  Nothing is written to disk. The tokens are text and not control tokens: they stay in the text that the model writes.

  Returns:
    (the tokenizer, which has `save_pretrained`; the ids of the tokens in order, which follow all earlier ids).

  Raises:
    ValueError: a token is empty, contains white space, or is in the tokenizer already.
  """
  whole = load_whole(folder)
  vocabulary = whole.get_vocab()
  for token in tokens:
    if not token or token.split() != [token]:
      raise ValueError(f"{token!r} cannot be added to the tokenizer: a token is text without white space.")
    if token in vocabulary:
      raise ValueError(f"{token!r} is a token of {pathlib.Path(folder)} already, with the id {vocabulary[token]}.")
  whole.add_tokens([tokenizers.AddedToken(token, normalized=False, special=False) for token in dict.fromkeys(tokens)])
  return whole, tuple(whole.convert_tokens_to_ids(list(tokens)))
