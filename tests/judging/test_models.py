"""Judges that run in this process: their input, the meaning of their scores, and texts that are too long."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import judge_folders
import numpy as np
import pytest
import sentencepiece
import small_tokenizers
from flax import nnx
from refusals import refused

from ragrl_jax import judging
from ragrl_jax.judging import local, prompts
from ragrl_jax.models import lora, t5, weights
from ragrl_jax.prompting.huggingface import HuggingFaceTokenizer
from ragrl_jax.settings import Judge

PREMISE, CLAIM = "The Rhine  passes\nBasel and Cologne.", "it flows through Cologne"


def made_once(make):
  return pytest.fixture(scope="module")(lambda tmp_path_factory: make(tmp_path_factory.mktemp("judge")))


t5_folder = made_once(judge_folders.t5)
decoder_folder = made_once(judge_folders.decoder)


def share(logits, yes, no):
  """P(yes) of the two words: the softmax over them, written out."""
  one, zero = np.exp(float(logits[yes])), np.exp(float(logits[no]))
  return one / (one + zero)


SHAPES = []  # (rows, length) of each program that `entailment` has run


def recorded(function, tokens, mask):
  SHAPES.append((mask.any(axis=1).sum(), tokens.shape[1]))
  return function(tokens, mask)


@pytest.fixture(scope="module")
def entailment(t5_folder):
  return local.NLI(t5_folder, threshold=0.0, batch=3, max_tokens=200, dispatch=recorded)


def test_nli_input_is_what_the_tokenizer_makes_of_the_whole_text(entailment, t5_folder):
  pieces = sentencepiece.SentencePieceProcessor(model_file=str(t5_folder / "spiece.model"))  # normalised
  ids = pieces.encode(f"premise: {PREMISE} hypothesis: {CLAIM}") + [1]
  assert entailment._row(PREMISE, CLAIM) == ids
  model, _ = t5.load_t5(t5_folder)
  first = nnx.jit(lambda model, tokens: model.first_logits(tokens, jnp.ones_like(tokens)))
  logits = first(model, jnp.asarray([ids]))[0]
  yes, no = pieces.encode("1")[0], pieces.encode("0")[0]
  assert entailment.judge([(PREMISE, CLAIM)]) == [pytest.approx(share(logits, yes, no), abs=1e-5)]


def test_work_on_the_accelerator_is_dispatched_in_few_shapes(entailment):
  SHAPES.clear()
  pairs = [("Basel " * n, CLAIM) for n in range(1, 14)]
  verdicts = entailment.judge(pairs)
  assert sum(rows for rows, _ in SHAPES) == len(pairs) == len(verdicts) and entailment.pace.batch == 3
  assert all(rows <= 3 and length in (64, 128) for rows, length in SHAPES)


def test_threshold_half_gives_the_models_greedy_answer(entailment, monkeypatch):
  pairs = [(PREMISE, CLAIM), *((PREMISE, f"river {n}") for n in range(8))]
  scores = entailment.judge(pairs)
  monkeypatch.setattr(entailment, "_threshold", 0.5)
  assert entailment.judge(pairs) == [float(score >= 0.5) for score in scores]


def test_nli_cuts_the_premise_and_never_the_claim(t5_folder):
  judge = local.NLI(t5_folder, max_tokens=40)
  end = judge._row("", CLAIM)[-len(judge._tokenizer.encode(f" hypothesis: {CLAIM}")) - 1 :]
  row = judge._row(PREMISE * 50, CLAIM)
  assert len(row) == 40 and row[-len(end) :] == end and row[:5] == judge._row(PREMISE, CLAIM)[:5]
  assert judge._row(PREMISE, CLAIM * 50) is None


@pytest.mark.slow  # imports transformers, compiles a decoder twice
def test_reward_model_reads_the_decoder_where_its_answer_begins(decoder_folder):
  judge = local.RewardModel(decoder_folder, prompt="information_think", threshold=0.0, batch=2, max_tokens=1024)
  ids = judge._row(PREMISE, CLAIM)
  assert ids == judge._tokenizer.render(prompts.get("information_think").messages(PREMISE, CLAIM))
  model, _ = weights.load_pretrained(decoder_folder)
  logits = nnx.jit(lambda model, tokens: model(tokens))(model, jnp.asarray([ids]))[0, -1]
  yes, no = (judge._tokenizer.encode(label)[0] for label in "10")
  assert judge.judge([(PREMISE, CLAIM)]) == [pytest.approx(share(logits, yes, no), abs=1e-5)]


def test_reward_model_cuts_the_premise_and_keeps_question_and_claim(decoder_folder):
  judge = local.RewardModel(decoder_folder, prompt="information_think", max_tokens=900)
  row = judge._row(PREMISE * 100, CLAIM)
  text = judge._tokenizer.decode(row)
  assert 850 < len(row) <= 900 and CLAIM in text and "Write only that digit." in text and PREMISE in text
  assert judge._row(PREMISE, CLAIM * 100) is None
  assert judge.judge([(PREMISE, CLAIM * 100)]) == [None]


def test_a_reward_model_whose_template_forgets_thoughts_has_our_markers_and_one_that_opens_them_is_refused(tmp_path):
  folder = judge_folders.decoder(tmp_path, small_tokenizers.FORGETFUL)  # as Qwen3's
  judge = local.RewardModel(folder, prompt="information_think")
  ours = HuggingFaceTokenizer(folder, markers="own")
  assert judge._row(PREMISE, CLAIM) == ours.render(prompts.get("information_think").messages(PREMISE, CLAIM))
  opens = small_tokenizers.CHATML.replace("{{ m.role }}\n", "{{ m.role }}\n{{ '<think>\n' * (m.role == 'assistant') }}")
  small_tokenizers.byte_level(folder, template=opens.replace("assistant\n", "assistant\n<think>\n"))
  refused("opens a thought", local.RewardModel, folder, prompt="information_think")


@pytest.mark.slow  # three decoders are compiled
def test_reward_model_from_adapters(decoder_folder, tmp_path, caplog):
  # Adapters that are zero change only the mark. Other adapters make another judge.
  plain = local.RewardModel(decoder_folder, prompt="information_think", threshold=0.0, max_tokens=1024)
  for number, scale in enumerate((0.0, 5.0)):
    model, _ = weights.load_pretrained(decoder_folder)
    lora.add(model, rank=2, alpha=4.0, layers="q down", seed=1)
    graphdef, adapters, rest = lora.split(model)
    model = nnx.merge(graphdef, jax.tree.map(lambda x, scale=scale: x + scale, adapters), rest)
    lora.save_adapters(model, tmp_path / str(number), base=str(decoder_folder))
    if number:  # their own template is not used, and that is said
      (tmp_path / str(number) / "chat_template.jinja").write_text(small_tokenizers.FORGETFUL)
    judge = local.RewardModel(tmp_path / str(number), prompt="information_think", threshold=0.0, max_tokens=1024)
    same = judge.judge([(PREMISE, CLAIM)])[0] == pytest.approx(plain.judge([(PREMISE, CLAIM)])[0], abs=1e-6)
    assert same == (scale == 0.0) and judge.describe()["weights"] != plain.describe()["weights"]
    assert ("have a chat template that is not the one" in caplog.text) == bool(number)


def test_terms_share_the_weights_of_a_reward_model(decoder_folder):
  base = Judge(kind="reward_model", path=str(decoder_folder))
  first, second = judging.of_steps(base, {}, ("information_think", "think_search")).values()
  assert first._compute is second._compute and first.describe() != second.describe()
  assert (first.describe()["prompt"], second.describe()["prompt"]) == ("information_think", "think_search")
  other = judging.of_steps(base, dict(think_search=dict(max_tokens=64)), ("information_think", "think_search"))
  assert len({judge._compute for judge in other.values()}) == 2


def test_weights_wording_and_template_identify_a_judge(t5_folder, decoder_folder, tmp_path):
  one = local.RewardModel(decoder_folder, prompt="information_think").describe()
  assert one != local.RewardModel(decoder_folder, prompt="think_search").describe()
  assert one == local.RewardModel(decoder_folder, prompt="information_think", batch=3).describe()
  assert local.NLI(t5_folder).describe()["weights"] != one["weights"]
  spaced = judge_folders.decoder(tmp_path, small_tokenizers.CHATML.replace("<|im_start|>", "<|im_start|> "))
  other = local.RewardModel(spaced, prompt="information_think").describe()
  assert other["weights"] == one["weights"] and other != one
  assert one["threshold"] == 0.5


def test_folders_without_a_judge_are_refused(t5_folder, decoder_folder, tmp_path, monkeypatch):
  (tmp_path / "config.json").write_text((t5_folder / "config.json").read_text())
  reward_model = functools.partial(local.RewardModel, prompt="information_think")
  lacks = (local.NLI, decoder_folder, "must be t5"), (local.NLI, tmp_path, "no tokenizer")
  for kind, folder, says in (*lacks, (reward_model, t5_folder, "no tokenizer")):
    refused(says, kind, folder)
  monkeypatch.setattr(local.t5, "load_t5", mock.Mock(side_effect=AssertionError("read")))
  for sizes in (dict(max_tokens=8193), dict(batch=0)):
    refused("max_tokens 1 to 8192 .config.judge", local.NLI, t5_folder, **sizes)
