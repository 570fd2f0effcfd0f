import dataclasses
import functools
import json
import time
from unittest import mock

import played
import pytest
from refusals import refused

from ragrl_jax import recipes, structs
from ragrl_jax.data import digests
from ragrl_jax.evaluation import answer_files, harness
from ragrl_jax.recipes import parts
from ragrl_jax.report import metric_tables
from ragrl_jax.rollout.collect import Request
from ragrl_jax.run import rewards
from ragrl_jax.store import episodes, jsonl, lock

RECIPE = recipes.get("search_r1")
T = structs.Passage("1", "t", "x")
EXAMPLES = [
  structs.Example(f"q{i}", f"Where is {i}?", (f"town {i}",), (T,), (0,), source="ab"[i > 3], hops=1 + i % 2)
  for i in range(10)
]
FOUND = "\n\n<information>Doc 1(Title: t) x</information>\n\n"


def episode(example):
  """q0 to q5 are right, q6 and q7 have one word too many, q8 has no answer. q9 fails."""
  i = int(example.id[1:])
  turns = [("model", f"<search>{i}</search>"), ("environment", FOUND)] if i % 2 else []
  last = f"<answer>Town {i}.</answer>" if i < 6 else f"<answer>town {i} hall</answer>" if i < 8 else "I do not know"
  played = structs.Episode.from_text(RECIPE, example, [*turns, ("model", last)])
  return dataclasses.replace(played, ended="failed", failure="down") if i == 9 else played


def numbered(request, played=None):
  played = episode(request.example) if played is None else played
  return dataclasses.replace(played, prompt_index=request.prompt_index, sample=request.sample)


def play(asked, at_once, noted=None, killed=None):
  """Of those that are played together, the last one ends first. Notes what is asked; a kill comes after so many."""
  requests = [request for group in asked for request in group]
  if noted is not None:
    noted.extend(request.example.id for request in requests)
  together = [requests[first : first + at_once][::-1] for first in range(0, len(requests), at_once)]
  for number, request in enumerate(sum(together, [])):
    if number == killed:
      raise KeyboardInterrupt
    yield numbered(request)


def evaluate(out, examples=EXAMPLES, play=play, batch=3, seeds=1, **settings):
  settings = {"checkpoint": "m", **settings}
  return harness.evaluate(examples, play, RECIPE, out, settings=settings, batch=batch, seeds=seeds)


def rows(out):
  return list(jsonl.read(out / "predictions.jsonl"))


