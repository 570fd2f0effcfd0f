"""Faults that users of other tools reported: texts, turns and calls that change on their way. Threads name the kind."""

import json

import pytest
import small_tokenizers
import tokenizers

from ragrl_jax import recipes
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.protocol import requests
from ragrl_jax.structs import Example, Passage

ODD = "Is {x} %s of \\1 {0} $y <|im_end|> {{ z }}?"
ASKED = dict(role="user", content="Where is Rome?")


def test_a_prompt_begins_with_one_bos(tmp_path):
  """OpenRLHF #393, NeMo-RL #855, open-r1 #462, DeepSeek-R1 #151: the template and the tokenizer both write BOS."""
  for folder in (small_tokenizers.llama_like(tmp_path / "llama"), small_tokenizers.gemma_like(tmp_path / "gemma")):
    tokenizer = HuggingFaceTokenizer(folder)
    (bos,) = tokenizer.bos
    served = requests.Served("", tokenizer, tokenizer.vocab_size, context=999, max_tokens=9, max_replies=1)
    prompts = [tokenizer.render([ASKED]), HuggingFaceTokenizer(folder, chat=False).render([ASKED])]
    for text in ("Hi", tokenizer.control_names[bos] + "Hi", tokenizer.template([ASKED], open_turn=True)):
      prompts += requests.read(json.dumps(dict(prompt=text)).encode(), requests.TEXT, served).prompts
    assert [(prompt[0], prompt.count(bos)) for prompt in prompts] == [(bos, 1)] * 5


@pytest.mark.parametrize("name", ["arena", "care", "lear", "search_r1", "untrained", "veritas", "when_to_search"])
def test_a_question_with_braces_stands_in_the_prompt_as_it_is(name):
  """Questions that look like a template's fields, a pattern's groups or control tokens."""
  example = Example("q", ODD, ("x",), (Passage("a", ODD, ODD),), (0,))
  assert ODD in recipes.get(name).prompt.messages(example)[-1]["content"]


def test_truncation_and_padding_of_a_tokenizers_file_do_not_cut_prompts(tmp_path):
  """A fast tokenizer's file that was saved while it cut and padded its texts goes on doing so."""
  folder = small_tokenizers.byte_level(tmp_path)
  messages = [dict(role="user", content="The spouse of Danbel is Kormin. " * 4)]
  whole = HuggingFaceTokenizer(folder).render(messages)
  cutting = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  cutting.enable_truncation(max_length=8)
  cutting.enable_padding(length=32)
  cutting.save(str(folder / "tokenizer.json"))
  assert HuggingFaceTokenizer(folder).render(messages) == whole and len(whole) > 32
