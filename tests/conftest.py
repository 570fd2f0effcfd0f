"""Strict settings for every test, made before JAX starts, and an eye on what a worker holds."""

import ctypes
import gc
import os
import pathlib
import resource
import signal
import sys
import threading

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax
import psutil
import pytest

from ragrl_jax.core.metrics import declared
from ragrl_jax.store import metrics

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Nearly all of a JAX test's time is compilation, so programs are kept between runs.
jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(__file__).parents[1] / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

ROOM = 1 << 30  # bytes a worker may hold before it gives back what it can
PEAKS = pytest.StashKey[dict]()
LONGEST = (
  "test_train.py",
  "test_crash.py",
  "test_checkpoint.py",
  "test_learner.py",
  "test_engine.py",
  "test_faiss.py",
  "test_ppo.py",
  "test_distilled_judge.py",
)


@pytest.fixture(autouse=True)
def only_declared_metrics(request, monkeypatch):
  """A run that a test makes writes no metric that core/metrics/declared does not have."""
  write = metrics.MetricWriter.write

  def checked(self, step, values):
    odd = declared.undeclared(name for name, _ in metrics.flat(values))
    assert not odd, f"declare these metrics in ragrl_jax/core/metrics/declared: {', '.join(odd)}"
    write(self, step, values)

  if request.path.parent.name not in ("store", "evaluation"):  # where rows are made up
    monkeypatch.setattr(metrics.MetricWriter, "write", checked)


def pytest_configure():
  """What a shell starts in the background ignores Ctrl-C; the tests that raise it want it as in a terminal."""
  if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
  """The longest files first: a worker takes a whole file, and one that starts last is waited for."""
  items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
  """Two workers fit on a small machine: compiling leaves gigabytes freed but kept, and JAX keeps every program."""
  if _held() > ROOM:
    _trim()
  if _held() > ROOM and (nextitem is None or nextitem.path != item.path):  # most files use programs of their own
    jax.clear_caches()
    gc.collect()
    _trim()


def pytest_sessionfinish(session):
  output = getattr(session.config, "workeroutput", None)
  if output is not None:
    output["peak"] = _peak()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
  if (peak := getattr(node, "workeroutput", {}).get("peak")) is not None:
    node.config.stash.setdefault(PEAKS, {})[node.gateway.id] = peak


def pytest_terminal_summary(terminalreporter, config):
  peaks = config.stash.get(PEAKS, None) or {"main": _peak()}
  for name, peak in sorted(peaks.items()):
    terminalreporter.write_line(f"worker {name}: peak {peak / 2**30:.1f} GB")


def _peak() -> int:
  """The most memory this process held, in bytes."""
  unit = 1 if sys.platform == "darwin" else 1024
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _held() -> int:
  """What this process holds now, in bytes."""
  return psutil.Process().memory_info().rss


def _trim() -> None:
  """Gives freed memory back to the system; glibc keeps it in its arenas."""
  if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
    libc.malloc_trim(0)
