"""Starts and ends every command: reads the flags, runs `main`, and reports a user's mistake in one line.

The exit status is 0; 2 for a mistake, which is found before any expensive work; 1 for a run that had to stop, or for a
bug. A bug shows its traceback, Ctrl-C does not. With --traceback every error shows one.
"""

import argparse
import contextlib
import errno
import functools
import inspect
import io
import linecache
import logging
import math
import os
import pathlib
import re
import sys
import textwrap
import traceback
import types
from collections.abc import Callable, Iterator, Sequence

import jax
from absl import app, flags
from ml_collections import config_flags
from tqdm import tqdm

from ragrl_jax import config as config_lib, settings
from ragrl_jax.cli import configs
from ragrl_jax.core.text.forms import safe
from ragrl_jax.settings import fields

OURS = str(pathlib.Path(config_lib.__file__).resolve().parent) + os.sep
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it advises to install PyTorch, which is not needed
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)  # no rights, or a file system that is only read
FULL = (
  "a device's memory is full. Lower config.rollout.rows or pages (the cache), config.learner.micro_rows or"
  " logprob_chunk, set config.model.remat=True, or end other programs on the device; ragrl check --topology says what a"
  " run needs. JAX:"
)
HOME = re.compile(r"^(--?[\w.]+=)~(?=/|$)")  # --workdir=~/run, in which no shell names the user's home
SHARED_FLAGS = ("host_flags", "index_flags", "generation")  # modules whose flags several commands have


class Whole(flags.IntegerParser):
  """Reads whole numbers, also as 1e3."""

  def convert(self, argument):
    """Reads a whole number from the flag's text."""
    try:
      return super().convert(argument)
    except ValueError:
      pass
    try:
      value = float(argument)
    except ValueError:
      value = 0.5
    if not value.is_integer():
      raise ValueError(f"{argument!r} is no whole number")
    return int(value)


class Number(flags.FloatParser):
  """Reads numbers, and "None" for the settings that may be None. The settings' check refuses None for all others."""

  def convert(self, argument):
    """Reads a number, or None, from the flag's text."""
    return None if argument == "None" else super().convert(argument)


config_flags.register_flag_parser_for_type(int, Whole())
config_flags.register_flag_parser_for_type(float, Number())
config_flags.register_flag_parser_for_type(type(None), Number())


def start(module: types.ModuleType) -> None:
  """Runs a command: reads its absl flags and calls its `main`. A module without flags reads its arguments itself.

  Args:
    module: a module of this folder. `main` takes no argument, or the words that are no flags. If it has no flags, it
      may return the exit status (None: 0). FROM_CHECKPOINT is the kind of the config if only --checkpoint is given.
      FIRST_IS_CHECKPOINT: a first word that is no flag is the --checkpoint.
  """
  shown = _wants_traceback()
  sys.argv[1:] = [HOME.sub(lambda found: found[1] + os.path.expanduser("~"), word) for word in sys.argv[1:]]
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows escapes, as stderr does
  if not shown:
    sys.excepthook = _excepthook
  if not any(isinstance(value, flags.FlagHolder) for value in vars(module).values()):
    sys.exit(guarded(module.main, shown=shown))
  if getattr(module, "FIRST_IS_CHECKPOINT", False) and sys.argv[1:] and not sys.argv[1].startswith("-"):
    sys.argv[1] = f"--checkpoint={sys.argv[1]}"
  if default := getattr(module, "FROM_CHECKPOINT", ""):
    sys.argv = configs.with_config(sys.argv, default)
  read = functools.partial(guarded, _parsed, module=module, shown=shown)
  app.run(functools.partial(guarded, _main, module=module, shown=shown), flags_parser=read)


def _main(argv: list[str], module: types.ModuleType) -> None:
  words = argv[1:]
  if inspect.signature(module.main).parameters:
    module.main(words)
  elif words:
    raise app.UsageError(f"unknown argument {words[0]!r}: everything is given as --flag=value.")
  else:
    module.main()


def on_cpu() -> None:
  """Lets JAX start on the CPU alone, unless JAX_PLATFORMS is set: a run may need all of an accelerator's memory."""
  if not jax.config.jax_platforms:
    jax.config.update("jax_platforms", "cpu")