def test_rows_in_order_and_means_by_hand(tmp_path):
  m, got = evaluate(tmp_path / "new" / "out"), rows(tmp_path / "new" / "out")
  assert [row["id"] for row in got] == [e.id for e in EXAMPLES]
  first, wrong, unanswered, failed = got[0], got[6], got[8], got[9]
  assert (first["prediction"], first["em"], first["f1"], first["cover_em"], first["outcome"]) == ("Town 0.", 1, 1, 1, 1)
  # "town 6 hall" against "town 6": 2 common words, F1 = 2·2 / (3 + 2).
  assert (wrong["em"], wrong["f1"], wrong["cover_em"]) == (0, 0.8, 1)
  assert (unanswered["prediction"], unanswered["em"], unanswered["f1"], unanswered["cover_em"]) == (None, 0, 0, 0)
  assert (failed["em"], failed["outcome"], failed["terms"], failed["failure"]) == (None, None, {"answer": None}, "down")
  assert [row["num_searches"] for row in got] == [0, 1] * 5
  # The passage in the block has the id of its place, "1", which is the gold id, so the search was not wasted.
  assert got[1]["wasted_searches"] == got[0]["wasted_searches"] == 0
  assert got[0]["response_tokens"] == len("<answer>Town 0.</answer>")
  assert m == json.loads((tmp_path / "new" / "out" / "metrics.json").read_text())
  # Nine were scored: 6 right, 2 that cover the gold with F1 .8, 1 without an answer.
  assert (m["n"], m["failed"]) == (9, 1)
  assert m["em"] == pytest.approx(6 / 9) and m["cover_em"] == pytest.approx(8 / 9)
  assert m["f1"] == pytest.approx((6 + 2 * 0.8) / 9) and m["answered"] == pytest.approx(8 / 9)
  # Question 8 (see `episode`).
  assert m["unanswered"] == dict(replies=1, with_gold=0, seen=["I do not know"])
  unsure = structs.Episode.from_text(RECIPE, EXAMPLES[8], [("model", "I have no idea")])
  assert not harness._unanswered(dataclasses.replace(EXAMPLES[8], golds=("no",)), unsure)["has_gold"]
  assert "1 replies have no answer that the recipe can read" in metric_tables.one(m)
  assert m["searches"] == pytest.approx(4 / 9) and m["wasted_searches"] == 0
  assert m["counted"] == dict(found_answer=4, found_gold=4)  # those with a search
  assert 0.2 < m["em_interval"][0] < 6 / 9 < m["em_interval"][1] <= 1
  # Hops 1: q0 q2 q4 right, q6 wrong, q8 unanswered. Hops 2: q1 q3 q5 right, q7 wrong; q9 failed.
  assert {hops: (part["n"], part["em"]) for hops, part in m["by_hops"].items()} == {"1": (5, 0.6), "2": (4, 0.75)}
  assert m["by_source"]["a"]["em"] == 1.0 and m["by_source"]["b"]["n"] == 5
  # Two of the five scored questions of source b are right. Each source counts once.
  assert m["macro"]["em"] == pytest.approx((1.0 + 0.4) / 2) == m["macro"]["terms/answer"]
  assert m["macro"]["searches"] == pytest.approx((0.5 + 0.4) / 2)
  assert "macro" not in evaluate(tmp_path / "one source", EXAMPLES[:3])
  assert m["ended"]["failed"] == 1 and sum(m["ended"].values()) == m["seconds_cover"] == 10
  assert m["settings"] == {"checkpoint": "m", "contents": digests.by_field(EXAMPLES)}
  assert m["terms"] == {"answer": pytest.approx(6 / 9)} and m["peak_memory"]["host"] > 2**20
  flat = harness.flat(m)  # for metrics.jsonl
  assert flat["evaluation/em"] == pytest.approx(6 / 9) and flat["evaluation/by_hops/2/em"] == 0.75
  assert all(isinstance(value, int | float) for value in flat.values()) and "evaluation/em_interval" not in flat
  none = harness.summarise([])
  assert none["n"] == 0 and none["em"] is none["em_interval"] is None and none["by_hops"] == {}


def test_batches_of_one_report_the_latency(tmp_path, monkeypatch):
  clock = [0.0]
  monkeypatch.setattr(harness.time, "perf_counter", lambda: clock[0])

  def takes(asked, at_once):
    for number, one in enumerate(play(asked, at_once)):
      clock[0] += 1.0 + number if number else 60.0  # the first one includes compilation
      yield one

  alone = evaluate(tmp_path / "alone", play=takes, batch=1)
  assert alone["latency"] == 6.5 and alone["seconds"] == 60 + sum(range(2, 11))  # the middle two are 6 and 7
  assert "latency" not in evaluate(tmp_path / "together")


def killed(out, after):
  with pytest.raises(KeyboardInterrupt):
    evaluate(out, play=functools.partial(play, killed=after))


@pytest.mark.parametrize("torn", [0, 5])
def test_after_a_kill_no_answer_is_lost_or_repeated(tmp_path, torn):
  whole = evaluate(tmp_path / "whole")
  killed(tmp_path / "killed", after=7)
  path = tmp_path / "killed" / "predictions.jsonl"
  # Two whole batches of three and the first answer of the next one, as they ended; and no metrics yet.
  assert [row["index"] for row in rows(tmp_path / "killed")] == [2, 1, 0, 5, 4, 3, 8]
  assert not (tmp_path / "killed" / "metrics.json").exists()
  if torn:  # the kill came while a line was written
    path.write_bytes(path.read_bytes()[:-torn])
    played = tmp_path / "killed" / "episodes.jsonl"
    played.write_bytes(played.read_bytes() + b'{"index": 7, "id": "q7"')  # the episodes were further on
  again = []
  resumed = evaluate(tmp_path / "killed", play=functools.partial(play, noted=again))
  assert again == (["q6", "q7", "q8", "q9"] if torn else ["q6", "q7", "q9"])
  for name in ("predictions.jsonl", "episodes.jsonl"):
    assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
  assert resumed | {name: whole[name] for name in ("seconds", "seconds_cover", "peak_memory")} == whole
  assert resumed["seconds_cover"] == len(again)
  assert evaluate(tmp_path / "killed", play=None) == resumed  # all answers exist, so nothing is played


