"""LEAR's tables: the published numbers, and the run for each row."""

import dataclasses

from ragrl_jax.evaluation.tables.layout import SETS as QUESTIONS
from ragrl_jax.evaluation.tables.layout import Column, Paper, Run, Table, columns, quadrants, rows

SETS = {"nq": "NQ", "triviaqa": "TQA", "hotpotqa": "HotpotQA"}
SMALL, LARGE = "qwen2.5-1.5b", "qwen2.5-7b"
INDEX = ("--config.retrieval.index=DPR_INDEX",)
OTHERS = "a released compressor or extractor, which is not here"
# Only the extraction, 64 questions at a time: these are Table 5's seconds, and a generator reads its evidence.
UNANSWERED = {"switches.answers": ""}
TIMED = ("--config.switches.answers=", "--config.evaluate.batch=64")
# The paper takes the best checkpoint on NQ's development set: by the answer that the reward pays.
BEST = {"answers_r": "evaluation/measure/f1_from_reason", "answers_f": "evaluation/em"}
FROM_EVIDENCE = "evaluation/measure/em_from_evidence"
NQ = "hf:RUC-NLPIR/FlashRAG_datasets/nq/train"
DATA = "out/lear/data"
STUDIED = (
  f"ragrl make-lear-sft --data={NQ}~1000 --index=DPR_INDEX --out={DATA} --answers={DATA}/teacher --url=TEACHER_URL "
  "--model=deepseek-reasoner"
)


def trained(preset: str = "", model: str = SMALL) -> Run:
  """An extractor trained by RL. It stops after the evidence."""
  config = f"lear:{preset}" if preset else "lear"
  facts, best = UNANSWERED, BEST.get(preset, FROM_EVIDENCE)
  return Run("lear:inference", config, (model,), facts, needs=INDEX, flags=TIMED, best=best)


def generator(model: str, top_k: int) -> Run:
  """A generator fine-tuned to answer from passages, with or without them."""
  none = ("--config.switches.top_k=0",) if top_k == 0 else ()
  facts = {"switches.top_k": top_k, "trained.switches.top_k": (5, None) if top_k else 0}
  needs = () if top_k == 0 else INDEX
  file = f"{DATA}/{'generator' if top_k else 'closed'}.jsonl.gz"
  made = f"ragrl make-lear-generator --data={NQ}{' --index=DPR_INDEX' if top_k else ''} --out={file}"
  of = dict(needs=needs, flags=none, train_flags=none, transcripts=file, made=made)
  return Run("lear:generator", "lear:sft,generator", (model,), facts, **of)


def read(extraction: Run) -> Run:
  """The generator of `Full`, which answers from extracted evidence. The extraction may have asked for answers, too."""
  where = {name: value for name, value in extraction.where.items() if name not in UNANSWERED}
  reads = dataclasses.replace(extraction, where=where)
  return dataclasses.replace(generator(extraction.models[0], 5), reads=reads, needs=())


def extractor(reply: str) -> Run:
  """An extractor fine-tuned on the study's transcripts."""
  file = f"{DATA}/{reply.removeprefix('study_')}.jsonl.gz"
  return Run(f"lear:{reply}", f"lear:sft,{reply}", (SMALL,), needs=INDEX, transcripts=file, made=STUDIED)


def filco(model: str) -> Run:
  """A filter fine-tuned on sentences that an oracle selects."""
  made = f"ragrl make-lear-sft --data={NQ} --index=DPR_INDEX --oracle=string_inclusion --out={DATA}"
  of = dict(needs=INDEX, flags=TIMED, transcripts=f"{DATA}/filter.jsonl.gz", made=made)
  return Run("lear:filter", "lear:sft,filter", (model,), UNANSWERED, **of)


def thoughts(model: str) -> Run:
  """An untrained model, whose own chain of thought is the evidence."""
  return Run("lear:thoughts", "", (model,), UNANSWERED, needs=INDEX, flags=TIMED)


def methods(model: str) -> dict[str, Run | str]:
  """The columns of Table 4 for one model."""
  named = dict.fromkeys(("SeleCtx", "LLMLingua-2", "Recomp", "SEER"), OTHERS)
  return {
    "Zero": generator(model, 0),
    "Full": generator(model, 5),
    **named,
    "FilCo": read(filco(model)),
    "CoT": read(thoughts(model)),
    "LEAR": read(trained("", model)),
  }


