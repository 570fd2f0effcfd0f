"""The study, the refining baselines, and what LEAR's reward pays for without its being worth it."""

import dataclasses
import pathlib

import declared
import pytest

from ragrl_jax import recipes
from ragrl_jax.evaluation import episode_rows, harness
from ragrl_jax.recipes.lear.sft_data import demonstrate_filter, find_oracle
from ragrl_jax.run import rewards
from ragrl_jax.structs import Episode, Example, Passage
from ragrl_jax.testing import scripted

PASSAGES = (
  Passage("1", "Tower", "It was built in 1889. The tower stands in Paris, the capital. It is tall."),
  Passage("2", "Town", "Lyon lies on the Rhône. Paris is larger than Lyon."),
)
EXAMPLE = Example("1", "Where is the tower?", ("Paris",), PASSAGES)
SENTENCE = "The tower stands in Paris, the capital."


def test_filcos_oracles_by_hand():
  assert find_oracle(EXAMPLE, "string_inclusion") == SENTENCE  # the first that holds the gold
  # "paris is larger than lyon" has 5 words, "tower stands in paris capital" 5: equal F1 2/6, the first of them;
  assert find_oracle(EXAMPLE, "lexical_overlap") == SENTENCE
  # with the gold "Paris Lyon" the last one shares two words.
  both = dataclasses.replace(EXAMPLE, golds=("Paris Lyon",))
  assert find_oracle(both, "lexical_overlap") == "Paris is larger than Lyon."
  assert find_oracle(both, "string_inclusion") is None
  nothing = dataclasses.replace(EXAMPLE, golds=("Oslo",))
  assert find_oracle(nothing, "lexical_overlap") is None is find_oracle(nothing, "string_inclusion")
  # "no" is a word of the second sentence, and only letters of the first.
  known = Passage("3", "", "It is a known monolith. There is no other.")
  asked = dataclasses.replace(EXAMPLE, golds=("no",), passages=(known,))
  assert find_oracle(asked, "string_inclusion") == "There is no other."
  with pytest.raises(ValueError, match="string_inclusion or lexical_overlap"):
    find_oracle(EXAMPLE, "best")
  ((example, turns),) = demonstrate_filter([EXAMPLE, nothing], "string_inclusion")
  recipe = recipes.get("lear", "filter")
  facts = dict(evidence_tokens=9, passage_tokens=50, extract_answer="Paris")
  episode = Episode.from_text(recipe, example, turns, facts=facts)
  assert recipe.score(example, episode)["format"] == 1.0 and recipe.evidence(example, episode) == SENTENCE


def test_a_filter_stops_at_its_evidence():
  recipe = recipes.get("lear", "filter")
  episode, tape = scripted.play(recipe, EXAMPLE, [f"<extract>{SENTENCE}</extract> more", "Paris</answer>"])
  assert tape[1] == ("generate", ("</extract>",), f"<extract>{SENTENCE}</extract>")
  assert episode.facts["answer"] == "Paris" and recipe.outcome(EXAMPLE, episode) == 1.0
  assert "<reason>" not in tape[0][1] and "<answer>" not in tape[0][1]


@pytest.mark.parametrize("preset", ["thoughts", "vanilla"])
def test_a_tag_that_the_reply_does_not_have_is_no_section(preset):
  recipe = recipes.get("lear", preset)
  said = "<reason>Paris</reason><extract>It is in Paris.</extract><answer>Paris</answer>"
  episode, _ = scripted.play(recipe, EXAMPLE, [said, "Paris</answer>"])
  assert episode.facts["reason_tokens"] == 0 and recipe.measures(EXAMPLE, episode)["reason_recall"] is None


def test_thoughts_are_evidence_as_a_whole():
  """Chain of thought as a refinement: free text, which another generator answers from."""
  recipe, thoughts = recipes.get("lear", "thoughts"), "The tower stands in Paris. So Paris."
  episode, tape = scripted.play(recipe, EXAMPLE, [thoughts, "Paris</answer>"])
  assert "Let's think step by step." in tape[0][1] and tape[1] == ("generate", (), thoughts)
  kind, asked = tape[2]
  assert kind == "start" and asked.endswith(f"<extract>{thoughts}</extract>\n<answer>")
  assert PASSAGES[0].text not in asked
  assert recipe.evidence(EXAMPLE, episode) == thoughts and episode.facts["evidence_tokens"] == len(thoughts)
  assert recipe.outcome(EXAMPLE, episode) == recipe.score(EXAMPLE, episode)["format"] == 1.0


@pytest.mark.parametrize("preset", ["study_rational", "study_vanilla"])
def test_the_study_asks_for_no_answer_and_cuts_the_evidence(preset):
  recipe = recipes.get("lear", preset)
  long = " ".join(f"w{i}" for i in range(100))
  reason = "<reason>In Paris.</reason>" if preset == "study_rational" else ""
  episode, tape = scripted.play(recipe, EXAMPLE, [f"{reason}<extract>{long} Paris</extract>"])
  assert [what for what, *_ in tape] == ["start", "generate", "end"]
  assert recipe.evidence(EXAMPLE, episode) == long and episode.facts["evidence_tokens"] == len(long)
  # Without an answer the outcome is answer recall: the 101st word held it.
  assert recipe.outcome(EXAMPLE, episode) == 0.0
  episode, _ = scripted.play(recipe, EXAMPLE, [f"{reason}<extract>It is in Paris.</extract>"])
  assert recipe.outcome(EXAMPLE, episode) == 1.0
  # The rationale is this model's own reason, no third model's.
  assert recipe.measures(EXAMPLE, episode)["reason_recall"] == (1.0 if reason else None)


