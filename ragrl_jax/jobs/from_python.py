"""The jobs as a notebook calls them: keywords for what is usual, a function called after each step, results to look at.

They make the checks and write the files of the commands `ragrl train`, `sft`, `evaluate`, `probe` and `compare`.
"""

import copy
import difflib
import functools
import os
import pathlib
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
from tqdm import tqdm

from ragrl_jax import config as config_lib, retrieval, settings
from ragrl_jax.evaluation import answer_verdicts, comparison
from ragrl_jax.jobs import checkpoints, evaluate as evaluate_lib, probe as probe_lib, sft as sft_lib, train as train_lib
from ragrl_jax.parallel import hosts
from ragrl_jax.report import inline, page as page_lib
from ragrl_jax.retrieval import corpus as corpus_lib
from ragrl_jax.run import prepared as prepared_lib, progress
from ragrl_jax.store import jsonl

Rows = Generator[dict[str, Any], Exception | None]
OnStep = Callable[[int, dict[str, Any]], Any]


def train(
  config: config_lib.Config | str | os.PathLike = "",
  workdir: str | os.PathLike = "out/run",
  *,
  model: str | os.PathLike = "",
  questions: str | os.PathLike = "",
  held_out: str | os.PathLike = "",
  corpus: str | os.PathLike = "",
  reward: prepared_lib.Reward | None = None,
  steps: int = 0,
  settings: Mapping[str, Any] | None = None,
  on_step: OnStep | None = None,
  say: Callable[[str], None] = tqdm.write,
  **options: Any,
) -> inline.Run:
  """Trains as `ragrl train` does, until its last step; the same call again resumes.

  Args:
    config: settings (`ragrl_jax.Config`), or the name or file of a config as in `--config`. "": the config "small" of
      the default recipe, whose model searches the corpus; without a corpus it answers by itself.
    workdir: the run's folder.
    model: config.model.path: a Hugging Face folder, or a name on the hub.
    questions, held_out: config.data.train and config.data.evaluate: files, folders or names on the hub.
    corpus: documents to search (docs/howto/corpus.md). They are indexed by BM25 once, beside the run, in a folder named
      by their contents. Or an index: its folder or its http://… address.
    reward: (example, episode) → a number, or None, in place of the recipe's reward (`prepared.with_reward`).
    steps: config.steps.
    settings: any others by their names on the command line: {"rollout.group_size": 4}.
    on_step: called with (step, row of metrics) after each step, in this thread; with step 0 before training if held-out
      questions are measured then. If it raises an error, the step is saved and the run ends with this error.
    say: prints a line for the user.
    **options: `reached`, `resume`, `accept_changes`, `profile`, as in jobs/train.py.

  Raises:
    ValueError: there is no such setting; or as in jobs/train.py.
  """
  workdir = pathlib.Path(_path("workdir", workdir))
  model, questions, held_out, corpus = _paths(model=model, questions=questions, held_out=held_out, corpus=corpus)
  if isinstance(config, str):
    refuse_tuned(config)
  index = _index(corpus, workdir.parent) if corpus else ""
  if not config:
    config = _default("" if index or (settings or {}).get("retrieval.index") else ",r1")
  values = {"model.path": model, "data.train": questions, "data.evaluate": held_out, "retrieval.index": index}
  prepared = prepared_lib.prepare(_set(config, values | {"steps": steps}, settings), workdir)
  if reward is not None:
    prepared = prepared_lib.with_reward(prepared, reward)
  _fill(index, corpus, say)  # after the checks of all else: it may take hours
  return trained(prepared, workdir, on_step=on_step, say=say, **options)


def refuse_tuned(config: str) -> None:
  """Refuses a config, as in `--config`, whose variant has the settings of `sft`: its rates are no rates of RL.

  Raises:
    ValueError: it has such a variant.
  """
  if tuned := {"sft", "reward_model"}.intersection(config.partition(":")[2].split(",")):
    raise ValueError(
      f"the variant {tuned.pop()!r} of --config has the settings of `ragrl sft`, which fine-tunes. `ragrl train` "
      "learns from rewards: leave it out."
    )


def trained(
  prepared: prepared_lib.Prepared, workdir: str | os.PathLike, *, on_step: OnStep | None = None, **options: Any
) -> inline.Run:
  """Trains with held-out questions, a progress bar and each warning once, and writes the run's page.

  Args:
    workdir, on_step: as in `train`.
    **options: as in jobs/train.py.
  """
  say, printed = options["say"], set()  # a warning is in the metrics of every step, but is printed once
  measure = evaluate_lib.evaluator(prepared, workdir=workdir) if prepared.settings.data.evaluate else None

  def tell(row: dict[str, Any]) -> None:
    for name, text in row.items():
      if name.startswith("warning/") and name not in printed and hosts.is_first():
        printed.add(name)
        say(f"step {row['step']}: {text}")

  rows = train_lib.train(prepared, workdir, evaluate=measure, **options)
  _to_the_end(rows, prepared.settings.steps, on_step, progress.headline, tell)
  if hosts.is_first():
    page_lib.write_report(workdir)
  return inline.Run(pathlib.Path(workdir))


