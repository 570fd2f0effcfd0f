import json

import pytest
from refusals import refused

from ragrl_jax.data import layouts
from ragrl_jax.structs import Example, Passage

CONTEXT = [["Rome", ["Rome is a city.", " It is old."]], ["Paris", ["Paris is a city."]], ["Rome", ["Another Rome."]]]
FACTS = [["Paris", 0], ["Rome", 1], ["Rome", 0], ["Oslo", 0], ["Paris", 9]]
HOTPOT = dict(_id="5a", question="Which is older?", answer="Rome", type="comparison", level="hard")
HOTPOT |= dict(context=CONTEXT, supporting_facts=FACTS)


read = lambda row: layouts.example(row, identity="set-0", source="set")
columns = lambda pairs, *names: {name: list(values) for name, values in zip(names, zip(*pairs))}
OBJECTS = dict(context=[dict(title=title, sentences=sentences) for title, sentences in CONTEXT])
OBJECTS |= dict(supporting_facts=[dict(title=title, sent_id=number) for title, number in FACTS])
COLUMNS = dict(context=columns(CONTEXT, "title", "sentences"), supporting_facts=columns(FACTS, "title", "sent_id"))
HOTPOTS = {
  "published": HOTPOT, "hub": HOTPOT | COLUMNS, "objects": HOTPOT | OBJECTS,
  "json": dict(HOTPOT, context=json.dumps(CONTEXT), supporting_facts=json.dumps(FACTS)),
}  # fmt: skip


@pytest.mark.parametrize("shape", HOTPOTS)
def test_hotpotqa(shape):
  got = read(HOTPOTS[shape])
  assert (got.id, got.question, got.golds, got.source) == ("5a", "Which is older?", ("Rome",), "set")
  assert [p.title for p in got.passages] == ["Rome", "Paris", "Rome"]
  assert [p.text for p in got.passages] == ["Rome is a city. It is old.", "Paris is a city.", "Another Rome."]
  # Matched by title: the first of two passages "Rome". "Oslo" is missing; "Paris" has no tenth sentence.
  assert got.supporting == (0, 1)
  assert got.evidence == ((1, "Paris is a city."), (0, "It is old."), (0, "Rome is a city."))
  assert got.hops == 3 and got.meta["gold_titles"] == ["Paris", "Rome", "Oslo"]
  assert got.meta["type"] == "comparison" and got.meta["level"] == "hard"
  assert all(sentence in got.passages[place].text for place, sentence in got.evidence)


def test_2wiki_sentences_are_joined_with_spaces():
  row = dict(HOTPOT, context=[["Film", ["It is a film.", "Its director is X."]]], supporting_facts=[["Film", 1]])
  got = read(row | dict(evidences=[["Film", "director", "X"]]))
  assert got.passages[0].text == "It is a film. Its director is X."
  assert got.evidence == ((0, "Its director is X."),) and got.meta["evidences"] == [["Film", "director", "X"]]


def test_titles_are_compared_in_one_form_of_unicode():
  row = dict(HOTPOT, context=[["Caf\u00e9", ["Old."]]], supporting_facts=[["Cafe\u0301", 0]])
  assert (read(row).supporting, read(row).evidence) == ((0,), ((0, "Old."),))


def test_musique():
  row = dict(
    id="2hop__1_2", question="Who?", answer="Ann", answer_aliases=["Anna", "Ann"], answerable=True,
    paragraphs=[dict(idx=i, title=t, paragraph_text=f"{t} text", is_supporting=i > 0) for i, t in enumerate("abc")],
    question_decomposition=[
      dict(id=7, question="B >> x", answer="Bob", paragraph_support_idx=2),
      dict(id=8, question="#1 >> y", answer="Ann", paragraph_support_idx=1),
    ],
  )  # fmt: skip
  got = read(row)
  assert got.golds == ("Ann", "Anna") and got.hops == 2 and got.supporting == (1, 2)
  assert got.evidence == ((1, "b text"), (2, "c text"))
  steps = [dict(question="B >> x", answer="Bob", passage=2), dict(question="#1 >> y", answer="Ann", passage=1)]
  assert got.meta == dict(answerable=True, decomposition=steps)
  row["paragraphs"][1]["is_supporting"] = "False"
  assert read(row).supporting == (2,)
  row["question_decomposition"][0]["paragraph_support_idx"] = None  # as in the unanswerable half of the set
  assert read(row).meta["decomposition"][0]["passage"] is None