def test_after_a_full_disk_no_episode_stands_beside_another_ones_row(tmp_path, monkeypatch):
  refusals, append = iter([None] * 5 + [OSError(28, "No space left on device")]), jsonl.append

  def full(file, row):
    if error := next(refusals, None):
      raise error
    append(file, row)

  monkeypatch.setattr(jsonl, "append", full)
  refused("No space left", evaluate, tmp_path, error=OSError)  # at the third row, after its episode
  assert len(rows(tmp_path)) == 2 and len(list(episodes.read_folder(tmp_path))) == 3
  evaluate(tmp_path)
  assert [row["id"] for row in episodes.read_folder(tmp_path)] == [row["id"] for row in rows(tmp_path)]


def test_a_kill_between_the_sorting_of_two_files_and_a_second_process(tmp_path):
  with lock.held(tmp_path), pytest.raises(lock.Held, match="is in use: process .* holds run.lock"):
    evaluate(tmp_path)
  assert evaluate(tmp_path)["n"] == 9
  path = tmp_path / "predictions.jsonl"
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join(lines[::-1]))  # the episodes are in order already
  before = (tmp_path / "episodes.jsonl").read_bytes()
  evaluate(tmp_path, play=None)
  assert path.read_text() == "".join(lines) and (tmp_path / "episodes.jsonl").read_bytes() == before


def test_an_answer_is_written_while_others_are_played(tmp_path):
  """No batch is waited for: the row is in the file before the next episode of the same batch has ended."""
  seen = []

  def watched(asked, at_once):
    for one in play(asked, at_once):
      yield one
      deadline = time.monotonic() + 120
      while not seen or seen[-1] != one.example_id:
        assert time.monotonic() < deadline
        # A reader beside the writer may see half of the last line.
        lines = (tmp_path / "predictions.jsonl").read_text().splitlines(keepends=True)
        seen[:] = [json.loads(line)["id"] for line in lines if line.endswith("\n")]

  evaluate(tmp_path, EXAMPLES[:9], play=watched, batch=9)
  assert seen == [e.id for e in EXAMPLES[8::-1]]


def test_seeds_have_folders_of_their_own_and_a_mean(tmp_path):
  def sampled(asked, at_once):
    """Seed s has question s right, and all others wrong."""
    for one in play(asked, at_once):
      i = one.prompt_index
      turns = [("model", f"<answer>{f'town {i}' if one.sample == i else 'no'}</answer>")]
      yield numbered(Request(EXAMPLES[i], i, one.sample), structs.Episode.from_text(RECIPE, EXAMPLES[i], turns))

  m = evaluate(tmp_path, EXAMPLES[:4], play=sampled, seeds=2)
  # Each seed has one of four right. Questions' means over seeds: .5 .5 0 0.
  assert (m["seeds"], m["n"], m["em"], m["deviation"]["em"], m["seconds_cover"]) == (2, 4, 0.25, 0.0, 8)
  assert 0.0 <= m["em_interval"][0] < 0.25 < m["em_interval"][1] <= 0.5
  # Hops 1: q0 and q2, of which seed 0 has one and seed 1 none. The sample deviation of .5 and 0 is .5 / √2.
  assert m["by_hops"]["1"]["em"] == 0.25 and m["deviation"]["by_hops"]["1"]["em"] == pytest.approx(0.5 / 2**0.5)
  assert "means ± sample deviations over 2 seeds" in (said := metric_tables.one(m))
  assert "Exact match                    0.250 ± 0.000  [0.0" in said
  ends = [dict(ended=dict(answer=4)), dict(ended=dict(answer=3, length=1))]
  assert answer_files.over_seeds(ends, [[], []], ())["ended"] == dict(answer=3.5, length=0.5)
  one = json.loads((tmp_path / "seed_1" / "metrics.json").read_text())
  assert one["settings"] == {"checkpoint": "m", "sample": 1, "contents": digests.by_field(EXAMPLES[:4])}
  assert [row["em"] for row in rows(tmp_path / "seed_1")] == [0.0, 1.0, 0.0, 0.0] and one["em"] == 0.25
  # A third seed is added, and only that one is played. It has question 2 right.
  more = evaluate(tmp_path, EXAMPLES[:4], play=sampled, seeds=3)
  assert more["seconds_cover"] == 4 and more["by_hops"]["1"]["em"] == pytest.approx(1 / 3)
  refused("with several seeds: give --seeds", evaluate, tmp_path, EXAMPLES[:4])
  refused("with one seed: choose another --out", evaluate, tmp_path / "seed_0", EXAMPLES[:4], seeds=2)


