r"""What the runs of run.py showed: python benchmarks/real_model/results.py [--workdir OUT] [--docs]

Prints a table of each system, and the paired differences to the warm start and to the untrained model with 95 %
intervals over questions (and over seeds, where there are several). --docs writes it into docs/real_model.md, between
its marks, with the curves (docs/real_model.png) and one episode of each system before and after.
"""

import argparse
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragrl_jax.evaluation import comparison
from ragrl_jax.store import episodes

ROOT = pathlib.Path(__file__).parents[2]
PAGE, PICTURE = ROOT / "docs" / "real_model.md", ROOT / "docs" / "real_model.png"
BEGIN, END = "<!-- runs -->", "<!-- end -->"
STATES = dict(untrained="untrained", sft="after demonstrations", rl="after RL")
# What each paper measures beside exact match: heading → number of metrics.json.
OWN = dict(
  arena={"right passages cited": "measure/fact_em", "all terms perfect": "terms/bonus"},
  care={"verbatim quotes": "terms/retrieval", "format": "terms/format"},
  lear={"evidence tokens": "measure/extract_tokens", "EM from the evidence": "measure/em_from_evidence"},
  search_r1={"searches": "searches", "wasted": "wasted_searches"},
  veritas={"searches": "searches", "thoughts that follow": "terms/information_think"},
  when_to_search={"searches": "searches", "wasted": "wasted_searches"},
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("out/real_model"))
  parser.add_argument("--docs", action="store_true", help="write docs/real_model.md and its picture")
  given = parser.parse_args()
  runs = dict(found(given.workdir))
  if not runs:
    raise SystemExit(
      f"{given.workdir}: no finished evaluation of run.py is here. Run benchmarks/real_model/run.py first."
    )
  text = "\n\n".join(section(system, seeds) for system, seeds in runs.items())
  print(text)
  if given.docs:
    draw(runs)
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def found(workdir: pathlib.Path) -> Iterator[tuple[str, list[pathlib.Path]]]:
  """(system, its seeds' folders that have an evaluation after RL)."""
  for system in sorted(path for path in workdir.iterdir() if path.name.split(",")[0] in OWN):
    seeds = sorted(path for path in system.glob("seed_*") if (path / "evaluations/rl_greedy/metrics.json").is_file())
    if seeds:
      yield system.name, seeds


def section(system: str, seeds: Sequence[pathlib.Path]) -> str:
  """A system's table, differences and episodes, in Markdown."""
  metrics = {
    (state, how): [
      _flat(json.loads((seed / "evaluations" / f"{state}_{how}/metrics.json").read_text())) for seed in seeds
    ]
    for state in STATES
    for how in ("greedy", "sampled")
  }
  own = {
    name: key for name, key in OWN[system.split(",")[0]].items() if all(key in one for one in metrics["rl", "greedy"])
  }
  steps = [json.loads(line) for line in (seeds[0] / "rl/metrics.jsonl").read_text().splitlines()]
  settings = json.loads((seeds[0] / "rl/config.json").read_text())["rollout"]
  played = steps[-1]["step"] * settings["prompts_per_step"] * settings["group_size"]
  n = int(metrics["rl", "greedy"][0]["n"])
  lines = [
    f"## {system}",
    f"{len(seeds)} seed{'s' * (len(seeds) > 1)}, {n} test questions, {steps[-1]['step']} steps of RL"
    f" ({played} episodes)",
    "",
    "| | EM greedy | EM sampled | F1 greedy | F1 sampled | tokens a reply | " + " | ".join(own) + " |",
    "|---" * (6 + len(own)) + "|",
  ]
  for state, name in STATES.items():
    greedy, sampled = metrics[state, "greedy"], metrics[state, "sampled"]
    cells = [_mean(greedy, "em"), _mean(sampled, "em"), _mean(greedy, "f1"), _mean(sampled, "f1")]
    cells += [_mean(greedy, "response_tokens", 0), *(_mean(greedy, key) for key in own.values())]
    lines.append(f"| {name} | " + " | ".join(cells) + " |")
  lines.append("")
  for how in ("greedy", "sampled"):
    rows = {state: [row for seed in seeds for row in _rows(seed, state, how)] for state in ("sft", "untrained", "rl")}
    for before in ("sft", "untrained"):
      compared = comparison.compare({before: rows[before], "rl": rows["rl"]})
      shown = [_difference(measure, compared[measure]) for measure in ("em", "f1")]
      lines.append(f"- RL beside {STATES[before]}, {how}: {', '.join(shown)} (95 %, paired, n = {n}).")
  return "\n".join([*lines, "", *_episodes(seeds[0])])


def _difference(measure: str, result: Mapping[str, Any]) -> str:
  ((difference, _),), ((low, high),) = result["questions"], result["intervals"]
  return f"{measure.upper()} {difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def draw(runs: Mapping[str, Sequence[pathlib.Path]]) -> None:
  """Exact match on the development questions over the steps of RL, a line per run."""
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, axes = pyplot.subplots(figsize=(8, 4.5))
  for number, (system, seeds) in enumerate(runs.items()):
    for seed in seeds:
      rows = [json.loads(line) for line in (seed / "rl/metrics.jsonl").read_text().splitlines()]
      points = [(row["step"], row["evaluation/em"]) for row in rows if "evaluation/em" in row]
      axes.plot(*zip(*points), color=f"C{number}", marker="o", label=system if seed == seeds[0] else None)
  axes.set_xlabel("step of RL")
  axes.set_ylabel("exact match, development questions, greedy")
  axes.spines[["top", "right"]].set_visible(False)
  axes.legend(frameon=False)
  figure.savefig(PICTURE, dpi=120, bbox_inches="tight")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  flat: dict[str, Any] = {}
  for name, value in values.items():
    flat |= _flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {prefix + name: value}
  return flat


def _mean(metrics: Sequence[Mapping[str, Any]], name: str, digits: int = 3) -> str:
  values = [one[name] for one in metrics if one.get(name) is not None]
  return f"{sum(values) / len(values):.{digits}f}" if values else "–"


def _rows(seed: pathlib.Path, state: str, how: str) -> list[dict[str, Any]]:
  path = seed / "evaluations" / f"{state}_{how}" / "predictions.jsonl"
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _episodes(seed: pathlib.Path) -> list[str]:
  """The first question that the model answers only after RL, with both episodes as they were played."""
  before, after = ({row["id"]: row for row in _rows(seed, state, "greedy")} for state in ("sft", "rl"))
  won = next((key for key, row in after.items() if row["em"] == 1 and before[key]["em"] == 0), None)
  if won is None:
    return []
  lines = [f"A question that only RL's model answers: {after[won]['question']} ({' / '.join(after[won]['golds'])})"]
  for state in ("sft", "rl"):
    rows = episodes.read_folder(seed / "evaluations" / f"{state}_greedy")
    texts = ["".join(episodes.parts(segment)) for segment in next(row for row in rows if row["id"] == won)["segments"]]
    lines += ["", f"{STATES[state]}:".capitalize(), "", "```", *(text.strip() for text in texts[1:]), "```"]
  return lines


if __name__ == "__main__":
  main()