def sft(
  config: config_lib.Config | str | os.PathLike = "",
  workdir: str | os.PathLike = "out/sft",
  *,
  model: str | os.PathLike = "",
  transcripts: str | os.PathLike = "",
  steps: int = 0,
  settings: Mapping[str, Any] | None = None,
  on_step: OnStep | None = None,
  say: Callable[[str], None] = tqdm.write,
  **options: Any,
) -> inline.Run:
  """Fine-tunes as `ragrl sft` does, until its last step; the same call again resumes.

  Args:
    config: as in `train`; "": the config "small:…,sft" of the default recipe.
    transcripts: config.data.train: questions with `turns` (docs/howto/judges.md).
    steps: config.steps, in place of config.sft.epochs and its warm-up.
    workdir, model, settings, on_step, say: as in `train`.
    **options: `drawn`, `evaluate`, `reached`, `resume`, `accept_changes`, `profile`, as in jobs/sft.py.

  Raises:
    ValueError: there is no such setting; or as in jobs/sft.py.
  """
  workdir = _path("workdir", workdir)
  model, transcripts = _paths(model=model, transcripts=transcripts)
  values = {"model.path": model, "data.train": transcripts, "steps": steps}
  in_place_of_epochs = {"sft.epochs": 0, "sft.warmup_share": 0.0} if steps else {}
  result = _set(config or _default(",sft"), values, in_place_of_epochs | dict(settings or {}))
  return tuned(sft_lib.prepare(result, workdir), workdir, on_step=on_step, say=say, **options)


def tuned(
  prepared: prepared_lib.Prepared, workdir: str | os.PathLike, *, on_step: OnStep | None = None, **options: Any
) -> inline.Run:
  """Fine-tunes with a progress bar. Arguments: as in `trained`."""
  # Without a trained token, a step has no gradient.
  headline = lambda row: f"loss {row['loss']:.3f} grad norm {row['grad_norm']:.2f}" if "grad_norm" in row else ""
  _to_the_end(sft_lib.sft(prepared, workdir, **options), prepared.settings.steps, on_step, headline)
  return inline.Run(pathlib.Path(workdir))


def evaluate(
  checkpoint: str | os.PathLike | None,
  questions: str | os.PathLike,
  out: str | os.PathLike,
  *,
  config: config_lib.Config | str | os.PathLike | None = None,
  settings: Mapping[str, Any] | None = None,
  **options: Any,
) -> inline.Evaluation:
  """Scores a checkpoint as `ragrl evaluate` does. The result is a dict of metrics.json.

  Args:
    checkpoint: a run, its folder, one of its steps or a model; None: the model of config.endpoint.
    questions: as in `train`.
    config: as in `train`; None: the settings of the checkpoint's run.
    settings: as in `train`.
    **options: `sample`, `seeds`, `chosen_by`, `progress`, as in jobs/evaluate.py.

  Raises:
    ValueError: there is no such setting; or as in jobs/evaluate.py.
  """
  out = _path("out", out)
  return inline.Evaluation(_scored(evaluate_lib.evaluate, checkpoint, questions, out, config, settings, options), out)


def probe(
  checkpoint: str | os.PathLike,
  questions: str | os.PathLike,
  out: str | os.PathLike,
  *,
  config: config_lib.Config | str | os.PathLike | None = None,
  settings: Mapping[str, Any] | None = None,
  **options: Any,
) -> inline.Probe:
  """Asks as `ragrl probe` does whether a run really searches. The result is a dict of probe.json.

  Args:
    checkpoint, questions, out, config, settings: as in `evaluate`.
    **options: `sample`, `progress`, as in jobs/probe.py.

  Raises:
    ValueError: there is no such setting; or as in jobs/probe.py.
  """
  out = _path("out", out)
  return inline.Probe(_scored(probe_lib.probe, checkpoint, questions, out, config, settings, options), out)


def _scored(job, checkpoint, questions, out, config, settings, how) -> dict[str, Any]:
  checkpoint = None if checkpoint is None else _path("checkpoint", checkpoint)
  result = _set(checkpoints.config_of(checkpoint) if config is None else config, {}, settings)
  return job(result, checkpoint, _path("questions", questions), out, **how)


