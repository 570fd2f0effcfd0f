"""The commands of `ragrl`, each in a fork of a process that has imported the library: a start takes no seconds."""

import os
import pathlib
import subprocess
import sys
import tempfile

from forks import FORKS

from ragrl_jax.cli import main


def ragrl(*words, cwd=None, says=None) -> subprocess.CompletedProcess:
  """Runs `ragrl WORDS` as a user does. With `says`, it must end with 0 and print this."""
  with tempfile.TemporaryDirectory() as folder:
    out, err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
    child = FORKS.Process(target=_run, args=(list(map(str, words)), out, err, cwd))
    child.start()
    child.join(timeout=280)
    done = subprocess.CompletedProcess(words, child.exitcode, out.read_text(), err.read_text())
  assert says is None or done.returncode == 0 and says in done.stdout, done.stderr + done.stdout
  return done


def _run(words, out, err, cwd):
  for number, file in ((1, out), (2, err)):
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
  os.chdir(cwd or os.getcwd())
  sys.argv = ["ragrl", *words]
  main.main()
