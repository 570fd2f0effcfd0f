"""The runs and columns of VERITAS's tables (OpenReview mZ0gGlXe1F); veritas.toml has the published numbers."""

from collections.abc import Mapping
from typing import Any

from ragrl_jax.evaluation.tables import search_r1
from ragrl_jax.evaluation.tables.commands_of import RATERS
from ragrl_jax.evaluation.tables.layout import SERVED, Column, Run
from ragrl_jax.evaluation.tables.measures import COMPARED
from ragrl_jax.evaluation.tables.published import paper

JUDGES = (
  "--config.judge.kind=reward_model",
  "--config.judge.path=JUDGE_FOLDER",
  "--config.switches.judge_information=True",
  "--config.switches.judge_search=True",
  "--config.judges.think_search.kind=nli",
  "--config.judges.think_search.path=NLI_FOLDER",
)
OF_JUDGES = "ragrl make-judge-data --config=veritas"
LABELLER = (
  f"--config.judge.kind=llm --config.judge.model={SERVED['claude-3.7-sonnet']} --config.judge.endpoint=ENDPOINT"
)
PAIRS = "out/veritas/pairs-{}"  # the folder of labelled pairs, of which the paper had this number
HELD_OUT = {8_000: 2_000, 27_000: 3_000}  # labelled pairs → those of them that no judge is trained on
STEPS = {8_000: 195, 27_000: 780}  # of three epochs
SHEET = "out/veritas/labelled_by_hand.csv"


def trained(preset: str, *pays: str) -> Run:
  """A preset of VERITAS. Its evaluation asks the judges, even if its training did not."""
  return Run(preset, preset, needs=search_r1.INDEX, flags=JUDGES, train_flags=pays)


def meta(name: str) -> tuple[Column, ...]:
  """Per dimension: the judge's mean, the automatic measure's mean, how often they agree, and Fleiss' kappa."""
  found = [Column("task", "em", (name,))]
  for dimension, first, second, term in (
    ("Info-Think", "LLMaaJ", "RM", "information_think"),
    ("Think-Search", "LLMaaJ", "NLI", "think_search"),
    ("Think-Ans", "SubEM", "NLI", "think_answer"),
  ):
    of = [f"{term}/{kind}" for kind in COMPARED[term]] + [f"{term}_agreement", f"{term}_kappa"]
    heads = (first, second, "Agree.", "Kappa")
    found += [Column(f"{dimension} {head}", measure, (name,)) for head, measure in zip(heads, of)]
  return tuple(found)


def labelled(number: int) -> str:
  """The command that labels pairs of Search-R1's trajectories."""
  sizes = f"--max_pairs={number} --held_out={HELD_OUT[number]} --out={PAIRS.format(number)}"
  return f"{OF_JUDGES} {LABELLER} --episodes=RUN {sizes}"


def judge(number: int) -> Run:
  """A judge that was trained on this number of labelled pairs without the held-out ones."""
  of = dict(transcripts=f"{PAIRS.format(number)}/train.jsonl.gz", made=labelled(number))
  steps = (f"--config.steps={STEPS[number]}",)
  return Run(RATERS, RATERS, where={"labels.trained_on": ("these", None)}, train_flags=steps, **of)


def raters(where: Mapping[str, Any], data: str, made: str) -> tuple[Column, ...]:
  """The columns of a table of judges."""
  heads = {"Consistency": "consistency", "Kappa": "judge_kappa"}
  return tuple(Column(head, measure, ("pairs",), where=where, data=data, made=made) for head, measure in heads.items())


def of_size(number: int) -> tuple[Column, ...]:
  """The columns of judges against Claude 3.7."""
  where = {"labels.model": "~3-7-sonnet", "labels.max_pairs": number}
  return raters(where, f"{PAIRS.format(number)}/held_out.jsonl.gz", labelled(number))


PAID = "--config.judge.path=JUDGE_FOLDER"  # its training asks the judge
RUNS = search_r1.RUNS | {
  "desa": Run(system="desa"),
  "research": Run(system="research"),
  "search_r1": Run(system="search_r1"),  # the public checkpoint
  "em": trained("veritas:em"),
  "em_format": trained("veritas:em_format"),
  "em_it": trained("veritas:em_it", PAID),
  "em_it_no_ramp": trained("veritas:em_it,no_ramp", PAID),
  "em_ta": trained("veritas:em_ta"),
  "veritas": trained("veritas", PAID),
  "judge": Run(RATERS),
  "judge_8000": judge(8_000),
  "judge_27000": judge(27_000),
}
COLUMNS = {
  "meta, nq": meta("nq"),
  "meta, hotpotqa": meta("hotpotqa"),
  "8000 pairs": of_size(8_000),
  "27000 pairs": of_size(27_000),
  "by hand": raters(
    {"labels.by": "person"},
    SHEET,
    f"{OF_JUDGES} --compare={PAIRS.format(27_000)}/held_out.jsonl.gz --sheet={SHEET} --max_pairs=100",
  ),
}
PAPER = paper("veritas", RUNS, COLUMNS)
