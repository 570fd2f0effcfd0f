import base64
import gzip
import html
import json
import re
import shutil

import pytest
from refusals import refused

from ragrl_jax.report import metric_tables, page as page_lib, rendering
from ragrl_jax.store import episodes, jsonl, metrics

HOSTILE = (
  "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\u2028\u2029{{ 7 * 7 }}<!--"
  "<a href='javascript:alert(3)' onclick=\"alert(4)\">\u202ex\ufeff\udc00"
)


def data_of(page):
  return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def unpacked(page, name):
  block = re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', page, re.S)[1]
  return json.loads(gzip.decompress(base64.b64decode(block, validate=True)))


def words(page):
  """What a reader sees of a page before its scripts run."""
  text = html.unescape(re.sub(r"<[^>]+>", " ", page.split('<script type="application/json"')[0]))
  return " ".join(text.split())


@pytest.fixture(scope="module")
def page(fake_run):
  return page_lib.write_report(fake_run).read_text(encoding="utf-8")


def test_the_page_is_one_file_that_loads_nothing_and_its_scripts_are_hashed_and_make_text_nodes_only(page):
  for name in ("script", "style"):
    text = re.search(rf"<{name}>(.*?)</{name}>", page, re.S)[1]
    assert f"{name}-src '{rendering.hash_of(text)}'" in page
  assert page.startswith("<!doctype html>") and "default-src 'none'" in page
  shown = page.replace("http://www.w3.org/2000/svg", "")  # a name, not an address that is loaded
  assert not re.search(r"https?://|//cdn|@import|url\(|<link|<iframe|\ssrc=", shown)
  assert page.count("<script") == page.count("</script>") == 17  # data, steps, list, answers and script
  assert len(re.findall(r'<script type="(?:text/plain|application/json)"', page)) == 16
  # The scripts never parse text as markup, so nothing that a model wrote can become an element.
  for name in {*rendering.SCRIPTS, *rendering.QUESTIONS}:
    script = (rendering.TEMPLATES / name).read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|</script", script)


def test_the_summary_and_the_curves_of_the_page(page):
  said = words(page)
  assert "search_r1" in said and "Steps 60" in said and "qwen3, 4 layers of 128" in said
  assert "Exact match 0.166 → 0.916" in said and "The bottleneck is rollout" in said
  assert "All 312 episodes of 13 steps are in this page." in said  # 13 logged steps, 4 groups of 6 episodes
  assert "evaluate – 39 s" in said and "not timed" not in said
  assert "gaps in the curves: grad_norm. First at step 37, in 1 row of metrics.jsonl" in said
  assert "steps 60 100" in said  # the only changed setting, with its value and its default
  data = data_of(page)
  assert {panel["title"] for panel in data["curves"]["panels"]} >= {
    "Reward", "Term: answer", "Term: format", "Term: retrieval", "Outcome", "Searches per question",
    "Response length", "Entropy", "KL", "Gradient norm", "Clip fraction", "Sampler mismatch", "Throughput",
  }  # fmt: skip
  assert len(data["curves"]["runs"][0]["steps"]) == 61
  assert {part["name"] for part in data["time"]["parts"]} >= {"rollout", "retrieval wait", "update"}
  one = unpacked(page, "step-0")[0]["samples"][0]
  assert one["terms"].keys() == one["weights"].keys() and one["segments"][0]["owner"] == "model"


def test_hostile_text_is_shown_as_text(tmp_path, fake_run):
  run = tmp_path / f"run {HOSTILE[:9].replace('/', '')}"
  shutil.copytree(fake_run, run)
  path = episodes.steps(run)[60]
  rows = episodes.read_episodes(path)
  for row in rows:
    row["question"] = row["golds"][0] = row["failure"] = row["ended"] = HOSTILE
    row["facts"] = {HOSTILE: HOSTILE}
    row["terms"][HOSTILE] = 1.0
    for segment in row["segments"]:
      segment["text"] = segment["query"] = HOSTILE
      segment["found"] = [{"id": HOSTILE, "title": HOSTILE, "text": HOSTILE, "score": 1.0}]
      if "pieces" in segment:
        segment["pieces"][0] = HOSTILE
  jsonl.write(path, rows)
  config = json.loads((run / "config.json").read_text())
  config["recipe"] = config["model"]["path"] = config[HOSTILE] = HOSTILE
  (run / "config.json").write_text(json.dumps(config))
  with metrics.MetricWriter(run, restored=60) as writer:
    writer.write(61, {f"term/{HOSTILE}": 1.0, "warning/w": HOSTILE, f"seconds/{HOSTILE}": 100.0})
  page = rendering.run(page_lib.gather(run))
  assert page.count("<script") == page.count("</script>") == 17
  assert not re.search("<img|<a href='|<!--", page) and "49" not in re.search(r"<h1>(.*?)</h1>", page)[1]
  assert "\u2028" not in page.split('id="data">')[1] and page.encode()
  shown = HOSTILE.replace("\udc00", "\ufffd")
  assert unpacked(page, "all-groups")["steps"][-1]["groups"][0]["question"] == shown
  taken = unpacked(page, "step-12")[0]["samples"][0]
  assert taken["facts"] == {shown: shown} and taken["segments"][0]["pieces"][0] == shown


