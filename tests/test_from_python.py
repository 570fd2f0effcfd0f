"""The jobs as a notebook calls them: keywords, a reward, a corpus, callbacks, and results to look at."""

import dataclasses
import functools
import html
import pathlib
import re
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
import tiny_world
import tqdm
from refusals import refused

import ragrl_jax
from ragrl_jax import config as config_lib, recipes, settings, structs, testing
from ragrl_jax.jobs import checkpoints, from_python
from ragrl_jax.report import inline
from ragrl_jax.run import prepared as prepared_lib, progress
from ragrl_jax.store import episodes, jsonl

ROOT = pathlib.Path(ragrl_jax.__file__).parent


def reward(example, episode):
  return len(episode.model_text) % 7 / 7


def shown(result) -> str:
  """The page in a result's frame."""
  frame = r'<iframe sandbox="allow-scripts" style="[^"]*" srcdoc="([^"]*)"></iframe>'
  (page,) = re.findall(frame, result._repr_html_())
  return html.unescape(page)


@pytest.mark.slow  # two runs of two starts each, and two evaluations
def test_a_run_from_keywords_to_a_comparison(world, tmp_path, capsys):
  calls, config = [], tiny_world.config(world)
  config.retrieval.index, config.checkpoint.every = "", 50

  def start(on_step=None, reward=reward, name="run", **how):
    given = dict(questions=f"{world}/train.jsonl", held_out=f"{world}/held_out.jsonl", corpus=world / "corpus.jsonl")
    return ragrl_jax.train(config, tmp_path / name, **given, reward=reward, on_step=on_step, **how)

  def stop(at, error):
    def on_step(step, row):
      calls.append((step, row["step"]))
      if step == at:
        raise error

    return on_step

  with pytest.raises(RuntimeError, match="before step 1"):
    start(stop(0, RuntimeError("before step 1")), settings={"evaluate.every": 1})
  refused("seen enough", start, stop(2, RuntimeError("seen enough")), error=RuntimeError)
  assert calls == [(0, 0), (0, 0), (1, 1), (2, 2)]
  assert tiny_world.checkpoints(tmp_path / "run") == [2]
  refused("config.reward.function .its contents. was '[0-9a-f]{16}', is ''", start, reward=None)
  with pytest.raises(ZeroDivisionError):  # at the last step: the run is finished all the same
    start(stop(3, ZeroDivisionError()))
  run = start()
  assert "is finished: it has its 3 steps" in capsys.readouterr().out
  assert [row["step"] for row in run.rows] == [0, 1, 2, 3] and 0 < run.rows[-1]["term/reward"] < 1
  assert run.rows[-1]["weight/reward"] == 1 and run.page.is_file() and "evaluation/em" in run.rows[-1]

  start(name="whole")  # like the run that was stopped
  assert tiny_world.assert_same(tmp_path / "whole", tmp_path / "run") == 3
  (index,) = tmp_path.glob("index_*")  # made once for both
  assert jsonl.read_object(run.workdir / "config.json")["retrieval"]["index"] == str(index)
  page = shown(run)
  assert page.startswith("<!doctype html>") and '"reward"' in page and 'id="step-' in page

  one = ragrl_jax.evaluate(run, f"{world}/held_out.jsonl", tmp_path / "one")
  two = ragrl_jax.evaluate(run, f"{world}/held_out.jsonl", tmp_path / "two", settings={"rollout.max_new_tokens": 4})
  assert one["n"] == 8 and one == jsonl.read_object(tmp_path / "one" / "metrics.json") and "one" in shown(one)
  compared = ragrl_jax.compare(one, two)
  assert "em" in compared and "p, paired by question" in str(compared) and "one → two" in shown(compared)
  probed = ragrl_jax.probe(run, f"{world}/held_out.jsonl", tmp_path / "probe")
  assert "Verdict: undecided." in repr(probed) == jsonl.read_object(tmp_path / "probe" / "probe.json")["text"]
  page = shown(probed)
  assert "Does it really search?" in page and "Verdict: undecided." in page and "empty → own" in page
  [(_, episode)] = asked = ragrl_jax.ask(run, ["Who is <b>it</b>?"])
  assert "&lt;b&gt;it" in asked._repr_html_() and "<b>" not in asked._repr_html_() and episode.num_model_tokens


