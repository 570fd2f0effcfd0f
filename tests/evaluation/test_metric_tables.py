import pytest

from ragrl_jax.core.metrics import searches as searches_lib
from ragrl_jax.report import metric_tables

RETRIEVAL = dict(index="wiki", top_k=3, encoder=dict(kind="hashing", dim=512), options="", rows=13650)
RETRIEVAL |= dict(made="e16c8d68609a72e5f6ae43", checksum="c3ec80521f350ccd8732eb")


def of(*searches, golds=("g1", "g2")):
  """What is read from a row with these searches: (query, ids found)."""
  segments = [{"owner": "environment", "text": "prompt"}]
  for query, ids in searches:
    segments.append({"owner": "model", "text": f"<search>{query}</search>"})
    segments.append({"owner": "environment", "text": "…", "query": query, "found": [{"id": i} for i in ids]})
  return searches_lib.in_row({"segments": segments, "gold_ids": None if golds is None else list(golds)})


@pytest.mark.parametrize("searches, verdicts", [
  ([], []), ([("a", ["g1", "x"]), ("b", ["g2"])], ["gold", "gold"]), ([("a", ["x"])], ["no gold"]),
  # The second search finds g1 again, which was shown already; or g2, too, which is new.
  ([("a", [])], ["no gold"]), ([("a", ["g1"]), ("b", ["g1", "x"])], ["gold", "no gold"]),
  ([("a", ["g1"]), ("b", ["g1", "g2"])], ["gold", "gold"]), ([("x", ["g1"]), (" X ", ["g2"])], ["gold", "repeat"]),
  # A query that differs only in case, spaces and forms of Unicode is a repetition, even if it finds something new.
  ([("Where is  Kel", ["x"]), (" where is kel ", ["g1"])], ["no gold", "repeat"]),
  ([("O'Neill's \"1939-40\"", ["x"]), ("O’Neill‘s\u00a0“１９３９–４０”", ["g1"])], ["no gold", "repeat"]),
  # As in When to Search's reward.
  ([("capital_of_Kel", ["x"]), ("c\u0430pital of Kel", ["g1"])], ["no gold", "repeat"]),
])  # fmt: skip
def test_verdicts_on_searches(searches, verdicts):
  assert searches_lib.verdicts(*of(*searches)) == verdicts
  assert searches_lib.wasted_searches(*of(*searches)) == sum(verdict != "gold" for verdict in verdicts)


def test_without_gold_ids_only_repetitions_are_wasted_and_without_gold_all():
  unknown = of(("a", ["x"]), ("A", ["x"]), ("y", ["x"]), golds=None)
  assert searches_lib.verdicts(*unknown) == ["unknown", "repeat", "unknown"]
  assert searches_lib.wasted_searches(*unknown) is None
  assert searches_lib.wasted_searches(*of(("a", ["x"]), golds=())) == 1


def scores(em, interval, one, two, **more):
  of = {"by_hops": {"1": {"n": 4, "em": one}, "2": {"n": 6, "em": two}}, "by_source": {"world": {"n": 10, "em": em}}}
  return {"n": 10, "em": em, "em_interval": interval} | of | more


BEFORE = scores(0.25, [0.1, 0.4], 0.5, 0.0, f1=0.3, searches=1.0)
AFTER = scores(0.75, [0.6, 0.9], 1.0, 0.5, f1=0.8, wasted_searches=0.1, counted=dict(wasted_searches=7))


def test_comparison_by_hop_and_source_and_with_gaps():
  rows = {row["label"].strip(): row for row in metric_tables.comparison(BEFORE, AFTER)}
  # With one source there are no sources to compare.
  assert list(rows) == ["Exact match", "1-hop", "2-hop", "F1", "Searches per question", "Wasted searches per question"]
  assert rows["Exact match"]["before"] == {"value": 0.25, "low": 0.1, "high": 0.4}
  assert rows["2-hop"]["after"] == {"value": 0.5, "low": None, "high": None} and rows["2-hop"]["n"] == 6
  assert rows["Searches per question"]["after"] is rows["Wasted searches per question"]["before"] is None
  # A mean over some of the questions says over how many, and two sides with other numbers of questions say both.
  assert rows["Exact match"]["n"] == 10 and rows["Wasted searches per question"]["n"] == 7
  assert [row["n"] for row in metric_tables.comparison(BEFORE | dict(n=9.0), AFTER)] == ["9, 10", 4, 6, "9, 10", 9, 7]
  assert metric_tables.comparison(None, None) == []
  # The text table is aligned.
  lines = metric_tables.text_table(metric_tables.comparison(BEFORE, AFTER)).splitlines()
  assert lines[2].split("   ")[0] == "Exact match"
  assert "0.250  [0.100, 0.400]" in lines[2] and "0.750  [0.600, 0.900]" in lines[2]
  assert {len(line) for line in lines[2:]} == {len(lines[1])}  # the counts are aligned
  assert len({line.index("0.") for line in lines[2:5]}) == 1
  # Several sources are followed by their mean.
  several = {"n": 4, "em": 0.25, "macro": {"em": 0.5}}
  several["by_source"] = {"a": {"n": 3, "em": 0.0}, "b": {"n": 1, "em": 1.0}}
  rows = metric_tables.comparison(BEFORE, several)
  assert [row["label"].strip() for row in rows[3:7]] == ["a", "b", "world", "mean of the sources"]
  mean = {"value": 0.5, "low": None, "high": None}
  assert rows[6] == {"label": "   mean of the sources", "n": None, "before": None, "after": mean}
  assert "mean of the sources   0.500" in metric_tables.one(several)
  # A row's set and a retriever's own name are anybody's text.
  several["by_source"]["\x1b]0;x\x07"] = several["by_source"].pop("b")
  said = metric_tables.one(several | {"settings": {"retrieval": {"server": {"kind": "a\x1b[2Jb"}}}})
  assert "\x1b" not in said and r"\x1b]0;x\x07" in said and r"retrieval: server a\x1b[2Jb" in said


def test_one_evaluation_shows_its_settings():
  more = {"failed": 2, "seconds": 3.21, "seconds_cover": 10, "peak_memory": {"host": 2**30}}
  more["settings"] = {"retrieval": RETRIEVAL, "sampling": "greedy", "checkpoint": "m"}
  text = metric_tables.one(AFTER | more)
  assert "Exact match" in text and "0.750  [0.600, 0.900]" in text and "n 10" in text
  assert "2 questions failed" in text and "retrieval: index wiki, top_k 3, encoder hashing, rows 13,650\n" in text
  spent = {"seconds": 9.0, "seconds_cover": 3, "peak_memory": {}, "devices": "2 x TPU v6e", "price": 0.01234}
  assert "9.0 s for 3 questions on 2 x TPU v6e, price 0.01234; peak" in metric_tables.one(AFTER | spent)
  assert "3.2 s for 10 questions; peak memory: host 1.00 GiB" in text and "one at a time" not in text
  assert "0.250 s from a question to its answer, one at a time" in metric_tables.one(AFTER | {"latency": 0.25})
