import sys
import types
from unittest import mock

import pytest
import small_tokenizers
from refusals import refused

from ragrl_jax import config as config_lib, recipes, settings
from ragrl_jax.data import writers
from ragrl_jax.jobs import evaluate, sft
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.run import prepared, questions, rewards
from ragrl_jax.store import episodes
from ragrl_jax.structs import Episode, Example, Passage

PASSAGES = tuple(Passage("", f"T{i}", f"Text of number {i}.") for i in range(3))


def made(folder, recipe="care", context=1000, metric="none", **data):
  config = config_lib.default_config()
  short = [Example(f"s{i}", "Who?", ("a",), PASSAGES[:1], (0,)) for i in range(4)]
  long = [Example(f"l{i}", "Who?", ("a",), (Passage("", "", "word " * 500),)) for i in range(3)]
  for name, examples in (("short", short), ("mixed", short + long), ("long", long)):
    writers.write_examples(folder / f"{name}.jsonl", examples)
  named = lambda value: str(folder / f"{value}.jsonl") if isinstance(value, str) and ":" not in value else value
  config.data.update({key: named(value) for key, value in data.items()})
  config.rollout.update(dict(context=context, max_new_tokens=100, prompts_per_step=5, filter=dict(metric=metric)))
  player = types.SimpleNamespace(tokenizer=ByteTokenizer(), recipe=recipes.get(recipe, instructions="none"))
  return questions.training(config, player.recipe, player.tokenizer)


def test_a_set_that_the_hub_does_not_give_is_named_by_its_setting(tmp_path, monkeypatch):
  refuse = mock.Mock(side_effect=OSError("no network"))
  kinds = types.SimpleNamespace(DatasetsError=OSError, DatasetGenerationError=KeyError)
  library = types.SimpleNamespace(load_dataset=refuse, exceptions=kinds, config=types.SimpleNamespace(HF_HUB_OFFLINE=0))
  monkeypatch.setitem(sys.modules, "datasets", library)
  away = "hf:owner/name//train"
  for data, setting in ((dict(train="short", hard=away), "hard, which may be empty"), (dict(train=away), "train")):
    refused(rf"{away}.*the cache has none.*Name a file instead \(config.data.{setting}\)", made, tmp_path, **data)
  config = config_lib.default_config()
  config.data.evaluate = away
  refused(r"Name a file instead \(config.data.evaluate, which may be empty\)", evaluate.evaluator, config)
  refused(r"Name a file instead \(config.data.train\)", sft.planned, settings.of(config_lib.load("arena:sft")))
  refused(r"Name a file instead \(--data\)", questions.testing, config, away, max_examples=0)


def test_held_out_questions_that_an_outage_failed_have_no_scores(tmp_path, monkeypatch, caplog):
  ended = lambda why: Episode((), ended=why, failure="the retriever is down")
  scored = [rewards.Scored(None, ended(why), {}, {}, None, None) for why in ("answer", "failed")]
  metrics = dict(n=1, failed=1, unjudged=0, em=1.0)
  monkeypatch.setattr(evaluate, "measure", lambda *_, **__: (metrics, scored))
  config, run = config_lib.default_config(), tmp_path / "run"
  config.data.evaluate = str(tmp_path / "dev.jsonl")
  writers.write_examples(config.data.evaluate, [Example("q", "Who?", ("a",))])
  measure = lambda: evaluate.evaluator(config, workdir=run)(config.steps, mock.Mock(), None)
  assert measure() == {"evaluation/n": 1, "evaluation/failed": 1, "evaluation/unjudged": 0}
  assert "the retriever is down" in caplog.text and not run.exists()
  config.retrieval.max_failed_share = 0.5
  monkeypatch.setattr(evaluate, "keep", lambda *_: None)
  assert measure()["evaluation/em"] == 1.0


@pytest.mark.parametrize("cut, words", [(False, "evaluate=.*no prompt fits"), (True, "its question alone is")])
def test_held_out_questions_without_room_are_refused_before_the_run_begins(tmp_path, cut, words):
  asked = [Example("q", "Who " * 500, ("a",), PASSAGES)]
  writers.write_examples(tmp_path / "dev.jsonl", asked)
  config = config_lib.default_config()
  config.data.update(dict(evaluate=str(tmp_path / "dev.jsonl"), cut_middle=cut))
  made = prepared.Prepared(settings.of(config), recipes.get("care", instructions="none"), ByteTokenizer(), None, None)
  refused(words, evaluate.evaluator, made)