def guarded(function, *arguments, shown: bool = False, **kwargs):
  """Calls the function. A user's mistake, or a run that had to stop, ends the process with one line."""
  for client in ("httpx", "httpx2"):  # they report every request
    logging.getLogger(client).setLevel(logging.WARNING)
  try:
    return function(*arguments, **kwargs)
  except Exception as error:
    if shown or status_of(error) is None:
      raise
    sys.exit(tell(error))


def _excepthook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
  """Prints an error that nothing has caught; of Ctrl-C nothing. Either way the process ends as Python ends it."""
  if not issubclass(kind, KeyboardInterrupt):
    sys.__excepthook__(kind, error, trace)


def tell(error: BaseException) -> int:
  """Prints the error that ended this process, and returns the exit status. Bugs and --traceback show a traceback."""
  status = status_of(error)
  if status is None or _shown:
    traceback.print_exception(error)
    return status or 1
  message = safe(" ".join(str(error).split())) or type(error).__name__
  if _is_full(error):
    message = f"{FULL} {message[:200]} …"
  elif isinstance(error, OSError) and error.errno in DENIED and error.filename:
    message = f"{error.filename}: {error.strerror}. Name another place, or allow this user to read and write there."
  print(f"error: {message}", file=sys.stderr)
  return status


def status_of(error: BaseException) -> int | None:
  """2 for a mistake, 1 for a run that had to stop, None for a bug.

  A mistake is an error that the checks of this package raise, or that the machine reports (a folder, a full disk). A
  ValueError from anywhere else is a bug. Errors that stop a run have their own classes in ragrl_jax.
  """
  if isinstance(error, BrokenPipeError) or _is_full(error):  # nobody reads the output any more
    return 1
  if isinstance(error, OSError | app.UsageError | flags.Error):
    return 2
  is_own = type(error).__module__.startswith("ragrl_jax")
  if not is_own and not (isinstance(error, ValueError | RuntimeError) and _raised_by_us(error)):
    return None
  return 2 if isinstance(error, ValueError | NotImplementedError) else 1


def _is_full(error: BaseException) -> bool:
  """Whether JAX found a device's memory full."""
  return type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in str(error)


def _raised_by_us(error: Exception) -> bool:
  frame = traceback.extract_tb(error.__traceback__)[-1]
  line = linecache.getline(frame.filename, frame.lineno or 0)
  return os.path.realpath(frame.filename).startswith(OURS) and "raise " in line


@contextlib.contextmanager
def answers_bar() -> Iterator[Callable[[int, int], None]]:
  """A progress bar of answers, and what moves it: called with (answers, total)."""
  with tqdm(unit="answer", delay=0.1) as bar:  # delayed: the bar appears when the questions begin

    def progress(done: int, of: int) -> None:
      if bar.total is None:  # answers of an earlier call took no time
        bar.initial = bar.n = bar.last_print_n = done
      bar.total = of
      bar.update(done - bar.n)

    yield progress


def searched(index, queries: Sequence[str], k: int) -> list:
  """The first k passages that the index finds for each query; shows a progress bar."""
  found, at_once = [], 256
  with tqdm(total=len(queries), unit=" queries") as bar:
    for start in range(0, len(queries), at_once):
      found += index.search(queries[start : start + at_once], k)
      bar.update(len(found) - bar.n)
  return found


def ready(config, flag: str, path: str, *, training: bool = True) -> settings.Settings:
  """The typed settings, after their check; creates the folder of results that `flag` names.

  Raises:
    ValueError: a setting is invalid, or the folder cannot be created or written to.
  """
  result = config_lib.validate(config, training=training)
  try:
    pathlib.Path(path).mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise ValueError(f"--{flag}={path}: this folder cannot be created ({error.strerror}). Name another one.") from error
  if not os.access(path, os.W_OK | os.X_OK):
    raise ValueError(f"--{flag}={path}: this folder cannot be written to. Name another one.")
  return result


