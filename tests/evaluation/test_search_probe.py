"""Scripted policies whose behaviour is known get the verdict that names it."""

import json
import re
import types

import played
import pytest
from console import ragrl

from ragrl_jax import config as config_lib, recipes, retrieval, settings, structs
from ragrl_jax.evaluation import search_probe
from ragrl_jax.store import changes
from ragrl_jax.testing import scripted

RECIPE = recipes.get("search_r1")
PERSON, TOWN, MAYOR = "Kel{}".format, "Tosk{}".format, "Mara{}".format
PASSAGES = [structs.Passage(f"p{i}", PERSON(i), f"{PERSON(i)} was born in {TOWN(i)}.") for i in range(30)]
PASSAGES += [structs.Passage(f"t{i}", TOWN(i), f"{TOWN(i)} is ruled by {MAYOR(i)}.") for i in range(30)]
BORN, RULER = "In which town was {} born?".format, "Who rules the town in which {} was born?".format


def example(i):
  """Questions of one hop and of two by turns, with their supporting passages."""
  hops = 1 + i % 2
  question, gold = (BORN, TOWN) if hops == 1 else (RULER, MAYOR)
  given = (PASSAGES[i], PASSAGES[30 + i])[:hops]
  return structs.Example(f"q{i}", question(PERSON(i)), (gold(i),), given, tuple(range(hops)), hops=hops)


EXAMPLES = [example(i) for i in range(30)]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
  folder = tmp_path_factory.mktemp("index") / "bm25"
  return retrieval.load_index(retrieval.build_index(PASSAGES, "bm25", folder, progress=False))


def run(coroutine):
  """The result of a coroutine that waits for nothing: it needs no loop and no thread."""
  try:
    coroutine.send(None)
  except StopIteration as ended:
    return ended.value


def tools(retriever):
  async def search(query, k=None):
    return tuple(retriever.search([query], k or 3)[0])

  return types.SimpleNamespace(search=search)


def probed(index, out, answers, *, examples=EXAMPLES, queries=None, seen=None):
  """The probe of a policy whose calls `seen` counts. answers: (question's number, its hops, all that it was shown, its
  searches) → its answer; None searches on. queries: (number, what it was shown) → the query; by default of the person,
  or of the town that was shown."""

  def asks(i, shown):
    town = re.search(rf"{PERSON(i)} was born in (\w+)", shown)
    return town[1] if town else PERSON(i)

  def script(segments):
    if seen is not None:
      seen.append(1)
    i = int(re.findall(r"Kel(\d+)", segments[0].text)[-1])
    shown, hops = "\n".join(p.text for segment in segments for p in segment.found or ()), 1 + i % 2
    turns = sum(segment.found is not None for segment in segments)
    said = answers(i, hops, shown, turns)
    return f"<answer> {said} </answer>" if said else f"<search> {(queries or asks)(i, shown)} </search>"

  def play_with(play):
    return played.by_example(lambda one: run(play(one, scripted.ScriptedPolicy(script), tools(index))))

  more = dict(settings=dict(policy="scripted"), top_k=3)
  return search_probe.played(examples, play_with, RECIPE, index.corpus, out, **more)


def read(i, hops, shown):
  """The answer in what was shown, or "unknown"."""
  town, mayor = re.search(rf"{PERSON(i)} was born in (\w+)", shown), re.search(rf"{TOWN(i)} is ruled by (\w+)", shown)
  found = town if hops == 1 else town and mayor
  return found[1] if found else "unknown"


gold = lambda i, hops: (TOWN, MAYOR)[hops - 1](i)
reads = lambda i, hops, shown, turns: read(i, hops, shown) if turns == hops else None
misled = lambda i, hops, shown: "nobody" if PERSON(i) in shown else gold(i, hops)
waits = lambda i, hops, shown: gold(i, hops) if shown else "nobody"  # then it answers from memory