def test_prompts_that_are_too_long_and_unanswerable_questions_are_left_out(tmp_path, caplog):
  assert len(made(tmp_path, train="mixed")[0]) == 7 and not caplog.records
  assert [e.id for e in made(tmp_path, train="mixed", drop_long=True)[0]] == ["s0", "s1", "s2", "s3"]
  said = f"config.data.train={tmp_path / 'mixed.jsonl'}: 3 of 7 questions are left out (config.data.drop_long=True)."
  assert [record.getMessage() for record in caplog.records] == [said]
  refused("900 tokens", made, tmp_path, train="long", drop_long=True)
  rows = [Example(str(i), "Who?", ("No Answer Present.",), PASSAGES, meta=dict(answerable=i > 1)) for i in range(3)]
  writers.write_examples(tmp_path / "ms_marco.jsonl", rows)
  config = config_lib.default_config()
  config.data.train = str(tmp_path / "ms_marco.jsonl")
  kept = lambda: [e.id for e in questions.training(config, recipes.get("care"), ByteTokenizer())[0]]
  assert kept() == ["0", "1", "2"]
  config.data.drop_unanswerable = True
  config.rollout.context = 2000
  assert kept() == ["2"]
  writers.write_examples(tmp_path / "ms_marco.jsonl", rows[:2])
  refused("all its questions are marked as unanswerable", kept)


@pytest.mark.parametrize("setting", ["train", "hard"])
def test_questions_that_were_trained_on_are_told(tmp_path, caplog, setting):
  config = config_lib.default_config()
  config.data[setting] = str(tmp_path / "train.jsonl")
  trained = [Example("t1", "Who wrote  Emma?", ("Jane Austen",)), Example("t2", "Where is \uff21\uff11?", ("here",))]
  writers.write_examples(tmp_path / "train.jsonl", trained)
  # Other ids, case, spaces, question marks and forms of Unicode; the third one asks something else.
  asked = [Example(str(i), text, ("x",)) for i, text in enumerate(("who wrote emma", "Where is A1?", "Who wrote it?"))]
  questions.say_trained_on(config, asked, "--data=DEV", hub=False)
  (said,) = caplog.messages
  assert f"--data=DEV: 2 of its 3 questions are also in config.data.{setting}=" in said and "'who wrote emma'" in said
  caplog.clear()
  questions.say_trained_on(config, asked[2:], "--data=DEV", hub=False)
  for away in ("hf:owner/name//train", str(tmp_path / "gone.jsonl")):  # no network for an evaluation
    config.data[setting] = away
    questions.say_trained_on(config, asked, "--data=DEV", hub=False)
  assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_limit_that_leaves_out_whole_sets_is_said(tmp_path, caplog):
  for name in "ab":
    writers.write_examples(tmp_path / f"{name}.jsonl", [Example(str(i), "Who?", ("a",)) for i in range(2)])
  config, both = config_lib.default_config(), f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl"
  assert len(questions.testing(config, both, max_examples=3)) == 3 and not caplog.records
  questions.testing(config, both, max_examples=2, setting="config.data.evaluate")
  assert "config.data.evaluate: its first 2 questions are of 1 of its 2 sets" in caplog.text


def test_easy_and_hard_questions(tmp_path, caplog):
  examples, draws = made(tmp_path, context=4000, train="short", hard="long")
  assert [e.id[0] for e in examples] == list("sssslll")
  # α falls from 1 at the first of the run's 100 steps, of 5 questions each: 1, .99, … .91; then nothing is left of it.
  short = lambda at, n: [examples[which].id[0] for _, which in draws.draw(at, n)].count("s")
  assert short(0, 5) == 5 and short(0, 50) > 40 and short(500, 200) == 0 and not caplog.records
  made(tmp_path, context=4000, train="short", hard="long", metric="outcome")
  assert "the curriculum counts drawn prompts" in caplog.text
  refused("no curriculum", made, tmp_path, "arena", context=4000, train="short", hard="long")
  assert made(tmp_path, "arena", train="short")[1].draw(0, 4) != []


def test_gold_sentences_come_from_the_original_question():
  whole = Passage("", "", "Passage 1:\nParis\nIt is large. It is old.")
  asked = [Example("l1", "What’s  “large”", ("Paris",), (whole,)), Example("l2", "Else?", ("x",), (whole,))]
  asked.append(Example("l3", "Own?", ("x",), (whole,), evidence=((0, "It is old."),)))
  originals = [
    Example("h1", 'what\'s "large"?', ("Paris",), PASSAGES, (1,), evidence=((1, "It is large."),)),
    Example("h2", "Else?", ("x",), PASSAGES), Example("h3", "Own?", ("x",), PASSAGES, evidence=((2, "No."),)),
  ]  # fmt: skip
  found = questions.with_evidence(asked, originals)
  assert [e.evidence for e in found] == [((0, "It is large."),), (), ((0, "It is old."),)]
  assert [e.id for e in found] == ["l1", "l2", "l3"] and found[1] == asked[1]
  refused("config.data.evidence", questions.with_evidence, asked[1:2], originals)


