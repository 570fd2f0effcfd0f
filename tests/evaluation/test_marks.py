"""What an episode's text refers to: quotes, citations, judged steps."""

from ragrl_jax import recipes, structs
from ragrl_jax.report import kept_traces
from ragrl_jax.store import episodes

EXAMPLE = structs.Example("q", "Where was Oda born?", ("Velmar",))
PASSAGES = (
  structs.Passage("a", "Oda", "Oda Kelmut was\nborn in Velmar. She wove 😀 cloth."),
  structs.Passage("b", "", "The guild of weavers met in Tosk every year."),
)


def row(*turns, prompt="Where was Oda born?", facts=None):
  segments = [structs.Segment(structs.ENVIRONMENT, (), prompt)]
  for turn in turns:
    if isinstance(turn, str):
      segments.append(structs.Segment(structs.MODEL, (), turn))
    else:
      segments.append(structs.Segment(structs.ENVIRONMENT, (), "<information>…</information>", (), "", "who", turn))
  return episodes.played(EXAMPLE, structs.Episode(tuple(segments), facts=facts or {}, ended="answer"))


def marked(*turns, **how):
  """The segments' marked runs; and their joined texts are the whole texts."""
  made = row(*turns, **how)
  found = kept_traces.marked(made)
  for segment, its in zip(made["segments"], found, strict=True):
    pairs = [(segment["text"], its)] if "runs" in its else zip([p["text"] for p in segment["found"]], its["found"])
    assert all(text == "".join(run[0] for run in its["runs"]) for text, its in pairs)
  return found


def only(its):
  return [tuple(run) for run in its["runs"] if len(run) > 1]


def test_a_quote_is_marked_where_it_was_written_and_where_it_stands():
  found = marked(PASSAGES, "<quote>Oda Kelmut was born in Velmar. Nobody ever left the town again.</quote>")
  # White space may differ. The second sentence stands nowhere.
  assert only(found[2]) == [
    ("Oda Kelmut was born in Velmar.", "found", "stands in passage 1, Oda"),
    ("Nobody ever left the town again.", "missing", "stands in no passage"),
  ]
  first, second = found[1]["found"]
  assert only(first) == [("Oda Kelmut was\nborn in Velmar.", "found", "quoted by the model")] and only(second) == []


def test_a_quote_as_it_is_printed_stands_where_it_was_typed():
  found = marked(PASSAGES, "<quote>Oda\u00a0Kelmut was born in Ｖｅｌｍａｒ.</quote> See ［２］.")
  marks = [(kind, where) for _, kind, where in only(found[2])]
  assert marks == [("found", "stands in passage 1, Oda"), ("cite", "cites passage 2")]
  assert only(found[1]["found"][0]) == [("Oda Kelmut was\nborn in Velmar.", "found", "quoted by the model")]


def test_a_quote_in_other_letters_or_nearly_so():
  quoted = ("the GUILD of weavers", "the guild of weaver met in Tosk every yearr")
  found = marked(PASSAGES, " ".join(f"<retrieval>{quote}</retrieval>" for quote in quoted))
  found_marks = [(kind, where) for _, kind, where in only(found[2])]
  assert found_marks == [("near", "stands in passage 2"), ("near", "stands nearly so in passage 2")]
  assert only(found[1]["found"][1]) == [("The guild of weavers", "near", "quoted by the model")]


def test_text_in_quotation_marks_is_a_quote_only_if_it_stands_somewhere():
  found = marked(PASSAGES, 'I read "guild of weavers met in Tosk", and ask "the history of all the guilds".')
  assert [text for text, *_ in only(found[2])] == ["guild of weavers met in Tosk"]


def test_words_of_the_prompt_can_be_quoted():
  found = marked("<think> <retrieval>Lis was a smith</retrieval> </think>", prompt="Passage: Lis was a smith.")
  assert only(found[0]) == [("Lis was a smith", "found", "quoted by the model")]
  assert only(found[1])[0][2] == "stands in the prompt"


def test_citations_of_the_newest_results():
  found = marked(PASSAGES, "Doc 2 helps, Doc 7 does not exist, and [1, 2] agree.")
  assert only(found[2]) == [("Doc 2", "cite", "cites passage 2"), ("[1, 2]", "cite", "cites passage 1, Oda; passage 2")]
  assert [one["cited"] for one in found[1]["found"]] == [True, True]
  again = marked(PASSAGES, "x", PASSAGES[:1], "Doc 2 is of the first results")
  assert only(again[4]) == [] and not again[1]["found"][1]["cited"]


def test_citations_of_a_prompts_numbered_references():
  prompt = "References:\n1. Oda was born in Velmar.\n2. Looms are old.\nQuestion: Where?"
  found = marked("<relevance>[1]</relevance>", prompt=prompt)
  assert only(found[0]) == [("1. Oda was born in Velmar.", "cited", "cited by the model: 1")]
  assert only(found[1]) == [("[1]", "cite", "cites 1. Oda was born in Velmar.")]


def test_a_prompt_after_a_search_without_results_is_not_cited():
  made = row("As rule [1] says, Velmar.", prompt="Rules:\n1. cite\nWhere?")
  made["segments"][0] |= dict(query="who", found=[])
  first, said = kept_traces.marked(made)
  assert first == {"found": []} and not only(said)


def test_overlapping_spans_keep_the_first():
  spans = [(2, 6, "found", "one"), (4, 9, "near", "two"), (9, 9, "cite", "empty"), (0, 1, "cite", "three")]
  assert kept_traces.runs("abcdefghij", spans) == [["a", "cite", "three"], ["b"], ["cdef", "found", "one"], ["ghij"]]
  assert kept_traces.runs("", []) == [[""]]


def test_judged_steps_have_their_basis():
  recipe = recipes.get("veritas")
  block = "\n\n<information>Doc 1(Title: Oda) Oda was born in Velmar.</information>\n\n"
  turns = [
    ("model", "<think> a </think><search> Oda </search>"),
    ("environment", block),
    ("model", "<think> Velmar it is. </think><answer> Velmar </answer>"),
  ]
  facts = dict(information_think=(0.0,), think_answer=(None,), think_search=())
  episode = structs.Episode.from_text(recipe, EXAMPLE, turns, facts=facts)
  got = kept_traces.judged(episodes.played(EXAMPLE, episode))
  basis, claim = "Doc 1(Title: Oda) Oda was born in Velmar.", "Velmar it is."
  assert got == [
    dict(name="thought after results", term="information_think", claim=claim, basis=basis, verdict=0.0),
    dict(name="answer after its thought", term="think_answer", claim="Velmar", basis=claim, verdict=None),
  ]
  assert kept_traces.judged(row("x")) == []
