"""The cache of compiled programs on disk. A second start reads programs from it instead of compiling half a minute.

`keep` changes JAX settings of the whole process. So only commands call it; the library never does.
"""

import hashlib
import os
import pathlib
import platform
import sys
import threading
from collections.abc import Callable

import filelock
import jax
from tqdm import tqdm

from ragrl_jax.parallel import cores, hosts

LIMIT = 4 << 30  # bytes on disk; beyond it JAX deletes the least recently used programs
LEAST_S = 0.2  # programs that compile in less time are not kept
SILENT_S = 2.0  # compilations that take less time are not announced
EVENT = "/jax/core/compile/backend_compile_duration"


def keep() -> pathlib.Path | None:
  """Turns on the cache and announces programs that compile slowly. Call it once, before any program runs.

  The cache is in `place()`. If JAX_COMPILATION_CACHE_DIR is set, that folder and JAX's own settings are used instead.

  Returns:
    The folder. None if it cannot be used: a message on stderr gives the reason, and the run goes on without a cache.
  """
  if configured := jax.config.jax_compilation_cache_dir:
    announce(configured)
    return pathlib.Path(configured)
  try:
    folder = place()
    _prepare(folder)
  except (OSError, RuntimeError) as error:
    # On every host: which one this is would start JAX's devices, and a process cannot join others after that.
    advice = "set JAX_COMPILATION_CACHE_DIR to a folder of your own"
    tqdm.write(f"compiled programs are not kept ({error}): {advice}", file=sys.stderr)
    announce("")
    return None
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_compilation_cache_max_size", LIMIT)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_S)
  announce(str(folder))
  return folder


def place() -> pathlib.Path:
  """The cache's folder: ragrl_jax/compiled/KIND in $XDG_CACHE_HOME or ~/.cache; KIND names machines that compile alike.

  A CPU program uses instructions that another machine may lack. It also splits its sums by the number of threads, which
  JAX's own cache key ignores: with a program of another thread count, a run's last digits would differ.

  Raises:
    RuntimeError: this user has no home folder.
  """
  base = os.environ.get("XDG_CACHE_HOME", "")
  caches = pathlib.Path(base) if os.path.isabs(base) else pathlib.Path.home() / ".cache"
  return caches / "ragrl_jax" / "compiled" / f"{platform.machine()}-{_processor()}-{cores.threads()}"


def announce(folder: str, *, say: Callable[[str], None] | None = None, after_s: float = SILENT_S) -> Callable[[], None]:
  """Prints which program is compiling once it takes `after_s` seconds, and how long it took at the end.

  Args:
    folder: the cache's folder, named in the message; "" if programs are not kept.
    say: prints a line; by default on stderr of host 0.

  Returns:
    A function that ends the messages.
  """
  say, hint = say or _say, f" (once: it is kept in {folder})" if folder else ""
  waiting: dict[tuple[int, str], threading.Timer] = {}

  def begun(event: str, _: float, fun_name: str = "", **__) -> None:
    if event == EVENT:
      timer = threading.Timer(after_s, say, [f"compiling {_plain(fun_name)} …{hint}"])
      timer.daemon = True
      waiting[threading.get_ident(), fun_name] = timer
      timer.start()

  def ended(event: str, seconds: float, fun_name: str = "", **_) -> None:
    if event == EVENT and (timer := waiting.pop((threading.get_ident(), fun_name), None)) is not None:
      timer.cancel()
      if seconds >= after_s:
        say(f"compiled {_plain(fun_name)} in {seconds:.1f} s")

  jax.monitoring.register_scalar_listener(begun)
  jax.monitoring.register_event_duration_secs_listener(ended)

  def end() -> None:
    jax.monitoring.unregister_scalar_listener(begun)
    jax.monitoring.unregister_event_duration_listener(ended)

  return end


def _prepare(folder: pathlib.Path) -> None:
  """Makes the folder, for this user alone, and removes programs that a killed process left half written.

  Raises:
    OSError: the folder is not writable, or other users can write there: their programs would run in this process.
  """
  folder.mkdir(mode=0o700, parents=True, exist_ok=True)
  state = folder.stat()
  if state.st_uid != os.getuid() or state.st_mode & 0o022:
    raise PermissionError(f"{folder} can be written by others")
  with filelock.FileLock(folder / ".lockfile", timeout=10):  # JAX's own lock: no other process is writing a file
    for program in folder.glob("*-cache"):
      if not program.with_name(program.name.removesuffix("-cache") + "-atime").exists():  # JAX writes it last
        program.unlink()


def _processor() -> str:
  """Eight hexadecimal digits for the processor's model and instructions."""
  try:
    first = pathlib.Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
  except FileNotFoundError:  # no Linux
    first = [f"model {platform.processor()}"]
  kind = [line for line in first if line.startswith(("vendor_id", "cpu family", "model", "flags", "Features", "CPU "))]
  return hashlib.sha256("\n".join(kind).encode()).hexdigest()[:8]


def _plain(name: str) -> str:
  """jit(_decode) → decode."""
  return name.removeprefix("jit(").removesuffix(")").strip("_")


def _say(text: str) -> None:
  if hosts.is_first():  # all hosts compile the same programs
    tqdm.write(text, file=sys.stderr)