def test_recall_is_by_whole_words():
  """Evidence and reason hold "no" only inside words: not recalled, unless the switch asks for letters."""
  asked = dataclasses.replace(EXAMPLE, golds=("no",))
  for recall, value in (("words", 0.0), ("letters", 1.0)):
    recipe = recipes.get("lear", "study_rational", recall=recall)
    said = [("model", "<reason>It is known.</reason><extract>A monolith.</extract>")]
    episode = Episode.from_text(recipe, asked, said, facts=dict(reason_tokens=3, evidence_tokens=2, passage_tokens=9))
    assert recipe.outcome(asked, episode) == recipe.measures(asked, episode)["reason_recall"] == value
    assert episode_rows.evidence(recipe, asked, episode)["answer_recall"] == value


def test_the_evidence_that_is_cut_is_what_the_probe_sees():
  recipe = recipes.get("lear", "inference", max_evidence_words=2)
  said = "<reason>r</reason><extract> It is in Paris.</extract>"
  _, tape = scripted.play(recipe, EXAMPLE, [said, "Paris</answer>"])
  assert next(text for kind, text, *_ in tape[2:] if kind == "start").endswith("<extract>It is</extract>\n<answer>")


def test_closed_book_speaks_of_no_passages(tmp_path):
  recipe = recipes.get("lear", "generator", top_k=0)
  bare = dataclasses.replace(EXAMPLE, passages=())
  shown = recipe.prompt.messages(bare)[0]["content"]
  assert "assage" not in shown and "Where is the tower?" in shown and "<answer>" in shown
  assert "assage" in recipe.prompt.messages(EXAMPLE)[0]["content"]
  file = tmp_path / "words.txt"
  file.write_text("Q {question}")  # a closed-book file has no passages, and an extractor's must have them
  closed = recipes.get("lear", "generator", top_k=0, instructions=f"file:{file}").prompt.messages(bare)
  assert closed == [dict(role="user", content=f"Q {EXAMPLE.question}")]


# ---- unearned reward: the table of README.md -------------------------------------------------------------------------

GOOD = "The tower is asked for. Passage 1 says where it stands, and 2 speaks of Lyon. So it stands in Paris."
reply = lambda reason, extract=SENTENCE, answer="Paris": (
  f"<reason>{reason}</reason><extract>{extract}</extract><answer>{answer}</answer>"
)
HONEST = reply(GOOD)
# trick → (reply, whether the three answers are right)
TRICKS = {
  "beside_the_point": (reply(GOOD, "It is tall.", ""), False),
  "bare_answer": (reply(GOOD, "Paris"), True),
  "made_up": (reply(GOOD, "Gustave Eiffel erected his monument near Seine, Paris"), True),
  "copied_reason": (reply(f"{PASSAGES[0].text} {PASSAGES[1].text}"), True),
  "padded_reason": (reply("hm so " * 40), True),
}
README = pathlib.Path(recipes.__file__).parent / "lear" / "README.md"


def earned(text, right, **switches):
  """(reward, the tricks that are seen) of a played reply; a token is a byte here, for all lengths alike."""
  recipe = recipes.get("lear", **switches)
  probe = "Paris</answer>" if right else "Oslo</answer>"
  episode, _ = scripted.play(recipe, EXAMPLE, [text, probe, probe])
  found = recipe.unearned(EXAMPLE, episode)
  return recipe.reward(recipe.score(EXAMPLE, episode), 1), {name for name, done in found.items() if done}


def test_what_is_earned_honestly_stays():
  plain, found = earned(HONEST, True)
  assert plain == earned(HONEST, True, guarded=True)[0] > 0.95 and not found


@pytest.mark.parametrize("trick", TRICKS)
def test_unearned_reward(trick):
  text, right = TRICKS[trick]
  plain, found = earned(text, right)
  assert found == {trick} and earned(text, right, guarded=True)[0] == 0.0
  (line,) = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{trick}` ")]
  assert [cell.strip() for cell in line.split("|")][3:5] == [f"{plain:.2f}", "0"], (trick, plain)


def test_tricks_and_measures_are_logged():
  """Their shares among a step's episodes, under names that are declared."""
  recipe = recipes.get("lear")
  texts = [HONEST, TRICKS["bare_answer"][0], TRICKS["bare_answer"][0], TRICKS["padded_reason"][0]]
  made = [scripted.play(recipe, EXAMPLE, [text, "Paris</answer>", "Oslo</answer>"])[0] for text in texts]
  row = rewards.summarise(rewards.score(recipe, [EXAMPLE] * 4, made, 1))
  assert row["unearned/bare_answer"] == 0.5 and row["unearned/padded_reason"] == 0.25 and row["unearned/made_up"] == 0.0
  assert row["measure/f1_from_reason"] == 1.0 and row["measure/em_from_evidence"] == 0.0
  assert not declared.undeclared(row)
  shown = harness.summarise([harness.prediction(recipe, one) for one in rewards.score(recipe, [EXAMPLE] * 4, made, 0)])
  flat = harness.flat(shown)
  assert flat["evaluation/measure/f1_in_full"] == 1.0 and not declared.undeclared(flat)