def test_results_of_another_evaluation_are_not_continued(tmp_path, caplog):
  evaluate(tmp_path)
  of = lambda **change: dict(examples=[dataclasses.replace(EXAMPLES[0], **change), *EXAMPLES[1:]])
  for given, says in (
    (dict(checkpoint="other"), "other settings.*checkpoint: 'm'; now 'other'"),
    (of(question="Why?"), "other questions than the data's: their questions differ.*another --out"),
    (of(passages=(dataclasses.replace(T, text="another text"),)), "their passages differ"),
    (of(meta=dict(choices=["a"])), "their options differ"), (dict(examples=EXAMPLES[:4]), "their ids, questions, pas"),
  ):  # fmt: skip
    refused(says, evaluate, tmp_path, **given)
  evaluate(tmp_path, ragrl_jax="9.0", commit="abc")
  assert len(rows(tmp_path)) == 10
  assert "its answers stay as another version scored them (None None, this is 9.0 abc)" in caplog.text


def regold(town, number=10):
  """The questions with other golds."""
  return [dataclasses.replace(one, golds=(town.format(one.id[1:]),)) for one in EXAMPLES[:number]]


@pytest.mark.parametrize("after", [None, 7])
def test_kept_answers_are_scored_again_if_only_golds_have_changed(tmp_path, caplog, after, monkeypatch):
  """q6 and q7 say "town 6 hall": with these golds the two are right, and q0 to q5 ("Town 0.") are not."""
  killed(tmp_path, after=after) if after else evaluate(tmp_path)
  before, asked = {row["id"] for row in rows(tmp_path)}, []
  m = evaluate(tmp_path, examples=regold("town {} hall"), play=functools.partial(play, noted=asked))
  assert len(asked) == (3 if after else 0) and not set(asked) & before  # no kept answer is played again
  assert m["em"] == pytest.approx(2 / 9) and "their golds" in caplog.text and "without playing" in caplog.text
  assert m["em"] == evaluate(tmp_path / "new", examples=regold("town {} hall"))["em"]
  assert rows(tmp_path) == rows(tmp_path / "new")  # lengths in tokens included
  assert list(episodes.read_folder(tmp_path)) == list(episodes.read_folder(tmp_path / "new"))
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(harness, "summarise", mock.Mock(side_effect=KeyboardInterrupt))
    evaluate(tmp_path, examples=regold("Lyon"))
  assert not (tmp_path / "metrics.json").exists()  # of other scores than the rows have now
  assert evaluate(tmp_path, examples=regold("Lyon"), play=play)["em"] == 0.0


def test_moved_and_renamed_contents_are_the_same_evaluation(tmp_path):
  """The weights' digest decides, not the checkpoint's path; a renamed file changes only the name of the set."""
  first = evaluate(tmp_path, weights="abc", data="a/dev.jsonl", retrieval=dict(index="a/index", checksum="c"))
  moved = dict(weights="abc", checkpoint="elsewhere", data="b/dev.jsonl", retrieval=dict(index="b/index", checksum="c"))
  assert evaluate(tmp_path, play=None, **moved)["em"] == first["em"]
  named = [dataclasses.replace(one, source="dev2") for one in EXAMPLES]
  assert list(evaluate(tmp_path, examples=named, play=None, **moved)["by_source"]) == ["dev2"]
  with pytest.raises(ValueError, match="retrieval"):
    evaluate(tmp_path, examples=named, play=None, **moved | dict(retrieval=dict(index="b/index", checksum="d")))
  worded = lambda text, path: moved | dict(wordings={"judge.wording": text}, switches=dict(w=f"file:{path}"))
  evaluate(tmp_path / "w", **worded("1", "a.txt"))
  evaluate(tmp_path / "w", play=None, **worded("1", "b.txt"))
  refused("wordings", evaluate, tmp_path / "w", play=None, **worded("2", "a.txt"))
  refused("weights: 'abc'; now 'other'", evaluate, tmp_path, examples=named, play=None, **moved | dict(weights="other"))


def test_verdicts_on_answers_do_not_outlive_their_golds(tmp_path):
  judged = dataclasses.replace(RECIPE, judges_golds=True)
  score = lambda examples: harness.evaluate(examples, play, judged, tmp_path, settings={})
  score(EXAMPLES[:3])
  refused("'q0': its golds differ.*verdict does not hold.*another --out", score, regold("Lyon", 3))
  assert [row["golds"] for row in rows(tmp_path)] == [["town 0"], ["town 1"], ["town 2"]]  # nothing was changed
  assert score([dataclasses.replace(one, supporting=()) for one in EXAMPLES[:3]])["n"] == 3  # no judge read these


