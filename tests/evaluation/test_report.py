import html
import json
import re
import shutil

import pytest

from ragrl_jax.evaluation import report
from ragrl_jax.store import episodes, jsonl, metrics

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\u2028\u2029{{ 7 * 7 }}<!--"


def data_of(page):
  return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


@pytest.fixture(scope="module")
def page(fake_run):
  return report.write_report(fake_run).read_text(encoding="utf-8")


def test_the_page_is_one_file_that_loads_nothing(page):
  assert page.startswith("<!doctype html>")
  assert "default-src 'none'" in page
  shown = page.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
  assert not re.search(r"https?://|//cdn|@import|url\(|<link|<iframe|\ssrc=", shown)
  assert page.count("<script") == 2 and page.count("</script>") == 2


def test_text_nodes_only():
  # The scripts make no markup of text, so nothing a model wrote can become an element.
  for name in report.SCRIPTS:
    script = (report.TEMPLATES / name).read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|</script", script)


def test_the_policy_names_the_script_that_is_there(page):
  script = re.search(r"<script>(.*?)</script>", page, re.S)[1]
  style = re.search(r"<style>(.*?)</style>", page, re.S)[1]
  assert f"script-src '{report._hash(script)}'" in page
  assert f"style-src '{report._hash(style)}'" in page


def test_what_the_page_says(page):
  words = html.unescape(re.sub(r"<[^>]+>", " ", page.split('<script type="application/json"')[0]))
  words = " ".join(words.split())
  assert "search_r1" in words and "Steps 60" in words and "qwen3, 4 layers of 128" in words
  assert "Exact match 0.166 → 0.916" in words
  assert "The bottleneck is rollout" in words
  assert "312 episodes of 13 steps are in this page" in words  # 13 logged steps, 4 groups of 6
  assert "First at step 37, in 1 row of metrics.jsonl" in words  # the gradient norm that was not finite
  assert "steps 60 100" in words  # the one setting that differs, its value and its default


def test_the_curves_data(page):
  data = data_of(page)
  titles = [panel["title"] for panel in data["curves"]["panels"]]
  for title in ("Reward", "Term: answer", "Term: format", "Term: retrieval", "Outcome", "Searches per question",
                "Response length", "Entropy", "KL", "Gradient norm", "Clip fraction", "Sampler mismatch", "Throughput"):
    assert title in titles
  assert len(data["curves"]["steps"]) == 61
  assert {part["name"] for part in data["time"]["parts"]} >= {"rollout", "retrieval wait", "update"}
  one = data["episodes"]["steps"][0]["groups"][0]["samples"][0]
  assert one["terms"].keys() == one["weights"].keys() and one["segments"][0]["owner"] == "model"


def test_hostile_text_stays_text(tmp_path, fake_run):
  run = tmp_path / f"run {HOSTILE[:9].replace('/', '')}"
  shutil.copytree(fake_run, run)
  path = episodes.steps(run)[60]
  rows = episodes.read_episodes(path)
  for row in rows:
    row["question"] = row["golds"][0] = row["failure"] = row["ended"] = HOSTILE
    row["facts"] = {HOSTILE: HOSTILE}
    row["terms"][HOSTILE] = 1.0
    for segment in row["segments"]:
      segment["text"] = HOSTILE
      segment["query"] = HOSTILE
      segment["found"] = [{"id": HOSTILE, "title": HOSTILE, "text": HOSTILE, "score": 1.0}]
      if "pieces" in segment:
        segment["pieces"][0] = HOSTILE
  jsonl.write(path, rows)
  config = json.loads((run / "config.json").read_text())
  config["recipe"] = config["model"]["path"] = config[HOSTILE] = HOSTILE
  (run / "config.json").write_text(json.dumps(config))
  with metrics.MetricWriter(run, restored=60, tensorboard=False) as writer:
    writer.write(61, {f"term/{HOSTILE}": 1.0, "warning/w": HOSTILE, f"seconds/{HOSTILE}": 100.0})
  page = report.render(report.gather(run))
  assert page.count("<script") == 2 and page.count("</script>") == 2
  assert "<img" not in page and "<!--" not in page and "49" not in re.search(r"<h1>(.*?)</h1>", page)[1]
  assert "\u2028" not in page.split('id="data">')[1]
  taken = data_of(page)["episodes"]["steps"][-1]["groups"][0]
  assert taken["question"] == HOSTILE and taken["samples"][0]["facts"] == {HOSTILE: HOSTILE}


@pytest.mark.parametrize("value", [
    "</script>", "<!--", "&", "\u2028", "]]>", "é→", "\ud800", None, float("nan"), {"<": ["<"]}])
def test_data_blocks_hold_no_markup(value):
  block = str(report.data_block(value))
  assert not re.search("[<>&\u2028\u2029]", block)
  assert json.loads(block) == (None if value != value else value)


def test_a_run_that_has_only_begun(tmp_path):
  with pytest.raises(ValueError, match="holds neither config.json nor metrics.jsonl"):
    report.write_report(tmp_path)
  assert not (tmp_path / "report.html").exists()
  (tmp_path / "config.json").write_text("{}")
  page = report.write_report(tmp_path, tmp_path / "other" / "page.html").read_text()
  assert "No step has been logged yet" in page and "No episode has been logged yet" in page
  with metrics.MetricWriter(tmp_path, tensorboard=False) as writer:
    writer.write(1, {"reward": 0.5})
  assert data_of(report.render(report.gather(tmp_path)))["curves"]["columns"] == {"reward": [0.5]}


def test_damaged_files_are_named(tmp_path):
  (tmp_path / "config.json").write_text('{"steps": 1')
  with pytest.raises(ValueError, match=r"config\.json: not JSON"):
    report.gather(tmp_path)
  (tmp_path / "config.json").write_text("[]")
  with pytest.raises(ValueError, match=r"config\.json: a list"):
    report.gather(tmp_path)


def test_headline_falls_back_on_the_metrics():
  rows = [{"step": 0, "evaluation/em": 0.2}, {"step": 1, "reward": 1.0}, {"step": 2, "evaluation/em": 0.6}]
  assert report.headline({}, rows) == [{"label": "Exact match", "before": 0.2, "after": 0.6}]
  assert report.headline({"em_before": 0.1, "em_after": 0.9}, rows)[0]["after"] == 0.9
  assert report.headline({}, rows[1:2]) == []


def test_settings_are_compared_with_the_defaults():
  given = {"steps": 7, "seed": 0, "model": {"path": ""}, "new": {"a": 1}}
  found = {item["path"]: item for item in report.settings(given)}
  assert found["steps"]["changed"] and found["steps"]["default"] == "100"
  assert not found["seed"]["changed"] and not found["model.path"]["changed"]
  assert found["new.a"]["changed"] and found["new.a"]["default"] == ""
