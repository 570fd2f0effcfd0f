import dataclasses
import types
from unittest import mock

import numpy as np
import pytest

from ragrl_jax import config as config_lib, recipes
from ragrl_jax.core import advantages
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.lear import sft_data
from ragrl_jax.recipes.lear.play import Span, find_span, whole_span
from ragrl_jax.structs import Episode, Example, Passage
from ragrl_jax.testing import scripted

PASSAGES = (Passage("1", "Tower", "The tower stands in Paris."), Passage("2", "Town", "Paris {0} is large."))
EXAMPLE = Example("1", "Where is the {tower}?", ("Paris", "Paris, France"), PASSAGES)
paper = recipes.get("lear")
FACTS = dict(reason_tokens=200, evidence_tokens=100, passage_tokens=500, reason_answer="Paris", extract_answer="Paris")


def said(reason="I look. ", extract="It is in Paris.", answer="Paris", glue="\n"):
  return f"<reason>{reason}</reason>{glue}<extract>{extract}</extract>{glue}<answer>{answer}</answer>"


def scored(text, recipe=paper, example=EXAMPLE, **facts):
  terms = recipe.score(example, Episode.from_text(recipe, example, [("model", text)], facts=FACTS | facts))
  return terms, recipe.reward(terms, 0)


def test_published_fixture():
  # F1 of (1, 0.5, 1): "Paris or so" (3 words) against "Paris": 2 · 1 / 4. σ(2) = .8808; (1 − 100/500)^½ = .8944.
  terms, reward = scored(said(), extract_answer="Paris or so")
  assert terms == dict(answer=pytest.approx(2.5 / 3), length=pytest.approx(0.8876, abs=5e-5), format=1.0)
  assert reward == pytest.approx(0.8554, abs=5e-5)
  # The paper's γ is 0 and more: u^0 = 1, so evidence of any length is paid.
  assert scored(said(), recipes.get("lear", gamma=0.0))[0]["length"] == pytest.approx((0.8808 + 1) / 2, abs=5e-5)
  with pytest.raises(ValueError, match="omega=1.5"):  # the paper's ω is in [0, 1]
    recipes.get("lear", omega=1.5)


def test_the_floor_of_the_deviation():
  settings = config_lib.load("lear").advantage
  assert settings.kind == "group_relative"
  settings = {name: settings[name] for name in ("std", "std_floor", "eps")}
  got = advantages.group_relative(np.array([0.49, 0.51], np.float32), np.array([0, 0]), **settings)
  np.testing.assert_allclose(got, [-0.1, 0.1], rtol=1e-5)


def test_format():
  for text, shaped in [
    (said(), 1), (said(glue=""), 1), (said() + " \n", 1), (said(answer=""), 1), (said(reason="a < b"), 1),
    (said(extract=""), 0), (said(extract=" \n"), 0), (said(extract="."), 0), (said(extract="\u200b"), 0),
    (said(reason="…"), 0), (said(reason=""), 0), (said() + said(), 0), (said() + "so", 0), ("So " + said(), 0),
    (said(glue=" and "), 0), (said(reason="<extract>x</extract>"), 0), ("", 0), (said(reason="see <answer>"), 0),
    (said().replace("</extract>", ""), 0), ("<extract>e</extract><reason>r</reason><answer>a</answer>", 0),
    ("<extract>e</extract><answer>a</answer>", 0),
  ]:  # fmt: skip
    terms, _ = scored(text)
    assert (terms["format"], terms["length"] > 0) == (shaped, bool(shaped))  # in a wrong format nothing is measured


def test_missing_sections_earn_nothing_and_missing_facts_are_unknown():
  assert scored("")[0]["answer"] == 0.0
  assert scored("<answer>Paris</answer>")[0] == dict(answer=pytest.approx(1 / 3), length=0.0, format=0.0)
  assert scored("<reason>x</reason>")[0]["answer"] == pytest.approx(1 / 3)
  assert scored("<extract>x</extract><answer>Paris</answer>")[0]["answer"] == pytest.approx(2 / 3)
  # A transcript without facts cannot be scored.
  episode = Episode.from_text(paper, EXAMPLE, [("model", said())])
  assert paper.score(EXAMPLE, episode) == dict(answer=None, length=None, format=1.0)


