import time

import pytest
from console import ragrl
from refusals import refused

from ragrl_jax.data import writers
from ragrl_jax.evaluation import foreign_transcripts
from ragrl_jax.judging import lexical
from ragrl_jax.recipes.released import agents
from ragrl_jax.recipes.veritas import measured
from ragrl_jax.store import episodes, jsonl
from ragrl_jax.structs import ENVIRONMENT, MODEL, Example

EXAMPLES = [Example("q1", "Who wrote Emma?", ("Jane Austen",), source="nq")]
EXAMPLES += [Example("q2", "Where is Lima?", ("Peru",), source="nq")]
FOUND = "Doc 1(Title: Emma) A novel by Jane Austen."
# One episode of each system: a search, its results, the right answer.
WRITTEN = {
  "search_r1": "<think>I look.</think><search>Emma author</search>\n\n<information>{}</information>\n\n"
  "<think>By Jane Austen.</think><answer> Jane Austen </answer>",
  "research": "<think>I look.</think><search> Emma author </search><result>\n{}\n</result>"
  "<think>By Jane Austen.</think><answer>The answer is \\[ \\boxed{{Jane Austen}} \\]</answer>",
  "autorefine": "<think>I look.</think><search>Emma author</search>\n<documents>{}</documents>\n"
  "<refine>Jane Austen wrote it.</refine><answer>Jane Austen</answer>",
  "r1_searcher": "I look.<|begin_of_query|> Emma author <|end_of_query|>\n<|begin_of_documents|>\n{}"
  "<|end_of_documents|>\nSo it is her.</think><answer>Jane Austen</answer>",
  "search_o1": "Maybe \\boxed{{no}}? <|begin_search_query|>Emma author<|end_search_query|>\n\n"
  "<|begin_search_result|>{}<|end_search_result|>\n\nThe answer is \\boxed{{\\text{{Jane Austen}}}}.<|im_end|>",
}
WRITTEN |= {"desa": WRITTEN["search_r1"], "simpledeepsearcher": WRITTEN["search_o1"]}


def scored(tmp_path, rows, system, examples=EXAMPLES):
  path = tmp_path / "transcripts.jsonl"
  jsonl.write(path, rows)
  metrics = foreign_transcripts.score(path, examples, tmp_path / "out", system=system, settings=dict(data="nq.jsonl"))
  return metrics, list(jsonl.read(tmp_path / "out" / "predictions.jsonl"))


@pytest.mark.parametrize("system", agents.AGENTS)
def test_each_system_is_read(tmp_path, system):
  text = WRITTEN[system].format(FOUND)
  assert [owner for owner, _ in foreign_transcripts.turns(text, system)] == [MODEL, ENVIRONMENT, MODEL]
  given = [dict(id="q1", response=text), dict(question="where is\u00a0ｌｉｍａ", prediction=None)]
  metrics, rows = scored(tmp_path, given, system)
  assert rows[0]["prediction"] == "Jane Austen" and rows[0]["em"] == 1.0 and rows[0]["num_searches"] == 1
  assert rows[1]["prediction"] is None and rows[1]["em"] == 0.0 and rows[1]["num_searches"] is None
  assert metrics["em"] == 0.5 and metrics["n"] == 2 and metrics["searches"] == 1.0
  assert metrics["settings"]["system"] == system and rows[0]["response_tokens"] is None
  faith = rows[0]["terms"]["think_answer"]  # the thought before the answer names it
  assert faith == (1.0 if agents.AGENTS[system].thinks else None)


@pytest.mark.parametrize("system", ["search_r1", "research"])
def test_the_steps_of_transcripts_can_be_judged(tmp_path, system):
  rows = [dict(id="q1", transcript=WRITTEN[system].format(FOUND)), dict(id="q2", prediction="Peru")]
  scored(tmp_path, rows, system)
  judges = dict(information_think=lexical.Lexical(0.5), think_answer=lexical.SubEM(), think_search=lexical.Lexical(0.5))
  found = measured.measured(episodes.read_folder(tmp_path / "out"), judges)["nq"]
  # "By Jane Austen." comes from the results and names the answer; "I look." says nothing of the query. q2: no steps.
  faithful = dict(information_think=1.0, think_answer=1.0, think_search=0.0)
  seen = {term: (of["faithful"], of["pairs"], of["without"]) for term, of in found.items()}
  assert seen == {term: (share, 1, 1) for term, share in faithful.items()}
  scored(tmp_path, [dict(id="q1", prediction="a"), dict(id="q2", prediction="b")], "r1_searcher")
  assert not (tmp_path / "out" / "episodes.jsonl").exists()  # it marks no thoughts


