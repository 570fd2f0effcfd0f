"""Does a policy really search? Plays the same questions with swapped search results, and says what follows, by rules.

A difference is "more" or "less" if its 95 % interval excludes 0 and it exceeds the noise floor. It is "none" if its
interval lies within ±MARGIN, or if it is below the floor and the floor is at most MARGIN. Else it is "unclear".
"""

import pathlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ragrl_jax import structs
from ragrl_jax.core.metrics import qa, searches, stats
from ragrl_jax.core.text import aligned
from ragrl_jax.evaluation import answer_files, comparison, harness
from ragrl_jax.store import episodes, jsonl
from ragrl_jax.structs import Example, Passage

RESULT = "probe.json"
AGAIN = "again"  # the run's retriever, asked a second time
FEWEST = 30  # questions: of 30 without a single difference, up to MARGIN could still differ (three in 30)
MARGIN = 0.1
COPY = 0.9  # F1 of the words of query and question
OWN, EMPTY, RANDOM, SHUFFLED, ORACLE = "own", "empty", "random", "shuffled", "oracle"
NEVER, IGNORES, REMEMBERS, MISLED = "never searches", "ignores results", "remembers", "is misled by results"
STARVED, COPIES, ONCE, HONEST = "lacks results", "copies the question", "always searches once", "searches honestly"
UNDECIDED = "undecided"
_NAMED = {
  OWN: "its own retriever", EMPTY: "an empty one", RANDOM: "random passages", SHUFFLED: "another question's results",
  ORACLE: "its supporting passages first",
}  # fmt: skip
Rows = Sequence[Mapping[str, Any]]  # rows of predictions.jsonl
# (the run's tools, question, query, number of passages, titles and texts shown before in this episode) → passages
Find = Callable[[structs.Tools, Example, str, int, set], Awaitable[Sequence[Passage]]]


def played(
  examples: Sequence[Example],
  play_with: Callable[[Any], harness.Play],
  recipe,
  corpus: Any,
  out: pathlib.Path,
  *,
  settings: Mapping[str, Any],
  top_k: int,
  seed: int = 0,
  progress: Callable[[int, int], None] = lambda done, of: None,
  **limits: Any,
) -> dict[str, Any]:
  """Plays every question with each retriever, and returns `measured`. A killed call continues where it stopped.

  Each retriever has its evaluation in `out`: own/seed_0, own/seed_1 (the noise), empty, random, shuffled, oracle.

  Args:
    settings: what the answers depend on, for `harness.evaluate`.
    **limits: other arguments of `harness.evaluate`.
  """
  retrievers: dict[str, Any] = {OWN: None, **finders(examples, corpus, seed)}
  rows: dict[str, Rows | str] = {name: find for name, find in retrievers.items() if isinstance(find, str)}
  with_gold = [example for example in examples if supporting(example, corpus)]
  examples_of = {name: with_gold if name == ORACLE else examples for name in retrievers if name not in rows}
  done, total = 0, sum(map(len, examples_of.values())) + len(examples)
  for name, subset in examples_of.items():
    harness.evaluate(
      subset,
      play_with(recipe.play if name == OWN else swapped(recipe.play, retrievers[name], top_k)),
      recipe,
      out / name,
      settings=dict(settings, probe=name, **({} if name == OWN else dict(probe_seed=seed))),
      seeds=1 + (name == OWN),
      progress=lambda kept, before=done: progress(before + kept, total),
      **limits,
    )
    folders = answer_files.parts(out / name)
    done += len(subset) * len(folders)
    rows |= {part: list(jsonl.read(folder / answer_files.PREDICTIONS)) for part, folder in zip((name, AGAIN), folders)}
  played_rows = list(jsonl.read(out / OWN / "seed_0" / episodes.PLAYED))
  return measured(rows, played_rows, None if corpus is None else len(corpus))