def test_noise_depends_on_its_key_and_holds_no_answer_and_positions_stay_right():
  passages = lambda i: (PASSAGES[i], Passage("", "own", f"own {i}"))
  own = lambda i: dict(supporting=(1,), evidence=((1, f"own {i}"),))
  examples = [Example(str(i), "?", ("a",), passages(i), **own(i)) for i in range(3)]
  assert questions.with_noise(examples, 0, seed=0) == examples
  noisy = questions.with_noise(examples, 2, seed=0)
  assert questions.with_noise(examples[:], 2, seed=0) == noisy != questions.with_noise(examples, 2, seed=1)
  assert questions.with_noise(examples[::-1], 2, seed=0)[::-1] == noisy
  more = questions.with_noise(examples, 4, seed=0)
  for before, after, longer in zip(examples, noisy, more):
    assert len(after.passages) == len({p.text for p in after.passages}) == 4
    assert [p for p in after.passages if p in before.passages] == list(before.passages)  # in their order
    places = [*after.supporting, *(place for place, _ in after.evidence)]
    assert [after.passages[place].text for place in places] == [f"own {before.id}"] * 2
    assert set(after.passages) <= set(longer.passages)
  refused("config.data.noise", questions.with_noise, examples, 5, seed=0)
  bare = Example("b", "?", ("a",), evidence=((0, "It is old."),))  # of config.data.evidence
  assert questions.with_noise([bare, *examples], 1, seed=0)[0].evidence == bare.evidence
  texts = ("Paris is large.", "In Paris.", "A comparison of Parisians.", "No answer here.", "Yes, none.")
  golds = [("Paris", "no"), *[("Oslo",)] * 4]
  examples = [Example(str(i), "?", golds[i], (Passage("", "", text),)) for i, text in enumerate(texts)]
  for seed in range(9):
    (noisy, *_) = questions.with_noise(examples, 3, seed=seed)
    assert {passage.text for passage in noisy.passages} == {texts[0], *texts[2:]}  # not the other one with "Paris"
  refused("that do not answer it", questions.with_noise, examples, 4, seed=0)


def test_rows_without_their_own_passages(tmp_path):
  given = Example("1", "Where?", ("Paris",), (Passage("a", "T", "x"),), (0,), evidence=((0, "x"),))
  writers.write_examples(tmp_path / "q.jsonl", [given])
  config = config_lib.default_config()
  (kept,) = questions.testing(config, str(tmp_path / "q.jsonl"), max_examples=0)
  config.data.own_passages = False
  (bare,) = questions.testing(config, str(tmp_path / "q.jsonl"), max_examples=0)
  assert kept.supporting == (0,) and not bare.passages and not bare.supporting
  assert bare.meta[episodes.GOLDS] == kept.passages and [sentence for _, sentence in bare.evidence] == ["x"]
  # LEAR then has to search, and a run without a retriever is refused.
  refused("config.retrieval.index", questions.check_passages, config, recipes.get("lear"), [bare], "Q")


def test_evaluation_prompts_that_are_too_long_are_cut_in_the_middle():
  config = config_lib.default_config()
  config.rollout.update(dict(context=140, max_new_tokens=40))
  tokenizer = ByteTokenizer()
  player = types.SimpleNamespace(tokenizer=tokenizer, recipe=recipes.get("care", instructions="none", titles=False))
  size = lambda example: len(tokenizer.render(player.recipe.prompt.messages(example)))
  text = "".join(chr(97 + i % 26) for i in range(300))
  short = Example("s", "Who?", ("a",), PASSAGES[:1])
  long = Example("l", "Who?", ("a",), (PASSAGES[0], Passage("p", "", text)), supporting=(1,))
  assert questions.fitting(config, player, [short, long]) == [short, long]
  config.data.cut_middle = True
  same, cut = questions.fitting(config, player, [short, long])
  assert same is short and size(cut) == 100 and size(long) > 300
  assert cut.passages[0] == PASSAGES[0] and cut.supporting == (1,)
  gone = size(long) - 100
  half = -(-(300 - gone) // 2)
  assert cut.passages[1].text == text[:half] + text[half + gone :]
  # The longest passage first, then the next one.
  two = Example("t", "Who?", ("a",), tuple(Passage(str(i), "", text[:n]) for i, n in enumerate((60, 70))))
  config.rollout.context = 80
  (cut,) = questions.fitting(config, player, [two])
  assert size(cut) == 40 and not cut.passages[1].text and 0 < len(cut.passages[0].text) < 60
  config.rollout.context = 50
  refused("'t'.*longer than the 10", questions.fitting, config, player, [two])


def test_questions_and_passages_of_any_length_are_not_tokenized_whole():
  config, spy = config_lib.default_config(), small_tokenizers.Longest()
  config.rollout.update(dict(context=140, max_new_tokens=40))
  player = types.SimpleNamespace(tokenizer=spy, recipe=recipes.get("care", instructions="none", titles=False))
  huge = "Long text. " * 10**6
  config.data.cut_middle = True
  (cut,) = questions.fitting(config, player, [Example("l", "Who?", ("a",), (Passage("p", "", huge),))])
  assert len(spy.render(player.recipe.prompt.messages(cut))) == 100
  refused("its question alone is", questions.fitting, config, player, [Example("l", huge, ("a",), PASSAGES[:1])])
  refused("config.rollout.context", questions.check_room, config, spy, player.recipe, [Example("l", huge, ("a",))], "Q")
  assert spy.longest < 100_000
