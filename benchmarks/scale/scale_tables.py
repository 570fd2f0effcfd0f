"""Tables of the compilers' reports on the compiled cases, for docs/scale.md."""

import dataclasses
from collections.abc import Sequence

import scale_cases as cases
import scale_estimate as estimate

GIB = 2**30


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def mesh(choice) -> str:
  """data × fsdp × tensor (× sequence)."""
  axes = dataclasses.astuple(choice.axes)
  return "×".join(str(n) for n in (axes if axes[3] > 1 else axes[:3]))


def seconds(value: float) -> str:
  return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def compiled(rows) -> str:
  """libtpu's report next to the arithmetic, one line per compiled case."""
  lines = []
  for row in rows:
    choice = cases.choice_of(row)
    said = cases.estimate(row["model"], row["run"], row["slice"], choice)
    start = [row["model"], row["run"], row["slice"], mesh(choice), f"{choice.micro_rows} / {choice.lanes}"]
    if "report" not in row:
      lines.append(start + [f"not compiled: {row['failed']}"] + [""] * 7)
      continue
    report = row["report"]
    stays, spare = sum(report["resident"].values()), max(one["temporaries"] for one in report["programs"])
    peak = max(one["peak"] for one in report["programs"])
    errors = [one["name"] for one in report["programs"] if one["error"]]
    room = max(one.temporaries for one in said.programs)
    lines.append(
      start
      + [
        f"{stays / GIB:.2f} ({sum(said.resident.values()) / GIB:.2f})",
        f"refused: {', '.join(errors)} ({room / GIB:.2f})" if errors else f"{spare / GIB:.2f} ({room / GIB:.2f})",
        f"{peak / GIB:.2f}",
        f"{report['needed'] / GIB:.2f} ({said.needed / GIB:.2f}) of {report['capacity'] / GIB:.2f}",
        "yes" if report["fits"] else "**no**",
        f"{seconds(report['step_s'])} ({seconds(said.step_s)})",
        f"{report['tokens_per_second']:,.0f}",
        f"{report['mfu']:.0%}",
      ]
    )
  return table(
    [
      "model",
      "recipe",
      "slice",
      "mesh",
      "rows / lanes",
      "resident, GiB",
      "temporaries, GiB",
      "largest peak",
      "together, GiB",
      "fits",
      "step, s",
      "tokens/s",
      "MFU",
    ],
    lines,
  )


def parts(rows) -> str:
  """The parts of a step's time, one line per compiled case that fits."""
  lines = []
  for row in rows:
    if not row.get("report", {}).get("fits"):
      continue
    report = row["report"]
    told = lambda name, report=report: [
      (one["calls"] * one["seconds"], one["bound"]) for one in report["programs"] if one["name"] == name
    ]
    show = lambda name, told=told: ", ".join(f"{seconds(s)} {bound}" for s, bound in told(name)) or ""
    sent = next((one for one in report["programs"] if one["name"] == "learner: accumulate"), None)
    lines.append(
      [
        row["model"],
        row["run"],
        row["slice"],
        show("learner: accumulate"),
        show("learner: apply"),
        show("learner critic: accumulate"),
        show("learner: score"),
        show(estimate.VALUES),
        show("engine: prefill"),
        show("engine: decode"),
        f"{sent['calls'] * sent['sent'] / 1e9:,.0f}",
        f"{sent['calls'] * sent['dcn'] / 1e9:,.1f}" if sent["dcn"] else "",
      ]
    )
  return table(
    [
      "model",
      "recipe",
      "slice",
      "gradient, s",
      "update, s",
      "critic's gradient, s",
      "scoring, s",
      "critic's values, s",
      "prefill, s",
      "decode, s",
      "gradient's ICI or NVLink, GB",
      "its network, GB",
    ],
    lines,
  )


def good(rows) -> str:
  """The ratios of the arithmetic to the compiler's figures, over all compiled cases that fit."""
  ratios = dict(temporaries=[], together=[], sent=[], step=[])
  for row in rows:
    if not row.get("report", {}).get("fits"):
      continue
    said = cases.estimate(row["model"], row["run"], row["slice"], cases.choice_of(row))
    report = row["report"]
    mine = {one["name"]: one for one in report["programs"]}
    ratios["together"].append(said.needed / report["needed"])
    ratios["temporaries"].append(
      max(one.temporaries for one in said.programs) / max(one["temporaries"] for one in report["programs"])
    )
    ratios["sent"].append(
      next(one.sent for one in said.programs if one.name == "learner: accumulate") / mine["learner: accumulate"]["sent"]
    )
    ratios["step"].append(said.step_s / report["step_s"])
  if not ratios["step"]:
    return "Nothing is compiled yet."
  names = dict(
    temporaries="largest temporaries", together="memory, together", sent="ICI bytes of a gradient", step="step time"
  )
  show = lambda found: [f"{min(found):.2f}", f"{sorted(found)[len(found) // 2]:.2f}", f"{max(found):.2f}"]
  return table(
    ["arithmetic / compiled", "least", "median", "most", "n"],
    [[names[name], *show(found), str(len(found))] for name, found in ratios.items()],
  )


def versions(rows) -> str:
  compilers = ("libtpu", "jax-cuda12-plugin")
  result = sorted({(f"{name} {row[name]}", row["level"]) for name in compilers for row in rows if name in row})
  spent = sum(row.get("cpu_s", 0.0) for row in rows)
  return (
    ", ".join(f"{version} at jax_optimization_level={level}" for version, level in result)
    + f"; {sum('report' in row for row in rows)} cases, {spent / 60:.0f} minutes of one core in all"
  )
