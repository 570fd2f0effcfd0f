"""Prints a run's report as tables: resident memory, and each program's work, traffic and launches."""

from ragrl_jax.plan import chips, gpus
from ragrl_jax.plan.summary import Program, Report


def text(report: Report) -> str:
  """The report as tables."""
  gib = lambda size: f"{size / 2**30:.2f}"
  axes = " · ".join(f"{name} {size}" for name, size in report.mesh.items())
  stays = [
    ("resident on a chip", "GiB"),
    *((name, gib(size)) for name, size in report.resident.items()),
    ("largest temporaries", gib(max(program.temporaries for program in report.programs))),
    ("together", gib(report.needed)),
    ("a chip has", gib(report.chip.hbm)),
  ]
  on_gpus = gpus.is_gpu(report.topology)
  rows = [cells(report, one, on_gpus) for one in report.programs]
  errors = [f"{one.name} does not compile: {one.error}" for one in report.programs if one.error]
  return "\n\n".join(
    [
      f"{report.slices} × {report.topology}, {report.devices} chips, {report.hosts} hosts; {axes}; "
      f"{report.parameters / 1e9:.2f}B parameters; {report.rows} cache rows an engine, on {_hosts(report.span)}",
      columns(stays),
      columns([tuple(rows[0]), *(tuple(row.values()) for row in rows)]),
      *errors,
      held(report),
      f"{'It fits' if report.fits else 'IT DOES NOT FIT'}. {_speed(report)}",
      *preallocated(report, on_gpus),
      *too_narrow(report),
    ]
  )


def _speed(report: Report) -> str:
  if not report.mfu:
    return "Not all programs of a step were compiled (--only), so its time is unknown."
  return (
    f"At the roofline a step of {report.tokens} tokens takes {report.step_s:.1f} s: "
    f"{report.tokens / report.step_s:,.0f} tokens/s, the learner's MFU {report.mfu:.0%}."
  )


def held(report: Report) -> str:
  """The number of conversations that the cache can hold, and how it is computed."""
  one = report.conversation
  return (
    f"Beside the train state {report.free / 2**30:.2f} GiB a chip are free for the cache: {report.conversations:,} "
    f"conversations an engine, on {one.replicas} replica{'s' * (one.replicas > 1)}, of the mean length: {one.tokens:,} "
    f"tokens in pages, {one.bytes / 2**20:.1f} MiB a chip. If each reserved the whole context in bfloat16, "
    f"{one.reserved / 2**20:.1f} MiB, there would be room for {report.reserved_rows:,}."
  )


def too_narrow(report: Report) -> list[str]:
  """The number of hosts on which an engine's weights would fit, if they do not fit on its own hosts."""
  if report.fits or report.fewest is not None and report.fewest <= report.span:
    return []
  if report.fewest is None:
    says = "nor on more of them: a replica has at most as many chips as the model has key-value heads"
  else:
    says = f"but on {_hosts(report.fewest)}: raise config.rollout.mesh.tensor, so that an engine spans them"
  return [f"Beside the train state, an engine's weights do not fit on {_hosts(report.span)}, {says}."]


def _hosts(number: int) -> str:
  return f"{number} host{'s' * (number > 1)}"


def cells(report: Report, one: Program, on_gpus: bool) -> dict[str, str]:
  """A program's line of the table, by column."""
  gib = lambda size: f"{size / 2**30:.2f}"
  seconds, bound = report.seconds(one)
  result = {
    "program": one.name,
    "compile s": f"{one.compile_s:.0f}",
    "temporaries GiB": gib(one.temporaries),
    "peak GiB": gib(one.peak),
    "TFLOP": f"{one.flops / 1e12:.2f}",
    "HBM GB": f"{one.hbm / 1e9:.2f}",
    "sent GB": f"{one.sent / 1e9:.2f}",
    f"between {'hosts' if on_gpus else 'slices'} GB": f"{one.dcn / 1e9:.2f}",
    "collectives": ", ".join(collectives(one)) or "-",
  }
  if on_gpus:
    per = "token" if one.turns > 1 else "call"
    result |= {
      "moved GB": f"{one.moved / 1e9:.2f}",
      "kernels": f"{one.fewest / one.turns:,.0f} to {one.kernels / one.turns:,.0f} a {per}",
      "host-read loops": str(one.host_loops),
      "conditions": str(one.host_branches),
    }
  return result | {"least ms": f"{1000 * seconds:.1f}", "bound": bound, "calls a step": str(one.calls)}


def collectives(one: Program) -> list[str]:
  """The numbers of a program's collectives by kind, and how many of them cross hosts of GPUs."""
  crossing = lambda kind: f" ({one.crossing[kind]} between hosts)" if kind in one.crossing else ""
  return [f"{count} {kind}{crossing(kind)}" for kind, count in one.collectives.items()]


def preallocated(report: Report, on_gpus: bool) -> list[str]:
  """The setting for a run that needs more of a GPU's memory than JAX allocates by default."""
  if not on_gpus or not report.fits or report.needed <= chips.JAX_SHARE * report.chip.memory:
    return []
  return [
    f"JAX allocates {chips.JAX_SHARE:.0%} of a GPU's memory, {chips.JAX_SHARE * report.chip.memory / 2**30:.2f} GiB: "
    f"start the run with XLA_PYTHON_CLIENT_MEM_FRACTION={chips.SHARE}."
  ]


def columns(rows: list[tuple[str, ...]]) -> str:
  """Cells aligned, the first column to the left."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  return "\n".join(
    "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(zip(row, widths)))
    for row in rows
  )
