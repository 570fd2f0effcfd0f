"""What supervised fine-tuning trains on."""

from ragrl_jax import recipes, sft
from ragrl_jax.prompting.bytes import ByteTokenizer
from ragrl_jax.structs import Example


def test_a_turn_that_no_stop_string_ends_is_taught_to_end():
  tokenizer = ByteTokenizer()
  (end,) = tokenizer.eos_ids
  care, text = recipes.get("care"), "<think> so </think> Answer: Rome"
  example = Example("q", "Where?", ("Rome",), meta=dict(turns=[["model", text]]))
  ids, weights = sft.tokenised(care, example, tokenizer, 0.3)
  size = len(text) + 1
  assert ids[-1] == end and tokenizer.decode(ids[-size:]) == text
  assert weights[-size:] == [1.0] * size and set(weights[:-size]) == {0.3}


def test_a_turn_that_a_stop_string_ends_has_no_eos():
  tokenizer = ByteTokenizer()
  turns = [
    ["model", "<search> Rome </search>"],
    ["environment", "\n\n<information></information>\n\n"],
    ["model", "<answer> Rome </answer>"],
  ]
  example = Example("q", "Where?", ("Rome",), meta=dict(turns=turns))
  ids, _ = sft.tokenised(recipes.get("search_r1"), example, tokenizer, 0.0)
  assert tokenizer.decode(ids).endswith("".join(text for _, text in turns)) and not set(tokenizer.eos_ids) & set(ids)