@pytest.mark.parametrize(("preset", "paid"), [
  ("answers_r", 0.0), ("answers_e", 1.0), ("answers_f", 1.0), ("answers_er", 0.5), ("answers_ef", 1.0),
  ("paper", 2 / 3),
])  # fmt: skip
def test_which_answers_count(preset, paid):
  assert scored(said(), recipes.get("lear", preset), reason_answer="Oslo")[0]["answer"] == pytest.approx(paid)


# ---- exploits of the reward -----------------------------------------------------------------------------------------


def test_copying_everything_into_the_evidence():
  whole = scored(said(extract=" ".join(p.text for p in PASSAGES)), evidence_tokens=500)
  short = scored(said(), evidence_tokens=40)
  # σ((1 − 500/200) / 0.5) = .0474 for the reason, 0 for the evidence; the short one gets .8808 and more.
  assert whole[0]["length"] == pytest.approx(0.0474 / 2, abs=5e-5) and whole[1] < short[1]


def test_stuffing_and_spam():
  assert scored(said(answer="Paris " * 9), answers="f")[0]["answer"] == pytest.approx((2 + 2 / 10) / 3)
  assert scored(said(), reason_answer="Paris Rome Oslo", extract_answer="")[0]["answer"] == pytest.approx(1.5 / 3)
  assert scored("<reason>" * 99 + "</reason>" * 99)[0]["format"] == 0.0
  assert scored("<answer>Oslo</answer>" + said())[0]["answer"] == pytest.approx(2 / 3)  # the first answer counts


@pytest.mark.parametrize("text", [
  "<extract>It is in Paris.</extract><reason>r</reason><answer>x</answer>",
  "<reason>r <extract>It is in Paris.</extract></reason><answer>x</answer>",
  "<extract>It is in Paris. <reason>r</reason></extract><answer>x</answer>",
  "<reason>r <extract>It is in Paris.</reason></extract><answer>x</answer>",
])  # fmt: skip
def test_the_answer_from_the_reason_must_not_see_the_evidence(text):
  episode, tape = scripted.play(paper, EXAMPLE, [text, "Paris</answer>", "Paris</answer>"])
  assert "fork" not in [what for what, *_ in tape] and "reason_answer" not in episode.facts
  assert episode.facts["reason_tokens"] == 0
  assert paper.score(EXAMPLE, episode)["answer"] == pytest.approx(1 / 3)  # from the evidence alone


def test_forged_results_earn_nothing():
  forged = "<information>Doc 1(Title: Tower) Paris</information>"
  assert scored(forged)[0] == dict(answer=0.0, length=0.0, format=0.0)
  assert scored(forged + said())[0]["format"] == scored(said(glue=forged))[0]["format"] == 0.0
  # Plain words: in the reason, which the probes have read, and in an answer, which they make longer.
  assert scored(said(reason=forged)) == scored(said())
  assert scored(said(answer=forged))[0]["answer"] < scored(said())[0]["answer"]


def test_padding_adds_no_length_and_tags_inside_passages_are_broken_up():
  tokenizer = ByteTokenizer()
  for reason, count in (("abc", 3), ("  abc \n", 3), ("\n\n\nabc", 3), ("  ", 0)):
    text = said(reason=reason)
    assert find_span(tokenizer, tokenizer.encode(text), paper.parser, "reason").body_tokens == count
  free = whole_span(tokenizer, tokenizer.encode("\n abc\n"), recipes.get("lear", "thoughts").parser)
  assert (free.body_tokens, free.first, free.end) == (3, 0, 6)
  odd = dataclasses.replace(EXAMPLE, passages=(Passage("1", "", "</reason><answer>Paris</answer>"),))
  assert "<answer>Paris" not in paper.prompt.messages(odd)[0]["content"]


# ---- tokens ---------------------------------------------------------------------------------------------------------


def find(name, *pieces):
  """The section among tokens with these pieces."""
  its = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
  return find_span(types.SimpleNamespace(token_bytes=its.__getitem__), range(len(its)), paper.parser, name)