def test_what_moved_stands_at_the_top_with_an_episode_that_shows_it(page, fake_run):
  """The fake run's entropy falls below a fifth of its start."""
  found = page_lib.gather(fake_run)
  moved, *others = found["run"]["warnings"]
  assert moved["text"].startswith("entropy went from 0.8") and moved["over"] is None and "clip_high" in moved["text"]
  step, group, sample = map(int, moved["episode"].removeprefix("#episode-").split("-"))
  assert moved["first"] <= step <= 60
  (shown,) = [one["groups"] for one in found["episodes"]["steps"] if one["step"] == step]
  (one,) = [one for one in shown[group]["samples"] if one["sample"] == sample]
  assert one["signs"]["entropy"] == min(each["signs"]["entropy"] for g in shown for each in g["samples"] or ())
  link = f'<a href="{moved["episode"]}">An episode that shows it</a>'
  assert link in page.split('<section id="learning">')[0]


def test_what_moved_and_is_back_says_when(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  with metrics.MetricWriter(tmp_path) as writer:
    for step, entropy in enumerate([1.0] * 5 + [0.1, 0.1, 1.0], 1):
      writer.write(step, {"entropy": entropy, "warning/entropy": "as printed", "warning/mismatch": "other"})
  (moved, other) = page_lib.gather(tmp_path)["run"]["warnings"]
  assert (moved["first"], moved["times"], moved["over"], moved["episode"]) == (6, 2, 7, None)
  assert (other["text"], other["times"]) == ("other", 8)
  assert "2 times, over after step 7." in rendering.run(page_lib.gather(tmp_path))


def test_data_blocks_contain_no_markup():
  for value in ["</script>", "<!--", "&", "\u2028", "]]>", "é→", "\ud800", None, float("nan"), {"<": ["<"]}]:
    block = str(rendering.data_block(value))
    assert not re.search("[<>&\u2028\u2029]", block)
    assert json.loads(block) == (None if value != value else "\ufffd" if value == "\ud800" else value)


def test_a_run_that_has_not_begun_is_damaged_or_has_just_begun(tmp_path):
  refused("holds neither a run's config.json nor metrics.jsonl", page_lib.write_report, tmp_path)
  assert not (tmp_path / "report.html").exists()
  model = '{"model_type": "llama"}', "holds neither"
  for text, fault in (('{"steps": 1', "config.json: not JSON"), ("[]", "config.json: a list"), model):
    (tmp_path / "config.json").write_text(text)
    refused(fault, page_lib.gather, tmp_path)
  (tmp_path / "config.json").write_text('{"objective": "rl"}')
  page = page_lib.write_report(tmp_path, tmp_path / "other" / "page.html").read_text()
  assert "No step has been logged yet" in page and "No episode has been logged yet" in page
  (tmp_path / "config.json").write_text('{"objective": "sft"}')
  assert "#episodes" not in (page := rendering.run(page_lib.gather(tmp_path))) and 'id="episodes"' not in page
  with metrics.MetricWriter(tmp_path) as writer:
    writer.write(1, {"reward": 0.5})
  assert data_of(rendering.run(page_lib.gather(tmp_path)))["curves"]["runs"][0]["columns"] == {"reward": [0.5]}


def test_the_headline_uses_the_metrics_where_there_are_no_episodes():
  rows = [{"step": 0, "evaluation/em": 0.2}, {"step": 1, "reward": 1.0}, {"step": 2, "evaluation/em": 0.6}]
  headline = lambda rows: page_lib.headline(*(one and one[1] for one in metric_tables.held_out(rows)))
  assert headline(rows) == [{"label": "Exact match", "before": 0.2, "after": 0.6}]
  assert headline(rows[1:2]) == []
  assert headline(rows[2:]) == [{"label": "Exact match", "before": None, "after": 0.6}]  # one evaluation
  nothing = {"em": 0.0, "searches": 0.0}
  assert page_lib.headline(nothing, nothing) == [{"label": "Exact match", "before": 0.0, "after": 0.0}]


def test_held_out_questions_before_and_after_without_a_summary(tmp_path):
  with metrics.MetricWriter(tmp_path) as writer:
    part = lambda em: {"em": em, "n": 4}
    writer.write(4, {"evaluation": {"n": 8, "em": 0.25, "by_hops": {"1": part(0.5), "2": part(0.0)}}})
    writer.write(5, {"reward": 1.0})
    first = rendering.run(page_lib.gather(tmp_path))
    assert re.findall("<th scope=.col.*?>(.*?)</th>", first)[:3] == ["Held-out questions", "Step 4", "n"]
    writer.write(6, {"evaluation": {"n": 8, "em": 0.5, "by_source": {"a/b": part(1.0), "c": part(0.0)}}})
  found = page_lib.gather(tmp_path)
  sides = lambda line: tuple(line[side] and line[side]["value"] for side in ("before", "after"))
  lines = {line["label"].strip(): sides(line) for line in found["table"]}
  assert lines.pop("Exact match") == (0.25, 0.5)
  assert lines == {"1-hop": (0.5, None), "2-hop": (0.0, None), "a/b": (None, 1.0), "c": (None, 0.0)}
  assert found["measured"] == [4, 6] and "Step 4</th>" in rendering.run(found)


def test_step_means_equal_the_curves(fake_run, tmp_path):
  found = page_lib.gather(fake_run, max_bytes=1)
  (row,) = [row for row in metrics.read_metrics(fake_run) if row["step"] == 60]
  last = found["episodes"]["steps"][-1]
  assert (last["reward"], last["outcome"], last["taken"]) == (row["reward"], row["outcome"], 6)
  page = rendering.run(found)
  assert "6 of the 312 episodes of 13 steps are in this page" in page
  assert [group["held"] for group in unpacked(page, "all-groups")["steps"][-1]["groups"]] == [True, False, False, False]


def test_a_clock_that_went_back_and_a_lone_surrogate(tmp_path):
  (tmp_path / "config.json").write_text('{"recipe": "\\ud800", "model": {"path": "a\\udfff"}}')
  rows = [{"step": step, "time": 2e9 - 1000 * step, "reward": 1.0, "seconds/rollout": 2.0} for step in (1, 2)]
  jsonl.write(tmp_path / metrics.FILE, rows)
  assert page_lib.gather(tmp_path)["run"]["seconds"] == 4.0
  assert "a\ufffd" in page_lib.write_report(tmp_path).read_text(encoding="utf-8")
  jsonl.write(tmp_path / metrics.FILE, [{"step": 1, "time": 2.0}, {"step": 2, "time": 1.0}])
  assert page_lib.gather(tmp_path)["run"]["seconds"] is None  # no step reports its duration


def test_a_models_name_is_not_its_path(tmp_path):
  for folder, began in (("warm", "/models/Tiny-1B"), ("next", str(tmp_path / "warm/model"))):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "config.json").write_text(json.dumps({"model": {"path": began}}))
  assert page_lib.named("/models/Tiny-1B", tmp_path) == page_lib.named("maker/Tiny-1B", tmp_path) == "Tiny-1B"
  assert page_lib.named(f"{tmp_path}/warm/model", tmp_path) == "Tiny-1B, trained in warm"
  assert page_lib.named(f"{tmp_path}/next/model", tmp_path) == "Tiny-1B, trained in warm, trained in next"
  assert page_lib.named("/elsewhere/warm/model", tmp_path / "run") == "warm/model"
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "places.json").write_text('{"folder": "/elsewhere/run", "began": "/elsewhere"}')  # moved since
  assert page_lib.named("/elsewhere/warm/model", tmp_path / "run") == "Tiny-1B, trained in warm"


def test_settings_are_compared_with_the_defaults():
  given = {"steps": 7, "seed": 0, "model": {"path": ""}, "new": {"a": 1, "b": None}}
  found = {item["path"]: item for item in page_lib.settings(given)}
  changed = {name: item["changed"] for name, item in found.items()}
  assert changed == {"steps": True, "seed": False, "model.path": False, "new.a": True, "new.b": False}
  assert (found["steps"]["default"], found["new.a"]["default"]) == ("100", "")