def searched(found: tuple[Column, ...]) -> tuple[Column, ...]:
  """The columns of evaluations that search for passages, even where questions bring some, as HotpotQA's do."""
  flag = "--config.data.own_passages=False"
  return tuple(dataclasses.replace(one, where={"own_passages": False}, flags=(flag,)) for one in found)


def answerable(found: tuple[Column, ...]) -> tuple[Column, ...]:
  """The columns of the study, whose test questions have a gold answer in their passages. Source: sec. 2.2."""
  made = "ragrl make-lear-sft --data={} --noown_passages --index=DPR_INDEX --out={}"
  of = lambda name: dict(
    data=f"{DATA}/{name}/answerable.jsonl.gz", made=made.format(QUESTIONS[name][1], f"{DATA}/{name}")
  )
  return tuple(dataclasses.replace(one, **of(one.sets[0])) for one in found)


MAIN_SMALL = """
# WR
Zero        | 13.74 53.16 -     | 29.10 64.62 -     | 12.36 48.52 -
Full        | 41.97 70.07 1.0x  | 57.02 80.13 1.0x  | 19.20 53.04 1.0x
# VAR
SeleCtx     | 24.68 59.52 3.44x | 45.13 73.40 3.38x | 15.30 49.65 3.40x
LLMLingua-2 | 29.36 62.82 4.51x | 48.67 75.29 4.52x | 16.64 51.26 4.52x
Recomp      | 37.40 67.18 5.43x | 56.56 79.85 5.35x | 18.52 52.92 5.44x
FilCo       | 36.62 66.63 16.3x | 54.06 78.56 8.55x | 18.18 52.15 18.3x
SEER        | 36.93 67.11 13.2x | 54.57 78.81 10.3x | 18.60 52.79 15.5x
# RAR
CoT         | 37.70 68.09 4.56x | 54.29 79.56 5.02x | 19.52 53.43 4.17x
LEAR        | 41.14 70.77 38.1x | 56.84 80.85 38.8x | 20.46 54.20 33.0x
"""
MAIN_LARGE = """
# WR
Zero        | 25.04 60.88 -     | 47.31 74.36 -     | 17.95 53.07 -
Full        | 48.78 74.40 1.0x  | 65.34 84.83 1.0x  | 25.82 58.50 1.0x
# VAR
SeleCtx     | 33.91 65.71 3.44x | 58.72 80.95 3.38x | 21.27 54.90 3.40x
LLMLingua-2 | 36.51 67.77 4.51x | 60.50 81.94 4.52x | 23.45 56.65 4.52x
Recomp      | 43.77 71.61 5.43x | 64.40 84.12 5.35x | 24.84 58.02 5.44x
FilCo       | 44.79 72.30 15.4x | 63.46 83.66 7.77x | 25.27 58.15 17.5x
SEER        | 45.01 72.76 12.4x | 64.20 84.14 9.70x | 25.81 58.63 14.3x
# RAR
CoT         | 44.49 73.09 3.36x | 63.91 84.45 3.33x | 27.25 59.84 3.32x
LEAR        | 46.95 73.99 17.9x | 64.76 84.74 17.6x | 28.02 60.30 16.5x
"""

STUDY = rows(
  """
Vanilla Evidence  | 70.79% 60.55%
Rational Evidence | 75.24% 67.74%
Rationale         | 77.30% 71.48%
""",
  {
    "Vanilla Evidence": extractor("study_vanilla"),
    "Rational Evidence": extractor("study_rational"),
    "Rationale": extractor("study_rational"),
  },
  against="Vanilla Evidence",
  measures={"Rationale": "reason_recall"},
)

RECALLED = rows(
  "Rational and vanilla | - - - - | - 14.49% 7.30% -",
  {"Rational and vanilla": extractor("study_rational")},
  versus={"Rational and vanilla": extractor("study_vanilla")},
)

LATENCY = rows(
  """
FilCo | 0.64 0.82 0.59 0.68
CoT   | 0.55 0.70 0.71 0.65
LEAR  | 0.35 0.41 0.43 0.40
""",
  {"FilCo": filco(SMALL), "CoT": thoughts(SMALL), "LEAR": trained()},
)

ANSWERS = rows(
  """
Rationale                   | 39.89 56.97 20.30 38.72
Evidence                    | 40.27 57.38 19.73 39.13
Full Ctx                    | 39.53 56.17 20.13 38.61
Evidence+Rationale          | 40.02 57.31 20.34 39.22
Evidence+Full Ctx           | 40.44 57.26 20.23 39.31
Evidence+Rationale+Full Ctx | 41.14 56.84 20.46 39.48
""",
  {
    "Rationale": read(trained("answers_r")),
    "Evidence": read(trained("answers_e")),
    "Full Ctx": read(trained("answers_f")),
    "Evidence+Rationale": read(trained("answers_er")),
    "Evidence+Full Ctx": read(trained("answers_ef")),
    "Evidence+Rationale+Full Ctx": read(trained()),
  },
  against="Evidence+Rationale+Full Ctx",
)