def measured(rows: Mapping[str, Rows | str], logged: Rows, passages: int | None) -> dict[str, Any]:
  """The numbers of a probe, and its verdict.

  Args:
    rows: retriever → its rows, or why it could not be measured.
    logged: the episodes of the run's retriever (`episodes.played`).
    passages: number of passages in the corpus, if it is known.

  Returns:
    {"retrievers": {name: means, and the difference own - name}, "noise": the floor, "by_hops": {hops: searches},
    "searched", "once", "copied": shares with intervals, "coverage", "verdict", "said": its reasons}.
  """
  own_rows = rows[OWN]
  assert not isinstance(own_rows, str)
  again = _difference(own_rows, rows[AGAIN], 0.0)
  noise = max(map(abs, again["interval"] or (0.0,)))
  answered = [row for row in own_rows if row["ended"] != "failed"]
  shown = [(row, searches.in_row(row)[0]) for row in logged if row["ended"] != "failed"]
  copied = [[qa.f1(query, (row["question"],)) >= COPY for query, _ in asked] for row, asked in shown if asked]
  hops = sorted({row["hops"] for row in answered if row["hops"] is not None})
  frequencies = Counter(name for _, asked in shown for _, brought in asked for name in brought)
  against = lambda some: _means(some) | _difference(own_rows, some, noise)
  numbers: dict[str, Any] = dict(
    retrievers={name: dict(unmeasured=it) if isinstance(it, str) else against(it) for name, it in rows.items()},
    noise=noise,
    by_hops={str(n): _mean([row["num_searches"] for row in answered if row["hops"] == n]) for n in hops},
    searched=_mean([row["num_searches"] > 0 for row in answered]),
    once=_mean([row["num_searches"] == 1 for row in answered]),
    copied=_mean([sum(each) / len(each) for each in copied]),
    coverage=dict(passages=passages, found=len(frequencies), shown=frequencies.total()),
  )
  name, reasons = verdict(numbers)
  return numbers | dict(verdict=name, said=reasons)


def verdict(numbers: Mapping[str, Any]) -> tuple[str, list[str]]:
  """(what the policy does, one of this module's names; the reasons in words). The first rule that holds decides."""
  of = numbers["retrievers"]
  seen = lambda name: of.get(name, {}).get("difference", "unmeasured")  # of the run's retriever from this one
  right = lambda name: f"{of[name]['outcome']['mean']:.0%} right with {_NAMED[name]}"
  gap = lambda name: f"{right(name)}: a difference of {_signed(of[name])}"
  own, empty, searched, once, copied = of[OWN], of[EMPTY], numbers["searched"], numbers["once"], numbers["copied"]
  fewest = min(own["n"], empty["n"])
  if fewest < FEWEST:
    return UNDECIDED, [f"{fewest} questions have an outcome with both retrievers: at least {FEWEST} are needed."]
  if searched["interval"][1] <= MARGIN:
    return NEVER, [f"It searched for {searched['mean']:.0%} of the questions (never: at most {MARGIN:.0%})."]
  said = [f"{right(OWN)}.", f"{gap(EMPTY)}."]
  if seen(EMPTY) == "unclear":
    return UNDECIDED, [*said, "The interval is too wide for a verdict: more questions are needed."]
  if seen(EMPTY) == "less":
    return MISLED, [*said, "Its results make the answers worse."]
  if seen(EMPTY) == "none":
    if seen(ORACLE) == "less":
      return STARVED, [*said, f"{gap(ORACLE)}. It uses results, but its searches do not bring the right ones."]
    if empty["outcome"]["interval"][0] > MARGIN:
      return REMEMBERS, [*said, "It answers as well without passages: from its weights, not from the results."]
    if seen(ORACLE) not in ("none", "more") and (own["found_answer"] or 0.0) <= MARGIN:
      return UNDECIDED, [*said, "Its retriever hardly ever brings the answer, so there is nothing to use."]
    return IGNORES, [*said, "Its results change nothing."]
  fakes = [name for name in (RANDOM, SHUFFLED) if seen(name) != "unmeasured"]
  said += [f"{gap(name)}." for name in fakes]
  if not any(seen(name) == "more" for name in fakes):
    if not fakes or any(seen(name) == "unclear" for name in fakes):
      return UNDECIDED, [*said, "Whether the contents of its results matter is not known: more questions are needed."]
    return IGNORES, [*said, "Any passages do as well: what they say does not matter."]
  said.append("It uses what it finds.")
  if copied["interval"][0] > 0.5:
    return COPIES, [*said, f"{copied['mean']:.0%} of its queries are the question itself (copies: most of them)."]
  many = len(numbers["by_hops"]) > 1
  if once["interval"][0] >= 1 - MARGIN:
    what = f"It searched exactly once for {once['mean']:.0%} of the questions"
    if many:
      return ONCE, [*said, f"{what}, whatever their hops (always: at least {1 - MARGIN:.0%})."]
    return HONEST, [*said, f"{what}; whether it would search more for more hops is not known from these."]
  unknown = "Its searches by hops are not known: the questions have one number of hops, or none."
  return HONEST, [*said, _by_hops(numbers["by_hops"]) if many else unknown]


