"""CARE's curriculum over the real data sets: RAGRL_DATA, or the folder shared/data beside the repository."""

import os
import pathlib

import pytest

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.run import questions

ROOT = pathlib.Path(__file__).parents[2]
HERE = pathlib.Path(os.environ.get("RAGRL_DATA") or ROOT.parent / "shared" / "data") / "qa"
pytestmark = [
  pytest.mark.real,
  pytest.mark.skipif(not HERE.is_dir(), reason=f"no real questions in {HERE}: set RAGRL_DATA"),
]
PROMPTS, WINDOW = 64, 25


@pytest.mark.parametrize("preset", ["paper", "repo", "easy_only"])
@pytest.mark.parametrize("hard", ["msmarco_sample", "musique_train"])  # the paper's, and the authors' code's
def test_easy_and_hard_rows_in_their_shares(hard, preset):
  config = config_lib.load(ROOT / "configs" / "care.py")
  config.data.update(dict(train=str(HERE / "drop_dev.jsonl.gz"), hard=str(HERE / f"{hard}.jsonl.gz")))
  config.rollout.update(dict(prompts_per_step=PROMPTS, context=14_000, max_new_tokens=2_000))  # a token is a byte
  recipe, tokenizer = recipes.get("care", preset), ByteTokenizer()
  examples, draws = questions.training(config, recipe, tokenizer)
  sources = [example.source for example in examples]
  assert len(set(sources)) == 2 and len(examples) == draws.easy + draws.hard
  lengths = [len(tokenizer.render(recipe.prompt.messages(example))) for example in examples]
  assert max(lengths) <= 12_000  # questions that are too long are left out
  if hard == "musique_train":
    assert 0 < draws.hard < 93  # twenty paragraphs do not always fit
  assert draws.draw(100 * PROMPTS, 8) == draws.draw(99 * PROMPTS, 72)[64:]

  steps = config.steps
  drawn = [sources[place] for _, place in draws.draw(0, steps * PROMPTS)]
  for start in range(0, steps, WINDOW):
    window = drawn[start * PROMPTS : (start + WINDOW) * PROMPTS]
    expected = sum(recipe.mixture(step, steps) for step in range(start, start + WINDOW)) / WINDOW
    share = window.count(sources[0]) / len(window)
    assert abs(share - expected) <= 5 * (expected * (1 - expected) / len(window)) ** 0.5
  last = drawn[-PROMPTS:]
  assert last.count(sources[0]) == {"paper": 0, "easy_only": PROMPTS}.get(preset, last.count(sources[0]))
