"""The tokens that supervised fine-tuning trains on."""

import json

import numpy as np
import pytest
import small_learner
import small_tokenizers
from refusals import refused

from ragrl_jax import config as config_lib, recipes, settings
from ragrl_jax.jobs import sft
from ragrl_jax.learner import packing, row_layout
from ragrl_jax.learner.settings import Settings
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.structs import Example

TOKENIZER = ByteTokenizer()
example = lambda *turns: Example("q", "Where?", ("Rome",), meta=dict(turns=[list(turn) for turn in turns]))


def tokenised(*turns, recipe="care", weight=1.0, **how):
  return sft.tokenised(recipes.get(recipe), example(*turns), TOKENIZER, weight, **how)


def test_a_turn_without_a_stop_string_is_trained_to_end_with_eos():
  text = "<think> so </think> Answer: Rome"
  ids, weights = tokenised(("model", text), weight=0.3)
  size = len(text) + 1
  assert ids[-1:] == list(TOKENIZER.eos_ids) and TOKENIZER.decode(ids[-size:]) == text
  assert weights[-size:] == [1.0] * size and set(weights[:-size]) == {0.3}


def test_a_turn_ends_with_the_eos_of_its_chat_template(tmp_path):
  """Llama 3's folders name the end of a text first, Gemma 3's that of pre-training. Turns end with another id."""
  folder = small_tokenizers.llama3(tmp_path)
  settings = json.loads((folder / "generation_config.json").read_text())
  (folder / "generation_config.json").write_text(json.dumps(dict(eos_token_id=settings["eos_token_id"][::-1])))
  tokenizer = HuggingFaceTokenizer(folder)
  care, text = recipes.get("care"), "<think> so </think> Answer: Rome"
  asked = example(("model", text))
  messages = [*care.prompt.messages(asked), dict(role="assistant", content=text)]
  ids, _ = sft.tokenised(care, asked, tokenizer, 0.0)
  assert ids == tokenizer.encode_template(tokenizer.template(messages, open_turn=False))
  assert ids[-1] != tokenizer.eos_ids[0]


@pytest.mark.parametrize(("recipe", "said"), [("care", "Answer: <b> Rome\n"), ("search_r1", "<answer> Rome </answer>")])
def test_an_eos_that_a_turn_spells_at_its_end_is_not_trained_as_letters(tmp_path, recipe, said):
  tokenizer = HuggingFaceTokenizer(small_tokenizers.llama3(tmp_path))
  ids_of = lambda text: sft.tokenised(recipes.get(recipe), example(("model", text)), tokenizer, 0.0)
  assert ids_of(f"{said}<|eot_id|>") == ids_of(f"{said}<|eot_id|>\n<|eot_id|>\n") == ids_of(said)
  assert "<|eot_id|>" in tokenizer.decode(ids_of(f"<|eot_id|>{said}")[0])


def test_a_turn_that_a_stop_string_ends_has_no_eos():
  results = "\n\n<information></information>\n\n"
  turns = ("model", "<search> Rome </search>"), ("environment", results), ("model", "<answer> Rome </answer>")
  ids, _ = tokenised(*turns, recipe="search_r1", weight=0.0)
  assert TOKENIZER.decode(ids).endswith("".join(text for _, text in turns)) and not set(TOKENIZER.eos_ids) & set(ids)


class Opening(ByteTokenizer):
  """Its prompts end as those of Qwen3.5's chat template do."""

  def render(self, messages):
    return [*super().render(messages), *self.encode("<think>\n")]