@pytest.mark.parametrize("mark", ["metrics.jsonl", "index.json", "metrics.json"])
@pytest.mark.parametrize("place, seeds", [("", 1), ("", 2), ("seed_1", 2)])
def test_a_run_an_index_or_scores_are_not_written_into(tmp_path, mark, place, seeds):
  (tmp_path / place).mkdir(exist_ok=True)
  (tmp_path / place / mark).write_text("{}")
  refused(rf"this folder holds (a run|an index|scores) \({mark}\).*name another", evaluate, tmp_path, seeds=seeds)
  assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [mark]


def test_what_was_said_and_found_is_kept(tmp_path):
  evaluate(tmp_path)
  kept = list(episodes.read_folder(tmp_path))
  assert [row["id"] for row in kept] == [example.id for example in EXAMPLES] and kept[4]["source"] == "b"
  for row, example in zip(kept, EXAMPLES):
    back, was = episodes.episode_of(row), episode(example)
    bare = lambda segment: dataclasses.replace(segment, ids=(), logprobs=())
    assert back.segments == tuple(map(bare, was.segments)) and (back.ended, back.facts) == (was.ended, was.facts)
  with pytest.raises(FileNotFoundError, match="name a run's folder, or an evaluation's, which has episodes.jsonl"):
    next(episodes.read_folder(tmp_path / "nowhere"))
  jsonl.write(tmp_path / "predictions.jsonl", rows(tmp_path)[:4])
  jsonl.cut(tmp_path / "episodes.jsonl", 2)  # a loss of power
  with pytest.raises(TypeError):  # and a kill
    evaluate(tmp_path, play=None)
  assert not (tmp_path / "metrics.json").exists()
  assert evaluate(tmp_path)["n"] == 9 and list(episodes.read_folder(tmp_path)) == kept and len(rows(tmp_path)) == 10
  (tmp_path / "episodes.jsonl").unlink()  # as in a folder of an older version
  assert evaluate(tmp_path, play=None)["n"] == 9  # all is answered there
  jsonl.write(tmp_path / "predictions.jsonl", rows(tmp_path)[:4])
  refused("fewer episodes than predictions.jsonl has rows", evaluate, tmp_path)


def test_pairs_are_pooled_over_questions(tmp_path):
  recipe = recipes.get("veritas")
  thought = ("model", "<think> x </think><answer> town 1 </answer>")
  searched = [("model", "<search> 1 </search>"), ("environment", FOUND)]
  turns = {"q0": [*searched * 3, thought], "q1": [*searched, thought], "q2": [thought]}
  facts = {"q0": (1.0,), "q1": (1.0,), "q2": ()}
  judged = lambda e: dict(facts=dict(information_think=facts[e.id]))
  play = played.by_example(lambda e: structs.Episode.from_text(recipe, e, turns[e.id], **judged(e)))
  metrics = harness.evaluate(EXAMPLES[:3], play, recipe, tmp_path, settings={})
  # Blocks 3, 1 and 0; thoughts after the last ones only, both faithful. By episodes (1/3 + 1 + 0) / 3, by pairs 2 / 4.
  assert metrics["terms"]["information_think"] == pytest.approx(4 / 9) and metrics["pooled"]["information_think"] == 0.5
  assert harness.flat(metrics)["evaluation/pooled/think_answer"] == 0.0


def test_a_rollout_that_loses_or_repeats_questions_is_refused(tmp_path):
  with pytest.raises(RuntimeError, match=r"10 questions were played and 2 episodes returned \(first missing: \(0, 0\)"):
    evaluate(tmp_path, play=lambda asked, at_once: (one for one in list(play(asked, at_once))[:2]))
  assert len(rows(tmp_path)) == 2
  with pytest.raises(RuntimeError, match="question 0 .*'q0'.*not requested or has already been answered"):
    evaluate(tmp_path, play=lambda asked, at_once: (numbered(asked[0][0]) for _ in range(2)))
  with pytest.raises(RuntimeError, match="question 3 .*'q0'"):
    evaluate(tmp_path, play=lambda *_: (dataclasses.replace(episode(one), prompt_index=3) for one in EXAMPLES[:1]))