def compare(*results: str | os.PathLike, alternative: str = "two-sided") -> inline.Comparison:
  """Compares evaluations of the same questions, each with the first, as `ragrl compare` does.

  Args:
    *results: the evaluations, or their folders or globs, one for each system.
    alternative: of the tests: "two-sided", "greater" or "less".

  Raises:
    FileNotFoundError: a folder holds no evaluation.
    ValueError: fewer than two, or other questions.
  """
  places = [_path("results", place) for place in results]
  result = comparison.compare({place: answer_verdicts.predictions(place) for place in places}, alternative=alternative)
  return inline.Comparison(result, places, comparison.text(result, places, alternative=alternative))


def _to_the_end(rows: Rows, steps: int, on_step: OnStep | None, headline, tell=lambda row: None) -> None:
  """Takes all rows, and sends the first error of `on_step` to the run, which saves its step and ends."""
  error = None
  with tqdm(total=steps, unit="step", disable=not hosts.is_first()) as bar:
    try:
      row = next(rows)
      bar.initial = bar.n = bar.last_print_n = max(row["step"] - 1, 0)  # a resumed run is as slow as its own steps
      while True:
        bar.update(row["step"] - bar.n)
        bar.set_postfix_str(headline(row))
        tell(row)
        try:
          if on_step is not None:
            on_step(row["step"], row)
        except Exception as raised:  # noqa: BLE001 – a user's function may raise anything
          error = raised
        row = rows.send(error)
    except StopIteration:
      pass
  if error is not None:  # at the last step, after the model was saved
    raise error


def _path(name: str, value: Any) -> str:
  """A path or a name as text; a ~ at its beginning is the user's home."""
  if not isinstance(value, str | os.PathLike):
    raise ValueError(
      f"{name}: it must be a path or a name, this is of the type {type(value).__name__}. Write rows to a file first."
    )
  if not os.fspath(value):  # which would be the present folder
    raise ValueError(f"{name} is empty: name a folder or a file.")
  return os.path.expanduser(os.fspath(value))


def _paths(**given: Any) -> list[str]:
  """Each as by `_path`; "" for None and ""."""
  is_given = lambda value: value is not None and not (isinstance(value, str) and value == "")
  return [_path(name, value) if is_given(value) else "" for name, value in given.items()]


def _default(variant: str) -> str:
  return f"small:{settings.Settings().recipe}{variant}"


def _set(config, values: Mapping[str, Any], more: Mapping[str, Any] | None) -> config_lib.Config:
  """A copy of the settings, with those of `values` that are not empty, and then `more`."""
  if not isinstance(config, str | os.PathLike) and not hasattr(config, "update_from_flattened_dict"):
    raise ValueError(f"config: a {type(config).__name__}, but it must be a ragrl_jax.Config, or one's name or file.")
  result = config_lib.load(config) if isinstance(config, str | os.PathLike) else copy.deepcopy(config)
  defaults = dict(jsonl.flat(result.to_dict()))
  for name, value in ({name: value for name, value in values.items() if value} | dict(more or {})).items():
    if name not in defaults:
      near = difflib.get_close_matches(name, defaults, n=1)
      raise ValueError(f"there is no setting {name!r}{near and f'; did you mean {near[0]!r}?' or ''} (settings=).")
    value = value.item() if isinstance(value, np.generic) else value  # NumPy's numbers, as sweeps have them
    try:
      result.update_from_flattened_dict({name: os.fspath(value) if isinstance(value, os.PathLike) else value})
    except TypeError:
      like = repr(defaults[name])
      if defaults[name] is None:  # a switch that is not set has a type all the same
        *sections, last = name.split(".")
        like = f"a value of the type {functools.reduce(getattr, sections, result).get_type(last).__name__}"
      raise ValueError(f"config.{name}={value!r:.200}: it must be like {like}.") from None
  return result


def _index(corpus: str, run_folder: pathlib.Path) -> str:
  """The corpus, if it is an index; else the folder of its index in this one, named by its contents."""
  if retrieval.is_served(corpus) or (pathlib.Path(corpus) / "index.json").is_file():
    return corpus
  out = run_folder / f"index_{corpus_lib.identity(corpus)['sha256'][:12]}"
  out.mkdir(parents=True, exist_ok=True)
  return str(out)


def _fill(index: str, corpus: str, say: Callable[[str], None]) -> None:
  """Indexes the corpus there, unless it is; a corpus that is the index itself is left as it is."""
  if index != corpus:
    if not (pathlib.Path(index) / "index.json").is_file():
      say(f"{corpus} is indexed in {index}")
    retrieval.build_index(corpus, "bm25", index)