@pytest.mark.long  # two runs
def test_fine_tuning_is_stopped_and_continued(world, tmp_path):
  config, steps = tiny_world.config(world, variant="sft"), []
  config.checkpoint.every, config.data.train = 50, ""

  def on_step(step, row):
    steps.append(step)
    if len(steps) == 1:
      raise RuntimeError("stop")

  given = dict(transcripts=f"{world}/demonstrations.jsonl", steps=2, on_step=on_step)
  refused("stop", ragrl_jax.sft, config, tmp_path / "tuned", **given, error=RuntimeError)
  run = ragrl_jax.sft(config, tmp_path / "tuned", **given)
  assert steps == [1, 2] and (run.workdir / "model" / "config.json").is_file() and "loss" in shown(run)


def test_settings_by_keyword():
  more = {"rollout.group_size": np.int64(3)}
  made = from_python._set("search_r1", {"model.path": "m", "data.train": "q", "steps": 0}, more)
  plain = ragrl_jax.Config("search_r1")
  assert (made.model.path, made.steps, made.rollout.group_size) == ("m", plain.steps, 3)
  assert made.data.evaluate == "" and plain.data.evaluate  # own questions, so no other set of the config is read
  again = from_python._set(plain, {"data.evaluate": "dev"}, None)
  assert again.data.evaluate == "dev" and plain.data.evaluate != "dev" and again.data.train == plain.data.train
  assert from_python._set(plain, {"model.path": pathlib.Path("out/m")}, None).model.path == "out/m"
  for config, values, says in (
    ("small", {"rollout.group_sise": 3}, "no setting 'rollout.group_sise'; did you mean 'rollout.group_size'"),
    ("small", {"rollout.group_size": "many"}, "config.rollout.group_size='many': it must be like 8"),
    ("search_r1", {"switches.max_searches": "3"}, "max_searches='3': it must be like a value of the type int"),
    ({"steps": 3}, {}, "config: a dict, but it must be a ragrl_jax.Config"),
  ):
    refused(says, from_python._set, config, {}, values)


def test_paths_may_begin_with_the_users_home_and_rows_are_none(monkeypatch):
  monkeypatch.setenv("HOME", "/home/me")
  assert from_python._paths(a="~/x", b=None, c=pathlib.Path("~"), d="") == ["/home/me/x", "", "/home/me", ""]
  says = "questions: it must be a path or a name, this is of the type list. Write rows to a file"
  refused(says, ragrl_jax.train, questions=[dict(question="Who?")])
  refused("workdir is empty: name a folder", ragrl_jax.train, workdir="")


@pytest.mark.parametrize("given, says", [
  (dict(reward="em", settings={"mesh.data": 1, "prompting.tokenizer": "bytes"}), "it must be a function reward"),
  (dict(settings={"stepz": 3}), "no setting 'stepz'"), (dict(questions="/none.jsonl"), "/none.jsonl: there is no file"),
])  # fmt: skip
def test_mistakes_are_refused_before_documents_are_indexed(given, says, tmp_path, monkeypatch):
  (tmp_path / "a.txt").write_text("It rains.")
  monkeypatch.setattr(from_python.retrieval, "build_index", mock.Mock(side_effect=AssertionError("indexed")))
  refused(says, ragrl_jax.train, "", tmp_path / "run", corpus=tmp_path / "a.txt", **given, error=(ValueError, OSError))


