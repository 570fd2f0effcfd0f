r"""What the runs of run.py showed: python benchmarks/real_model/results.py [--workdir OUT] [--docs]

--workdir records its finished runs first, each as a small file of benchmarks/real_model/runs/: the curves, the numbers
of every evaluation, exact match and F1 of every question, and one question's episodes. Then a table of each system is
printed from all recorded runs, with each seed's paired differences to its warm start and to the untrained model and
their 95 % intervals over questions (and one over questions and seeds, where there are several). --docs writes all of
it into docs/real_model.md, between its marks, and draws the curves (docs/real_model.png).
"""

import argparse
import collections
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragrl_jax.core.metrics import stats
from ragrl_jax.evaluation import comparison
from ragrl_jax.store import episodes, jsonl

ROOT = pathlib.Path(__file__).parents[2]
RUNS = pathlib.Path(__file__).with_name("runs")
PAGE, PICTURE = ROOT / "docs" / "real_model.md", ROOT / "docs" / "real_model.png"
BEGIN, END = "<!-- runs -->", "<!-- end -->"
STATES = dict(untrained="untrained", sft="after demonstrations", rl="after RL")
HOW = ("greedy", "sampled")
# What each paper measures beside exact match: heading → number of metrics.json.
OWN = dict(
  arena={"right passages cited": "measure/fact_em", "all terms perfect": "terms/bonus"},
  care={"verbatim quotes": "terms/retrieval", "format": "terms/format"},
  lear={
    "evidence tokens": "measure/extract_tokens",
    "EM from the evidence": "measure/em_from_evidence",
    "rationale names the answer": "measure/reason_recall",
  },
  search_r1={"searches": "searches", "wasted": "wasted_searches", "answer found": "found_answer"},
  veritas={"searches": "searches", "answer found": "found_answer", "thoughts that follow": "terms/information_think"},
  when_to_search={"searches": "searches", "wasted": "wasted_searches", "answer found": "found_answer"},
)
# Curves over the steps of training, where the run has them: name → key of metrics.jsonl.
CURVES = dict(
  em="evaluation/em", cited="evaluation/measure/fact_em", searches="evaluation/searches", sampled_em="outcome",
  no_reasoning="unearned/no_reasoning", zero_spread="zero_spread_groups", entropy="entropy",
)  # fmt: skip
# Those of the training's own episodes, of which the first and the last step are printed.
TRAINED = dict(
  sampled_em="sampled exact match", entropy="entropy of a token", zero_spread="groups without spread",
  no_reasoning="replies without reasoning",
)  # fmt: skip
# Claims of docs/papers.md that miniatures refuted or did not decide, and that two states of one run can speak to:
# system, claim, (state, value) with and without, and the least difference that was stated there.
CLAIMS = (
  ("care", "RL over SFT only: F1", ("rl", "f1"), ("sft", "f1"), 0.1),
  ("arena", "more exact reference lists than before RL", ("rl", "fact_em"), ("sft", "fact_em"), 0.1),
  (
    "lear", "EM from the evidence alone is within 3 points of the same model's with all passages before it",
    ("rl", "em_from_evidence"), ("rl", "em"), -0.03,
  ),
)  # fmt: skip
KEPT = ("id", "source", "ended", "em", "f1", "cover_em", "outcome", "num_searches")  # of a question's row
FOUND = "found_answer"  # of a question whose searches are known: whether their results name a gold answer