def text(numbers: Mapping[str, Any]) -> str:
  """The result of `measured` as plain text: a table of the retrievers, one of the hops, and the verdict."""
  lines: list[Sequence[str]] = [("retriever", "right", "95 %", "own - it", "effect", "searches", "answer found", "n")]
  missing = []
  share = lambda value: "–" if value is None else f"{value:.3f}"
  for name, of in numbers["retrievers"].items():
    if "unmeasured" in of:
      missing.append(f"{name}: not measurable ({of['unmeasured']})")
      continue
    verdict_columns = ("", "") if name == OWN else (_signed(of), "(noise)" if name == AGAIN else of["difference"])
    means = of["outcome"]["mean"], of["searches"], of["found_answer"]
    right, asked, found = map(share, means)
    lines.append((name, right, _between(of["outcome"]), *verdict_columns, asked, found, str(of["n"])))
  hops = [f"{n}: {_label(of)}" for n, of in numbers["by_hops"].items()]
  c = numbers["coverage"]
  of_corpus = "" if not c["passages"] else f" of {c['passages']:,} in the corpus ({c['found'] / c['passages']:.1%})"
  return "\n".join(
    [
      aligned.columns(lines),
      *missing,
      "",
      "effect: more or less if the interval of own - it excludes 0, and it exceeds the noise floor, own against itself",
      f"({numbers['noise']:.3f}); none below the floor or within ±{MARGIN}; else unclear",
      f"searches by hops: {', '.join(hops) or 'the questions have no hops'}",
      f"queries that are the question: {_label(numbers['copied'])}",
      f"passages: {c['found']:,} different ones in {c['shown']:,} results{of_corpus}",
      "",
      f"Verdict: {numbers['verdict']}.",
      *(f"  {reason}" for reason in numbers["said"]),
    ]
  )


def _difference(first: Rows, other: Rows | str, noise: float) -> dict[str, Any]:
  """The mean difference in outcome, own - other, over the questions with both."""
  assert not isinstance(other, str)
  one, two = (comparison.by_question(rows).get("outcome", {}) for rows in (first, other))
  values = [one[key] - two[key] for key in sorted(one.keys() & two.keys())]
  mean, (low, high) = (sum(values) / len(values), stats.bootstrap_interval(values, seed=0)) if values else (0.0, (0, 0))
  beyond, within = not low <= 0 <= high and abs(mean) > noise, max(-low, high) <= MARGIN
  if len(values) < FEWEST:
    kind = "unclear"
  elif beyond:
    kind = "more" if mean > 0 else "less"
  else:
    kind = "none" if within or abs(mean) < noise <= MARGIN else "unclear"
  return dict(n=len(values), mean=mean, interval=[low, high] if values else None, difference=kind)


def _means(rows: Rows) -> dict[str, Any]:
  answered = [row for row in rows if row["ended"] != "failed"]
  mean = lambda name: stats.mean_known(row.get(name) for row in answered)
  outcome = _mean([row["outcome"] for row in answered if row["outcome"] is not None])
  return dict(outcome=outcome, searches=mean("num_searches"), found_answer=mean("found_answer"))


def _mean(values: Sequence[float]) -> dict[str, Any]:
  """The mean with its 95 % interval; None and (0, 0) without values."""
  if not values:
    return dict(mean=None, interval=(0.0, 0.0))
  return dict(mean=sum(values) / len(values), interval=stats.bootstrap_interval([*map(float, values)], seed=0))


