import hashlib
import json
import re

import fake_run
import saved_rows
import yaml
from refusals import refused

import ragrl_jax
from ragrl_jax import config as config_lib, settings as settings_lib
from ragrl_jax.cli import push_hf
from ragrl_jax.data import writers
from ragrl_jax.evaluation import harness
from ragrl_jax.report import card
from ragrl_jax.store import changes, metrics, versions
from ragrl_jax.structs import Example

METRICS = dict(
  n=300, failed=2, unjudged=0, em=0.42, em_interval=[0.36, 0.48], f1=0.5, f1_interval=[0.44, 0.56], searches=1.5,
  seeds=3, settings=dict(retrieval=dict(index="/data/me/wiki", top_k=3), sampling="greedy", data="dev.jsonl"),
)  # fmt: skip
HOSTILE = "</script><img src=x>|`a`\n# [x](javascript:1) www.evil.example http://evil.example @you *b* \u202e"


def run(folder, **given):
  """A run of six steps whose settings are the config's of its recipe, but for these."""
  folder.mkdir()
  config = config_lib.of_run(given.pop("like")) if "like" in given else config_lib.default_config()
  with config.unlocked():
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in given.items()})
  config.steps = 6
  settings = json.loads(config.to_json_best_effort())
  (folder / "config.json").write_text(json.dumps(settings | dict(objective="rl")))  # wordings may lie elsewhere
  with metrics.MetricWriter(folder) as writer:
    for step in range(1, 7):
      writer.write(step, {"reward": 1.0, "tokens": 100, "seconds": {"update": 600.0}})
  return folder


def written(folder, step=6, **given):
  config = settings_lib.of(config_lib.of_run(folder))
  of = dict(config=config, name="policy", baseline=push_hf.baseline(config), scores=[])
  return card.write(folder, step, **of | given)


def section(text, name):
  return text.split(f"## {name}\n\n")[1].split("\n## ")[0]


def test_the_card_says_what_the_run_was(tmp_path):
  data = tmp_path / "asked_me.jsonl"
  writers.write_examples(data, [Example(f"q{i}", "Where?", ("Rome",)) for i in range(7)])
  model = "/data/me/.cache/hub/models--Qwen--Qwen2.5-3B/snapshots/" + "ab" * 20
  given = dict(data__train=f"{data},hf:owner/name//train", data__evaluate=str(tmp_path / "gone.jsonl"))
  folder = run(tmp_path / "run", recipe="care", model__path=model, **given)
  versions.record(folder, None)
  text = written(folder, step=4, licence="apache-2.0")
  head = yaml.safe_load(text.split("---")[1])
  assert head["license"] == "apache-2.0" and head["base_model"] == "Qwen/Qwen2.5-3B"
  assert head["library_name"] == "transformers" and "reinforcement-learning" in head["tags"]
  assert text.split("---\n")[2].startswith("\n# policy\n") and "Recipe: care, preset paper." in text
  assert {"| Steps | 4 of 6 |", "| Trained tokens | 400 |", "| Time | 0.67 h |"} <= {*text.splitlines()}
  priced = run(tmp_path / "priced", recipe="care", log__price_per_hour=3.0)
  assert "| Price" not in text and "| Price | 2.00 at 3 an hour |" in written(priced, step=4)
  of = versions.library()
  assert f"ragrl\\_jax {ragrl_jax.__version__} (commit {of['commit']})".replace("(", "\\(").replace(")", "\\)") in text
  rows = section(text, "Data").splitlines()
  assert rows[2] == f"| trained on | asked\\_me.jsonl | 7 | `{hashlib.sha256(data.read_bytes()).hexdigest()}` |"
  assert rows[3] == "| trained on | hf\\:owner/name//train |  |  |"
  assert rows[4] == "| held out during training | gone.jsonl | the file no longer exists |  |"
  assert "These weights have not been evaluated." in section(text, "Scores")
  assert "The model has not been evaluated" in section(text, "Limits") and "/home" not in text
  assert "None was given." in section(written(folder), "Licence")


def test_the_files_of_a_saved_data_set_are_listed_and_a_data_file_may_have_a_comma_in_its_name(tmp_path):
  listed = lambda name: section(
    written(run(tmp_path / name, recipe="care", data__train=str(data))), "Data"
  ).splitlines()
  data = tmp_path / "asked, answered.jsonl"
  writers.write_examples(data, [Example("q", "Where?", ("Rome",))])
  digest = hashlib.sha256(data.read_bytes()).hexdigest()
  assert listed("one")[2] == f"| trained on | asked, answered.jsonl | 1 | `{digest}` |"
  data = saved_rows.save(tmp_path / "train", [dict(question="Where?", answer="Rome")] * 3, shards=2)
  rows = listed("saved")
  files = [["data-00000-of-00002.arrow", "2"], ["data-00001-of-00002.arrow", "1"]]
  assert [row.split(" | ")[1:3] for row in rows[2:4]] == files