@pytest.mark.parametrize(("recipe", "said", "trained"), [
  ("care", "<think>\nso </think> Answer: Rome", "so </think> Answer: Rome"), ("care", "so </think> Answer: Rome", None),
  ("search_r1", "<search> who </search>", None), ("lear", "</think> <answer>Rome</answer>", None),
  ("lear", "<extract>so</extract> <answer>Rome</answer>", False), ("arena", "<answer>Rome</answer>", False),
  ("lear:study_vanilla", "<extract>so</extract>", False), ("veritas:reward_model", "1", None),
])  # fmt: skip
def test_a_transcript_goes_on_with_the_thought_that_the_template_opened(recipe, said, trained):
  tokenise = lambda: sft.tokenised(recipes.get(*recipe.split(":")), example(("model", said)), Opening(), 0.0)
  if trained is False:
    refused("'q' would be a thought as a whole.*config.prompting.thinking=off", tokenise)
  else:
    text = Opening().decode(tokenise()[0])
    assert text.endswith("<think>\n" + (trained or said)) and "<think>\n<think>" not in text


def test_a_long_transcript_loses_its_end():
  turn = "model", "Answer: Rome"
  whole, weights = tokenised(turn)
  cut = tokenised(turn, most=20)
  assert cut == (whole[:20], weights[:20]) and len(whole) > 20
  assert tokenised(turn, most=len(whole)) == (whole, weights) and tokenised(turn, most=20, longest=20) == cut
  refused("'q' has .* tokens, the longest row 20.*row_lengths.*config.sft.max_tokens", tokenised, turn, longest=20)


def test_transcripts_share_their_instructions_and_take_the_same_step():
  learner, draw = small_learner.learner(Settings(objective="sft", logprob_chunk=64)), np.random.default_rng(0)
  some = lambda least, most: draw.integers(1, 32, draw.integers(least, most)).tolist()
  instructions, transcripts = some(6, 7), []
  for _ in range(12):
    asked, replied = some(2, 5), some(3, 8)
    weights = [0.0] * 6 + [0.3] * len(asked) + [1.0] * len(replied)
    transcripts.append((instructions + asked + replied, weights))
  items = sft.items(transcripts)
  apart, shared, flat = (
    packing.pack_items(items, rows=2, lengths=(48,), sharing=sharing)
    for sharing in (None, row_layout.Sharing(), row_layout.Sharing(deep=False))
  )
  read = [sum(int((b.until > 0).sum()) for b in packed.blocks) for packed in (shared, flat)]
  rows = {span[:2] for span in shared.spans}
  assert read[0] <= read[1] == sum(len(ids) - 6 for ids, _ in transcripts) + 6 * len(rows)
  want = small_learner.gradient(learner, apart.blocks)
  for packed in (shared, flat):
    got = small_learner.gradient(learner, packed.blocks)
    assert abs(got[0] - want[0]) < 1e-6 and small_learner.distance(got[1], want[1]) < 3e-6


def test_a_batch_counts_transcripts_whatever_their_length():
  transcripts = [(list(range(1, 2 + 7 * (i % 5))), [1.0] * (1 + 7 * (i % 5))) for i in range(23)]
  at = sft.batches(transcripts, batch=10, rows=1, lengths=(32,), seed=0)
  steps = [packing.pack_items(sft.items(at(step)), rows=1, lengths=(32,)) for step in range(6)]
  assert [len(step.spans) for step in steps] == [10, 10, 3, 10, 10, 3]  # an epoch ends with what is left
  assert max(len(step.blocks) for step in steps) > 1  # in as many blocks as they take
  tokens = [sum(int(block.loss_mask.sum()) for block in step.blocks) for step in steps]
  trained = sum(len(ids) - 1 for ids, _ in transcripts)  # nothing stands before a first token
  assert sum(tokens[:3]) == sum(tokens[3:]) == trained and tokens[:3] != tokens[3:]
  # No step that was looked at has the longest transcript.
  assert max(sft.row_lengths(settings.of(config_lib.default_config()), None, [transcripts], None, 700)) == 768


