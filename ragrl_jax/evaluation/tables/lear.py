"""The runs and columns of LEAR's tables; lear.toml has the published numbers."""

import dataclasses

from ragrl_jax.evaluation.tables.layout import SETS as QUESTIONS
from ragrl_jax.evaluation.tables.layout import Column, Run, columns, quadrants
from ragrl_jax.evaluation.tables.published import paper

SETS = {"nq": "NQ", "triviaqa": "TQA", "hotpotqa": "HotpotQA"}
INDEX = ("--config.retrieval.index=DPR_INDEX",)
# Only the extraction, 64 questions at a time: these are Table 5's seconds, and a generator reads its evidence.
TIMED = ("--config.switches.answers=", "--config.evaluate.batch=64")
UNANSWERED = {"switches.answers": ""}
# The paper takes the best checkpoint on NQ's development set: by the answer that the reward pays.
BEST = {"lear:answers_r": "evaluation/measure/f1_from_reason", "lear:answers_f": "evaluation/em"}
FLASHRAG = "hf:RUC-NLPIR/FlashRAG_datasets"
NQ, DATA = f"{FLASHRAG}/nq/train", "out/lear/data"
STUDIED = (
  f"ragrl make-lear-sft --data={NQ}~1000 --index=DPR_INDEX --out={DATA} --answers={DATA}/teacher --url=TEACHER_URL "
  "--model=deepseek-reasoner"
)


def trained(config: str) -> Run:
  """An extractor trained by RL. It stops after the evidence."""
  best = BEST.get(config, "evaluation/measure/em_from_evidence")
  return Run("lear:inference", config, where=UNANSWERED, needs=INDEX, flags=TIMED, best=best)


def tuned(asked: str, file: str, made: str, **more) -> Run:
  """A model fine-tuned on transcripts."""
  config = asked.replace(":", ":sft,")
  return Run(asked, config, transcripts=f"{DATA}/{file}.jsonl.gz", made=made, **(dict(needs=INDEX) | more))


def generator(top_k: int, file: str, index: str = "", **more) -> Run:
  """A generator fine-tuned to answer from passages, with or without them."""
  facts = {"switches.top_k": top_k, "trained.switches.top_k": (5, None) if top_k else 0}
  made = f"ragrl make-lear-generator --data={NQ}{index} --out={DATA}/{file}.jsonl.gz"
  return tuned("lear:generator", file, made, where=facts, **more)


def read(extraction: Run) -> Run:
  """The generator of `full`, which answers from extracted evidence. The extraction may have asked for answers, too."""
  where = {name: value for name, value in extraction.where.items() if name not in UNANSWERED}
  return dataclasses.replace(FULL, reads=dataclasses.replace(extraction, where=where), needs=())


CLOSED = ("--config.switches.top_k=0",)
FULL = generator(5, "generator", " --index=DPR_INDEX")
ORACLE = f"ragrl make-lear-sft --data={NQ} --index=DPR_INDEX --oracle=string_inclusion --out={DATA}"
FILCO = tuned("lear:filter", "filter", ORACLE, where=UNANSWERED, flags=TIMED)  # on sentences that an oracle selects
THOUGHTS = Run("lear:thoughts", where=UNANSWERED, needs=INDEX, flags=TIMED)  # an untrained model's chain of thought
RUNS: dict[str, Run | str] = {
  "zero": generator(0, "closed", needs=(), flags=CLOSED, train_flags=CLOSED),
  "full": FULL,
  "unreleased": "a released compressor or extractor, which is not here",
  "study_vanilla": tuned("lear:study_vanilla", "vanilla", STUDIED),
  "study_rational": tuned("lear:study_rational", "rational", STUDIED),
  "filco": FILCO,
  "thoughts": THOUGHTS,
  "lear": trained("lear"),
  "read_filco": read(FILCO),
  "read_thoughts": read(THOUGHTS),
  "read_lear": read(trained("lear")),
  **{f"read_{kind}": read(trained(f"lear:answers_{kind}")) for kind in ("r", "e", "f", "er", "ef")},
  "dpr": Run(system="retrieval", flags=("--index=DPR_INDEX", "--top_k=5", "--noown_passages")),
}


def searched(*measures: str, average: str = "") -> tuple[Column, ...]:
  """The columns of evaluations that search for passages, even where questions bring some, as HotpotQA's do."""
  where, flags = {"own_passages": False}, ("--config.data.own_passages=False",)
  found = columns(SETS, measures, average=average)
  return tuple(dataclasses.replace(one, where=where, flags=flags) for one in found)


def answerable(found: tuple[Column, ...]) -> tuple[Column, ...]:
  """The columns of the study, whose test questions have a gold answer in their passages. Source: sec. 2.2."""
  made = "ragrl make-lear-sft --data={} --noown_passages --index=DPR_INDEX --out={}"
  of = lambda name: dict(
    data=f"{DATA}/{name}/answerable.jsonl.gz", made=made.format(QUESTIONS[name][1], f"{DATA}/{name}")
  )
  return tuple(dataclasses.replace(one, **of(one.sets[0])) for one in found)


def noisy(name: str, k: int) -> Column:
  """EM with k passages of other questions added."""
  file = f"{DATA}/{name}_asked.jsonl.gz"
  made = f"ragrl make-lear-generator --data={QUESTIONS[name][1]} --index=DPR_INDEX --noturns --out={file}"
  return Column(f"{SETS[name]}, +{k}", "em", (name,), {"noise": k}, (f"--config.data.noise={k}",), file, made)


def retrieved(name: str, measure: str, split: str) -> Column:
  """The retriever's five passages; of HotpotQA only its "bridge" questions are counted."""
  only = "type=bridge" if name == "hotpotqa" else None
  where = {"split": split, "own_passages": False, "top_k": 5, "only": only}
  flags = (f"--only={only}",) if only else ()
  return Column(f"{SETS[name]}, {split}", measure, (name,), where, flags, f"{FLASHRAG}/{name}/{split}")


STUDY = {"nq": "NQ", "hotpotqa": "HotpotQA"}
SPLITS = ("train", "dev", "test")
COLUMNS = {
  "study": answerable(columns(STUDY, ("answer_recall",))),
  "study, two runs": answerable(quadrants(STUDY, "answer_recall", "rational only", "vanilla only")),
  "quality": searched("em", "f1_char", "compression"),
  "seconds": searched("pace", average="Avg"),
  "em": searched("em", average="Average"),
  "noise": tuple(noisy(name, k) for name in ("nq", "triviaqa") for k in (0, 2, 4, 6, 8)),
  # HotpotQA's test set has no answers.
  "retriever": tuple(
    retrieved(name, measure, split)
    for name in SETS for measure in ("recall", "ndcg") for split in SPLITS if (name, split) != ("hotpotqa", "test")
  ),
}  # fmt: skip
PAPER = paper("lear", RUNS, COLUMNS)