def test_every_other_systems_text_is_refused():
  for system, adapter in agents.AGENTS.items():
    for name, text in WRITTEN.items():
      if (agents.AGENTS[name].results, agents.AGENTS[name].query) != (adapter.results, adapter.query):
        refused("does not write: is it|none of", foreign_transcripts.turns, text.format(FOUND), system)
  refused("none of search_r1's tags", foreign_transcripts.turns, "Jane Austen", "search_r1")


def test_the_model_cannot_write_its_own_results():
  text = "<think>a</think><information>Jane Austen</information><search>q</search>\n<information>x</information>"
  turns = foreign_transcripts.turns(text + "<answer>b</answer>", "search_r1")
  assert [owner for owner, _ in turns] == [MODEL, ENVIRONMENT, MODEL] and "x" in turns[1][1]
  # Search-R1's code cuts long results with their closing tag: they end before the next thought.
  for gap in ("", "\n"):
    cut = f"<search>q</search>\n\n<information>Doc 1{gap}<think>so</think>\n"
    turns = foreign_transcripts.turns(f"{cut}<answer>b</answer>", "search_r1")
    assert turns[1] == (ENVIRONMENT, "\n\n<information>Doc 1</information>\n\n")
    assert turns[2] == (MODEL, f"{gap}<think>so</think>\n<answer>b</answer>")
    again = f"{cut}<search>r</search>\n\n<information>Doc 2{gap}<answer>b</answer>"
    again = foreign_transcripts.turns(again, "search_r1")
    assert [owner for owner, _ in again] == [MODEL, ENVIRONMENT] * 2 + [MODEL]
  refined = "<search>q</search><documents>Doc 1<refine>x</refine><answer>b</answer>"
  assert foreign_transcripts.turns(refined, "autorefine")[-1] == (MODEL, "<refine>x</refine><answer>b</answer>")


def test_boxes():
  assert agents.boxed(r"\boxed{a} or \boxed{\text{b} {c}}") == "b {c}"
  assert agents.boxed(r"\boxed{a \boxed{b} } {\boxed{c") == "b"
  assert agents.boxed(r"} \boxed{" + r"\boxed{" * 20_000) is None  # at once
  assert agents.boxed(r"\boxed{50\% of \$3}") == "50% of $3" and agents.boxed(r"\boxed{open") is None
  assert agents.boxed(r"\boxed{a} then \boxed{open") == "a" and agents.boxed("none") is None


def test_the_prompt_is_not_the_models(tmp_path):
  prompt = "Search with <search> query </search>. For example, <answer> Beijing </answer>. Question: Who wrote Emma?\n"
  chat = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
  said = "<think>I do not know.</think>"
  messages = [dict(role=role, content=f"<answer>{of}</answer>") for role, of in (("user", "x"), ("assistant", "Peru"))]
  messages.insert(1, dict(role="assistant", content=None))
  other, rules = dict(id="q2", messages=messages), "Rules: <answer>Beijing</answer>"
  for before, more in ((chat, {}), (prompt, {}), (rules, dict(prompt=rules))):
    _, rows = scored(tmp_path, [dict(id="q1", output=before + said, **more), other], "search_r1")
    assert rows[0]["prediction"] is None and rows[0]["em"] == 0.0 and rows[1]["em"] == 1.0