@pytest.mark.parametrize("fewest, batch, works, says", [
  (harness.FEWEST, 3, 4, "6 of 10 episodes failed.*share=0.5.*said: down.*same command"),
  (4, 1, 0, "4 of 4"),  # a long evaluation is stopped early
])  # fmt: skip
def test_a_failed_tool_stops_all_and_finished_answers_stay(tmp_path, monkeypatch, fewest, batch, works, says):
  monkeypatch.setattr(harness, "FEWEST", fewest)
  played = []

  def down(asked, at_once):
    for one in play(asked, at_once):
      played.append(one)
      yield one if one.prompt_index < works else dataclasses.replace(one, ended="failed", failure="down")

  with pytest.raises(harness.TooManyFailures, match=says):
    harness.evaluate(EXAMPLES, down, RECIPE, tmp_path, settings=dict(checkpoint="m"), batch=batch, max_failed_share=0.5)
  assert len(played) == min(fewest, 10)
  # Those that failed are asked again.
  assert [row["id"] for row in rows(tmp_path)] == ["q2", "q1", "q0", "q3"][: works or 0]
  assert not (tmp_path / "metrics.json").exists()
  assert evaluate(tmp_path)["failed"] == 1


def test_an_answer_without_a_verdict_is_not_wrong(tmp_path):
  judged = recipes.get("when_to_search")
  verdicts = [1.0, 0.0, None, 1.0, None]  # no gold equals these answers, so the judge decides

  def play(asked, at_once):
    for (one,), verdict in zip(asked, verdicts, strict=True):
      turns = [("model", f"<think> a </think><reflect> b </reflect><answer> not {one.example.id} </answer>")]
      made = structs.Episode.from_text(judged, one.example, turns, facts=dict(correct=verdict))
      failed = dataclasses.replace(made, ended="failed", failure="down")
      yield numbered(one, failed if one.prompt_index == 4 else made)

  m = harness.evaluate(EXAMPLES[:5], play, judged, tmp_path, settings={}, batch=5)
  assert [row["outcome"] for row in rows(tmp_path)] == [1.0, 0.0, None, 1.0, None]
  assert (m["n"], m["failed"], m["unjudged"]) == (4, 1, 1)
  # Means over three and over four questions.
  assert m["outcome"] == pytest.approx(2 / 3) and m["em"] == 0.0 and m["outcome_interval"][1] == 1.0
  line = {row["label"]: row["n"] for row in metric_tables.comparison(None, m)}
  assert line["Correct by the recipe"] == 3 and line["Exact match"] == 4
  assert "1 answers got no verdict from the judge and are not in" in metric_tables.one(m)
  unknown = harness.summarise(rows(tmp_path)[2:3] * 2)
  assert (unknown["outcome"], unknown["outcome_interval"], unknown["unjudged"], unknown["em"]) == (None, None, 2, 0.0)


@pytest.mark.parametrize("preset, unscorable", [("paper", 2), ("no_answer_reward", 1)])
def test_training_excludes_answers_without_a_verdict_from_the_outcome(preset, unscorable):
  judged = recipes.get("when_to_search", preset)
  turns = [("model", "<think> a </think><reflect> b </reflect><answer> x </answer>")]
  of = lambda example, verdict: structs.Episode.from_text(judged, example, turns, facts=dict(correct=verdict))
  *made, last = map(of, EXAMPLES, (1.0, None, None))
  made.append(dataclasses.replace(last, ended="failed", failure="down"))
  metrics = rewards.summarise(rewards.score(judged, EXAMPLES[:3], made, 1))
  assert (metrics["outcome"], metrics["unjudged"], metrics["unscorable"]) == (1.0, 1.0, unscorable)
  assert rewards.Scorer(metric="outcome").measure(judged, EXAMPLES[:3], made, 1) == [1.0, None, None]


def test_each_turn_is_read_alone_and_the_last_answer_counts():
  turns = [("model", "<answer>early</answer> <search>x</search>"), ("environment", FOUND), ("model", "more </answer>")]
  assert parts.last_answer(RECIPE.parser, structs.Episode.from_text(RECIPE, EXAMPLES[0], turns)) == "early"
  spoken = [("model", "<answer>"), ("environment", FOUND), ("model", "x</answer>")]  # tags of two turns are no pair
  assert parts.last_answer(RECIPE.parser, structs.Episode.from_text(RECIPE, EXAMPLES[0], spoken)) is None