class Parser(argparse.ArgumentParser):
  """The parser of commands without absl flags. Shows the command's docstring unchanged, and mistakes in one line."""

  def __init__(self, text: str):
    super().__init__(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)

  def parse_args(self, *given, **how):
    """Reads the arguments; a required one may not be empty, as an empty path would be the present folder."""
    result = super().parse_args(*given, **how)
    for action in self._actions:
      if action.required and getattr(result, action.dest) == "":
        self.error(f"{action.option_strings[0]} is empty: is a variable of the shell unset?")
    return result

  def error(self, message: str):
    """Prints the mistake in one line and ends the process with 2."""
    self.exit(2, f"error: {message} (--help shows an example).\n")


class Once(argparse.Action):
  """Takes an option once: of two, the first would be dropped."""

  def __call__(self, parser, namespace, values, option_string=None):
    """Sets the value, unless there is one."""
    if getattr(namespace, self.dest) is not None:
      parser.error(f"{option_string} is given twice; write several with commas between them")
    setattr(namespace, self.dest, values)


def whole_number(least: int, most: float = math.inf) -> Callable[[str], int]:
  """For the `type` of an option: reads a whole number in this range."""

  def read(text: str) -> int:
    number = int(text) if re.fullmatch(r"-?\d{1,18}", text) else None
    if number is None or not least <= number <= most:
      limit = f"between {least} and {most}" if most < math.inf else f"of at least {least}"
      raise argparse.ArgumentTypeError(f"{text!r}: it must be a whole number {limit}")
    return number

  return read


def config_flag(*, required: bool = True) -> flags.FlagHolder:
  """Defines --config."""
  about = "A config of the package, such as small or small:smoke, or the path of a file."
  result = config_flags.DEFINE_config_file("config", help_string=about, lock_config=True)
  if required:
    flags.mark_flag_as_required("config")
  return result


def data_flag(what: str = "Questions") -> flags.FlagHolder:
  """Defines --data. Given twice it is refused, because the first set would be dropped."""
  text = f"{what}: file, folder, glob or hf:NAME/SUBSET/SPLIT."
  return flags.DEFINE_string("data", None, text, required=True, allow_overwrite=False)


def given(*holders: flags.FlagHolder) -> str:
  """Those of the flags that the command line has: "--slices, --only"; "" if it has none of them."""
  return ", ".join(f"--{one.name}" for one in holders if one.present)


# ---- flags -----------------------------------------------------------------------------------------------------------


_shown = False  # whether --traceback was given


def _wants_traceback() -> bool:
  global _shown
  _shown = "--traceback" in sys.argv[1:]
  sys.argv = [word for word in sys.argv if word != "--traceback"]
  return _shown


def _parsed(argv: list[str], module: types.ModuleType | None = None) -> list[str]:
  """Reads all flags and returns the other arguments. Reports an invalid flag in one sentence."""
  if {"--help", "-help", "-h", "--helpfull"} & set(argv[1:]):
    print(usage(module, full="--helpfull" in argv))
    sys.exit(0)
  of_configs = [name for name in flags.FLAGS if config_flags.config_flags.is_config_flag(flags.FLAGS[name])]
  argv[1:] = configs.with_paths(argv, of_configs)[1:]  # in place: ml_collections reads sys.argv as well
  try:
    rest = flags.FLAGS(argv)
  except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError, SyntaxError, ImportError) as error:
    raise flags.Error(_message(error, argv)) from error
  if flags.FLAGS["verbosity"].using_default_value:
    flags.FLAGS.verbosity = -1  # warnings: libraries report details, such as what they try to import
  for name in flags.FLAGS:  # an empty path would be the present folder; a setting may be empty, and a URL is OpenAI's
    flag, may_be_empty = flags.FLAGS[name], "." in name or name.endswith("_url")
    if flag.default is None and isinstance(flag.value, str) and not flag.value and not may_be_empty:
      raise flags.Error(f"--{name}= is empty: is a variable of the shell unset?")
  for name in of_configs:
    flag = flags.FLAGS[name]
    if flag.value is not None:
      path = flag.config_filename.split(":")[0]
      if not pathlib.Path(path).is_file():
        raise ValueError(_no_file(name, path))
  return rest