Record = Mapping[str, Any]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--workdir", type=pathlib.Path, help="folder of run.py whose finished runs are recorded")
  parser.add_argument("--records", type=pathlib.Path, default=RUNS, help="folder of the recorded runs")
  parser.add_argument("--docs", action="store_true", help="write docs/real_model.md and its picture")
  args = parser.parse_args()
  if args.workdir:
    for name, record in [*finished(args.workdir), *prompted(args.workdir)]:
      args.records.mkdir(parents=True, exist_ok=True)
      lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
      (args.records / f"{name}.json").write_text(f"{{{lines}}}\n", encoding="utf-8")
  records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(args.records.glob("*.json"))]
  by_system = collections.defaultdict(list)
  for record in records:
    if "evaluations" in record:
      by_system[record["run"]["name"]].append(record)
  baselines = {method: row for record in records for method, row in record.get("prompted", {}).items()}
  sections = [summary(by_system), untrained(baselines), claims(by_system)]
  sections += [section(name, seeds) for name, seeds in by_system.items()]
  sections = [part for part in sections if part]
  text = "\n\n".join(sections) if by_system or baselines else "No run has been recorded yet."
  print(text)
  if args.docs:
    draw(records)
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def finished(workdir: pathlib.Path) -> Iterator[tuple[str, Record]]:
  """(name, record) of each run whose trained model was evaluated, with those of its evaluations that have ended."""
  for last in sorted(workdir.glob("*/seed_*/evaluations/rl_greedy/metrics.json")):
    seed = last.parents[2]
    config = json.loads((seed / "rl/config.json").read_text())
    metrics = [*jsonl.read(seed / "rl/metrics.jsonl")]
    version = json.loads((seed / "rl/versions.jsonl").read_text().splitlines()[-1])
    system, guarded = seed.parent.name, bool(config["switches"].get("guarded"))
    name = system + " guarded" * guarded + (" on a CPU" if "cpu" in version["devices"].lower() else " on a GPU")
    run = dict(system=system, name=name, seed=config["seed"])
    run |= {key: version[key] for key in ("commit", "jax", "devices")}
    run |= dict(steps=metrics[-1]["step"], learning_rate=config["optimizer"]["learning_rate"])
    run["episodes"] = run["steps"] * config["rollout"]["prompts_per_step"] * config["rollout"]["group_size"]
    played = round(sum(row.get("groups/drawn", 0) for row in metrics) * config["rollout"]["group_size"])
    if played > run["episodes"]:  # dynamic sampling trains some of them
      run["played"] = played
    spent = {path.stem: json.loads(path.read_text())["seconds"] for path in seed.glob("done/*.json")}
    # A run that was interrupted took all of its steps, and `done` has the seconds of its last start.
    steps = sum(row.get(f"seconds/{phase}", 0) for row in metrics for phase in ("step", "evaluate", "checkpoint"))
    spent["reinforcement_learning"] = max(steps, spent.get("reinforcement_learning", 0))
    run["minutes"] = round(sum(spent.values()) / 60)
    ended = [f"{state}_{mode}" for state in STATES for mode in HOW]
    ended = [key for key in ended if (seed / "evaluations" / key / "metrics.json").exists()]
    evaluations = {
      key: dict(jsonl.flat(json.loads((seed / "evaluations" / key / "metrics.json").read_text()), "/")) for key in ended
    }
    kept = ("n", "em", "f1", "response_tokens", "answered", *OWN[system].values())
    yield (
      f"{run['name'].replace(' ', '_')}_{run['seed']}",
      dict(
        run=run,
        curves=curves(metrics),
        evaluations={key: {name: one[name] for name in kept if name in one} for key, one in evaluations.items()},
        questions={key: questions(seed / "evaluations" / key / "predictions.jsonl", system) for key in evaluations},
        shown=_shown(seed),
      ),
    )


def prompted(workdir: pathlib.Path) -> Iterator[tuple[str, Record]]:
  """(name, record) of the methods of run.py --system untrained: numbers alone."""
  for folder in sorted(workdir.glob("untrained/seed_*/evaluations")):
    kept = ("n", "em", "f1", "searches", "response_tokens")
    rows = {}
    for path in sorted(folder.glob("*/metrics.json")):
      metrics = json.loads(path.read_text())
      named = [_named(row) for row in jsonl.read(path.with_name("predictions.jsonl"))]
      rows[path.parent.name] = {name: metrics[name] for name in kept} | dict(named=sum(named) / len(named))
    yield f"{folder.parents[1].name}_{folder.parent.name}", dict(prompted=rows)


def _named(row: Mapping[str, Any]) -> bool:
  """Whether the answer, or the reply of a model that wrote no answer's tags, names a gold answer."""
  return bool(row["cover_em"] or (row.get("unanswered") or {}).get("has_gold"))


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
  """{name of CURVES: (step, value) where metrics.jsonl has it}."""
  points = {
    name: [(row["step"], round(row[key], 4)) for row in metrics if row.get(key) is not None]
    for name, key in CURVES.items()
  }
  return {name: found for name, found in points.items() if found}


