"""The console script `ragrl`: imports the module of the given command and starts it.

Nothing heavy is imported before the command is known: `ragrl` and `ragrl --help` start at once.
"""

import __future__

import difflib
import importlib
import importlib.machinery
import os
import pathlib
import sys
import tomllib
import types

import ragrl_jax

HELP = {"--help", "-help", "-h", "--helpfull"}
# Subcommand → (module in this folder, or in the package by its dotted name; description in the list).
COMMANDS = {
  "train": ("train", "train a policy by reinforcement learning"),
  "sft": ("sft", "fine-tune a policy on transcripts"),
  "evaluate": ("evaluate", "score a checkpoint on a set of questions"),
  "probe": ("probe", "ask whether a run really searches: its questions with swapped search results"),
  "index": ("build_index", "build an index from a corpus"),
  "retrieve": ("retrieve", "attach an index's passages to questions"),
  "ask": ("ask", "ask a checkpoint a question, on the command line or on a page"),
  "serve-index": ("serve_retriever", "serve an index over HTTP"),
  "serve-model": ("serve_model", "serve a checkpoint over HTTP, with OpenAI's API"),
  "report": ("report", "write the page of a run, or of several side by side"),
  "watch": ("watch", "say what moved in a run: since when, an episode that shows it, the setting to try"),
  "compare": ("compare", "compare evaluations, or judges"),
  "quadrants": ("quadrants", "compare two evaluations: right in both, in one, in none; or a curve over top-k"),
  "recall": ("answer_recall", "measure a retriever by the answers in its passages"),
  "trec": ("trec_run", "search for a file of queries, write TREC's run file, score it by qrels"),
  "audit": ("audit", "audit a corpus: are the answers and the gold documents in it, does the index find them"),
  "split": ("split_questions", "split a set of questions into files of given shares"),
  "tables": ("tables", "print a paper's tables with our runs beside the published numbers"),
  "score": ("score_transcripts", "score transcripts or predictions of other systems"),
  "from-config": ("from_config", "turn a script of Search-R1, verl or TRL into a config file"),
  "settings": ("list_settings", "print what the settings mean, or a recipe's switches"),
  "check": ("compile_check", "compile a run for TPUs or GPUs that this machine lacks: memory and best speed"),
  "import": ("import_hf", "check and convert a Hugging Face model folder"),
  "export": ("export_hf", "write a checkpoint as a Hugging Face model folder"),
  "export-traces": ("export_traces", "write episodes as JSON lines or ATIF trajectories"),
  "push": ("push_hf", "write a Hugging Face folder with a model card, and upload it if asked"),
  "judge": ("judge_answers", "ask a judge about the answers of finished evaluations"),
  "demonstrate": ("demonstrate", "write transcripts for SFT from questions with supporting passages, without a model"),
  "make-rejection-sft": ("make_rejection_sft", "keep the correct transcripts of sampled evaluations"),
}
# A recipe declares its own commands in its commands.toml.
for _file in sorted(pathlib.Path(ragrl_jax.__file__).parent.glob("recipes/*/commands.toml")):
  for _name, _text in tomllib.loads(_file.read_text(encoding="utf-8")).items():
    COMMANDS[_name] = (f"recipes.{_file.parent.name}.{_name.replace('-', '_')}", _text)


def main() -> None:
  """Runs `ragrl COMMAND FLAGS`. Exits with 2 if there is no such command."""
  name, *flags = sys.argv[1:] or ["--help"]
  if name in ("--help", "-h", "help"):
    print(listing())
  elif name == "--version":
    print(f"ragrl {ragrl_jax.__version__}")
  elif name in COMMANDS:
    sys.argv = [f"ragrl {name}", *flags]
    start(name)
  else:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    advice = f"Did you mean {near[0]}?" if near else "`ragrl` lists the commands."
    print(f"error: there is no command {name!r}. {advice}", file=sys.stderr)
    sys.exit(2)


class _Later(types.ModuleType):
  """A module whose code runs when one of its names is first used."""

  def __getattr__(self, name: str):
    if name.startswith("__"):
      raise AttributeError(name)
    self.__class__ = types.ModuleType
    self.__loader__.exec_module(self)
    return getattr(self, name)


class _Stub(types.ModuleType):
  """Stands for a library while a help is printed: every name of it can be used, as itself, and does nothing."""

  def __getattr__(self, name: str):
    if name.startswith("__"):
      raise AttributeError(name)
    return self

  def __call__(self, *args, **kwargs):
    return args[0] if args and callable(args[0]) else self  # what a decorator gets

  def __getitem__(self, key):
    return self

  __or__ = __ror__ = __getitem__  # types: Stub[int] | None

  def __mro_entries__(self, bases):
    return ()


class _Finder(importlib.machinery.PathFinder):
  """Defers the package's modules but the commands' own, of which a help uses few, and leaves JAX out."""

  command = ""

  @classmethod
  def find_spec(cls, fullname, path=None, target=None):
    """See `importlib.abc.MetaPathFinder`."""
    if fullname.partition(".")[0] in ("jax", "jaxtyping", "flax", "optax", "orbax"):
      return importlib.machinery.ModuleSpec(fullname, _Loader(None), is_package=True)
    is_own = fullname.startswith("ragrl_jax.cli") or fullname == cls.command
    spec = super().find_spec(fullname, path, target) if fullname.startswith("ragrl_jax.") else None
    if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
      if not fullname.startswith("ragrl_jax.settings"):  # which reads the types of its fields
        spec.loader = _Untyped(fullname, spec.loader.path)
      spec.loader = spec.loader if is_own else _Loader(spec.loader)
    return spec


class _Untyped(importlib.machinery.SourceFileLoader):
  """Leaves annotations as text: no module runs for the types of functions that a help does not call."""

  def get_code(self, fullname):
    flag = __future__.annotations.compiler_flag
    return compile(self.get_data(self.path), self.path, "exec", flag, dont_inherit=True)


class _Loader:
  def __init__(self, loader):
    self._loader = loader

  def create_module(self, spec):
    return _Later(spec.name) if self._loader else _Stub(spec.name)

  def exec_module(self, module):
    module.__loader__ = module.__spec__.loader = self._loader


def start(name: str) -> None:
  """Runs a command with the flags in sys.argv, and ends the process with its exit status."""
  os.environ["TQDM_DESC"] = name  # the name of a progress bar that has none; read once, when tqdm is imported
  module = COMMANDS[name][0]
  module = f"ragrl_jax.{module}" if "." in module else f"ragrl_jax.cli.{module}"
  if HELP & set(sys.argv[1:]):
    _Finder.command = module
    sys.meta_path.insert(0, _Finder)
  from ragrl_jax.cli import commands

  commands.start(importlib.import_module(module))


def listing() -> str:
  """The list of commands, one per line."""
  width = max(map(len, COMMANDS))
  lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
  ending = "ragrl COMMAND --help shows a command's flags; ragrl --version shows the version."
  return "\n".join(["usage: ragrl COMMAND [FLAGS]", "", *lines, "", ending])