def test_flashrag():
  got = read(dict(id="test_0", question="Q?", golden_answers=["x", "y"], metadata=dict(a=1), extra=2))
  assert (got.id, got.golds, got.meta, got.passages, got.hops) == ("test_0", ("x", "y"), dict(a=1, extra=2), (), None)
  chosen = read(dict(id="1", question="Q?", golden_answers=[1], choices=["no", "this"]))
  assert chosen.golds == ("this",) and chosen.meta == dict(choices=["no", "this"])


def test_flashrag_with_hotpotqa_metadata():
  facts = columns(FACTS, "title", "sent_id")
  metadata = dict(type="bridge", context=columns(CONTEXT, "title", "content"), supporting_facts=facts)
  got = read(dict(id="1", question="Q?", golden_answers=["Rome"], metadata=metadata))
  assert (got.supporting, got.hops, len(got.passages)) == ((0, 1), 2, 3)
  assert "context" in metadata  # the row is not modified


def test_plain_rows_and_their_unknown_columns():
  assert read(dict(question="Q?", answer=["x", "y"])).golds == ("x", "y")
  assert read(dict(question="Q?", answer="x", answer_aliases=["y", "x"])).golds == ("x", "y")
  trivia = dict(value="x", aliases=["y"], normalized_value="z")
  assert read(dict(question="Q?", answer=trivia)).golds == ("x", "y")
  got = read(dict(question="Q?", answer="x", views=3))
  assert (got.id, got.golds, got.meta) == ("set-0", ("x",), dict(views=3))
  got = read(dict(id=7, question="Q?", answers=["x"], views=3, meta=dict(a=1)))
  assert (got.id, got.meta) == ("7", dict(a=1, views=3))


@pytest.mark.parametrize(("written", "golds"), [
  ('["x", "y"]', ("x", "y")), ("['x', 'y']", ("x", "y")),  # PopQA's possible answers; str(list), as in a CSV file
  (["['x','y']", "z"], ("x", "y", "z")), ("""["it's", 'b"']""", ("it's", 'b"')),
  ("('x', 'y')", ("x", "y")), ("{'y', 'x'}", ("x", "y")),
  # These are answers: they are no lists of texts.
  *((x, (x,)) for x in ("[1, 2]", "[0, 1)", "[a, b]", "f(x) = [x]", "('Til Tuesday)", "(a)", "['Round Midnight")),
])  # fmt: skip
def test_lists_that_arrive_as_text_are_unpacked(written, golds):
  for column in ("answers", "golden_answers", "answer"):
    assert read({"question": "Q?", column: written}).golds == golds


@pytest.mark.parametrize(
  "written", ["['x' 'y']", "[]", "['x', 1]", '{"value": "x"}', "array(['x'], dtype=object)", "[None]"]
)
def test_lists_as_text_that_cannot_be_read_are_refused(written):
  with pytest.raises(ValueError, match="'answers' is a list as text"):  # NumPy's have no comma: Python reads "xy"
    read(dict(question="Q?", answers=written))


def test_passages_without_ids_with_the_same_text_get_the_same_id():
  passages = [dict(title="T", text="a"), dict(title="T", text="b"), dict(text="a")]
  row = dict(question="Q?", answers=["x"], passages=passages)
  ids = [p.id for p in read(row).passages]
  assert len(set(ids)) == 3 and ids == [p.id for p in read(row).passages]


LONGBENCH = dict(
  input="Who is it?", context="Passage 1:\nRome\nRome is a city.\n\nPassage 2:\n…",
  answers=["Ann", "Anna"], length=3659, dataset="hotpotqa", language="en", all_classes=None, _id="23b8",
)  # fmt: skip


