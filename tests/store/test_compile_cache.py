import os
import pathlib
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest

from ragrl_jax.cli import main
from ragrl_jax.store import compile_cache

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = ("jax_compilation_cache_dir", "jax_compilation_cache_max_size", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def caches(tmp_path, monkeypatch):
  """An empty directory for caches, for a process without a cache setting. Restores JAX's settings."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.setattr(compile_cache, "announce", lambda folder: None)
  before = {name: getattr(jax.config, name) for name in SETTINGS}
  jax.config.update("jax_compilation_cache_dir", None)
  yield tmp_path
  for name, value in before.items():
    jax.config.update(name, value)


def test_the_directory_is_shared_by_machines_that_compile_alike(monkeypatch, tmp_path):
  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  monkeypatch.setenv("HOME", str(tmp_path))
  monkeypatch.delenv("NPROC", raising=False)
  monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5, 6}, raising=False)
  here = compile_cache.place()
  assert here.parent == tmp_path / ".cache" / "ragrl_jax" / "compiled"
  # The number of threads decides how sums are split, and JAX's key for a program does not contain it.
  assert here.name.endswith("-4")
  monkeypatch.setenv("PJRT_NPROC", "3")
  assert compile_cache.place().name == here.name.rpartition("-")[0] + "-3"
  monkeypatch.setattr(pathlib.Path, "read_text", lambda path: "flags\t: fpu avx2\n\nflags\t: fpu avx2\n")
  assert compile_cache.place().name != here.name.rpartition("-")[0] + "-3"
  monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/ada")
  assert compile_cache.place().parent == pathlib.Path("/scratch/ada/ragrl_jax/compiled")
  monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the standard says to ignore it
  assert compile_cache.place().parent == tmp_path / ".cache" / "ragrl_jax" / "compiled"


def test_programs_are_kept_there_within_a_limit(caches):
  folder = compile_cache.keep()
  assert folder == compile_cache.place() and folder.is_relative_to(caches) and folder.stat().st_mode & 0o777 == 0o700
  assert [getattr(jax.config, name) for name in SETTINGS] == [str(folder), compile_cache.LIMIT, compile_cache.LEAST_S]


def test_the_users_own_setting_wins(caches):
  jax.config.update("jax_compilation_cache_dir", "/given")  # as JAX_COMPILATION_CACHE_DIR does
  size = jax.config.jax_compilation_cache_max_size
  assert compile_cache.keep() == pathlib.Path("/given") and not list(caches.iterdir())
  assert jax.config.jax_compilation_cache_max_size == size


@pytest.mark.parametrize("amiss", ["a file in its place", "others write there", "nobody's home"])
def test_an_unusable_directory_gives_a_warning_and_the_run_goes_on(caches, amiss, capsys, monkeypatch):
  monkeypatch.setattr(compile_cache.hosts, "is_first", None)  # it would start JAX, before the hosts join
  if amiss == "a file in its place":
    (caches / "ragrl_jax").write_text("")
  elif amiss == "others write there":  # and could make this process execute their programs
    compile_cache.place().mkdir(parents=True)
    compile_cache.place().chmod(0o777)
  else:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(pathlib.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home directory")))
  assert compile_cache.keep() is None and jax.config.jax_compilation_cache_dir is None
  said = capsys.readouterr().err
  assert said.startswith("compiled programs are not kept (") and "JAX_COMPILATION_CACHE_DIR" in said


def test_half_written_files_of_a_killed_process_are_removed(caches):
  folder = compile_cache.place()
  folder.mkdir(mode=0o700, parents=True)
  for name in ("whole-cache", "whole-atime", "half-cache"):
    (folder / name).write_bytes(b"12345678")
  compile_cache.keep()
  assert {path.name for path in folder.iterdir()} >= {"whole-cache", "whole-atime"}
  assert not (folder / "half-cache").exists()


def test_a_message_says_what_is_compiled_and_how_long_it_took():
  said, heard = [], threading.Event()

  def say(text):
    said.append(text)
    heard.set()

  end = compile_cache.announce("/kept", say=say, after_s=0.0)
  try:
    jax.monitoring.record_scalar(compile_cache.EVENT, 0.0, fun_name="jit(_decode)")
    assert heard.wait(60) and said == ["compiling decode … (once: it is kept in /kept)"]
    jax.monitoring.record_event_duration_secs(compile_cache.EVENT, 12.34, fun_name="jit(_decode)")
    assert said[1:] == ["compiled decode in 12.3 s"]

    def thrice(x):
      return 3 * x

    jax.jit(thrice)(jnp.ones(7))  # JAX sends both events; a compilation of a millisecond may end before the message
    assert any(text.startswith("compiled thrice in ") for text in said[2:])
  finally:
    end()
  for timer in [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]:
    timer.join(60)  # one that had begun to say what it says
  count = len(said)
  jax.monitoring.record_event_duration_secs(compile_cache.EVENT, 5.0, fun_name="jit(_decode)")
  assert len(said) == count


def test_short_compilations_are_not_reported():
  said = []
  end = compile_cache.announce("", say=said.append, after_s=60.0)
  jax.jit(lambda x: x * 5 + 1)(jnp.ones(7))
  end()
  timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
  assert not said and all(timer.finished.is_set() for timer in timers)


def test_commands_use_the_cache_and_the_library_does_not():
  runs = ("train", "sft", "evaluate", "quickstart", "build_index", "serve_retriever", "make_judge_data")
  commands = [file for file, _ in main.COMMANDS.values()]
  files = {ROOT / "ragrl_jax" / ("" if "." in name else "cli") / f"{name.replace('.', '/')}.py" for name in commands}
  for name in runs:
    (file,) = (file for file in files if file.stem == name)
    assert file.read_text().count("compile_cache.keep") == 1, name
  for path in {*(ROOT / "ragrl_jax").rglob("*.py")} - files:
    text, own = path.read_text(), path.parts[-2:] == ("store", "compile_cache.py")
    assert "compile_cache.keep()" not in text and ("jax_compilation_cache" in text) == own, path


# A gradient's bits from a program without cache, when the cache is written, and when it is read.
CHILD = """
import jax, jax.numpy as jnp, numpy as np
from ragrl_jax.store import compile_cache

read = []
jax.monitoring.register_event_listener(lambda name, **_: read.append(name) if name.endswith("/cache_hits") else None)
x, w = (np.random.default_rng(seed).normal(size=size).astype("f4") for seed, size in ((0, (64, 96)), (1, (96, 300))))

def loss(w, x):
  logits = jnp.tanh(x @ w)
  return (jax.nn.log_softmax(logits, -1) * jnp.exp(logits - logits.mean(0))).sum()

def gradient():
  jax.clear_caches()  # the program is compiled again, or read from the cache
  return np.asarray(jax.jit(jax.grad(loss))(w, x)).tobytes()

without, _ = gradient(), compile_cache.keep()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # this program compiles quickly
written, before = gradient(), len(read)
print(written == without, gradient() == without, before, len(read))
"""


@pytest.mark.slow  # a process of its own
def test_a_start_with_cache_changes_no_bit(tmp_path):
  kept = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
  environment = kept | dict(XDG_CACHE_HOME=str(tmp_path), PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu")
  done = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert done.stdout.split() == ["True", "True", "0", "1"] and list(tmp_path.rglob("*-cache"))
