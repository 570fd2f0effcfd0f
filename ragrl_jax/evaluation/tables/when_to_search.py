"""The runs and columns of Learning When to Search's tables; when_to_search.toml has the published numbers."""

from ragrl_jax.evaluation.tables.layout import Column, Run
from ragrl_jax.evaluation.tables.published import paper

INDEX = ("--config.retrieval.index=INDEX",)
NEEDS = (
  *INDEX,
  "--config.retrieval.query_encoder=Qwen/Qwen3-Embedding-0.6B",
  "--config.judge.endpoint=http://JUDGE/v1",
)
JUDGE = (
  "--config.switches.correctness=judge",
  "--config.judge.kind=llm",
  "--config.judge.prompt=correctness",
  "--config.judge.model=Qwen3-235B-A22B-Instruct",
  "--config.judge.endpoint=http://JUDGE/v1",
)


def trained(config: str = "when_to_search", *flags: str, step: int = 0) -> Run:
  """A policy trained by DAPO; a step names a checkpoint under way."""
  return Run(config, config, needs=NEEDS, train_flags=flags, checkpoint=step)


def untrained(config: str, thinking: str | None, searches: int = 0) -> Run:
  """An untrained method with a judge beside its other scores, and at most so many searches; 0: as the preset says."""
  where = {"thinking": thinking, "retrieval.top_k": 5} | ({"switches.max_searches": searches} if searches else {})
  most = (f"--config.switches.max_searches={searches}",) if searches else ()
  return Run(config, where=where, needs=INDEX, flags=(*most, *JUDGE))


def released(system: str) -> Run:
  """Transcripts of a released agent, or its checkpoint played with the paper's five passages a search."""
  five = ("--config.retrieval.top_k=5",)  # of the evaluation that plays it
  return Run(system=system, where={"retrieval.top_k": (5, None)}, flags=five)


KEEP = "--config.checkpoint.keep=17"  # all checkpoints of 500 steps, one every 30: Tables 1 and 2 read early ones
# Reasoning models think (`thinking`), unless a row says that they do not.
RUNS: dict[str, Run | str] = {
  "closed_book": Run("untrained:closed_book", where={"thinking": None}, flags=JUDGE),
  "closed_book_thinking": Run("untrained:closed_book,thinking", where={"thinking": "on"}, flags=JUDGE),
  "rag": untrained("untrained", None),
  "rag_thinking": untrained("untrained:thinking", "on"),
  "rag_no_thinking": untrained("untrained:no_thinking", "off"),
  "rag_by_top_k": Run("untrained", where={"thinking": None}, needs=INDEX),
  "rag_by_top_k_thinking": Run("untrained:thinking", where={"thinking": "on"}, needs=INDEX),
  "ircot": untrained("untrained:ircot", None),
  "iter_retgen": untrained("untrained:iter_retgen", None, searches=3),  # RC 3.00 on all sets
  "skr": untrained("untrained:skr", None),
  **{system: released(system) for system in ("autorefine", "search_r1", "r1_searcher", "simpledeepsearcher")},
  "dapo": trained(),
  "dapo_keep": trained("when_to_search", KEEP),
  **{f"unified_{step}": trained("when_to_search:unified", KEEP, step=step) for step in (30, 90, 180)},
  **{
    preset: trained(f"when_to_search:{preset}")
    for preset in ("no_search_reward", "no_stage_one", "no_stage_two", "no_answer_reward")
  },
  "by_steps": "the paper does not say which steps these are (4B's first row is Table 2's step 30, digit for digit): "
  "evaluate RUN/checkpoints/STEP of stage two's run, which keeps them, and compare by hand",
  "o2_searcher": "no adapter reads O2-Searcher's transcripts",
  "self_rag": "Self-RAG's reflection tokens and decoding are not here",
  "corag": "CoRAG's chains of retrieval are not here",
}
COLUMNS = {
  "top-k": tuple(
    Column(f"top-k {k}", measure, ("nq",), {"retrieval.top_k": k}, (f"--config.retrieval.top_k={k}",))
    for k in (1, 3, 5, 10)
    for measure in ("cover_em", "tokens")
  )
}
PAPER = paper("when_to_search", RUNS, COLUMNS)