def test_one_question_is_asked_and_a_config_is_found_by_its_name(monkeypatch):
  """Not each of its letters."""
  (served := ragrl_jax.Config("small:lear")).endpoint.model = "m"
  refused("endpoint.model='m': .*here the checkpoint would", checkpoints.opened, served, "model")
  asked, stop = [], lambda config, checkpoint: next(iter(()))
  monkeypatch.setattr(checkpoints, "opened", stop)
  monkeypatch.setattr(checkpoints.questions_lib, "check_passages", lambda *given: asked.append(given))
  for questions in ("Who?", ["Who?"], structs.Example("", "Who?", ()), [structs.Example("", "Who?", ())]):
    with pytest.raises(StopIteration):
      ragrl_jax.ask("model", questions, config="small:lear")
    config, recipe, examples, _ = asked.pop()
    assert [one.question for one in examples] == ["Who?"] and config.recipe == recipe.name == "lear"
  for questions in (dict(question="Who?"), [dict(question="Who?")], [None], " ", [7]):
    refused("is no question: give texts, or Examples", ragrl_jax.ask, "model", questions, config="small:lear")


def test_what_there_is_to_search_chooses_the_config(tmp_path, monkeypatch):
  configs = []
  monkeypatch.setattr(prepared_lib, "prepare", lambda config, workdir: configs.append(config))
  monkeypatch.setattr(from_python, "trained", lambda *given, **how: None)
  (tmp_path / "documents").mkdir()
  (tmp_path / "documents" / "a.txt").write_text("Velmar has a port.")
  from_python.train(workdir=tmp_path / "run", corpus=tmp_path / "documents", steps=7)
  from_python.train(workdir=tmp_path / "run", corpus="http://localhost:1")
  from_python.train(workdir=tmp_path / "run")
  refused("'sft' of --config has the settings of `ragrl sft`", from_python.train, "care:sft", tmp_path / "run")
  searches, remote, alone = configs
  assert (searches.preset, remote.preset, alone.preset) == ("paper", "paper", "r1")
  assert remote.retrieval.index == "http://localhost:1" and not alone.retrieval.index and searches.steps == 7


def test_a_corpus_is_indexed_once_by_its_contents(tmp_path):
  said, corpus = [], tmp_path / "documents"
  corpus.mkdir()
  (corpus / "a.md").write_text("# Velmar\nIt has a port.")

  def indexed(corpus, name="out"):
    index = from_python._index(str(corpus), tmp_path / name)
    from_python._fill(index, str(corpus), said.append)
    return index

  made = indexed(corpus)
  assert ragrl_jax.load_index(made).search(["port"], 1)[0][0].text
  corpus.rename(tmp_path / "documents_2")
  assert indexed(tmp_path / "documents_2") == made and len(said) == 1
  assert indexed(made, "other") == made  # an index is used as it is
  (tmp_path / "documents_2" / "a.md").write_text("# Velmar\nIt has two ports.")
  assert indexed(tmp_path / "documents_2") != made


class Whole:
  def __call__(self, example, episode):
    return 1.0


class Half:
  def __call__(self, example, episode):
    return 0.5


def test_a_reward_is_known_by_what_is_called_and_its_plain_values():
  before = prepared_lib.Prepared(None, recipes.get("search_r1"), None, None, None)
  partials = [functools.partial(called, **how) for called in (reward, max) for how in (dict(n=1), dict(n=2), {})]
  told = lambda given: [prepared_lib.with_reward(before, one).reward for one in given]
  assert len({*told([Whole(), Half(), reward, *partials])}) == 9
  assert told([Half()]) == told([Half()]) and len({*told(functools.partial(reward, n=Half()) for _ in "ab")}) == 1