def _by_hops(by_hops: Mapping[str, Any]) -> str:
  fewest, *_, most = by_hops.values()
  rises = most["interval"][0] > fewest["interval"][1]
  listing = ", ".join(f"{n}: {_label(of)}" for n, of in by_hops.items())
  return f"More hops have {'more' if rises else 'not clearly more'} searches (by hops {listing}): the intervals decide."


def _between(of: Mapping[str, Any]) -> str:
  return "[{:.3f}, {:.3f}]".format(*of["interval"])


def _label(of: Mapping[str, Any]) -> str:
  return "none" if of["mean"] is None else f"{of['mean']:.2f} {_between(of)}"


def _signed(of: Mapping[str, Any]) -> str:
  return "{:+.3f} [{:+.3f}, {:+.3f}]".format(of["mean"], *(of["interval"] or (0, 0)))


class SwappedTools:
  """The tools of one episode, in which `find` answers the searches. Documents are opened as in the run."""

  def __init__(self, tools: structs.Tools, example: Example, find: Find, top_k: int):
    self._tools, self._example, self._find, self._top_k = tools, example, find, top_k
    self._shown: set = set()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._tools, name)

  async def search(self, query: str, k: int | None = None) -> tuple[Passage, ...]:
    """See `structs.Tools`."""
    result = await self._find(self._tools, self._example, query, self._top_k if k is None else k, self._shown)
    self._shown.update(map(_key, result))
    return tuple(result)


def swapped(play, find: Find, top_k: int):
  """The recipe's `play`, in which `find` answers the searches."""
  return lambda example, policy, tools: play(example, policy, SwappedTools(tools, example, find, top_k))


def finders(examples: Sequence[Example], corpus: Any, seed: int) -> dict[str, Find | str]:
  """{name: what answers the searches, or why this cannot be measured}.

  empty: no passages. random: passages of the corpus, drawn by the query and the seed. shuffled: what the retriever
  finds for another question, without golds in common, also drawn by question and query. oracle: the supporting passages
  that the episode has not seen, then the retriever's, k together; a question without known ones is not asked.

  Args:
    corpus: the retriever's corpus; None if it is behind an address or joins several indexes.
  """
  are_known = any(supporting(one, corpus) for one in examples)
  return {
    EMPTY: _nothing,
    RANDOM: "the corpus is not on this machine" if corpus is None else _drawn(corpus, seed),
    SHUFFLED: _of_others(examples, seed) if len({one.golds for one in examples}) > 1 else "all golds are the same",
    ORACLE: _gold_first(corpus) if are_known else "no row has its supporting passages",
  }


def supporting(example: Example, corpus: Any) -> list[Passage]:
  """The supporting passages of a question: those of its row, or those of the corpus with its gold ids."""
  result = list(episodes.gold_passages(example))
  if result or corpus is None:
    return result
  rows = (corpus.row_of(str(name)) for name in example.meta.get("gold_ids") or ())
  return [corpus[row] for row in rows if row is not None]


async def _nothing(tools, example, query, k, shown) -> Sequence[Passage]:
  return ()


def _drawn(corpus: Any, seed: int) -> Find:
  async def find(tools, example, query, k, shown):
    rows = random.Random(f"{seed} {query}").sample(range(len(corpus)), min(k, len(corpus)))
    return [corpus.scored(row, 0.0) for row in rows]

  return find


def _of_others(examples: Sequence[Example], seed: int) -> Find:
  golds = lambda example: {gold.casefold() for gold in example.golds}

  async def find(tools, example, query, k, shown):
    first = random.Random(f"{seed} {example.id} {query}").randrange(len(examples))
    others = (examples[(first + step) % len(examples)] for step in range(len(examples)))
    other = next((one for one in others if golds(one).isdisjoint(golds(example))), None)
    return () if other is None else await tools.search(other.question, k)

  return find


def _gold_first(corpus: Any) -> Find:
  async def find(tools, example, query, k, shown):
    unseen = {_key(one): one for one in supporting(example, corpus) if _key(one) not in shown}
    for one in await tools.search(query, k):
      unseen.setdefault(_key(one), one)
    return list(unseen.values())[:k]

  return find


def _key(passage: Passage) -> tuple[str, str]:
  return passage.title, passage.text