def summary(by_system: Mapping[str, Sequence[Record]]) -> str:
  """A row for each system: its seeds' exact match before and after RL, greedy, and the differences with intervals."""
  lines = ["| exact match, greedy | questions | before RL | after RL | difference, 95 % |", "|---|---|---|---|---|"]
  for name, seeds in by_system.items():
    before, after = ([seed["evaluations"][f"{state}_greedy"] for seed in seeds] for state in ("sft", "rl"))
    means = (", ".join(f"{one['em']:.3f}" for one in state) for state in (before, after))
    cells = (name, f"{int(after[0]['n'])}", *means, _differences(seeds, "sft_greedy", "rl_greedy", "em"))
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines) if lines[2:] else ""


def untrained(methods: Mapping[str, Mapping[str, float]]) -> str:
  """A row for each way to prompt the untrained model (ragrl_jax/recipes/untrained/README.md)."""
  lines = [
    "| untrained, prompted | questions | EM greedy | F1 greedy | gold somewhere in the reply | searches |",
    "|---|---|---|---|---|---|",
  ]
  for method, row in methods.items():
    measures = (f"{row[name]:.3f}" for name in ("em", "f1", "named"))
    lines.append(f"| {method} | {int(row['n'])} | {' | '.join(measures)} | {row['searches']:.2f} |")
  return "\n".join(lines) if lines[2:] else ""


def claims(by_system: Mapping[str, Sequence[Record]]) -> str:
  """CLAIMS beside each recorded run, with docs/papers.md's verdicts, but of intervals over one seed's questions."""
  lines = ["| run | claim | stated | with | without | difference, 95 % | verdict |", "|---|---|---|---|---|---|---|"]
  for name, record in ((name, seed) for name, seeds in by_system.items() for seed in seeds):
    for system, claim, *sides, least in CLAIMS:
      if record["run"]["system"] != system or not all(
        measure in record["questions"].get(f"{state}_greedy", {}) for state, measure in sides
      ):
        continue
      columns = [record["questions"][f"{state}_greedy"] for state, _ in sides]
      rows = [rows_of([one | dict(em=one[measure])]) for one, (_, measure) in zip(columns, sides)]
      result = comparison.compare(dict(without=rows[1], given=rows[0]))["em"]
      ((gap, _),), ((low, high),) = result["questions"], result["intervals"]
      shown = low > min(0, least) and gap >= least
      verdict = "shown" if shown else "refuted here" if high < least else "not decidable"
      means = [sum(row["em"] for row in side) / len(side) for side in rows]
      numbers = f"≥ {least} | {means[0]:.3f} | {means[1]:.3f} | {_printed(gap, low, high)}"
      lines.append(f"| {name}, seed {record['run']['seed']} | {claim} | {numbers} | {verdict} |")
  return "\n".join(lines) if lines[2:] else ""


