import ast
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import types

import jax
import pytest
from absl import flags
from console import ragrl
from ml_collections import config_flags

from ragrl_jax import config as config_lib, structs
from ragrl_jax.cli import commands, main as main_lib
from ragrl_jax.data import readers
from ragrl_jax.learner import learner

ROOT = pathlib.Path(__file__).parents[1]


def test_messages_name_commands_as_ragrl():
  for file in (ROOT / "ragrl_jax").rglob("*.py"):
    text = file.read_text()
    tree = ast.parse(text if "`ragrl " in text or "launchers/" in text else "")
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
      if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
        assert "launchers/" not in node.value, f"{file}:{node.lineno}: write `ragrl NAME`"
        assert set(re.findall(r"`ragrl ([a-z]\S*?)(?=[ `])", node.value)) <= main_lib.COMMANDS.keys(), node.value


HELPS = """
import os, sys
import absl.app, argparse, importlib.metadata, ml_collections.config_flags, numpy  # once for all
from ragrl_jax.cli import main
for name in main.COMMANDS:
  if os.fork():
    assert os.wait()[1] == 0, name
    continue
  sys.argv = ["ragrl", name, "--help"]
  try:
    main.main()
  finally:
    from tqdm import tqdm
    next(iter(tqdm([0], file=sys.stdout)))
    assert not {"jaxlib", "transformers", "scipy.stats", "pandas", "openai"} & set(sys.modules)
"""


def test_a_commands_help_starts_without_jax_and_its_progress_bars_have_its_name():
  done = subprocess.run([sys.executable, "-c", HELPS], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0 and not done.stderr, done.stderr
  assert all(f"ragrl {name}" in done.stdout and f"{name}:   0%" in done.stdout for name in main_lib.COMMANDS)


def raises(error):
  def main():
    raise error

  return main


def test_a_mistake_is_one_line_and_a_bug_shows_its_traceback(capsys):
  asks = lambda: list(readers.read_examples("/nowhere/asked.jsonl"))  # FileNotFoundError of the library
  negative = lambda: list(readers.read_examples("x", max_examples=-1))  # ValueError, likewise
  disk = raises(OSError(28, "No space left on device"))
  stops = raises(learner.NonFinite("the loss is not finite.\nLower the rate."))
  full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating 9 GiB")
  read_only, unread = OSError(30, "Read-only file system", "/ro/x"), BrokenPipeError(32, "Broken pipe")
  for main, kind, status, says in (
    (asks, FileNotFoundError, 2, "no such file"), (negative, ValueError, 2, "max_examples=-1"),
    (disk, OSError, 2, "No space left"), (stops, learner.NonFinite, 1, "not finite. Lower"),
    (raises(read_only), OSError, 2, "error: /ro/x: Read-only file system. Name another"),
    (raises(structs.ToolFailed("gone")), structs.ToolFailed, 1, "gone"),
    (raises(full), jax.errors.JaxRuntimeError, 1, "micro_rows"), (raises(unread), BrokenPipeError, 1, "Broken pipe"),
    (raises(structs.ToolFailed("a\x1b[2Jb")), structs.ToolFailed, 1, r"a\x1b[2Jb"),  # a server's text
  ):  # fmt: skip
    with pytest.raises(SystemExit) as ended:
      commands.guarded(main)
    said = capsys.readouterr().err
    assert ended.value.code == status and said.startswith("error: ") and says in said and said.count("\n") == 1
    with pytest.raises(kind):
      commands.guarded(main, shown=True)  # --traceback
  for bug, kind in (
    (lambda: json.loads("{"), json.JSONDecodeError), (lambda: int("x"), ValueError), (lambda: {}["x"], KeyError),
    (raises(ValueError("not raised by the library")), ValueError),
    (raises(jax.errors.JaxRuntimeError("INTERNAL")), jax.errors.JaxRuntimeError),
  ):  # fmt: skip
    with pytest.raises(kind):
      commands.guarded(bug)


@pytest.fixture
def parse(monkeypatch, capsys):
  """Arguments → (settings, None), or (None, message)."""

  def parsed(*words):
    known = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=known)
    flags.DEFINE_string("workdir", None, "Folder.", flag_values=known)
    flags.DEFINE_integer("verbosity", -1, "As absl's.", flag_values=known)
    flags.mark_flags_as_required(["config", "workdir"], flag_values=known)
    monkeypatch.setattr(flags, "FLAGS", known)
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    try:
      commands.guarded(commands._parsed, sys.argv)
    except SystemExit as ended:
      said = capsys.readouterr().err
      assert ended.code == 2 and said.startswith("error: ") and said.count("\n") == 1
      return None, said
    return known.config, None

  monkeypatch.chdir(ROOT)
  return parsed


CONFIG, NONE = "--config=configs/search_r1.py:smoke", "--config=configs/none.py"