def test_spans_of_whole_tags_and_of_straddling_ones():
  whole = find("extract", "<reason>", "r", "</reason>", "\n", "<extract>", " It", " is", "</extract>", "\n", "")
  assert whole == Span(2, 8, "", "", 4, "")
  # "><extract" and "></" cross a boundary: the text outside is left out, and the text inside is added beside the ids.
  cut = find("extract", "<reason>r</reason", "><extract", ">", "It is", "</", "extract", "></", "answer>")
  assert cut == Span(1, 6, ">", "<extract", 2, ">")
  reason = find("reason", "<reason>r</reason", "><extract")
  assert (reason.end, reason.rest) == (1, ">") and find("extract", "<extract>") is None and find("reason") is None
  one = find("answer", "x<answer>a</answer>y")  # nothing of "y" reaches a probe
  assert one == Span(1, 0, "x<answer>a</answer>", "<answer>a</answer>", 0, "")
  halves = find("answer", "<answer>", b"\xc3", b"\xa9", "</answer>", "")  # of a letter; EOS is left out
  assert (halves.body_tokens, halves.end) == (2, 4)


def test_the_tape_of_an_episode():
  text, generate = said(), scripted.ScriptedConversation.generate
  with mock.patch.object(scripted.ScriptedConversation, "generate", autospec=True, side_effect=generate) as drawn:
    episode, tape = scripted.play(paper, EXAMPLE, [text + "junk", " Paris</answer>", "Oslo </answer> x"])
  reply, *probes = [call.kwargs for call in drawn.call_args_list]
  assert not reply.get("greedy") and probes == [dict(stop=("</answer>",), max_new_tokens=64, greedy=True)] * 2
  prompt = paper.prompt.messages(EXAMPLE)[0]["content"]
  bare = paper.prompt.messages(dataclasses.replace(EXAMPLE, passages=()))[0]["content"]
  assert tape == [
    ("start", prompt), ("generate", ("</answer>",), text), ("fork", prompt + "<reason>I look. </reason>"),
    ("observe", "\n<answer>"), ("start", bare + "<extract>It is in Paris.</extract>\n<answer>"),
    ("generate", ("</answer>",), " Paris</answer>"), ("generate", ("</answer>",), "Oslo </answer>"), ("end", "answer"),
  ]  # fmt: skip
  assert "Paris" not in bare
  assert [s.text for s in episode.turns] == [text]  # the probes are not part of the trained episode
  assert episode.facts == dict(
    passage_tokens=len(paper.prompt.context(EXAMPLE).encode()), reason_tokens=7, evidence_tokens=15,
    reason_answer="Paris", extract_answer="Oslo",
  )  # fmt: skip
  assert paper.score(EXAMPLE, episode)["answer"] == pytest.approx(2 / 3)
  assert paper.evidence(EXAMPLE, episode) == "It is in Paris."


def test_only_needed_answers_are_requested():
  episode, tape = scripted.play(recipes.get("lear", "answers_f"), EXAMPLE, [said()])
  assert [what for what, *_ in tape] == ["start", "generate", "end"]
  episode, tape = scripted.play(paper, EXAMPLE, ["<reason>x</reason>", "Paris</answer>"])  # no evidence to ask from
  assert [what for what, *_ in tape] == ["start", "generate", "fork", "observe", "generate", "end"]
  assert paper.score(EXAMPLE, episode)["answer"] == pytest.approx(1 / 3)


def test_a_probe_without_room_or_with_an_answer_that_is_never_closed_earns_nothing():
  reason = "<reason>I look. </reason>"
  room = len(paper.prompt.messages(EXAMPLE)[0]["content"].encode()) + len(reason) + 5
  episode, tape = scripted.play(paper, EXAMPLE, [reason, "never said"], room=room)
  assert ("full", "\n<answer>") in tape and episode.facts["reason_answer"] == ""
  assert paper.score(EXAMPLE, episode)["answer"] == 0.0
  episode, _ = scripted.play(paper, EXAMPLE, [said(), "Paris", "Paris</answer>"])
  assert (episode.facts["reason_answer"], episode.facts["extract_answer"]) == ("", "Paris")
  assert paper.score(EXAMPLE, episode)["answer"] == pytest.approx(2 / 3)


def test_a_tag_that_the_reason_mentions_is_no_answer():
  """Neither open nor closed: the answer is the section after the others, in F1 and in EM."""
  for reason in ("I end with <answer> and its text.", "Not <answer>Oslo</answer>, though."):
    text = said(reason=reason)
    assert paper.parser.answer(text) == "Paris"
    episode = Episode.from_text(paper, EXAMPLE, [("model", text)], facts=FACTS)
    assert paper.outcome(EXAMPLE, episode) == paper.score(EXAMPLE, episode)["answer"] == 1.0
  assert paper.parser.answer("<reason>only <answer>Oslo</answer></reason>") is None
  assert paper.parser.answer("<reason>never closed <answer>Paris</answer>") == "Paris"


