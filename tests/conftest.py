"""Sets strict JAX settings before JAX starts, and limits the memory of the test workers."""

import ctypes
import gc
import os
import pathlib
import signal
import sys
import threading

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# XLA's threads. Simulated devices may start a program's collectives in different orders, and each that waits holds one:
# with a thread a device, all of them can wait for ever.
os.environ["NPROC"] = "64"
os.environ.update({name: "" for name in os.environ if name.lower().endswith("_proxy")})  # servers are on this machine
sys.path.append(str(pathlib.Path(__file__).parent / "kits"))  # for the tests' own processes, which import this file

import declared
import jax
import psutil
import pytest
import resident

from ragrl_jax.store import jsonl, metrics

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Nearly all of a JAX test's time is compilation, so programs are kept between files, workers and runs.
jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(__file__).parents[1] / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)

ROOM = 1 << 30  # bytes; a worker that holds more frees its caches
PEAKS = pytest.StashKey[dict]()
LONGEST = (  # the longest first
  "learner endings ppo decoder train kernels teacher family_meshes memories evaluate live_memory "
  "commands logprobs delta engine_layouts from_python engine speculation lora routes serving paged_gpu "
  "printed_commands conversation databases adapters losses rollback sampling optimizer vector_indexes attention "
  "real_model openai_server moved without_agents documentation checkpoint retrievers search_probe"
).split()


@pytest.fixture(scope="session")
def world(tmp_path_factory):
  """The folder of a tiny world, which tests only read."""
  import tiny_world

  folder = tmp_path_factory.mktemp("world")
  tiny_world.make(folder)
  return folder


@pytest.fixture
def tokenizer():
  """A small tokenizer like Qwen's, whose template shows tools."""
  import small_tokenizers

  return small_tokenizers.with_tools("qwen")


@pytest.fixture(scope="module")
def share_programs():
  """Learners and engines of this module's tests share their programs: those of equal settings are traced once."""
  import shared_programs

  with shared_programs.shared():
    yield


@pytest.fixture(autouse=True)
def runs_share_programs(request):
  """Every test of runs on the tiny world shares programs."""
  if "world" in request.fixturenames:
    request.getfixturevalue("share_programs")


@pytest.fixture
def rewarding(monkeypatch):
  """Rewards that a model without training can earn."""
  import tiny_world

  from ragrl_jax.run import prepared

  recipe = prepared.recipe
  monkeypatch.setattr(prepared, "recipe", lambda config: tiny_world.rewarding(recipe(config)))


@pytest.fixture(autouse=True)
def only_declared_metrics(request, monkeypatch):
  """Fails a test whose run writes a metric that docs/metrics.md does not explain."""
  write = metrics.MetricWriter.write

  def checked(self, step, values):
    odd = declared.undeclared(name for name, _ in jsonl.flat(values, "/"))
    assert not odd, f"explain these metrics in docs/metrics.md: {', '.join(odd)}"
    return write(self, step, values)

  if request.path.parent.name not in ("store", "evaluation"):  # tests there write made-up rows
    monkeypatch.setattr(metrics.MetricWriter, "write", checked)


def pytest_configure():
  """Makes SIGINT raise KeyboardInterrupt. Processes that a shell starts in the background ignore it by default."""
  if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
  """Runs the longest files first. A worker takes whole files, so a long file that starts last delays the end."""
  place = lambda name: (*LONGEST, name).index(name)
  items.sort(key=lambda item: place(item.path.stem.removeprefix("test_")))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
  """Python's garbage collector need not look through what was imported, nor at every 700 new objects."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(10_000)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
  """Frees memory so that the workers fit on a small machine: JAX keeps every compiled program."""
  if _held() > ROOM:
    _trim()
  if _held() > ROOM and (nextitem is None or nextitem.path != item.path):  # few programs are shared between files
    if "shared_programs" in sys.modules:
      sys.modules["shared_programs"].KEPT.clear()
    jax.clear_caches()
    gc.collect()
    _trim()


def pytest_sessionfinish(session):
  output = getattr(session.config, "workeroutput", None)
  if output is not None:
    output["peak"] = resident.peak()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
  if (peak := getattr(node, "workeroutput", {}).get("peak")) is not None:
    node.config.stash.setdefault(PEAKS, {})[node.gateway.id] = peak


def pytest_terminal_summary(terminalreporter, config):
  peaks = config.stash.get(PEAKS, None) or {"main": resident.peak()}
  for name, peak in sorted(peaks.items()):
    terminalreporter.write_line(f"worker {name}: peak {peak / 2**30:.1f} GB")


def _held() -> int:
  """The resident memory of this process now, in bytes."""
  return psutil.Process().memory_info().rss


def _trim() -> None:
  """Returns freed memory to the operating system; glibc would keep it."""
  if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
    libc.malloc_trim(0)