def test_whole_numbers_can_have_separators_and_exponents(parse):
  parsed = lambda text: parse(CONFIG, "--workdir=x", f"--config.steps={text}")
  assert parsed("1e3")[0].steps == 1000 and parsed("7")[0].steps == 7
  for bad in ("1.5", "1e3x", "many", "nan", "inf"):
    assert f"--config.steps={bad}: '{bad}' is no whole number" in parsed(bad)[1]


@pytest.mark.parametrize("words, says", [
  ((CONFIG, "--workdir=x", "--config.stepz=3"), '--config.stepz: there is no such setting: .* Did you mean "steps"'),
  ((CONFIG, "--workdir=x", "--config.rollout.contxt=3"), '--config.rollout.contxt: .*"context"'),
  ((CONFIG, "--workdir=x", "--config.nothing.there=3"), "--config.nothing.there: there is no such setting"),
  ((CONFIG, "--workdirr=x"), "'workdirr'. Did you mean: workdir"), ((CONFIG,), "--workdir is missing"),
  ((CONFIG, "--workdir="), "error: --workdir= is empty: is a variable of the shell unset"),
  (("--workdir=x",), "--config is missing"),
  (("--workdir=x", "--config.steps=3"), "--config is missing: there is no config to change"),
  ((NONE, "--workdir=x"), f"{NONE}: there is no such file; .* arena.py"),
  ((NONE, "--workdir=x", "--config.steps=3"), f"{NONE}: there is no such file"),
  (("--config=", "--config.steps=3", "--workdir=x"), "--config=: there is no such file"),
  (("--config=configs/search_r1.py:smokey", "--workdir=x"), "configs/search_r1.py:smokey: use smoke, sft, dgpo"),
  ((CONFIG, "--workdir=x", "--config.model.remat=maybe"), "--config.model.remat=maybe"),
  (("--config.steps=3", CONFIG, "--workdir=x"), "before a value for --config"),
  (("--config=aren", "--workdir=x"), r"--config=aren: there is no config 'aren' \(did you mean arena\?\)\. Use one of"),
  (("--config", "zzz:smoke", "--workdir=x"), "--config=zzz:smoke: there is no config 'zzz'. Use one of agent, arena"),
  (("--config=search_r1:smokey", "--workdir=x"), "configs/search_r1.py:smokey: use smoke, sft, dgpo"),
  (("--config", "search_r1:smokey", "--workdir=x"), "^error: [^ ]*configs/search_r1.py:smokey: use smoke, sft, dgpo"),
])  # fmt: skip
def test_wrong_flags_are_refused(parse, words, says):
  found, said = parse(*words)
  assert found is None and re.search(says, said), said


def test_what_libraries_report_is_printed_only_if_it_is_asked_for(parse):
  """absl shows it in every command whose flags leave verbosity at its default, such as the modules that faiss tries."""
  for words, level in (((), -1), (("--verbosity=0",), 0)):
    parse(CONFIG, "--workdir=x", *words)
    assert (flags.FLAGS.verbosity, flags.FLAGS["verbosity"].using_default_value) == (level, False)


def test_a_config_is_found_by_its_name(parse, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)  # outside the checkout
  for words in (("--config=search_r1:smoke",), ("--config", "search_r1:smoke"), (f"--config={ROOT}/{CONFIG[9:]}",)):
    found, _ = parse(*words, "--workdir=x", "--config.steps=7")
    assert found.recipe == "search_r1" and found.steps == 7


def test_a_faulty_config_file_is_named_with_its_line(parse, tmp_path, monkeypatch):
  file = tmp_path / "mine.py"
  file.write_text(
    "from ragrl_jax import config as config_lib\n\n\ndef get_config(_=''):\n"
    "  config = config_lib.default_config()\n  config.rollout.group_sise = 3\n  return config\n"
  )
  assert f"{file}:6: " in parse(f"--config={file}", "--workdir=x")[1]
  assert f"{file}:6: " in parse("--config", str(file), "--workdir=x")[1]
  file = tmp_path / "other.py"
  monkeypatch.delitem(sys.modules, "config_config")  # ml_collections loads every file into one module
  for text, says in (
    ("from ragrl_jax import recipes\n", ": it has no function get_config"),
    ("def get_config(variant=''):\n  pass\n", ": get_config(variant) returned nothing"),
    ("\ndef get_config(variant=''\n", ":2: '(' was never closed"),
    ("import no_such_module\n", ":1: No module named 'no_such_module'"),
  ):
    monkeypatch.delitem(sys.modules, "config_config", raising=False)
    file.write_text(text)
    for words in ((), ("--config.steps=7",)):
      assert f"{file}{says}" in parse("--config", str(file), "--workdir=x", *words)[1]
      monkeypatch.delitem(sys.modules, "config_config", raising=False)