def section(name: str, seeds: Sequence[Record]) -> str:
  """A system's table, differences and episodes, in Markdown."""
  runs = [seed["run"] for seed in seeds]
  ended = {key for seed in seeds for key in seed["evaluations"]}
  metrics = {key: [seed["evaluations"][key] for seed in seeds if key in seed["evaluations"]] for key in ended}
  own = {head: key for head, key in OWN[runs[0]["system"]].items() if all(key in one for one in metrics["rl_greedy"])}
  n = int(metrics["rl_greedy"][0]["n"])
  played = f" of {_each(runs, 'played')} played" if all("played" in run for run in runs) else ""
  lines = [
    f"### {name}",
    "",
    f"{len(seeds)} seed{'s' * (len(seeds) > 1)}, {n} test questions, {_each(runs, 'steps')} steps of RL"
    f" ({_each(runs, 'episodes')} episodes{played}), {runs[0]['devices']}, {_each(runs, 'minutes')} minutes in all.",
    "",
    "| | EM greedy | EM sampled | F1 greedy | F1 sampled | answered greedy | answered sampled | tokens a reply | "
    + " | ".join(own)
    + " |",
    "|---" * (8 + len(own)) + "|",
  ]
  for state, said in STATES.items():
    cells = [_mean(metrics.get(f"{state}_{mode}", []), measure) for measure in ("em", "f1", "answered") for mode in HOW]
    greedy = metrics.get(f"{state}_greedy", [])
    cells += [_mean(greedy, "response_tokens", 0), *(_mean(greedy, key) for key in own.values())]
    lines.append(f"| {said} | " + " | ".join(cells) + " |")
  lines.append("")
  for mode in HOW:
    for before in ("sft", "untrained"):
      both = [f"{state}_{mode}" for state in (before, "rl")]
      if with_both := [seed for seed in seeds if set(both) <= seed["questions"].keys()]:
        shown = [f"{measure.upper()} {_differences(with_both, *both, measure)}" for measure in ("em", "f1")]
        count = f", {len(with_both)} of {len(seeds)} seeds, each for itself" * (len(seeds) > 1)
        ends = f"; EM over questions and seeds {_over_seeds(with_both, *both)}" * (len(with_both) > 1)
        lines.append(f"- RL beside {STATES[before]}, {mode}: {'; '.join(shown)} (95 %, paired, n = {n}{count}){ends}.")
  em_where_found = {said: _em_where_found(seeds, state) for state, said in STATES.items()}
  if found := [f"{said} {em:.3f}" for said, em in em_where_found.items() if em is not None]:
    lines.append(f"- Exact match where the searches found an answer, greedy: {', '.join(found)}.")
  if ends := [
    f"{said} {' and '.join(f'{points[0][1]:.2f} → {points[-1][1]:.2f}' for points in known)}"
    for curve, said in TRAINED.items()
    if (known := [seed["curves"][curve] for seed in seeds if curve in seed["curves"]])
  ]:
    kept = " (of the groups that dynamic sampling kept)" if played else ""
    lines.append(f"- Training's own episodes{kept}, first → last step: {', '.join(ends)}.")
  if shown := max((seed["shown"] for seed in seeds if seed["shown"]), key=len, default=None):  # best before and after
    which = (
      "A question that only RL's model answers" if "sft" in shown else "A training question, sampled in the last step"
    )
    lines += ["", f"{which}: {shown['question']} ({' / '.join(shown['golds'])})"]
    for state in [state for state in ("sft", "rl") if state in shown]:
      fence = "`" * max(3, 1 + max(map(len, re.findall("`+", "".join(shown[state]))), default=0))
      lines += ["", f"{STATES[state][0].upper()}{STATES[state][1:]}:", "", fence, *shown[state], fence]
  return "\n".join(lines)


def _em_where_found(seeds: Sequence[Record], state: str) -> float | None:
  """The exact match of the greedy questions of a state whose searches found an answer; None if it is not known."""
  columns = [seed["questions"].get(f"{state}_greedy", {}) for seed in seeds]
  em = [em for one in columns for em, found in zip(one.get("em", []), one.get(FOUND, [])) if found]
  return sum(em) / len(em) if em else None


def _differences(seeds: Sequence[Record], before: str, after: str, measure: str) -> str:
  """The paired difference of two evaluations in each seed."""
  both = [{key: rows_of([seed["questions"][key]]) for key in (before, after)} for seed in seeds]
  return ", ".join(difference(comparison.compare(rows)[measure]) for rows in both)


def _over_seeds(seeds: Sequence[Record], before: str, after: str) -> str:
  """The difference of exact match; its interval holds for further questions and seeds. A seed is paired with itself."""
  of = lambda columns: dict(zip(zip(columns["source"], columns["id"]), columns["em"]))
  em = [[of(seed["questions"][key]) for key in (after, before)] for seed in seeds]
  gaps = [[rl[key] - warm[key] for key in em[0][0]] for rl, warm in em]
  return _printed(*stats.seeds_interval(gaps, [[0.0] * len(gaps[0])]))


def difference(result: Mapping[str, Any]) -> str:
  ((mean, _),), (interval,) = result["questions"], result["intervals"]
  return _printed(mean, *interval)


