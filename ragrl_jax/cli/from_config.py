"""Reads a training script of Search-R1, verl or TRL, and writes a config file with its settings:

  ragrl from-config train_grpo.sh --out mine.py
  ragrl from-config search_multiturn_grpo.yaml run.sh --out mine.py --set questions=169615
  ragrl from-config grpo.yaml --set num_processes=8

A file is a shell script, hydra's resolved YAML, TRL's YAML or JSON, or Python with a GRPOConfig(…). It is read, never
run. Of several files, a later one overrides an earlier one. Prints for every field whether it was kept, mapped, set
aside or refused, and why. Without --out nothing is written. Exits with 1 if a field was refused or is not known,
because results would differ; --anyway exits with 0.
"""

import pathlib
from collections.abc import Sequence

from ragrl_jax import config as config_lib
from ragrl_jax.cli import commands
from ragrl_jax.cli.foreign import script_text, translate
from ragrl_jax.data import writers


def main() -> int:
  parser = commands.Parser(__doc__ or "")
  parser.add_argument("files", nargs="+", metavar="FILE", help="the script, after the YAML that it names")
  parser.add_argument("--out", default="", help="the config file to write")
  parser.add_argument("--of", default="", choices=("", *translate.TABLES), help="the library; by default by its fields")
  parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of theirs")
  parser.add_argument("--anyway", action="store_true", help="exit with 0 although fields were refused")
  arguments = parser.parse_args()
  translation = made_of(arguments.files, arguments.set, arguments.of)
  print(account(translation))
  if arguments.out:
    if not arguments.out.endswith(".py"):
      raise ValueError(f"--out={arguments.out}: a config is a Python file: name it {arguments.out}.py.")
    writers.refuse_inputs([arguments.out], [pathlib.Path(file) for file in arguments.files])
    source = " and ".join(pathlib.Path(file).name for file in arguments.files)
    pathlib.Path(arguments.out).write_text(translate.config_text(translation, source), encoding="utf-8")
    config_lib.validate(config_lib.load(arguments.out if "/" in arguments.out else f"./{arguments.out}"))
    print(f"\n{arguments.out}")
  return 0 if translation.complete or arguments.anyway else 1


def made_of(files: Sequence[str], changes: Sequence[str] = (), of: str = "") -> translate.Translation:
  """The settings of scripts that belong together.

  Args:
    files: the scripts; a later one overrides an earlier one.
    changes: FIELD=VALUE in their fields, which override all.
    of: one of translate.TABLES; "": the table that knows most of the fields.

  Raises:
    ValueError: a file cannot be read, no table is theirs, or a change is not FIELD=VALUE.
  """
  script = script_text.Script()
  for file in files:
    read = script_text.read(file)
    script.fields |= read.fields
    script.unread += read.unread
  for change in changes:
    name, has, value = change.partition("=")
    if not has:
      raise ValueError(f"--set {change}: it must be FIELD=VALUE, such as questions=169615.")
    script.fields[name] = script_text.number_or(value)
  flat = (script_text.flat(value, name) for name, value in script.fields.items())
  script.fields = script_text.interpolated({name: value for fields in flat for name, value in fields.items()})
  return translate.translate(script, of or translate.chosen(script.fields), files=len(files))


def account(translation: translate.Translation) -> str:
  """Every field of a script with its verdict, how many have each, and the settings that follow from no field."""
  counts = ", ".join(f"{verdict} {len(translation.of(verdict))}" for verdict in reversed(translate.VERDICTS))
  lines = [f"Read as {translation.name}: {sum(not one.left_out for one in translation.lines)} fields: {counts}."]
  for verdict, title in translate.VERDICTS.items():
    lines_found = translation.of(verdict)
    lines += ["", f"{title[0].upper()}{title[1:]}"] if lines_found else []
    for one in lines_found:
      ours = ", ".join(f"config.{name}={value}" for name, value in one.ours.items())
      notes = [translation.notes[name] for name in one.ours if name in translation.notes] if ours else []
      note = " (their default)" if one.left_out else ""
      line = f"  {one.field}={one.value}{note} → {ours}" if ours else f"  {one.field}={one.value}{note}"
      lines.append(line + "".join(f": {why}" for why in ([one.why] if one.why else []) + notes[:1]))
  lines += ["", "Left out by the script: their defaults where they differ from ours, and sizes for accelerators"]
  for name, value in translation.defaults.items():
    lines.append(f"  config.{name}={value}" + (f": {translation.notes[name]}" if name in translation.notes else ""))
  return "\n".join(lines)
