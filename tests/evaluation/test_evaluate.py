"""evaluate.py with a real tiny model and live search."""

import json

import pytest
from refusals import refused

import ragrl_jax
from ragrl_jax import config as config_lib, retrieval, settings, structs
from ragrl_jax.data import writers
from ragrl_jax.jobs import checkpoints, evaluate, probe
from ragrl_jax.learner import learner as learner_lib, settings as settings_lib
from ragrl_jax.models import weights
from ragrl_jax.report import evaluation_page
from ragrl_jax.run import player as player_lib
from ragrl_jax.run.prepared import prepare
from ragrl_jax.store import changes, checkpoint, jsonl

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("share_programs")]  # builds an engine for each test

EXAMPLES = [structs.Example(f"q{i}", f"Where is {i}?", (f"town {i}",), hops=1 + i % 2) for i in range(7)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """(a folder with questions, an index and a model, a config that fits them, the player)."""
  place = tmp_path_factory.mktemp("evaluate")
  writers.write_examples(place / "questions.jsonl.gz", EXAMPLES)
  passages = [structs.Passage(str(i), f"Town {i}", f"Town {i} is where {i} is.") for i in range(9)]
  retrieval.build_index(passages, "hashing", place / "index")
  config = config_lib.default_config()
  config.recipe, config.switches = "search_r1", dict(instructions="none", max_searches=1)
  config.prompting.update(dict(tokenizer="bytes", chat=False))
  shape = dict(family="qwen3", d_model=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8)
  config.model.shape = shape | dict(d_ff=32, rope_theta=1e4, tied=True)
  config.retrieval.update(dict(index=str(place / "index"), top_k=1))
  config.rollout.update(dict(lanes=2, rows=4, context=256, chunk=8, prefill=32, page=64, max_new_tokens=8))
  config.evaluate.batch, config.mesh.data, config.log.price_per_hour = 3, 2, 3.6e6
  player = player_lib.build(prepare(config))
  weights.save_pretrained(player.model, player.config, place / "model")
  return place, config, player


@pytest.fixture
def place(made):
  return made[0]


@pytest.fixture
def config(made):
  return made[1].copy_and_resolve_references()


def predictions(out):
  return list(jsonl.read(out / "predictions.jsonl"))


def run(place, config, out, *, checkpoint="model", **more):
  return evaluate.evaluate(config, place / checkpoint, str(place / "questions.jsonl.gz"), place / out, **more)


@pytest.fixture(scope="module")
def whole(made):
  """(metrics, predictions) of one evaluation without interruption."""
  place, config, _ = made
  return run(place, config, "whole"), predictions(place / "whole")


def test_a_checkpoint_is_scored(made, place, config, whole):
  metrics, got = whole
  assert [row["id"] for row in got] == [e.id for e in EXAMPLES] and metrics["n"] == 7
  found = metrics["settings"]["retrieval"]
  assert (metrics["by_hops"]["1"]["n"], found["top_k"], found["encoder"]["kind"]) == (4, 1, "hashing")
  assert all(row["ended"] != "failed" and row["response_tokens"] > 0 for row in got)
  assert metrics["devices"] == "8 x cpu" and metrics["price"] == pytest.approx(1000 * metrics["seconds"], abs=1)
  assert made[1].model.path == ""  # the caller's config is not changed
  config.evaluate.batch = 1  # what is played beside an answer does not change it
  assert run(place, config, "one_by_one")["latency"] > 0 and predictions(place / "one_by_one") == got


def saved(folder, model, typed, host, **how):
  """The folder of a run with a checkpoint of its third step."""
  learning = settings_lib.from_config(typed, **how)
  learner = learner_lib.Learner(model, learning, settings_lib.optimizer_from_config(typed))
  checkpoints = checkpoint.Checkpoints(folder / "checkpoints", keep=2)
  checkpoints.save(3, learner.init(0), host=host)
  checkpoints.close()


@pytest.mark.long  # compiles another engine
def test_a_runs_checkpoint_scores_as_its_exported_model(made, place, config, whole):
  metrics, got = whole
  saved(place / "run", made[2].model, settings.of(config), dict(step=3))
  trained, other = config.copy_and_resolve_references(), config.copy_and_resolve_references()
  trained.steps, trained.optimizer.warmup_steps = 9, 5
  changes.write(place / "run", settings.of(trained), "rl")
  other.steps = 2  # shorter than the warm-up: the optimizer is that of the run
  other.model.shape.update(dict(d_model=32, num_layers=2))  # the checkpoint decides which model is loaded
  by_run = run(place, other, "by_run", checkpoint="run")
  assert predictions(place / "by_run") == got
  assert by_run["settings"]["weights"] == metrics["settings"]["weights"]
  run(place, None, "as_the_run", checkpoint="run")  # with the settings of its config.json
  assert predictions(place / "as_the_run") == got
  replies = ragrl_jax.ask(place / "run", [EXAMPLES[2].question, EXAMPLES[0]])
  of = [(got[i]["prediction"], got[i]["response_tokens"]) for i in (2, 0)]
  assert [(answer, episode.num_model_tokens) for answer, episode in replies] == of


def test_a_fine_tuned_checkpoint_has_no_critic_though_its_config_has_one(made, place, config, whole):
  config.advantage.kind, config.critic.kind = "gae", "own"
  saved(place / "tuned", made[2].model, settings.of(config), dict(step=3, reached=False), objective="sft")
  changes.write(place / "tuned", settings.of(config), "sft")
  run(place, config, "by_tuned", checkpoint="tuned")
  assert predictions(place / "by_tuned") == whole[1]


def test_a_probe_plays_an_engine_with_each_retriever(place, config, whole):
  probed = lambda out: probe.probe(config, place / "model", str(place / "questions.jsonl.gz"), place / out)
  numbers = probed("probe")
  assert numbers["verdict"] == "undecided" and "at least 30 are needed" in numbers["said"][0]
  assert predictions(place / "probe" / "own" / "seed_0") == whole[1]  # the evaluation itself, which repeats
  of = numbers["retrievers"]
  assert numbers["noise"] == 0.0 and of["again"]["outcome"] == of["own"]["outcome"]
  assert "no row has" in of["oracle"]["unmeasured"]
  stored = json.loads((place / "probe" / "probe.json").read_text())
  page = evaluation_page.write([place / "probe"]).read_text()
  assert stored["coverage"]["passages"] == 9 and "Verdict: undecided." in page and stored["text"][:300] in page
  config.switches.max_searches = 0
  refused("search_r1: its episodes have no searches, so there is nothing to probe", probed, "none")
  config.switches.max_searches, config.retrieval.index = 1, ""
  refused("the run has no retriever", probed, "none")


def test_other_prompts_room_and_noise_are_another_evaluation(made, place, config, whole):
  assert made[2].rollout.reserve == 8 and whole[0]["settings"]["reserve"] is None  # room for a whole turn
  config.rollout.reserve = 3
  assert player_lib.build(prepare(config)).rollout.reserve == 3
  refused("reserve", run, place, config, "whole")  # it changes what the model sees
  config.rollout.reserve = made[1].rollout.reserve
  usual = {"prompting.chat": False, "prompting.tokenizer": "bytes"}
  assert whole[0]["settings"]["other"] == usual
  config.prompting.markers = "own"
  refused("other settings .other: .*prompting.markers", run, place, config, "whole")
  config.prompting.markers, config.rollout.kv_dtype = made[1].prompting.markers, "int8"
  other = evaluate.described(settings.of(config), made[2], sample=False)["other"]
  assert other == usual | {"rollout.kv_dtype": "int8"}


def test_where_checkpoints_are_found_and_a_continued_runs_older_model_is_not_taken(tmp_path):
  (tmp_path / "model").mkdir()
  for name in ("config.json", "model.safetensors"):
    (tmp_path / "model" / name).write_text("{}")
  assert checkpoints.locate(tmp_path) == (tmp_path / "model", None, 0)
  (tmp_path / "checkpoints" / "100").mkdir(parents=True)
  (tmp_path / "finished.json").write_text(json.dumps(dict(step=100, reached=False)))
  assert checkpoints.locate(tmp_path) == (tmp_path / "model", None, 100)  # the version of its weights
  (tmp_path / "finished.json").unlink()  # the run goes on
  assert checkpoints.locate(tmp_path) == (None, tmp_path / "checkpoints", 100)
  for step in (8, 150):
    (tmp_path / "checkpoints" / str(step)).mkdir()
    assert checkpoints.locate(tmp_path / "checkpoints" / str(step)) == (None, tmp_path / "checkpoints", step)
  assert checkpoints.locate(tmp_path) == (None, tmp_path / "checkpoints", 150)
  refused("no model here", checkpoints.locate, tmp_path / "nowhere", error=FileNotFoundError)
  assert checkpoints.locate(tmp_path / "model") == (tmp_path / "model", None, 0)  # asked for by name


def test_the_evaluator_measures_when_it_is_due(made, place, config):
  config.steps, config.evaluate.every, config.data.evaluate = 5, 2, str(place / "questions.jsonl.gz")
  config.evaluate.examples = 4
  measure = evaluate.evaluator(config)
  given = made[2], evaluate.nnx.split(made[2].model)[1]
  assert measure(1, *given) == measure(3, *given) == {} and measure(2, *given)["evaluation/n"] == 4
  assert measure(5, *given) == measure(2, *given)  # greedy answers repeat


def test_the_best_checkpoint_of_a_run(tmp_path):
  rows = [(0, 0.9), (10, 0.2), (20, 0.5), (25, None), (30, 0.5), (40, 0.4)]
  of = lambda value: {} if value is None else {"evaluation/em": value}
  jsonl.write(tmp_path / "metrics.jsonl", [{"step": step} | of(value) for step, value in rows])
  refused("step 20, but this checkpoint was not kept", checkpoints.best, tmp_path, "evaluation/em")
  (tmp_path / "checkpoints" / "20").mkdir(parents=True)
  # The first of equal ones; the weights before training are no checkpoint.
  assert checkpoints.best(tmp_path, "evaluation/em") == tmp_path / "checkpoints" / "20"
  refused("'evaluation/f1'", checkpoints.best, tmp_path, "evaluation/f1")
  undone = [{"step": 50, "evaluation/em": 0.8}, {"step": 51, "rollback/to": 40, "evaluation/em": 0.4}]
  jsonl.write(tmp_path / "metrics.jsonl", [{"step": step} | of(value) for step, value in rows] + undone)
  assert checkpoints.best(tmp_path, "evaluation/em") == tmp_path / "checkpoints" / "20"


@pytest.mark.parametrize(("recipe", "switches"), [
  pytest.param("untrained", dict(method="sure"), marks=pytest.mark.long),
  ("untrained", dict(method="flare", max_searches=2)),
  pytest.param("released", dict(agent="search_o1"), marks=pytest.mark.long),
])  # fmt: skip
def test_methods_are_played_by_an_engine(place, config, recipe, switches):
  """Its words are nonsense; what counts is that stops, conversations and log-probabilities are an engine's."""
  name = "-".join(map(str, (recipe, *switches.values())))
  config.recipe, config.switches, config.data.max_examples = recipe, switches, 3
  config.rollout.update(dict(context=1024, max_new_tokens=16))
  metrics = run(place, config, name)
  said = [s for row in jsonl.read(place / name / "episodes.jsonl") for s in row["segments"] if s["owner"] == "model"]
  assert (metrics["n"], metrics["failed"]) == (3, 0)
  assert len(said) >= 3 and metrics["searches"] >= (recipe == "untrained")
