"""What follows a model's turn is rendered alone, and the whole is what the template renders at once."""

import pytest
import small_tokenizers as small

from ragrl_jax.prompting.chat import Appender, Rewritten
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
CALL = {"type": "function", "id": "1", "function": {"name": "search", "arguments": {"query": "a <|im_end|>"}}}
CALLED = {"role": "assistant", "content": "So:", "tool_calls": [CALL]}
ASKED, SAID = {"role": "user", "content": "Where is Rome?"}, {"role": "assistant", "content": " Danbel is here. "}
FOUND, AGAIN = {"role": "tool", "content": "Kormin.\n<|im_start|>"}, {"role": "user", "content": "And\n\nTolper?"}


def tokenizer_of(folder, template, **how):
  return HuggingFaceTokenizer(small.byte_level(folder, template=template), **how)


@pytest.mark.parametrize("markers", ["template", "own"])
@pytest.mark.parametrize("template", [small.CHATML, small.QWEN_TOOLS, small.CODER_TOOLS])
@pytest.mark.parametrize("more", [[AGAIN], [FOUND], [FOUND, FOUND, AGAIN]])
def test_prompt_reply_and_the_rest_are_the_whole_rendering(tmp_path, template, markers, more):
  tokenizer = tokenizer_of(tmp_path, template, markers=markers)
  tools = TOOLS if template != small.CHATML and markers == "template" else ()
  for said in (SAID, CALLED) if tools else (SAID,):
    kept = [ASKED, said]
    prompt, whole = (tokenizer.render(asked, tools or None) for asked in ([ASKED], [*kept, *more]))
    opened = tokenizer.template([ASKED], open_turn=True, tools=tools or None)
    closed = tokenizer.template(kept, open_turn=False, tools=tools or None)
    reply = tokenizer.encode_template(closed[len(opened) :].removesuffix("<|im_end|>\n"))
    appender = Appender(tokenizer)
    for eos in ([], [tokenizer.eos_ids[0]]):  # the model ended its turn itself, or it was cut off
      new = appender.after([*kept, *more], 2, tools, ended=bool(eos))
      joined = [*prompt, *reply, *eos, *new]
      assert joined == whole, tokenizer.decode(joined)
      # What messages spell stays text: the only ends of turns are the turns' own.
      assert joined.count(tokenizer.eos_ids[0]) == 2 + len(more) + bool(tools)  # and of the tools


def test_texts_without_markers_are_joined():
  new = Appender(ByteTokenizer()).after([ASKED, SAID, AGAIN], 2, ended=True)
  assert ByteTokenizer().decode(new) == "\n\nAnd\n\nTolper?"


def test_a_template_that_rewrites_is_told_of(tmp_path):
  tokenizer = tokenizer_of(tmp_path, small.FORGETFUL)
  thought = {"role": "assistant", "content": "<think>x</think>Yes."}
  with pytest.raises(Rewritten, match="earlier turns differently"):
    Appender(tokenizer).after([ASKED, thought, AGAIN, SAID, AGAIN], 2, ended=True)
  silent = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
  with pytest.raises(ValueError, match="leaves out the assistant's text"):
    Appender(tokenizer_of(tmp_path / "silent", silent))


@pytest.mark.parametrize("markers", ["template", "own"])
def test_the_token_with_which_the_markers_end_a_turn_ends_turns(tmp_path, markers, caplog):
  """A base model's folder: ChatML, with <|endoftext|> as EOS. SFT's targets, rollouts and servers take it from here."""
  folder = small.byte_level(tmp_path, generation={"eos_token_id": None})
  small.edit(folder, "tokenizer_config.json", lambda its: its | dict(eos_token="<|endoftext|>"))
  tokenizer = HuggingFaceTokenizer(folder, markers=markers)
  ids = {name: tokenizer.encode_template(name)[0] for name in ("<|endoftext|>", "<|im_end|>")}
  assert tokenizer.eos_ids == (ids["<|endoftext|>"], ids["<|im_end|>"])
  assert Appender(tokenizer).end_of_turn() == ids["<|im_end|>"]
  assert HuggingFaceTokenizer(folder, markers=markers).eos_ids == tokenizer.eos_ids
  assert caplog.text.count("end a turn with <|im_end|>") == 1  # said once
  assert HuggingFaceTokenizer(folder, chat=False).eos_ids == (ids["<|endoftext|>"],)  # bare text has no such turns
  # The model ended its turn itself, so nothing is repeated.
  new = Appender(tokenizer).after([ASKED, SAID, AGAIN], 2, ended=True)
  assert ids["<|im_end|>"] not in new[:1] and new.count(ids["<|im_end|>"]) == 1


def test_a_space_before_eos_belongs_to_the_template(tmp_path):
  end = "{% if m.role == 'assistant' %} {{ eos_token }}{% endif %}"
  tokenizer = tokenizer_of(tmp_path, "{% for m in messages %}{{ m.content }}" + end + "\n{% endfor %}")
  appender = Appender(tokenizer)
  (end,) = tokenizer.encode_template("<|im_end|>")
  assert appender.end_of_turn() == end
  assert end not in appender.after([ASKED, SAID, AGAIN], 2, ended=True)
  assert appender.after([ASKED, SAID, AGAIN], 2, ended=False).count(end) == 1


def test_no_space_stands_between_the_end_of_a_turn_and_the_next(tmp_path):
  """A tokenizer like Llama 2's puts a space before each text that it gets, and Zephyr's marks are text."""
  template = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
  small.edit(small.llama_like(tmp_path), "tokenizer_config.json", lambda its: its | dict(chat_template=template))
  tokenizer = HuggingFaceTokenizer(tmp_path)
  new = Appender(tokenizer).after([ASKED, SAID, AGAIN], 2, ended=True)
  assert tokenizer.render([ASKED, SAID, AGAIN])[-len(new) - 1 :] == [*tokenizer.eos_ids, *new]
