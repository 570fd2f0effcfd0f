"""The commands of `ragrl`, each in a fork of a process that has imported the library: a start takes no seconds."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

from forks import FORKS

from ragrl_jax import config
from ragrl_jax.cli import commands, main
from ragrl_jax.jobs import checkpoints


def ragrl(*words, cwd=None, says=None, only_read=False) -> subprocess.CompletedProcess:
  """Runs `ragrl WORDS` as a user does. With `says`, it must end with 0 and print this. only_read: until it has read all
  flags; a checkpoint's settings are the default ones."""
  with tempfile.TemporaryDirectory() as folder:
    out, err = pathlib.Path(folder, "out"), pathlib.Path(folder, "err")
    child = FORKS.Process(target=_run, args=(list(map(str, words)), out, err, cwd, only_read))
    child.start()
    child.join(timeout=280)
    done = subprocess.CompletedProcess(words, child.exitcode, out.read_text(), err.read_text())
  assert says is None or done.returncode == 0 and says in done.stdout, done.stderr + done.stdout
  return done


def _run(words, out, err, cwd, only_read):
  for number, file in ((1, out), (2, err)):
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
  os.chdir(cwd or os.getcwd())
  if only_read:
    read = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = lambda self, *given: sys.exit(read(self, *given) and 0)
    commands._main = lambda *given, **named: None
    checkpoints.config_of = lambda checkpoint: config.default_config()
  sys.argv = ["ragrl", *words]
  main.main()
