"""Which tokens a teacher scores, how much they weigh, and which models may teach."""

import numpy as np
import pytest

from ragrl_jax import config as config_lib
from ragrl_jax import recipes, settings
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.prompting.bytes import ByteTokenizer
from ragrl_jax.prompting.tokenizer import load_tokenizer
from ragrl_jax.run import rewards, teaching
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage

RECIPE = recipes.get("search_r1")
EXAMPLE = Example("1", "Who?", ("Ann",))
ASKED = "<think> Ann? Or who. </think><search> who </search>"
RESULTS = '\n\n<information>Doc 1(Title: "T") Ann.</information>\n\n'


def taught(answer="Ann", step=1, steps=10, **how):
  """The text of the taught tokens, and their weight."""
  turns = [(MODEL, ASKED), (ENVIRONMENT, RESULTS), (MODEL, f"<answer> {answer} </answer>")]
  episode = Episode.from_text(RECIPE, EXAMPLE, turns)
  config = config_lib.default_config()
  config.steps = steps
  config.loss.teacher.update(dict(path="x", **how))
  scored = rewards.score(RECIPE, [EXAMPLE], [episode], step)
  (item,) = teaching.items(scored, settings.of(config), step, RECIPE, ByteTokenizer())
  on = item.teaching > 0
  return bytes(item.tokens[on].tolist()).decode(), float(item.teaching.max())


def test_the_tokens_that_are_taught():
  assert taught()[0] == f"{ASKED}<answer> Ann </answer>"
  assert taught(tokens="queries")[0] == "who"  # the search, not the thought's word
  assert taught(tokens="answers")[0] == "Ann"
  assert taught(tokens="thought")[0] == ASKED.replace(" who </search>", "  </search>") + "<answer>  </answer>"


def test_only_failed_episodes_are_taught_if_asked():
  assert taught("Bob", episodes="failed", coef=0.001) == (f"{ASKED}<answer> Bob </answer>", pytest.approx(0.001))
  assert taught("Ann", episodes="failed") == ("", 0.0)


def test_the_weight_goes_on_a_straight_line_to_its_final_value():
  weights = [taught(step=step, coef=2.0, final_coef=1.0, steps=5)[1] for step in range(1, 6)]
  np.testing.assert_allclose(weights, [2.0, 1.75, 1.5, 1.25, 1.0])
  sooner = [taught(step=step, coef=2.0, final_coef=1.0, final_step=2)[1] for step in (1, 2, 9)]
  np.testing.assert_allclose(sooner, [2.0, 1.0, 1.0])


def test_a_teacher_has_the_same_tokens_wherever_its_files_are(tmp_path):
  lines = ["one two three four five six seven eight nine ten"] * 30
  for name, mark in (("a", "<a>"), ("b", "<b>")):
    (tmp_path / name).mkdir()
    sentencepiece.train(lines, vocab_size=300, marks=[mark], path=tmp_path / name / "tokenizer.model", threads=1)
  ours = load_tokenizer(tmp_path / "a" / "tokenizer.model")
  teaching.check_tokens(str(tmp_path / "a"), ours)
  with pytest.raises(ValueError, match="must have the same tokenizer"):
    teaching.check_tokens(str(tmp_path / "b"), ours)


def test_a_policy_is_told_where_or_what_the_answer_is():
  passages = (Passage("a", "Ann", "She did it."), Passage("b", "Bob", "He did not."))
  example = Example("1", "Who?", ("Ann", "A."), passages, supporting=(0,))
  tokenizer = ByteTokenizer()
  shown = tuple(tokenizer.render(RECIPE.prompt.messages(example)))
  tell = lambda tells, example=example, shown=shown: tokenizer.decode(
    teaching.told_prompt(example, shown, tells, RECIPE, tokenizer)
  )
  own = tokenizer.decode(shown).rstrip()
  assert tell("answer") == f"{own}\n\nThe answer is: Ann\n"
  where = "The answer is in:\n\n<information>Doc 1(Title: Ann) She did it.</information>"
  assert tell("passages") == f"{own}\n\n{where}\n"
  assert tell("answer", shown=(65, 66)) == "The answer is: Ann\n\nAB"  # a prompt that the recipe did not write
  assert tell("passages", EXAMPLE) == ""
  config = config_lib.default_config()
  config.loss.teacher.path = "policy"
  with pytest.raises(ValueError, match="no question of config.data.train has supporting passages"):
    teaching.check_told(settings.of(config), [EXAMPLE])