NOISE = rows(
  """
FilCo | - - - - - - - - - -
LEAR  | - - - - - - - - - -
""",
  {"FilCo": read(filco(SMALL)), "LEAR": read(trained())},
)
BY_NOISE = tuple(
  Column(
    f"{SETS[name]}, +{k}",
    "em",
    (name,),
    {"noise": k},
    (f"--config.data.noise={k}",),
    f"{DATA}/{name}_asked.jsonl.gz",
    made=f"ragrl make-lear-generator --data={QUESTIONS[name][1]} --index=DPR_INDEX --noturns "
    f"--out={DATA}/{name}_asked.jsonl.gz",
  )
  for name in ("nq", "triviaqa")
  for k in (0, 2, 4, 6, 8)
)

# HotpotQA's test set has no answers. Only its "bridge" questions are counted.
FLASHRAG = "hf:RUC-NLPIR/FlashRAG_datasets"
BRIDGES = {"hotpotqa": {"only": "type=bridge"}}
RETRIEVAL = tuple(
  Column(
    f"{SETS[name]}, {split}",
    measure,
    (name,),
    {"split": split, "own_passages": False, "top_k": 5} | BRIDGES.get(name, {"only": None}),
    tuple(f"--only={only['only']}" for only in [BRIDGES.get(name)] if only),
    f"{FLASHRAG}/{name}/{split}",
  )
  for name in SETS
  for measure in ("recall", "ndcg")
  for split in ("train", "dev", "test")
  if (name, split) != ("hotpotqa", "test")
)
RETRIEVED = rows(
  """
DPR | 78.74 73.07 74.07 68.30 61.95 63.08
    | 82.35 77.97 77.77 76.06 70.32 70.35
    | 34.02 28.45 27.36 22.39
""",
  {"DPR": Run(system="retrieval", flags=("--index=DPR_INDEX", "--top_k=5", "--noown_passages"))},
)

QUALITY = searched(columns(SETS, ("em", "f1_char", "compression")))
PAPER = Paper(
  "lear",
  "LEAR",
  (
    Table(
      "Table 1",
      "answer recall of three kinds of evidence",
      answerable(columns({"nq": "NQ", "hotpotqa": "HotpotQA"}, ("answer_recall",))),
      STUDY,
      scale=100,
      digits=2,
      transposed=True,
    ),
    Table(
      "Figure 2",
      "whose evidence recalls the answer: rational evidence's, vanilla evidence's",
      answerable(quadrants({"nq": "NQ", "hotpotqa": "HotpotQA"}, "answer_recall", "rational only", "vanilla only")),
      RECALLED,
      scale=100,
      digits=2,
    ),
    Table("Table 3", "the retriever's five passages", RETRIEVAL, RETRIEVED, scale=100, digits=2, transposed=True),
    Table(
      "Table 4, 1.5B",
      "EM, F1 and compression",
      QUALITY,
      rows(MAIN_SMALL, methods(SMALL), against="LEAR"),
      scale=100,
      digits=2,
      transposed=True,
    ),
    Table(
      "Table 4, 7B",
      "EM, F1 and compression",
      QUALITY,
      rows(MAIN_LARGE, methods(LARGE), against="LEAR"),
      scale=100,
      digits=2,
      transposed=True,
    ),
    Table("Table 5", "seconds a question, 1.5B", searched(columns(SETS, ("pace",), average="Avg")), LATENCY, digits=2),
    Table("Figure 6", "EM with passages of other questions added, 1.5B", BY_NOISE, NOISE, scale=100, digits=2),
    Table(
      "Table 6",
      "EM by the answers that are paid for, 1.5B",
      searched(columns(SETS, ("em",), average="Average")),
      ANSWERS,
      scale=100,
      digits=2,
      transposed=True,
    ),
  ),
  {
    "Figure 1": "an example, as is Figure 7",
    "Table 2": "sizes of the data sets; nothing is measured",
    "Figures 3 and 4": "drawings of the method and of the length reward",
    "Figure 5": "curves over training: `ragrl report` draws them",
    "Tables 7 to 10": "prompts",
  },
  "the paper's text; Figure 6's points and most of Figure 2's shares have no printed numbers",
)