@pytest.mark.parametrize(("behaviour", "answers", "queries", "says"), [
  (search_probe.NEVER, lambda i, hops, shown, turns: gold(i, hops), None, ""),
  (search_probe.ONCE, lambda i, hops, shown, turns: read(i, hops, shown) if turns else None, None, ""),
  (search_probe.IGNORES, lambda i, hops, shown, turns: "nobody" if turns == hops else None, None, ""),
  (search_probe.IGNORES, lambda i, hops, shown, turns: None if turns < hops else waits(i, hops, shown), None,
   "Any passages do as well"),
  (search_probe.REMEMBERS, lambda i, hops, shown, turns: gold(i, hops) if turns == hops else None, None, ""),
  (search_probe.MISLED, lambda i, hops, shown, turns: None if turns < hops else misled(i, hops, shown), None, ""),
  (search_probe.COPIES, reads, lambda i, shown: (BORN, RULER)[i % 2](PERSON(i)), ""),
  (search_probe.STARVED, reads, lambda i, shown: "the weather", ""),
])  # fmt: skip
def test_planted_behaviours_are_told_apart(index, tmp_path, behaviour, answers, queries, says):
  numbers = probed(index, tmp_path, answers, queries=queries)
  assert numbers["verdict"] == behaviour, search_probe.text(numbers)
  assert behaviour in search_probe.text(numbers) and numbers["noise"] == 0.0 and says in numbers["said"][-1]


def test_the_numbers_of_an_honest_policy(index, tmp_path):
  calls, again = [], []
  numbers = probed(index, tmp_path, reads, seen=calls)
  assert numbers["verdict"] == search_probe.HONEST and numbers["noise"] == 0.0
  assert search_probe.HONEST in search_probe.text(numbers)
  of = numbers["retrievers"]
  means = {name: one["outcome"]["mean"] for name, one in of.items()}
  assert means.pop("random") < 0.2 and means.pop("shuffled") < 0.2
  assert means == dict(own=1.0, again=1.0, empty=0.0, oracle=1.0)
  assert of["empty"]["difference"] == "more" and of["oracle"]["difference"] == of["again"]["difference"] == "none"
  assert {hops: one["mean"] for hops, one in numbers["by_hops"].items()} == {"1": 1.0, "2": 2.0}
  assert numbers["coverage"]["passages"] == 60 and numbers["coverage"]["found"] >= 45
  assert numbers["said"][-1].startswith("More hops have more searches")
  rows = (tmp_path / "shuffled" / "predictions.jsonl").read_text().splitlines()
  assert len(rows) == 30 and json.loads((tmp_path / "shuffled" / "settings.json").read_text())["probe"] == "shuffled"
  # A killed probe goes on.
  assert probed(index, tmp_path, reads, seen=again) == numbers and calls and not again


def test_once_is_no_fault_where_all_questions_have_one_hop(index, tmp_path):
  ones = EXAMPLES[::2]
  ones += [structs.Example(f"r{one.id}", one.question + "?", one.golds, hops=1) for one in ones]
  numbers = probed(index, tmp_path, reads, examples=ones)
  assert numbers["verdict"] == search_probe.HONEST and "exactly once" in numbers["said"][-1]
  assert numbers["retrievers"]["oracle"]["n"] == 15 and numbers["retrievers"]["oracle"]["difference"] == "unclear"


def test_what_cannot_be_measured_is_said(tmp_path, index):
  far = types.SimpleNamespace(corpus=None, search=index.search)  # behind an address: its corpus is not here
  bare = [structs.Example(one.id, one.question, one.golds, hops=one.hops) for one in EXAMPLES]
  numbers = probed(far, tmp_path, reads, examples=bare)
  assert numbers["verdict"] == search_probe.HONEST  # by the shuffled results alone
  shown = search_probe.text(numbers)
  assert "random: not measurable" in shown and "oracle: not measurable" in shown


def rows(outcomes):
  base = dict(ended="answer", source="", em=0.0, f1=0.0, cover_em=0.0, num_searches=1, terms={})
  return [dict(base, id=str(i), outcome=value) for i, value in enumerate(outcomes)]


SOME, FEWER = [1.0] * 20 + [0.0] * 20, [1.0] * 16 + [0.0] * 24


@pytest.mark.parametrize(("own", "other", "noise", "kind"), [
  ([1.0] * 30, [0.0] * 30, 0.0, "more"), ([0.0] * 30, [1.0] * 30, 0.0, "less"),
  ([1.0] * 29, [0.0] * 29, 0.0, "unclear"),  # too few
  ([1.0] * 30, [1.0] * 30, 0.0, "none"), (SOME, FEWER, 0.0, "more"),
  (SOME, FEWER, 0.15, "unclear"),  # not above the floor, which is wide
  (SOME, [1.0] * 19 + [0.0] * 21, 0.08, "none"),  # below the floor
  ([1.0, 0.0] * 20, [0.0, 1.0] * 20, 0.0, "unclear"),  # no difference, but a wide interval
  ([1.0] * 30 + [None], [None] + [0.0] * 30, 0.0, "unclear"),  # 29 questions have both
])  # fmt: skip
def test_the_rule_of_a_difference(own, other, noise, kind):
  assert search_probe._difference(rows(own), rows(other), noise)["difference"] == kind


