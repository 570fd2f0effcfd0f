"""Writes the episodes of a run or of an evaluation for other programs, one JSON object per line:

  ragrl export-traces --workdir OUT --format jsonl|atif --out FILE.jsonl

jsonl is a flat format: messages, rewards, terms, verdicts. atif is Harbor's Agent Trajectory Interchange Format, with
the token ids and log-probabilities of each step. docs/howto/run.md describes both.
"""

import json
import pathlib

from ragrl_jax.cli import commands
from ragrl_jax.data import writers
from ragrl_jax.report import interchange
from ragrl_jax.store import episodes


def main() -> None:
  parser = commands.Parser(__doc__)
  parser.add_argument("--workdir", required=True, help="folder of a run or of an evaluation")
  parser.add_argument("--format", default="jsonl", choices=tuple(interchange.FORMS))
  parser.add_argument("--out", required=True, help="the file to write")
  arguments = parser.parse_args()
  read = [pathlib.Path(arguments.workdir) / episodes.PLAYED, *episodes.steps(arguments.workdir).values()]
  writers.refuse_inputs([arguments.out], read)
  number = interchange.write(arguments.workdir, arguments.format, arguments.out)
  print(json.dumps(dict(episodes=number, format=arguments.format, file=arguments.out)))
