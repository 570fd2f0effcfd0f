"""Which tokens a teacher scores, how much they weigh, and which models may teach."""

import dataclasses

import numpy as np
import pytest
from refusals import refused
from scripted_server import continuation, serving

from ragrl_jax import config as config_lib, recipes, settings
from ragrl_jax.chat.client import NoCompletion
from ragrl_jax.learner import packing
from ragrl_jax.prompting import sentencepiece
from ragrl_jax.prompting.tokenizer import ByteTokenizer, load_tokenizer
from ragrl_jax.run import rewards, teaching
from ragrl_jax.settings.learning import Loss, Teacher
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example, Passage

RECIPE = recipes.get("search_r1")
EXAMPLE = Example("1", "Who?", ("Ann",))
ASKED = "<think> Ann? Or who. </think><search> who </search>"
RESULTS = '\n\n<information>Doc 1(Title: "T") Ann.</information>\n\n'


def taught(answer="Ann", step=1, steps=10, opening="", asked=ASKED, query="who", **how):
  """The text of the taught tokens, and their weight."""
  turns = [(MODEL, asked), (ENVIRONMENT, RESULTS), (MODEL, f"<answer> {answer} </answer>")]
  episode = Episode.from_text(RECIPE, EXAMPLE, turns)
  prompt = dataclasses.replace(episode.segments[0], text=episode.segments[0].text + opening)
  rest = [dataclasses.replace(one, query=query) if one.query else one for one in episode.segments[1:]]
  episode = dataclasses.replace(episode, segments=(prompt, *rest))
  config = config_lib.default_config()
  config.steps = steps
  config.loss.teacher.update(dict(path="x", **how))
  scored = rewards.score(RECIPE, [EXAMPLE], [episode], step)
  (item,) = teaching.items(scored, settings.of(config), step, RECIPE, ByteTokenizer())
  on = item.teaching > 0
  return bytes(item.tokens[on].tolist()).decode(), float(item.teaching.max())


def test_the_tokens_that_are_taught():
  assert taught()[0] == f"{ASKED}<answer> Ann </answer>"
  assert [taught(tokens=kind)[0] for kind in ("queries", "answers")] == ["who", "Ann"]  # "who" of the search only
  muses = "<answer> Bob </answer>?</think><search> who </search>"  # in a thought that the chat template opened
  assert taught(tokens="answers", opening="<think>\n", asked=muses)[0] == "Ann"
  several = "<search> Bob </search><search> who </search>"  # calls of one turn
  assert taught(tokens="queries", asked=several, query="Bob; who")[0] == "Bobwho"
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
  of = lambda name: settings.Settings(loss=Loss(teacher=Teacher(path=str(tmp_path / name))))
  teaching.check_tokens(of("a"), ours)
  refused("must have the same tokenizer", teaching.check_tokens, of("b"), ours)


def test_a_policy_is_told_where_or_what_the_answer_is():
  passages = (Passage("a", "Ann", "She did it."), Passage("b", "Bob", "He did not."))
  example = Example("1", "Who?", ("Ann", "A."), passages, supporting=(0,))
  tokenizer = ByteTokenizer()
  shown = tuple(tokenizer.render(RECIPE.prompt.messages(example)))
  prompt = lambda tells, example, shown: teaching.teacher_prompt(example, shown, tells, RECIPE, tokenizer)
  tell = lambda tells, example=example, shown=shown: tokenizer.decode(prompt(tells, example, shown))
  own = tokenizer.decode(shown).rstrip()
  assert tell("answer") == f"{own}\n\nThe answer is: Ann\n"
  where = "The answer is in:\n\n<information>Doc 1(Title: Ann) She did it.</information>"
  assert tell("passages") == f"{own}\n\n{where}\n"
  assert tell("answer", shown=(65, 66)) == "The answer is: Ann\n\nAB"  # a prompt that the recipe did not write
  assert tell("passages", EXAMPLE) == ""
  config = config_lib.default_config()
  config.loss.teacher.path = "policy"
  refused("no question of config.data.train has supporting", teaching.check_prompts, settings.of(config), [EXAMPLE])
  config.data.own_passages = False
  refused("train with config.data.own_passages=False has", teaching.check_prompts, settings.of(config), [EXAMPLE])


def scoring(shift=0, cut=None):
  """A server's answer for a text of bytes: id i has log-probability -i / 100; a mistaken one shifts the texts."""

  def answer(ids, number):
    tokens = [chr(i + shift) for i in ids] + ["x"]
    values = [None, *(-i / 100 for i in ids[1:]), -9.0]
    return continuation("x", logprobs=dict(tokens=tokens[:cut], token_logprobs=values[:cut]))

  return answer


def behind(endpoint):
  config = config_lib.default_config()
  config.loss.teacher.update(dict(path=endpoint, model="m", kind="k1", key_variable="TEACHER_KEY"))
  return settings.of(config).loss.teacher


def test_a_server_scores_the_ids_it_is_given(monkeypatch):
  monkeypatch.setenv("TEACHER_KEY", "s3cret")
  item = lambda text, weight: packing.Item(
    np.frombuffer(text, np.uint8), np.ones(len(text), bool), *np.zeros((2, len(text))),
    teaching=np.full(len(text), weight, np.float32),
  )  # fmt: skip
  with serving(scoring()) as (endpoint, server):
    made = teaching.RemoteTeacher(behind(endpoint), ByteTokenizer())
    first, second, third = teaching.ask_teacher([item(b"abc", 1.0), item(b"no", 0.0), item(b"de", 1.0)], made)
  np.testing.assert_allclose(first.teacher_logprobs, [0, -0.98, -0.99], rtol=1e-6)
  np.testing.assert_allclose(third.teacher_logprobs, [0, -1.01], rtol=1e-6)
  assert not second.teacher_logprobs.any() and len(server.asked) == 3  # the probe, and the two that are taught
  asked = {name: server.asked[1][name] for name in ("echo", "logprobs", "max_tokens", "temperature", "model")}
  assert asked == dict(echo=True, logprobs=1, max_tokens=1, temperature=1.0, model="m")
  assert {tuple(one["prompt"]) for one in server.asked[1:]} == {tuple(b"abc"), tuple(b"de")}
  assert set(server.keys) == {"Bearer s3cret"}


def test_a_server_with_other_tokens_or_without_scores_is_refused():
  with serving(scoring(shift=1)) as (endpoint, _), pytest.raises(ValueError, match="must have the policy's tokenizer"):
    teaching.RemoteTeacher(behind(endpoint), ByteTokenizer())
  with serving(scoring(cut=3)) as (endpoint, _), pytest.raises(NoCompletion, match="3 log-probabilities for 68 ids"):
    teaching.RemoteTeacher(behind(endpoint), ByteTokenizer())


@pytest.mark.parametrize("how", [
  dict(kind="reverse", model="m"), dict(kind="k1"), dict(kind="k1", model="m", temperature=0.9),
])  # fmt: skip
def test_a_server_scores_sampled_tokens_at_temperature_one(how):
  config = config_lib.default_config()
  config.rollout.temperature = how.pop("temperature", 1.0)
  config.loss.teacher.update(dict(path="http://localhost/v1") | how)
  refused("says the log-probabilities of sampled tokens only|at temperature 1", settings.of, config)
