"""Lists the evaluations on the shared sets that fill the papers' tables. They are read from the tables, each once."""

import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Iterator

import real_reader

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.data import readers
from ragrl_jax.evaluation import answer_recall
from ragrl_jax.evaluation.tables import layout, papers
from ragrl_jax.run import prepared

# Set of the tables → (file of its questions, corpus that is searched for them).
FILES = {
  "nq": ("nq_open_dev", "nq"),
  "triviaqa": ("triviaqa_dev", "hotpotqa"),
  "popqa": ("popqa_passages", "popqa"),
  "hotpotqa": ("hotpotqa_dev", "hotpotqa"),
  "2wiki": ("2wikimultihopqa_dev", "2wikimultihopqa"),
  "musique": ("musique_dev", "musique"),
  "bamboogle": ("bamboogle_test", "2wikimultihopqa"),
}
BASELINES = tuple(
  f"{recipe}:{preset}"
  for recipe in ("untrained", "released")
  for preset in recipes.presets(recipe)
  if preset not in ("given", "paper")
)
NOISY = ("nq", "triviaqa")  # sets of LEAR's test with passages of other questions
# Recipe → set on which its policies are trained. ARENA's configs name their own sets.
TRAINED_ON = {"care": "drop_dev", "when_to_search": "2wikimultihopqa_train"}
MAIN = ("arena", "care", "lear", "search_r1:ppo", "veritas", "when_to_search")
HARD = "msmarco_sample"  # the hard questions of CARE's curriculum
WITHOUT = {"without_hotpotqa": "hotpotqa", "without_2wiki": "2wikimultihopqa", "without_musique": "musique"}
OURS = (
  "rollout.",
  "judge.",
  "judges.",
  "data.train",
  "data.hard",
  "checkpoint.",
  "retrieval.index",
  "retrieval.query_encoder",
)  # settings of this benchmark
_FLAG = re.compile(r"--config\.([\w.]+)=(.*)")


@dataclasses.dataclass(frozen=True)
class Training:
  """A training run that evaluations need.

  Attributes:
    config: config and variant.
    flags: (setting, value) for each setting that differs from the config.
  """

  config: str
  flags: tuple[tuple[str, str], ...] = ()

  @property
  def name(self) -> str:
    """Its folder's name."""
    return _name(self.config, self.flags)

  @property
  def supervised(self) -> bool:
    """Whether it is fine-tuned on transcripts."""
    return "sft" in self.config.partition(":")[2].split(",")


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """An evaluation on one set.

  Attributes:
    config: config and variant.
    training: the training run of the policy; None: the untrained reader answers.
    dataset: a key of FILES.
    flags: (setting, value) for each setting that differs from the config.
  """

  config: str
  training: Training | None
  dataset: str
  flags: tuple[tuple[str, str], ...] = ()

  @property
  def name(self) -> str:
    """Its folder's name."""
    trained = f"{self.training.name}--" if self.training else ""
    return f"{trained}{_name(self.config, self.flags)}-{self.dataset}"


def evaluations() -> dict[Evaluation, set[str]]:
  """Evaluation → the papers whose tables have it.

  Recipes and baselines come first, and the papers alternate, so that the first evaluations fill tables of every paper.
  """
  of_papers = [[(one, name) for one in _of_paper(paper)] for name, paper in papers.PAPERS.items()]
  result: dict[Evaluation, set[str]] = {}
  for turn in itertools.zip_longest(*of_papers):
    for one, name in filter(None, turn):
      result.setdefault(one, set()).add(name)
  known = {one.config for one in result}
  for config in BASELINES:
    if config not in known:
      result |= {Evaluation(config, None, dataset): set() for dataset in FILES}
  return dict(sorted(result.items(), key=lambda item: _rank(item[0])))


def _rank(evaluation: Evaluation) -> int:
  """The recipes and the baselines come first, then the arms of their ablations."""
  return int(evaluation.training is not None and evaluation.training.config not in MAIN)


def data(one: Evaluation, out: pathlib.Path) -> pathlib.Path:
  """The file of an evaluation's questions."""
  noisy = "data.noise" in dict(one.flags)
  return out / f"{one.dataset}_asked.jsonl.gz" if noisy else out / "data" / "qa" / f"{FILES[one.dataset][0]}.jsonl.gz"


@functools.lru_cache
def count(path: pathlib.Path) -> int:
  """The questions in a file."""
  return sum(1 for _ in readers.read_examples(path))


def _of_paper(paper: layout.Paper) -> list[Evaluation]:
  every = dict.fromkeys(one for table in paper.tables for one in _of_table(table))
  return sorted(every, key=_rank)


