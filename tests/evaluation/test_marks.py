"""What an episode's text refers to: quotes, citations, judged steps."""

import pytest

from ragrl_jax import recipes, structs
from ragrl_jax.report import kept_traces
from ragrl_jax.store import episodes

EXAMPLE = structs.Example("q", "Where was Oda born?", ("Velmar",))
PASSAGES = (
  structs.Passage("a", "Oda", "Oda Kelmut was\nborn in Velmar. She wove 😀 cloth."),
  structs.Passage("b", "", "The guild of weavers met in Tosk every year."),
)


def row(*turns, prompt="Where was Oda born?"):
  found = lambda turn: structs.Segment(structs.ENVIRONMENT, (), "<information>…</information>", (), "", "who", turn)
  said = [structs.Segment(structs.MODEL, (), turn) if isinstance(turn, str) else found(turn) for turn in turns]
  asked = structs.Segment(structs.ENVIRONMENT, (), prompt)
  return episodes.played(EXAMPLE, structs.Episode((asked, *said), ended="answer"))


def marked(*turns, **how):
  """The segments' marked runs; and their joined texts are the whole texts."""
  made = row(*turns, **how)
  found = kept_traces.marked(made)
  for segment, its in zip(made["segments"], found, strict=True):
    pairs = [(segment["text"], its)] if "runs" in its else zip([p["text"] for p in segment["found"]], its["found"])
    assert all(text == "".join(run[0] for run in its["runs"]) for text, its in pairs)
  return found


only = lambda its: [tuple(run) for run in its["runs"] if len(run) > 1]
ODA = ("Oda Kelmut was\nborn in Velmar.", "found")


@pytest.mark.parametrize("said, marks, quoted", [
  # White space may differ. The second sentence stands nowhere.
  ("<quote>Oda Kelmut was born in Velmar. Nobody ever left the town again.</quote>",
   [("Oda Kelmut was born in Velmar.", "found", "stands in passage 1, Oda"),
    ("Nobody ever left the town again.", "missing", "stands in no passage")], [[ODA], []]),
  # As it is printed, and as it was typed.
  ("<quote>Oda\u00a0Kelmut was born in Ｖｅｌｍａｒ.</quote> See ［２］.",
   [("Oda\u00a0Kelmut was born in Ｖｅｌｍａｒ.", "found", "stands in passage 1, Oda"),
    ("［２］", "cite", "cites passage 2")], [[ODA], []]),
  # In other letters, or nearly so.
  ("<retrieval>the GUILD of weavers</retrieval><retrieval>the guild of weaver met in Tosk every yearr</retrieval>",
   [("the GUILD of weavers", "near", "stands in passage 2"),
    ("the guild of weaver met in Tosk every yearr", "near", "stands nearly so in passage 2")],
   [[], [("The guild of weavers", "near")]]),
  # In quotation marks: only if it stands somewhere.
  ('I read "guild of weavers met in Tosk", and ask "the history of all the guilds".',
   [("guild of weavers met in Tosk", "found", "stands in passage 2")],
   [[], [("guild of weavers met in Tosk", "found")]]),
])  # fmt: skip
def test_a_quote_is_marked_where_it_was_written_and_where_it_stands(said, marks, quoted):
  found = marked(PASSAGES, said)
  assert only(found[2]) == marks
  assert [only(one) for one in found[1]["found"]] == [[(*its, "quoted by the model") for its in of] for of in quoted]


@pytest.mark.parametrize("prompt, said, there, mark", [
  ("Passage: Lis was a smith.", "<think> <retrieval>Lis was a smith</retrieval> </think>",
   ("Lis was a smith", "found", "quoted by the model"), ("Lis was a smith", "found", "stands in the prompt")),
  ("References:\n1. Oda was born in Velmar.\n2. Looms are old.\nQuestion: Where?", "<relevance>[1]</relevance>",
   ("1. Oda was born in Velmar.", "cited", "cited by the model: 1"),
   ("[1]", "cite", "cites 1. Oda was born in Velmar.")),
])  # fmt: skip
def test_words_and_numbered_references_of_the_prompt_can_be_quoted_and_cited(prompt, said, there, mark):
  assert [only(its) for its in marked(said, prompt=prompt)] == [[there], [mark]]


def test_sentences_of_a_quote_without_words_are_found_at_once():
  assert [only(its) for its in marked("<quote>" + " " * 200_000 + "!x</quote>")] == [[], []]


def test_citations_are_of_the_newest_results_and_of_no_prompt_after_a_search_without_any():
  found = marked(PASSAGES, "Doc 2 helps, Doc 7 does not exist, and [1, 2] agree.")
  assert only(found[2]) == [("Doc 2", "cite", "cites passage 2"), ("[1, 2]", "cite", "cites passage 1, Oda; passage 2")]
  assert [one["cited"] for one in found[1]["found"]] == [True, True]
  again = marked(PASSAGES, "x", PASSAGES[:1], "Doc 2 is of the first results")
  assert only(again[4]) == [] and not again[1]["found"][1]["cited"]
  made = row("As rule [1] says, Velmar.", prompt="Rules:\n1. cite\nWhere?")
  made["segments"][0] |= dict(query="who", found=[])
  first, said = kept_traces.marked(made)
  assert first == {"found": []} and not only(said)
  # Of overlapping spans the first one is kept.
  spans = [(2, 6, "found", "one"), (4, 9, "near", "two"), (9, 9, "cite", "empty"), (0, 1, "cite", "three")]
  assert kept_traces.runs("abcdefghij", spans) == [["a", "cite", "three"], ["b"], ["cdef", "found", "one"], ["ghij"]]
  assert kept_traces.runs("", []) == [[""]]


def test_judged_steps_have_their_basis():
  recipe = recipes.get("veritas")
  block = "\n\n<information>Doc 1(Title: Oda) Oda was born in Velmar.</information>\n\n"
  turns = [("model", "<think> a </think><search> Oda </search>"), ("environment", block)]
  turns.append(("model", "<think> Velmar it is. </think><answer> Velmar </answer>"))
  facts = dict(information_think=(0.0,), think_answer=(None,), think_search=())
  episode = structs.Episode.from_text(recipe, EXAMPLE, turns, facts=facts)
  basis, claim = "Doc 1(Title: Oda) Oda was born in Velmar.", "Velmar it is."
  assert kept_traces.judged(episodes.played(EXAMPLE, episode)) == [
    dict(name="thought after results", term="information_think", claim=claim, basis=basis, verdict=0.0),
    dict(name="answer after its thought", term="think_answer", claim="Velmar", basis=claim, verdict=None),
  ]
  assert kept_traces.judged(row("x")) == []