def found(kinds, *, right=0.0, n=30):
  """The numbers of a probe of n questions, with these differences; what is not named was not measured."""
  share = lambda mean: dict(mean=mean, interval=(mean, mean))
  of = lambda kind: dict(n=n, mean=0.0, interval=[0.0, 0.0], difference=kind, outcome=share(right), found_answer=0.05)
  names = ("own", "empty", "random", "shuffled", "oracle")
  retrievers = {name: of(kinds[name]) if name in kinds else dict(unmeasured="why") for name in names[1:]}
  shares = dict(searched=share(1.0), once=share(0.5), copied=share(0.2), by_hops={})
  return dict(retrievers=dict(retrievers, own=of("none")), **shares)


@pytest.mark.parametrize(("kinds", "verdict", "says"), [
  (dict(empty="unclear"), search_probe.UNDECIDED, "too wide"),
  (dict(empty="none"), search_probe.UNDECIDED, "nothing to use"),  # 5 % of its results held the answer
  (dict(empty="none", oracle="none"), search_probe.IGNORES, "change nothing"),
  (dict(empty="none", oracle="less"), search_probe.STARVED, "do not bring the right ones"),
  (dict(empty="more"), search_probe.UNDECIDED, "contents"),
  (dict(empty="more", random="unclear", shuffled="none"), search_probe.UNDECIDED, "contents"),
  (dict(empty="more", random="less", shuffled="none"), search_probe.IGNORES, "Any passages"),
  (dict(empty="more", random="none", shuffled="more"), search_probe.HONEST, "not known"),
])  # fmt: skip
def test_the_verdict_of_differences(kinds, verdict, says):
  name, said = search_probe.verdict(found(kinds))
  assert name == verdict and says in said[-1]
  assert search_probe.verdict(found(kinds, n=29))[0] == search_probe.UNDECIDED  # too few questions
  if verdict == search_probe.IGNORES and kinds["empty"] == "none":
    assert search_probe.verdict(found(kinds, right=0.2))[0] == search_probe.REMEMBERS


def test_an_oracle_shows_what_the_episode_has_not_seen(index):
  two = EXAMPLES[1]
  find = search_probe.finders(EXAMPLES, index.corpus, 0)[search_probe.ORACLE]
  swapped = search_probe.SwappedTools(tools(index), two, find, top_k=1)
  first, second, third = (run(swapped.search(query)) for query in ("x", PERSON(1), PERSON(1)))
  assert (first, second) == ((two.passages[0],), (two.passages[1],))
  assert [p.id for p in third] == ["p1"] and third[0].score > 0  # the retriever's own


def test_drawn_results_depend_on_the_query_alone(index):
  of = lambda seed: search_probe.finders(EXAMPLES, index.corpus, seed)
  drawn = lambda name, query, seed=0: run(of(seed)[name](tools(index), EXAMPLES[3], query, 3, set()))
  for name in ("random", "shuffled"):
    assert drawn(name, "a") == drawn(name, "a") and len(drawn(name, "a")) == 3
    assert any(drawn(name, "a") != drawn(name, other) for other in "bcde")
    assert any(drawn(name, "a") != drawn(name, "a", seed) for seed in range(1, 5))
  assert not any(EXAMPLES[3].golds[0] in drawn("shuffled", query)[0].text for query in "abcdefgh")


def test_a_run_that_never_may_search_is_refused_in_one_line(tmp_path):
  config = config_lib.default_config()
  config.switches = dict(max_searches=0)
  (tmp_path / "run" / "checkpoints" / "1").mkdir(parents=True)
  changes.write(tmp_path / "run", settings.of(config), "rl")
  told = ragrl("probe", tmp_path / "run", "--data=x.jsonl", f"--out={tmp_path}/out")
  assert told.returncode == 2 and told.stderr.count("\n") == 1, told.stderr
  assert "search_r1: its episodes have no searches, so there is nothing to probe" in told.stderr
