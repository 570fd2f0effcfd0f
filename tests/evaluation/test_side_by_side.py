import json
import pathlib
import re

from console import ragrl
from refusals import refused

from ragrl_jax.report import rendering, side_by_side
from ragrl_jax.store import metrics


def run(folder, reward, **config):
  folder.mkdir(parents=True)
  (folder / "config.json").write_text(json.dumps({"recipe": "arena", "seed": 0, "retrieval": {"index": ""}} | config))
  same = {"searches": 0.0, "seconds": {"rollout": 2.0, "other": 0.5, "step": 2.5}}
  with metrics.MetricWriter(folder) as writer:
    for step in (1, 2, 3):
      writer.write(step, {"reward": reward * step} | same)
  return folder


def test_runs_are_distinguished():
  names = lambda *paths: side_by_side.distinct([pathlib.Path(path) for path in paths])
  assert names("/out/a", "/out/b") == ["a", "b"]
  assert names("/out/x/seed_0", "/out/y/seed_0", "/out/y/seed_1") == ["x/seed_0", "y/seed_0", "y/seed_1"]
  refused("--workdir=/out/a is given twice", names, "/out/a", "/out/b", "/out/a")


def test_the_summary_of_several_runs(tmp_path):
  runs = [run(tmp_path / "a", 0.25), run(tmp_path / "b</script><img>", 0.5, seed=7, new={"x": [1, 2], "unset": None})]
  page = side_by_side.write(runs, tmp_path / "runs.html").read_text(encoding="utf-8")
  data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
  assert [run["columns"]["reward"] for run in data["curves"]["runs"]] == [[0.25, 0.5, 0.75], [0.5, 1.0, 1.5]]
  assert [chart["title"] for chart in data["curves"]["panels"]] == ["Reward"]  # no searches: arena makes none
  assert page.count("<script") == page.count("</script>") == 2 and "<img>" not in page
  found = side_by_side.gather(runs)
  assert found["settings"] == [{"path": "seed", "values": ["0", "7"]}, {"path": "new.x", "values": [None, "[1, 2]"]}]
  assert found["figures"] == [{"label": "Steps", "values": [3, 3]}, {"label": "Reward", "values": [0.75, 1.5]}]
  times = {"rollout": [2.0, 2.0], "other": [0.5, 0.5], "a whole step": [2.5, 2.5]}
  assert found["times"] == [{"name": name, "values": values} for name, values in times.items()]
  found["runs"][1]["warnings"] = [{"text": "It moved.", "first": 1, "times": 2, "over": 2}]
  assert 'It moved. <span class="dim">First at step 1, 2 times, over after step 2.</span>' in rendering.runs(found)


def test_the_command(tmp_path):
  runs = [f"--workdir={run(tmp_path / name, 1.0)}" for name in ("a", "b")]
  refused("none holds neither", side_by_side.write, [tmp_path / "a", tmp_path / "none"], tmp_path / "runs.html")
  assert not (tmp_path / "runs.html").exists()
  said = ragrl("report", *runs)
  assert said.returncode and "--out FILE.html" in said.stdout + said.stderr
  page = tmp_path / "runs.html"
  ragrl("report", *runs, f"--out={page}", says=str(page))
  assert "2 runs side by side" in page.read_text()
