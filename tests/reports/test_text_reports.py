"""Faults that users of other tools reported: texts, turns and calls that change on their way. Threads name the kind."""

import codecs
import json

import pytest
import small_engine as kit
import small_tokenizers
from small_server import post, serving

from ragrl_jax import recipes
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.rewards import quotes
from ragrl_jax.data import layouts
from ragrl_jax.prompting.chat import Appender
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
    assert len(prompts) == 5
    for prompt in prompts:
      assert prompt[0] == bos and prompt.count(bos) == 1


def test_the_token_that_ends_a_templates_turns_ends_turns(tmp_path):
  """TRL #2059, #3299, ms-swift #3113, LlamaFactory #7454, marin #4760: a base model's EOS is not the template's."""
  folder = small_tokenizers.byte_level(tmp_path, generation=dict(eos_token_id=None))
  settings = json.loads((folder / "tokenizer_config.json").read_text()) | dict(eos_token="<|endoftext|>")
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  tokenizer = HuggingFaceTokenizer(folder)
  (end,), (eos,) = map(tokenizer.encode_template, ("<|im_end|>", "<|endoftext|>"))
  assert tokenizer.eos_ids == (eos, end) and Appender(tokenizer).end_of_turn() == end


def test_bytes_of_partial_characters_join_to_the_texts_bytes():
  """vLLM #34875, ollama #13497, vLLM #19177: log-probabilities of tokens that cut a character have wrong bytes."""
  with serving() as (url, _):
    asked = dict(max_tokens=40, seed=5, return_token_ids=True, logprobs=True)
    (choice,) = post(url, "chat/completions", messages=[ASKED], **asked)[1]["choices"]
    entries = choice["logprobs"]["content"]
    said = b"".join(bytes(one["bytes"]) for one in entries)
    assert said == b"".join(map(kit.TOKENIZER.token_bytes, choice["token_ids"])) and max(said) > 127
    assert said.decode(errors="replace") == choice["message"]["content"]
    (choice,) = post(url, "completions", prompt=ASKED["content"], **asked | dict(logprobs=0))[1]["choices"]
    data = [kit.TOKENIZER.token_bytes(one) for one in choice["token_ids"]]
    read = lambda part: codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(part))
    assert choice["logprobs"]["text_offset"] == [len(read(data[:i])) for i in range(len(data))]


@pytest.mark.parametrize("name", ["arena", "care", "lear", "search_r1", "untrained", "veritas", "when_to_search"])
def test_a_question_with_braces_stands_in_the_prompt_as_it_is(name):
  """Questions that look like a template's fields, a pattern's groups or control tokens."""
  example = Example("q", ODD, ("x",), (Passage("a", ODD, ODD),), (0,))
  messages = recipes.get(name).prompt.messages(example)
  assert ODD in messages[-1]["content"]


def test_forms_of_unicode_are_equal_in_answers_and_quotes():
  """A model writes é as one sign, the corpus as two."""
  one, two = "Caf\u00e9 de Paris", "Cafe\u0301 de Paris"
  assert qa.exact_match(one, [two]) == 1.0 and qa.has_answer(f"the {two}.", [one])
  assert quotes.exact(one, [f"It is the {two}."]) and quotes.exact(two, [f"It is the {one}."])


def test_golds_that_arrive_as_text_are_a_list():
  """A data frame's export writes lists as text, and "['Paris', 'Paris, France']" is nobody's answer."""
  row = dict(question="Where?", answers="['Paris', 'Paris, France']")
  assert layouts.example(row, identity="q", source="s").golds == ("Paris", "Paris, France")
  with pytest.raises(ValueError, match="is a list as text"):
    layouts.example(dict(question="Where?", answers="['Paris' 'France']"), identity="q", source="s")