NOTICE = (
  "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I "
  "want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)


def test_a_notice_of_the_environment_and_a_repeated_question(tmp_path):
  never = f"<think>I think.</think>{NOTICE}<think>Still.</think>{NOTICE}"
  assert [owner for owner, _ in foreign_transcripts.turns(never, "search_r1")] == [MODEL, ENVIRONMENT] * 2
  later = f"<think>Hm.</think>{NOTICE}{WRITTEN['search_r1'].format(FOUND)}"
  metrics, rows = scored(tmp_path, [dict(id="q1", response=later), dict(id="q2", response=never)], "search_r1")
  assert [row["prediction"] for row in rows] == ["Jane Austen", None] and metrics["answered"] == 0.5
  assert [row["num_searches"] for row in rows] == [1, 0]
  # A question that the model repeats is no prompt.
  said = WRITTEN["search_r1"].format(FOUND).replace("By Jane", "To answer the question: who wrote Emma? By Jane")
  _, rows = scored(tmp_path, [dict(id="q1", response=said), dict(id="q2", prediction="Peru")], "search_r1")
  assert rows[0]["num_searches"] == 1 and rows[0]["terms"]["think_answer"] == 1.0


@pytest.mark.parametrize("part, system", [
  (" ", "search_r1"), ("<|im_end|>", "search_r1"), ("My previous action is invalid.", "search_r1"),
  ("</search><information></information>", "search_r1"), ("<answer>", "research"),
])  # fmt: skip
def test_a_text_of_one_repeated_part_is_read_in_linear_time(part, system):
  start = time.thread_time()
  turns = foreign_transcripts.turns(f"<answer>a</answer>{part * (200_000 // len(part))}x", system)
  assert turns[-1][1].endswith("x") and time.thread_time() - start < 5.0  # quadratic: ten seconds to minutes


def test_what_a_transcript_lacks_is_unknown(tmp_path):
  rows = [dict(id="q1", response=WRITTEN["search_r1"].format(FOUND)), dict(id="q2", response="<think>Hm.</think>")]
  metrics, found = scored(tmp_path, rows, "search_r1")
  assert [row["confidence"] for row in found] == [None, None]  # it has no log-probabilities
  assert not {"confidence", "ece", "brier"} & metrics.keys()
  assert [row["ended"] for row in found] == ["answer", "eos"] and metrics["ended"] == dict(answer=1, eos=1)
  assert [row["ended"] for row in episodes.read_folder(tmp_path / "out")] == ["answer", "eos"]


def test_scores_are_not_written_into_an_evaluation_or_over_the_transcripts(tmp_path):
  rows, out = [dict(id="q1", prediction="a"), dict(id="q2", prediction="Peru")], tmp_path / "out"
  for mark in ("settings.json", "seed_0/settings.json", "metrics.jsonl", "index.json"):
    (out / mark).parent.mkdir(parents=True, exist_ok=True)
    (out / mark).write_text("{}")
    refused(rf"--out=.*: this folder holds an? \w+ \({mark}\)", scored, tmp_path, rows, "search_r1")
    (out / mark).unlink()
  assert scored(tmp_path, rows, "search_r1")[0]["em"] == 0.5
  assert scored(tmp_path, [rows[0], dict(id="q2", prediction="Chile")], "search_r1")[0]["em"] == 0.0  # once more
  with pytest.raises(ValueError, match="predictions.jsonl: this file is read, too"):
    foreign_transcripts.score(out / "predictions.jsonl", EXAMPLES, out, system="search_r1", settings={})


def test_the_command_does_not_know_a_retriever_that_nobody_named(tmp_path):
  jsonl.write(tmp_path / "t.jsonl", [dict(id="q1", response=WRITTEN["search_r1"].format(FOUND))])
  writers.write_examples(tmp_path / "q.jsonl", EXAMPLES[:1])
  words = [f"--{name}={tmp_path}/{file}" for name, file in dict(transcripts="t.jsonl", data="q.jsonl", out="o").items()]
  for more, known in (([], "not known"), (["--retriever=BM25, top 3"], "BM25, top 3")):
    ragrl("score", "--system=search_r1", *words, *more, says=f"retrieval: {known}\n")


BAD = (  # rows for the first question
  (dict(id="q9", response="x"), "transcripts.jsonl:1: its id 'q9'.*match 0 questions"),
  # A system that numbers its outputs in an order of its own.
  (dict(id="q2", question="Who wrote Emma?", prediction="a"),
   "transcripts.jsonl:1: its id 'q2' is that of the question 'Where is Lima.'.*remove its id or its question"),
  (dict(id="q1", text="x"), "transcripts.jsonl:1: it has none of transcript"),
  (dict(id="q1", response="Austen"), "transcripts.jsonl:1: none of search_r1's tags"),
  (dict(id="q1", response=7), "transcripts.jsonl:1: the transcript is a int"),
  (dict(id="q1", messages=["a"]), "transcripts.jsonl:1: a message must have role"),
  (dict(id="q1", messages=[dict(role="assistant", content=[dict(type="text", text="<answer>a</answer>")])]),
   "transcripts.jsonl:1: a message must have role and content, which is a text"),
  (dict(id="q1", prediction=1815), "transcripts.jsonl:1: the prediction is 1815; it must be a text"),
  (dict(id="q1", pred=["a"]), r"transcripts.jsonl:1: the pred is \['a'\]; it must be a text"),
  (dict(id="q1", response="<search>a</search><answer>b</answer>"), "1 queries, but no results"),
)  # fmt: skip


def test_files_that_cannot_be_scored(tmp_path):
  good = [dict(id="q1", response="<answer>a</answer>"), dict(id="q2", prediction="Peru")]
  for rows, says in (
    (good[:1], "1 of 2 questions have no transcript .first 'q2'"),
    ([*good, good[0]], "transcripts.jsonl:3: question 'q1' has a transcript already, .*:1"),
    *(([row, good[1]], says) for row, says in BAD),
  ):
    refused(says, scored, tmp_path, rows, "search_r1")
    assert not (tmp_path / "out").exists()
  refused("the same ids", scored, tmp_path, good, "search_r1", [*EXAMPLES, EXAMPLES[0]])