def test_longbench():
  got = read(LONGBENCH)
  assert (got.id, got.question, got.golds, got.source) == ("23b8", "Who is it?", ("Ann", "Anna"), "hotpotqa")
  assert [(p.title, p.text) for p in got.passages] == [("", LONGBENCH["context"])]
  assert got.meta == dict(length=3659, language="en", all_classes=None)
  assert got.supporting == () and got.hops is None  # unknown


DROP = dict(
  section_id="nfl_1184", query_id="f37e", passage="They won 20 to 13.", question="How many?",
  answers_spans=dict(spans=["20", "20", "twenty"], types=["number", "number", "span"]),
)  # fmt: skip


def test_drop():
  got = read(DROP)
  assert (got.id, got.question, got.golds) == ("f37e", "How many?", ("20", "twenty"))
  assert [p.text for p in got.passages] == ["They won 20 to 13."] and (got.supporting, got.hops) == ((0,), 1)
  assert got.meta == dict(section_id="nfl_1184", answer_types=["number", "span"])


@pytest.mark.parametrize(("spans", "types", "golds"), [
  (["red", "blue"], ["span", "span"], ("red, blue",)),  # the parts of one answer: "red" alone has F1 2/3, not 1
  (["the Bears", "Bears", "Bears"], ["span"] * 3, ("the Bears", "Bears")),  # several people's
  (["red"], ["span"], ("red",)), (["3", "4"], ["number", "number"], ("3", "4")),
  (["4 May", "May 4"], ["date", "date"], ("4 May", "May 4")),
])  # fmt: skip
def test_drops_spans_are_one_answer(spans, types, golds):
  assert read(dict(DROP, answers_spans=dict(spans=spans, types=types))).golds == golds


def test_a_context_of_one_text_and_a_whole_prompt():
  got = read(dict(id=3, question="Who?", context="It was Ann.", answer=["Ann"], hop=2))
  assert (got.id, got.question, got.golds, got.meta) == ("3", "Who?", ("Ann",), dict(hop=2))
  assert [(p.title, p.text) for p in got.passages] == [("", "It was Ann.")] and got.supporting == ()
  for answers in (["Ann"], dict(text=["Ann"], answer_start=[7])):  # MRQA's; SQuAD's on the hub
    got = read(dict(id=3, question="Who?", context="It was Ann.", answers=answers))
    assert ([p.text for p in got.passages], got.golds, got.meta) == (["It was Ann."], ("Ann",), {})
  got = read(dict(question="Who?", answers=["Ann"], ctxs=[dict(id="w:3", title="A", text="Ann.", has_answer=True)]))
  assert (got.passages, got.supporting, got.meta) == ((Passage("w:3", "A", "Ann."),), (), {})  # DPR's
  got = read(dict(prompt="It was Ann.\n\nWho was it?", answer="Ann", split="a"))
  assert (got.id, got.golds, got.meta) == ("set-0", ("Ann",), dict(split="a", prompt=True))
  assert got.question == got.passages[0].text == "It was Ann.\n\nWho was it?"
  told = [dict(role="user", content="Who was it?")]
  for prompt, question in (("Be brief.", "Who was it?"), (told, "Who was it?"), ("Ann. Who was it?",) * 2):
    assert read(dict(prompt=prompt, question="Who was it?", answer="Ann")).question == question


@pytest.mark.parametrize(("column", "written", "meant"), [
  ("gold_ids", ["7", 8], ["7", 8]), ("gold_ids", '["7", 8]', ["7", 8]), ("gold_ids", [], []),
  ("gold_ids", None, None), ("gold_ids", "", None), ("answerable", None, None), ("answerable", "", None),
  ("answerable", "False", False), ("answerable", "0", False), ("answerable", 1.0, True), ("answerable", "true", True),
])  # fmt: skip
def test_columns_with_a_meaning_have_their_type_or_are_unknown(column, written, meant):
  meta = read({"question": "Q?", "answers": ["x"], column: written}).meta
  assert meta == ({} if meant is None else {column: meant})


