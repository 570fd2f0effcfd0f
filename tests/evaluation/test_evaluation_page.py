"""The page of an evaluation, as a file. What a reader does with it: test_questions_browser.py."""

import json
import re
import shutil

import fake_evaluation
import pytest
from console import ragrl
from refusals import refused
from test_report import HOSTILE, data_of, unpacked, words

from ragrl_jax.report import evaluation_page, inline, rendering
from ragrl_jax.store import jsonl


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  return fake_evaluation.make(tmp_path_factory.mktemp("evaluations"), 90)


def test_one_evaluation(folders):
  path = evaluation_page.write([folders[1]])
  assert path == folders[1] / "report.html"
  page = path.read_text(encoding="utf-8")
  shown = page.replace("http://www.w3.org/2000/svg", "")
  assert not re.search(r"https?://|//cdn|@import|url\(|<link|<iframe|\ssrc=", shown.split('type="application/json"')[0])
  said, metrics = words(page), json.loads((folders[1] / "metrics.json").read_text())
  assert "Checkpoint …/run/checkpoints/70" in said and 'title="/data/me/out/run/checkpoints/70"' in page
  assert metrics["price"] > 0 and f"on 1 x NVIDIA H100 Price {metrics['price']:,.4g}" in said
  assert f"Exact match {metrics['em']:.3f}" in said and "1 question failed" in said
  assert f"Set musique {metrics['by_source']['musique']['n']}" in said and "index out/index, kind bm25, top_k 3" in said
  assert "All 90 questions with their episodes are in this page." in said
  assert "Reward term information_think" in said and f"F1 over letters {metrics['char_f1']:.3f}" in said
  index = unpacked(page, "questions-index")
  assert index["id"] == [f"q{i}" for i in range(90)] and index["trace"] == list(range(90))
  block = unpacked(page, "traces-2")
  assert len(block) == 90 - 2 * data_of(page)["block"] and len(block[0]) == 1
  segments = block[0][0]["segments"]
  assert [segment["owner"] for segment in segments] == ["environment", "model", "environment", "model"]
  assert segments[2]["found"][0]["gold"] and segments[2]["found"][0]["cited"] and segments[2]["verdict"] == "gold"
  assert {one["term"] for one in block[0][0]["judged"]} == {"information_think", "think_answer"}


def test_two_evaluations(folders, tmp_path):
  both, two = evaluation_page.gather(folders), tmp_path / "two.html"
  ragrl("report", f"--workdir={folders[0]}", f"--workdir={folders[1]}", f"--out={two}", says="two.html")
  page = two.read_text(encoding="utf-8")
  said, whole = words(page), both["parts"][0]
  assert whole["won"] > whole["lost"] > 0 and f"{whole['difference']:+.3f}" in said
  assert "before → after" in said and "Settings Where the evaluations differ." in said
  assert [line["path"] for line in both["settings"]] == ["checkpoint"]
  assert len(both["blocks"][0][0]) == 2 and data_of(page)["names"] == ["before", "after"]
  shared, *alone = ({label for label, *_ in facts} for facts in (both["common"], *(r["facts"] for r in both["runs"])))
  assert {"Recipe", "Retrieval"} <= shared and not any(shared & labels for labels in alone)  # said once
  assert evaluation_page.gather(folders[:1])["common"] == []


def test_a_page_holds_what_fits(folders):
  data = evaluation_page.gather(folders, max_bytes=5_000)
  kept = [place for place, trace in enumerate(data["index"]["trace"]) if trace >= 0]
  assert 0 < len(kept) == data["kept"] < 90 and sum(map(len, data["blocks"])) == len(kept)
  sides = data["index"]["sides"]
  changed = [place for place in range(90) if bool(sides[0]["em"][place]) != bool(sides[1]["em"][place])]
  assert set(kept) <= set(changed) or set(changed) <= set(kept)  # those whose exact match changed come first
  page = rendering.evaluation(data)
  assert f"{data['kept']} of them with their episodes, first those whose exact match changed" in words(page)
  assert len(page) < 200_000