def test_a_reward_takes_the_place_of_all_terms_and_is_a_number_or_none():
  recipe = recipes.get("when_to_search", similarity="ngrams")
  example = structs.Example("q", "Where?", ("Velmar",))
  episode = structs.Episode.from_text(recipe, example, [("model", "<answer>Velmar</answer>")])
  before = prepared_lib.Prepared(None, recipe, None, None, None)
  made = prepared_lib.with_reward(before, reward)
  assert made.recipe.weights(5) == {"reward": 1.0}
  assert made.recipe.score(example, episode) == {"reward": reward(example, episode)}
  assert made.recipe.outcome(example, episode) == recipe.outcome(example, episode) == 1
  for half in (np.float32(0.5), np.asarray(0.5), jnp.float32(0.5)):
    score = prepared_lib.with_reward(before, lambda example, episode, half=half: half).recipe.score
    assert made.recipe.reward(score(example, episode), 1) == 0.5
  other = prepared_lib.with_reward(before, lambda example, episode: None)
  assert made.reward != other.reward != before.reward == ""
  assert prepared_lib.with_reward(before, max).reward  # without a text
  for other in ("em", len, lambda completions, **more: 1.0):
    refused(r"must be a function reward\(example, episode\)", prepared_lib.with_reward, before, other)
  staged = dataclasses.replace(recipe, paced=lambda steps: staged, next_recipe=lambda rows: staged)
  made = prepared_lib.with_reward(dataclasses.replace(before, recipe=staged), reward).recipe
  assert made.paced(3.0).next_recipe([]).weights(1) == {"reward": 1.0}  # later stages have it, too
  before = dataclasses.replace(before, recipe=recipes.get("search_r1"))
  recipe = prepared_lib.with_reward(before, reward).recipe
  assert recipe.reward({"reward": True}, 1) == 1.0 and recipe.reward({"reward": None}, 1) is None
  says = r"score\(\) returned 'high' for the term 'reward': it must return a number"
  refused(says, recipe.reward, {"reward": "high"}, 1)


def test_what_is_shown_is_escaped():
  assert 'srcdoc="&lt;p title=&quot;&amp;quot;&quot;&gt;"' in inline.framed('<p title="&quot;">')
  example = structs.Example("q", "</pre><script>1</script>", ())
  episode = structs.Episode.from_text(recipes.get("search_r1"), example, [("model", "<answer> </pre><i> </answer>")])
  row = episodes.row(example, episode, terms={}, weights={}, reward=None, outcome=None)
  page = inline.Answers([("a", episode)], [row])._repr_html_()
  assert page.count("<") == 2 and "gold:" not in page and "ended by │ &lt;/answer&gt;" in page
  text = inline.Comparison({}, ["a", "b", "c"], "a < b")
  assert text._repr_html_() == "<pre>a &lt; b</pre>" and str(text) == "a < b"


def test_the_package_needs_no_notebook():
  named = [path for path in ROOT.rglob("*.py") if re.search("IPython|ipywidgets", path.read_text(encoding="utf-8"))]
  assert not named


def test_a_resumed_run_shows_the_time_of_its_own_steps_and_what_the_filter_left_out(monkeypatch):
  now, seen = [0.0], []

  def rows():
    for step in (51, 52):
      now[0] += 120.0
      yield {"step": step, "outcome": 0.5, "groups/metric": 0.25}

  monkeypatch.setattr(tqdm.std, "time", lambda: now[0])
  keep = lambda bar, text: seen.append((bar.n, 1 / bar.format_dict["rate"], text))
  monkeypatch.setattr(from_python.tqdm, "set_postfix_str", keep)
  from_python._to_the_end(rows(), 100, None, progress.headline)
  assert seen == [(step, pytest.approx(120), "outcome 0.500 before filter 0.250") for step in (51, 52)]


def test_steps_take_the_place_of_epochs(tmp_path, monkeypatch):
  made = []
  monkeypatch.setattr(from_python, "tuned", lambda prepared, *given, **how: made.append(prepared.settings))
  from_python.sft(workdir=tmp_path, transcripts="none.jsonl", steps=9, settings=testing.TINY | {"mesh.data": 1})
  assert (made[0].steps, made[0].sft.epochs, made[0].data.train) == (9, 0, "none.jsonl")


def test_the_default_config_is_the_default_recipes():
  assert from_python._default("") == "small:" + config_lib.default_config().recipe
  alone = prepared_lib.recipe(settings.of(ragrl_jax.Config(from_python._default(",r1"))))
  assert not alone.searches and "search" not in alone.prompt.messages(structs.Example("q", "Who?", ()))[0]["content"]