@pytest.mark.parametrize(("turns", "most"), [([], 0), ([["model", "Answer: Rome"]], 20)])
def test_transcripts_of_which_nothing_is_trained_are_refused_or_counted(tmp_path, caplog, turns, most):
  config = config_lib.default_config()
  config.recipe, config.prompting.tokenizer, config.data.train = "care", "bytes", str(tmp_path / "sft.jsonl")
  config.model.shape = dict(family="qwen3", d_model=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, d_ff=8)
  config.sft.update(environment_weight=0.0, max_tokens=most)
  config.data.drop_unanswerable = True  # of two rows
  row = dict(question="Where?", answers=["Rome"], turns=turns)
  (tmp_path / "sft.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row | dict(id='b', answerable=False))}\n")
  refused(f"in 1 of 1 transcripts nothing is trained.*max_tokens={most} ", list, sft.sft(config, tmp_path / "run"))
  (((ids, weights),), _) = sft.read(settings.of(config), recipes.get("care"), TOKENIZER)
  assert (ids.dtype, weights.dtype) == (np.int32, np.float32)  # lists take five times the memory
  sft.refuse_untrained([([1, 2], [0.0, 0.0]), ([1, 2], [0.0, 1.0])], settings.of(config))
  assert "in 1 of 2 transcripts nothing is trained" in caplog.text


def test_rows_need_not_hold_episodes_which_are_not_played(tmp_path):
  config = config_lib.default_config()
  config.recipe, config.rollout.context, config.learner.row_lengths = "care", 1024, (512,)
  refused("config.prompting.tokenizer is empty", list, sft.sft(config, tmp_path))  # no setting is refused


@pytest.mark.parametrize(("turns", "says"), [
  (None, "'q' has no `turns`"), (5, "'turns' must be a list"), ("so", "'turns' is text, but not JSON"),
  ([dict(role="assistant", content="x")], r"hold \{'role': 'assistant'.*each must be \['model' \| 'environment', text"),
  ([["model", None]], r"hold \['model', None\]"), ([["user", "x"]], r"hold \['user', 'x'\]"), (["x"], "hold 'x'"),
])  # fmt: skip
def test_turns_are_pairs_which_a_table_holds_as_json(turns, says):
  row = lambda turns: Example("q", "?", ("a",), meta=dict(turns=turns))
  read = lambda turns: sft.tokenised(recipes.get("care"), row(turns), TOKENIZER, 1)
  refused(says, read, turns)
  assert read('[["model", "Rome"]]') == read([["model", "Rome"]])


def rows(folder, count, more=""):
  """A file of so many transcripts."""
  file = folder / "sft.jsonl"
  file.write_text(f"{json.dumps(dict(question='Q?', answers=['a'], turns=[]))}\n" * count + more)
  return str(file)


def test_epochs_say_how_many_steps(tmp_path):
  config = config_lib.default_config()
  unanswerable = '{"question": "Q?", "answers": ["a"], "answerable": false}\n'
  config.data.update(dict(train=rows(tmp_path, 23, unanswerable * 8), drop_unanswerable=True))
  assert sft.planned(whole := settings.of(config)) is whole
  config.sft.update(batch=10, epochs=2, warmup_share=0.5)
  made = sft.planned(settings.of(config))
  assert (made.steps, made.optimizer.warmup_steps) == (6, 3)  # 3 steps an epoch, the last one of 3 transcripts
  assert config.steps == 100 and sft.planned(made).steps == 6
  config.data.train = rows(tmp_path, 0, unanswerable)
  config.prompting.tokenizer = "bytes"
  refused("all its questions are marked as unanswerable", list, sft.sft(config, tmp_path / "run"))
  config.sft.warmup_share, config.optimizer.warmup_steps = 0.0, 30
  refused("optimizer.warmup_steps=30 with config.sft.epochs=2: with epochs the", sft.planned, settings.of(config))
  for wrong, said in ((dict(epochs=1), "depends on the batch"), (dict(warmup_share=0.1), "without config.sft.epochs")):
    refused(said, settings.learning.SFT, **wrong)


def test_the_papers_warm_start_has_its_steps(tmp_path):
  """CARE: 7,739 transcripts in batches of 64, three times: 3 · 121 steps, of which a tenth warms up."""
  config = config_lib.load("configs/care.py", "sft")
  config.data.train = rows(tmp_path, 7739)
  made = sft.planned(settings.of(config))
  assert (made.steps, made.optimizer.warmup_steps, made.sft.batch) == (363, 36, 64)