def test_what_is_no_finished_evaluation(folders, tmp_path):
  assert evaluation_page.is_folder(folders[0]) and not evaluation_page.is_folder(tmp_path)
  for name, file, text in (("seeds", "seed_0/predictions.jsonl", ""), ("new", "predictions.jsonl", ""),
                           ("cut", "predictions.jsonl", ""), ("cut", "metrics.json", '{"n": 1')):  # fmt: skip
    (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name / file).write_text(text)
  assert evaluation_page.is_folder(tmp_path / "seeds")  # so that the message is the next one
  for given, says in (
    ([tmp_path], "no predictions.jsonl here.*with several seeds, one of its folders seed_0"),
    ([tmp_path / "seeds"], "no predictions.jsonl here.*with several seeds, one of its folders seed_0"),
    ([tmp_path / "new"], "no metrics.json here, so this is not a finished evaluation"),
    ([tmp_path / "cut"], r"metrics.json is damaged .*: delete it and run `ragrl evaluate` again"),
    ([folders[0]] * 3, "3 evaluations.*one or two; `ragrl compare` takes more"), ([folders[0]] * 2, "given twice"),
  ):  # fmt: skip
    refused(says, evaluation_page.gather, given)
  (tmp_path / "config.json").write_text("{}")
  done = ragrl("report", f"--workdir={folders[0]}", f"--workdir={tmp_path}", f"--out={tmp_path}/x.html")
  assert done.returncode == 2 and "a page shows evaluations or training runs, not both" in done.stderr


def test_a_notebook_shows_the_first_of_several_seeds(folders, tmp_path):
  for name, folder in zip("ab", folders):
    shutil.copytree(folder, tmp_path / name / "seed_0")
  assert "seed_0" in inline.Evaluation({}, tmp_path / "a")._repr_html_()
  assert "a/seed_0" in inline.Comparison({}, [tmp_path / "a", tmp_path / "b"], "text")._repr_html_()


def test_transcripts_from_elsewhere_have_a_page_without_episodes(folders, tmp_path):
  shutil.copy(folders[0] / "predictions.jsonl", tmp_path)
  metrics = json.loads((folders[0] / "metrics.json").read_text())
  metrics["settings"] = dict(recipe="transcripts", system="research", model="qwen2.5-7b", retrieval="E5 over a dump")
  metrics |= dict(stale_searches=0.25, own_measure=0.5)
  (tmp_path / "metrics.json").write_text(json.dumps(metrics))
  said = words(evaluation_page.write([tmp_path]).read_text(encoding="utf-8"))
  assert "The folder holds no episodes of them." in said and "Retrieval E5 over a dump" in said
  assert "Searches that found nothing new 0.250" in said and "own_measure 0.500" in said and "stale_" not in said


def test_hostile_text_is_data(folders, tmp_path):
  rows, kept = (list(jsonl.read(folders[0] / name)) for name in ("predictions.jsonl", "episodes.jsonl"))
  for one in rows:
    one |= dict(question=HOSTILE, golds=[HOSTILE], prediction=HOSTILE, source=HOSTILE)
  for one in kept:
    one |= dict(failure=HOSTILE, facts={HOSTILE: HOSTILE})
    for segment in one["segments"]:
      segment |= dict(text=HOSTILE, query=HOSTILE)
      for passage in segment.get("found") or ():
        passage |= dict(title=HOSTILE, text=HOSTILE)
  folder, metrics = tmp_path / "<b>bad", json.loads((folders[0] / "metrics.json").read_text())
  for name, some in (("predictions.jsonl", rows), ("episodes.jsonl", kept)):
    jsonl.write(folder / name, some)
  metrics |= {"settings": {"checkpoint": HOSTILE, "data": HOSTILE}, "terms": {HOSTILE: 0.5}}
  (folder / "metrics.json").write_text(json.dumps(metrics))
  page = evaluation_page.write([folder]).read_text(encoding="utf-8")
  markup = re.sub(r"<script.*?</script>", "", page, flags=re.S)
  assert "<img" not in markup and "<a href='java" not in markup and "<b>" not in markup and "alert(" in markup
  assert page.count("<script") == page.count("</script>") == 6  # data, index, three blocks, script