def _message(error: BaseException, argv: list[str]) -> str:
  """The message of a flag parser's error, in words for the user."""
  given = (word.lstrip("-").partition("=") for word in argv if re.match(r"--?\w*config=", word))
  flag, _, name = next(given, ("", "", ""))
  file = name.split(":")[0]
  if flag and isinstance(error, OSError):
    return _no_file(flag, file)
  if isinstance(error, SyntaxError):
    return f"{error.filename}:{error.lineno}: {error.msg}"
  chain = [error]  # from the last error to the first
  while following := chain[-1].__cause__ or chain[-1].__context__:
    chain.append(following)
  for one in reversed(chain):
    if lines := [frame.lineno for frame in traceback.extract_tb(one.__traceback__) if file and frame.filename == file]:
      return str(one) if isinstance(one, ValueError) else f"{file}:{lines[-1]}: {_text(one)}"
  if file and "no attribute 'get_config'" in _text(error):
    return f"{file}: it has no function get_config(variant), which returns the config."
  nothing = f"{file}: get_config(variant) returned nothing: it must return the config."
  if isinstance(error, AttributeError | KeyError):  # of the settings: 'stepz' Did you mean "steps" …
    if flag and "'NoneType'" in _text(error):
      return nothing
    setting = re.match(r"'(\w+)'", _text(error))
    word = next((word for word in argv if setting and re.match(rf"--?[\w.]*\.{setting[1]}(\.|=|$)", word)), "a setting")
    return f"{word.split('=')[0]}: there is no such setting: {_text(error)}"
  unset = re.match(r"Unknown command line flag '(\w*config)\.", _text(error))  # known only once the config is read
  if unset and not flag:
    way = ", or a --checkpoint whose run has one" * ("checkpoint" in flags.FLAGS)
    return f"--{unset[1]} is missing{way}: there is no config to change (--help shows an example)."
  match = re.match(r"flag --(\w+)=None: Flag --\w+ must have a value", str(error))
  if match and flag and match[1] == flag:
    return nothing
  return f"--{match[1]} is missing (--help shows an example)." if match else str(error)


def _text(error: BaseException) -> str:
  """ml_collections' message about a missing setting, without its list of all settings."""
  while error.args and isinstance(error.args[0], BaseException):
    error = error.args[0]
  message, _, near = (str(error.args[0]) if error.args else type(error).__name__).partition("Did you mean")
  return f"{message.split(' Other fields present')[0].strip()} {near and f'Did you mean{near}'}".strip()


def _no_file(flag: str, path: str) -> str:
  files = ", ".join(sorted(file.name for file in pathlib.Path(path).parent.glob("*.py")))
  return f"--{flag}={path}: there is no such file" + (f"; beside it are {files}." if files else ".")


def usage(module: types.ModuleType, full: bool = False) -> str:
  """A command's docstring and flags, without the flags of the libraries. full: with every setting and its meaning."""
  texts = [module, *(sys.modules.get(f"ragrl_jax.cli.{name}") for name in SHARED_FLAGS)]
  values = [value for one in texts if one is not None for value in vars(one).values()]
  shown_flags = {value.name: flags.FLAGS[value.name] for value in values if isinstance(value, flags.FlagHolder)}
  lines = [inspect.cleandoc(module.__doc__ or ""), ""]
  for flag in shown_flags.values():
    plain = flag.default not in (None, "", []) and not config_flags.config_flags.is_config_flag(flag)
    shown = ",".join(flag.default) if isinstance(flag.default, list) else flag.default
    default = "" if not plain else f" [{shown}]".replace(str(config_lib.folder()), "configs")
    lines.append(f"  --{flag.name:<16} {' '.join(flag.help.split())}{default}")
  all_settings = []
  if any(config_flags.config_flags.is_config_flag(flag) for flag in shown_flags.values()):
    first, *sections = fields.groups(settings.Settings)
    names = [*(one.name for one in first.settings), *(group.path for group in sections)]
    text = (
      f"any setting, such as --config.model.path=FOLDER. `ragrl settings A` explains those of A: {', '.join(names)}"
    )
    lines.append(textwrap.fill(text, 120, initial_indent="  --config.A.B=VALUE ", subsequent_indent=" " * 21))
    all_settings = ["", *("\n" + fields.text(group) for group in (first, *sections))] if full else []
  ending = ["  --traceback        show where an error was raised", "  --helpfull         all settings too"]
  return "\n".join([*lines, *ending, *all_settings])