MS_MARCO = dict(
  query_id=9652, query="what is rba", query_type="description", answers=["A bank."], wellFormedAnswers="[]",
  passages=dict(is_selected=[0, 1], passage_text=["Since 2007.", "It is a bank."], url=["u1", "u2"]),
)  # fmt: skip
DOCUMENT = lambda name: dict(docid=name, text="long", url="http://x")
BROWSECOMP = dict(query_id="769", query="Which?", answer="That.", gold_docs=[DOCUMENT("7")])
BROWSECOMP |= dict(evidence_docs=[DOCUMENT("5"), DOCUMENT("7")])


def test_browsecomp_plus():
  made = layouts.example(dict(BROWSECOMP, negative_docs=[DOCUMENT("1")]), identity="x", source="b")
  assert made == Example("769", "Which?", ("That.",), source="b", meta=dict(gold_ids=["5", "7"], answer_ids=["7"]))


def test_ms_marco():
  got = read(MS_MARCO)
  assert (got.id, got.question, got.golds) == ("9652", "what is rba", ("A bank.",))
  assert [p.text for p in got.passages] == ["Since 2007.", "It is a bank."] and (got.supporting, got.hops) == ((1,), 1)
  assert got.meta == dict(answerable=True, query_type="description", urls=["u1", "u2"])
  passages = dict(is_selected=[0], passage_text=["Since 2007."], url=["u1"])
  told = dict(MS_MARCO["passages"], is_selected=["0", "1"])
  assert read(dict(MS_MARCO, passages=told)).supporting == (1,)
  silent = read(dict(MS_MARCO, answers=["No Answer Present."], passages=passages))
  assert (silent.supporting, silent.hops, silent.meta["answerable"]) == ((), None, False)


@pytest.mark.parametrize(("row", "message"), [
  (dict(HOTPOT, context=[["Rome", "one sentence"]]), r"context\[0\]"), (dict(HOTPOT, context="[1"), "not JSON"),
  (dict(HOTPOT, context=[["Rome", ["It is old.", None]]]), r"context\[0\]"),
  (dict(HOTPOT, context=3), "'context' must be a list"), (dict(HOTPOT, answer=None), "'answer' must hold"),
  (dict(HOTPOT, supporting_facts=[["Rome"]]), "sentence number"),
  (dict(HOTPOT, supporting_facts=dict(title=["Rome"])), "has 1 values of 'title' and 0 of 'sent_id'"),
  (dict(HOTPOT, supporting_facts=[["Rome", "0"]]), "sentence number"),
  (dict(question="Q?", answer="x", paragraphs=[dict(title="a")]), r"paragraphs\[0\]"),
  (dict(id="1", question="Q?", golden_answers=[2], choices=["no", "this"]), "position from 0 to 1"),
  (dict(prompt=[], answer="Ann"), "'prompt' must be text"),
  (dict(question={"0": "x" * 999}, answers=["x"]), r"^'question' must be text, this is .{200}\.$"),  # a table's columns
  (dict.fromkeys(map(str, range(999))), r"the columns .{300} has an unknown layout"),
  (dict(question="Q?", answers=["x"], gold_ids="d7"), "'gold_ids' is text, but not JSON"),
  (dict(question="Q?", answers=["x"], gold_ids=[["7"]]), "'gold_ids' must be a list of passages' ids"),
  (dict(question="Q?", answers=["x"], answerable="no one"), "'answerable' must be true or false, this is 'no one'"),
  (dict(LONGBENCH, context=["a"]), "'context' must be text"), (dict(LONGBENCH, input=""), "'input' must be text"),
  (dict(LONGBENCH, answers=[]), "'answers' must hold .* answerable=false"),
  (dict(DROP, passage=None), "'passage' must be text"),
  (dict(DROP, answers_spans=dict(spans=[], types=[])), "'spans' must hold"),
  (dict(MS_MARCO, answers=[]), "'answers' must hold"),
  (dict(MS_MARCO, passages=dict(is_selected=[1], passage_text=[])), "of the same length"),
  (dict(MS_MARCO, passages=[]), "'passages' must be an object"),
  (dict(BROWSECOMP, gold_docs=["encrypted"]), "'gold_docs' must be a list of documents"),
])  # fmt: skip
def test_bad_rows(row, message):
  refused(message, read, row)