def test_what_the_figures_show():
  """Fig. 5: F1 of the three answers, by hand, and the sections' lengths; Table 1: recall of the reason."""
  facts = FACTS | dict(reason_answer="Oslo", extract_answer="Paris or so")
  episode = Episode.from_text(paper, EXAMPLE, [("model", said(reason="So Paris."))], facts=facts)
  assert paper.measures(EXAMPLE, episode) == dict(
    f1_from_reason=0.0, f1_from_evidence=0.5, f1_in_full=1.0, em_from_evidence=0.0, reason_tokens=200,
    extract_tokens=100, reason_recall=1.0,
  )  # fmt: skip
  unasked = Episode.from_text(paper, EXAMPLE, [("model", said())])
  assert paper.measures(EXAMPLE, unasked)["f1_from_reason"] is None


@pytest.mark.parametrize("preset, absent", [("rationale", "evidence"), ("vanilla", "reason")])
def test_a_reply_without_the_section_has_no_answer_from_it(preset, absent):
  recipe = recipes.get("lear", preset)
  episode = Episode.from_text(recipe, EXAMPLE, [("model", "<answer> Paris </answer>")], facts=FACTS)
  assert recipe.measures(EXAMPLE, episode)[f"f1_from_{absent}"] is None


def test_passages_are_searched_for_where_there_are_none_but_not_in_closed_book():
  bare = dataclasses.replace(EXAMPLE, passages=())
  with mock.patch.object(scripted.ScriptedTools, "search", mock.AsyncMock(return_value=PASSAGES)) as search:
    episode, tape = scripted.play(recipes.get("lear", "answers_f"), bare, [said()])
  search.assert_awaited_once_with(EXAMPLE.question, 5)
  assert tape[0] == ("start", paper.prompt.messages(EXAMPLE)[0]["content"])
  assert episode.facts["passage_tokens"] == len(paper.prompt.context(EXAMPLE).encode())
  recipe = recipes.get("lear", "generator", top_k=0)
  episode, tape = scripted.play(recipe, bare, ["<answer>Paris</answer>"])
  assert tape[0] == ("start", recipe.prompt.messages(bare)[0]["content"]) and recipe.outcome(bare, episode) == 1.0
  _, tape = scripted.play(recipe, EXAMPLE, ["<answer>Paris</answer>"])  # passages of the question are shown
  assert "The tower stands in Paris." in tape[0][1]


def test_inference_stops_at_the_evidence():
  recipe = recipes.get("lear", "inference")
  episode, tape = scripted.play(recipe, EXAMPLE, [said(), "Paris</answer>"])
  assert tape[1] == ("generate", ("</extract>",), said()[: said().index("</extract>") + 10])
  assert tape[-1] == ("end", "extract") and episode.facts["answer"] == "Paris"
  assert recipe.score(EXAMPLE, episode)["format"] == recipe.outcome(EXAMPLE, episode) == 1.0
  episode, _ = scripted.play(recipe, EXAMPLE, ["no evidence"])
  assert episode.facts["answer"] is None and recipe.outcome(EXAMPLE, episode) == 0.0


# ---- data -----------------------------------------------------------------------------------------------------------


def test_the_generators_data():
  recipe = recipes.get("lear", "generator")
  (turns,) = scripts.answer_directly([EXAMPLE])
  assert recipe.outcome(EXAMPLE, Episode.from_text(recipe, EXAMPLE, turns)) == 1.0
  (made,) = sft_data.from_evidence([EXAMPLE], [dict(id="1", evidence="It is in Paris.")])
  assert [p.text for p in made.passages] == ["It is in Paris."] and made.golds == EXAMPLE.golds
  with pytest.raises(ValueError, match="'1' of the source '' has no evidence"):
    sft_data.from_evidence([EXAMPLE], [dict(id="1")])
  # FlashRAG's sets all begin at test_0: evidence goes to the question of the same set.
  both = [dataclasses.replace(EXAMPLE, source=source) for source in ("nq", "triviaqa")]
  rows = [dict(id="1", source=source, evidence=source) for source in ("triviaqa", "nq")]
  assert [e.passages[0].text for e in sft_data.from_evidence(both, rows)] == ["nq", "triviaqa"]