def test_settings_are_compared_with_the_presets_and_a_users_own_switches_listed(tmp_path):
  changes.write(tmp_path, settings_lib.of(config_lib.load("arena")), "rl")
  assert "No settings differ" in section(written(run(tmp_path / "same", like=tmp_path)), "Settings")
  given = dict(like=tmp_path, loss__kl_coef=0.5, switches={"bonus": 3.0}, log__wandb=True)
  given |= dict(prompting__tokenizer="/data/me/words.model", retrieval__index="http://10.0.0.7:8000")
  given |= dict(judge__endpoint="10.0.0.7:8000/v1", judge__wording="file:/data/me/words.txt")
  lines = section(written(run(tmp_path / "other", **given)), "Settings").splitlines()
  assert sorted(line for line in lines if line.startswith("| `")) == [
    '| `judge.endpoint` | an address | "" |', '| `judge.wording` | "words.txt" | "" |',
    "| `loss.kl_coef` | 0.5 | 0.04 |", '| `prompting.tokenizer` | "words.model" | "" |',
    '| `retrieval.index` | an address | "" |', "| `switches.bonus` | 3.0 | 10.0 |",
  ]  # fmt: skip
  text = written(run(tmp_path / "own", recipe="quoter", switches={"quote_weight": 0.5}))
  assert "| `switches.quote_weight` | 0.5 |" in section(text, "Settings")


def test_what_the_settings_do_not_show_is_told(tmp_path):
  folder = run(tmp_path / "run", recipe="search_r1")
  assert "of the user's own" not in written(folder) and "earlier weights" not in written(folder)
  (folder / changes.CONTENTS).write_text('{"reward.function": "0123456789abcdef"}')
  changes.record(folder, 3, {"optimizer.learning_rate": (1e-6, 1e-5)})
  rows = [*metrics.read_metrics(folder), {"step": 5, "rollback/to": 2, "groups/drawn": 9, "groups/trained": 4}]
  (folder / metrics.FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
  text = written(folder)
  assert "The reward is a function of the user's own, in place of the recipe's terms." in section(text, "Settings")
  assert "Changed after step 3: `optimizer.learning_rate`." in text and "Changed after" not in written(folder, step=3)
  assert "| Returns to earlier weights | 1, each at half the learning rate |" in text.splitlines()
  assert "per step; dynamic sampling drew 72 and kept 32 |" in text  # groups of 8


def test_scores_have_n_and_intervals(tmp_path):
  folder = run(tmp_path / "run", recipe="veritas", retrieval__index=str(tmp_path), judge__kind="lexical")
  before = dict(n=300, em=0.2, em_interval=[0.15, 0.25], searches=0.0)
  spent = METRICS | dict(seconds=60.2, seconds_cover=9, devices="1 x H100", price=0.05)
  text = written(folder, scores=[("dev.jsonl", None, spent), ("held out", before, METRICS)])
  scores = section(text, "Scores")
  assert "| Exact match | 0.420 [0.360, 0.480] | 300 |" in scores.replace("\\", "")
  assert "| Exact match | 0.200 [0.150, 0.250] | 0.420 [0.360, 0.480] | 300 |" in scores.replace("\\", "")
  assert "2 questions failed" in scores and "Means over 3 seeds." in scores and 'Retriever: "wiki", 3' in scores
  assert scores.count("Time: 60 s for 9 answers on 1 x H100, price 0.05.") == 1
  limits = section(text, "Limits")
  assert "one retriever" in limits and "A judge (lexical)" in limits and "intervals cover the draw" in limits


def test_a_made_up_runs_own_held_out_questions(tmp_path, monkeypatch):
  folder = fake_run.make(tmp_path / "run", steps=12)
  monkeypatch.setattr(harness, "summarise", lambda rows: dict(n=len(rows), em=sum(r["em"] for r in rows) / len(rows)))
  held_out = lambda step: push_hf.held_out(push_hf.export_hf.Exported(folder, step, "qwen2", "abc"))
  ((asked, before, after),) = held_out(12)
  assert asked.startswith("Held-out") and before["n"] == after["n"] == 150 and after["em"] > before["em"]
  assert held_out(11) == []


def test_hostile_names_are_shown_as_text(tmp_path):
  folder = run(tmp_path / "run", recipe="care")
  text = written(folder, name=HOSTILE, scores=[(HOSTILE, None, METRICS | dict(settings=dict(sampling=HOSTILE)))])
  hostile = [line for line in text.splitlines() if "evil" in line]
  assert len(hostile) == 3 and all("www\\.evil" in line and "\u202e" not in line for line in hostile)
  for line in hostile:
    bare = line.replace("\\\\", "").removeprefix("Answers:")
    start = 4 if bare.startswith("### ") else 2 if bare.startswith("# ") else 0
    assert not re.findall(r"(?<!\\)[]<>`[()|*@#:]", bare[start:]), line
  refused("--base_model=a\\(b: name a model of the hub", written, folder, base="a(b")


def test_versions_are_kept_for_every_start(tmp_path):
  versions.record(tmp_path, None)
  versions.record(tmp_path, 4)
  assert [row["step"] for row in versions.read(tmp_path)] == [0, 4] and versions.read(tmp_path / "none") == []
  versions.record(tmp_path, None)
  (row,) = versions.read(tmp_path)
  assert row["devices"] == "8 x cpu" and row["ragrl_jax"] == ragrl_jax.__version__
  assert json.loads((tmp_path / versions.FILE).read_text()) == row