def test_a_folder_that_cannot_be_made_is_named_with_its_flag(tmp_path):
  (tmp_path / "file").write_text("")
  for path in (tmp_path / "file", tmp_path / "file" / "inside", "/proc/run"):
    with pytest.raises(ValueError, match=f"--workdir={path}: this folder cannot be created"):
      commands.ready(config_lib.default_config(), "workdir", str(path))
  commands.ready(config_lib.default_config(), "workdir", str(tmp_path / "a" / "b"))


@pytest.mark.slow  # starts a process that imports everything
def test_a_command_as_a_user_calls_it(tmp_path):
  words = lambda config: ("train", f"--workdir={tmp_path}/run", config, "--config.model.dtype=bf16")
  how = dict(cwd=ROOT, env=os.environ | dict(PYTHONPATH=str(ROOT)), capture_output=True, text=True)
  told = subprocess.run([sys.executable, "-m", "ragrl_jax", *words(CONFIG)], **how)
  assert told.returncode == 2 and told.stdout == ""
  assert told.stderr == "error: config.model.dtype='bf16': it must be 'float32', 'bfloat16' or 'float16'.\n"
  told = ragrl(*words(f"{CONFIG},sft"), cwd=ROOT)
  assert told.returncode == 2 and "the variant 'sft' of --config has the settings of `ragrl sft`" in told.stderr
  assert not (tmp_path / "run").exists()


@pytest.mark.slow  # starts a process
def test_signs_that_a_terminal_lacks_are_printed_as_escapes():
  how = dict(cwd=ROOT, capture_output=True, env=os.environ | dict(PYTHONIOENCODING="ascii"))
  told = subprocess.run([sys.executable, "-m", "ragrl_jax", "settings"], **how)
  assert (told.returncode, told.stderr) == (0, b"") and rb"\u2192" in told.stdout


@pytest.mark.slow  # starts two processes
def test_ctrl_c_shows_no_traceback_and_ends_the_wait_for_a_question():
  text = "import os, signal, threading, types\nfrom ragrl_jax.cli import ask, commands\n"
  text += "later = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])\n"
  silent, held = os.pipe()
  for main in ("signal.raise_signal(signal.SIGINT)", "later.start() or ask._session([], None)"):
    run = f"{text}commands.start(types.SimpleNamespace(main=lambda: {main}))"
    told = subprocess.run([sys.executable, "-c", run], cwd=ROOT, stdin=silent, stderr=subprocess.PIPE)
    assert told.returncode == -signal.SIGINT and not re.search(b"Traceback|Interrupt", told.stderr), told.stderr
  os.close(silent), os.close(held)


def test_a_path_may_begin_with_the_users_home(monkeypatch):
  monkeypatch.setenv("HOME", "/home/me")
  monkeypatch.setattr(sys, "excepthook", sys.excepthook)
  monkeypatch.setattr(sys, "argv", ["ragrl", "--out=~/a~/b", "--config.data.train=~", "--x=a/~/b", "--x=~you/c"])
  with pytest.raises(SystemExit):
    commands.start(types.SimpleNamespace(main=lambda: 0))
  assert sys.argv[1:] == ["--out=/home/me/a~/b", "--config.data.train=/home/me", "--x=a/~/b", "--x=~you/c"]


@pytest.mark.parametrize("words, says", [
  ("evaluate --data=x --out=x", "--checkpoint"), ("evaluate --data=x --out=x --config.steps=3", "--checkpoint"),
  ("evaluate --data=x --data=y --out=x", "error: flag --data=y: already defined as x"),  # x would be dropped
  ("compare --verdicts=x --measures=em", "--measures with --verdicts"),
  ("trec --run=x --qrels=x --top_k=5", "--top_k has no effect without --index"),
  ("make-lear-generator --data=x --out=x --predictions=x --index=x", "--index with --predictions"),
  ("make-lear-sft --data=x --out=x --wording=x --max_missing=1", "--wording, --max_missing without --url"),
])  # fmt: skip
def test_a_flag_that_is_missing_or_would_have_no_effect_is_named(words, says):
  told = ragrl(*words.split())
  assert told.returncode == 2 and says in told.stderr and told.stderr.count("\n") == 1, told.stderr


def test_help_is_short_and_shows_no_default_config_whole():
  assert len(ragrl("quickstart", "--help", says="quickstart").stdout.splitlines()) < 25
  assert "Share of each file, in any unit. [80,20]" in ragrl("split", "--help", says="Splits").stdout
  lines = ragrl("evaluate", "--help", says="Scores a checkpoint: ragrl evaluate").stdout.splitlines()
  assert len(lines) < 25
  for flag in ("--checkpoint", "--data", "--out", "--config.A.B=VALUE", "--traceback", "--helpfull"):
    assert any(line.strip().startswith(flag) for line in lines), flag