def _printed(mean: float, low: float, high: float) -> str:
  return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def draw(records: Sequence[Record]) -> None:
  """Exact match and right citations over the episodes of RL, greedy on held-out questions: one picture per system."""
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  by_name = collections.defaultdict(list)
  for record in records:
    if len(record.get("curves", {}).get("em", ())) > 1:  # one point is no curve
      by_name[record["run"]["name"]].append(record)
  if not by_name:
    return
  across = min(3, len(by_name))
  down = -(-len(by_name) // across)
  figure, axes = pyplot.subplots(
    down, across, figsize=(4.4 * across, 3.4 * down), squeeze=False, sharey=True, layout="constrained"
  )
  for place in axes.flat[len(by_name) :]:
    place.set_axis_off()
  for place, (name, seeds) in zip(axes.flat, by_name.items()):
    for number, seed in enumerate(seeds):
      a_step = seed["run"]["episodes"] / seed["run"]["steps"] / 1000
      for color, (curve, said) in enumerate({"em": "exact match", "cited": "right passage cited"}.items()):
        if points := seed["curves"].get(curve):
          x, y = [step * a_step for step, _ in points], [value for _, value in points]
          place.plot(x, y, color=f"C{color}", marker="o", markersize=4, label=said if number == 0 else None)
    place.set_title(name, fontsize=10)
    place.set_xlabel("thousand episodes of RL")
    place.set_ylim(0, 1)
    place.spines[["top", "right"]].set_visible(False)
    place.legend(frameon=False)
  figure.suptitle("Held-out questions, greedy", fontsize=10)
  figure.savefig(PICTURE, dpi=110, bbox_inches="tight")


def _mean(metrics: Sequence[Mapping[str, Any]], name: str, digits: int = 3) -> str:
  values = [metric[name] for metric in metrics if metric.get(name) is not None]
  return f"{sum(values) / len(values):.{digits}f}" if values else "–"


def _each(runs: Sequence[Mapping[str, Any]], name: str) -> str:
  return " and ".join(dict.fromkeys(f"{run[name]:,}" for run in runs))


def questions(predictions: pathlib.Path, system: str) -> dict[str, list[Any]]:
  """The columns KEPT of an evaluation's rows, and the system's own measures."""
  rows = [*jsonl.read(predictions)]
  rounded = lambda value: round(value, 3) if isinstance(value, float) else value
  columns = {name: [rounded(row[name]) for row in rows] for name in KEPT}
  if any(row.get(FOUND) is not None for row in rows):
    columns[FOUND] = [row.get(FOUND) for row in rows]
  for key in OWN[system].values():
    kind, _, name = key.rpartition("/")
    if values := [row.get({"measure": "measures"}.get(kind, kind), {}).get(name) for row in rows if kind]:
      columns[name] = [*map(rounded, values)]
  return columns


def rows_of(columns: Sequence[Mapping[str, Sequence[Any]]]) -> list[dict[str, Any]]:
  """The rows of `questions`, of several evaluations."""
  return [dict(zip(column, values), terms={}) for column in columns for values in zip(*column.values())]


def _shown(seed: pathlib.Path) -> dict[str, Any] | None:
  """The first question that the model answers only after RL, with both episodes as they were played.

  Without the evaluations' episodes: a right one of the last step that RL logged.
  """
  texts = lambda row: ["".join(episodes.parts(segment)).strip() for segment in row["segments"][1:]]
  folders = {state: seed / "evaluations" / f"{state}_greedy" for state in ("sft", "rl")}
  if all((folder / episodes.PLAYED).exists() for folder in folders.values()):
    right = {}
    for state, folder in folders.items():
      rows = questions(folder / "predictions.jsonl", seed.parent.name)
      right[state] = {key for key, em in zip(rows["id"], rows["em"]) if em == 1}
    episodes_of = {state: {row["id"]: row for row in episodes.read_folder(path)} for state, path in folders.items()}
    for key, row in episodes_of["rl"].items():
      if key in right["rl"] - right["sft"]:
        shown = {state: texts(rows[key]) for state, rows in episodes_of.items()}
        return dict(question=row["question"], golds=row["golds"], **shown)
  for row in episodes.read_episodes([*episodes.steps(seed / "rl").values()][-1]):
    if row["outcome"] == 1:
      return dict(question=row["question"], golds=row["golds"], rl=texts(row))
  return None


if __name__ == "__main__":
  main()