def _of_table(table: layout.Table) -> Iterator[Evaluation]:
  for column in table.columns:
    if column.average or column.sets[0] not in FILES:
      continue
    for row in table.rows:
      for run in (row.run, row.versus):
        # A checkpoint within a long training does not exist here. `ragrl recall` plays nothing.
        if run is not None and not run.checkpoint and run.system != answer_recall.SYSTEM:
          yield _evaluation(run, column)


def _evaluation(run: layout.Run, column: layout.Column) -> Evaluation:
  """The evaluation that a cell's commands describe, with this benchmark's model, index and judge."""
  config = run.evaluate
  if run.system:
    given = "given" in run.where.get("switches.documents", ())
    config = f"released:{run.system}{',given' if given else ''}"
  training = None
  if run.train:
    training = Training(run.train, _settings((*run.needs, *run.train_flags)))
  return Evaluation(config, training, column.sets[0], _settings((*run.needs, *run.flags, *column.flags)))


def _settings(flags: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
  """The flags without those of sizes, paths and judges, which this benchmark sets itself."""
  result = []
  for flag in flags:
    match = _FLAG.fullmatch(flag)
    assert match is not None, flag
    name, value = match.groups()
    if name.startswith(OURS) and name != "rollout.group_size":
      continue
    result.append((name, "hotpotqa_dev" if name == "data.evidence" else value))
  return tuple(result)


def _name(config: str, flags: tuple[tuple[str, str], ...]) -> str:
  words = [config, *(f"{name.rpartition('.')[2]}_{value}" for name, value in flags)]
  return re.sub(r"[^\w-]+", "-", "-".join(words)).lower()


# ---- settings --------------------------------------------------------------------------------------------------------


def trained(training: Training, out: pathlib.Path, reader: pathlib.Path):
  """The settings of a training run: one step, on prompts that fit into a third of the context."""
  config = _config(training.config, training.flags, out)
  file = lambda name: str(out / "data" / "qa" / f"{name}.jsonl.gz")
  sets = config.data.train.split(",")
  recipe, variants = config.recipe, training.config.partition(":")[2].split(",")
  if recipe == "arena":
    held_out = next((WITHOUT[variant] for variant in variants if variant in WITHOUT), None)
    sets = [f"{name}_train" for name in ("hotpotqa", "2wikimultihopqa", "musique") if name != held_out]
  else:
    sets = [TRAINED_ON.get(recipe, "hotpotqa_train")]
  hard = file(HARD) if config.data.hard else ""  # before `train`, with which the config's own one would go
  config.data.update(dict(train=",".join(map(file, sets)), hard=hard, evaluate="", drop_long=True))
  searching(config, "2wiki" if recipe == "when_to_search" else "hotpotqa", out)
  config.model.path = str(reader)
  config.steps = 1
  r = config.rollout
  r.update(dict(context=2048, prompts_per_step=2, group_size=min(r.group_size, 5), lanes=8, rows=16))
  r.filter.max_draws = min(r.filter.max_draws, 1)
  config.learner.row_lengths = (2048,)
  config.loss.minibatches, config.critic.warmup_steps = 1, 0
  config.optimizer.update(dict(learning_rate=1e-3, schedule="constant", warmup_steps=0))
  config.sft.update(dict(batch=0, epochs=0, warmup_share=0.0))
  config.checkpoint.every, config.evaluate.every = 1, 0
  return config


def asked(evaluation: Evaluation, out: pathlib.Path, questions: int):
  """The settings of an evaluation."""
  config = _config(evaluation.config, evaluation.flags, out)
  config.data.max_examples = questions
  if "data.noise" not in dict(evaluation.flags):  # questions with noise already have retrieved passages
    searching(config, evaluation.dataset, out)
  if config.data.evidence:
    config.data.evidence = str(out / "data" / "qa" / f"{config.data.evidence}.jsonl.gz")
  return config


def searching(config, dataset: str, out: pathlib.Path) -> None:
  """Gives a recipe that can search the index of a set's corpus. A recipe that uses no passages gets none."""
  recipe = prepared.recipe(config_lib.validate(config, training=False))
  if recipe.searches:
    config.retrieval.index = str(out / "indexes" / FILES[dataset][1])
  if recipe.encodes:
    config.switches.similarity = "ngrams"
  config.data.own_passages = recipe.needs_passages and not recipe.searches


def _config(name: str, flags: tuple[tuple[str, str], ...], out: pathlib.Path):
  config = real_reader.sized(config_lib.load(name), out)
  for path, value in flags:
    *sections, last = path.split(".")
    section = config
    for part in sections:
      section = section[part]
    if path.startswith("switches."):
      section[last] = value == "True" if value in ("True", "False") else int(value) if value.isdigit() else value
    else:
      kind = section.get_type(last)
      section[last] = value == "True" if kind is bool else kind(value)
  config.judge.update(dict(kind="exact", prompt="answer", model="", path="", cache=""))
  if config.recipe == "veritas":
    config.judge.update(dict(kind="lexical", prompt="information_think"))
  return config
