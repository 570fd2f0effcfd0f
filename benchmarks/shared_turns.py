r"""Which share of a group's tokens repeats a sibling's prefix, step by step, from the episodes that a run logged.

Run:    python benchmarks/shared_turns.py WORKDIR [--every 1]
Expect: docs/real_model.md.

  tokens   of all episodes of the step's groups, a mean per group
  prompt   share that repeats the group's prompt
  prefix   share of the other tokens that also repeats: token and all tokens before it are a sibling's (same words, same
           query, same results). Rows with learner.share_prompts compute none of them again (tree_rows.py)
  results  share of the tokens of search results whose whole segment a sibling has too, whatever stands before it.
           They cannot be shared where the words before them differ
"""

import argparse
import collections
from collections.abc import Sequence

from ragrl_jax import structs
from ragrl_jax.store import episodes as episodes_lib


def tree(rows: Sequence[Sequence[int]]) -> int:
  """Different prefixes of the rows: the tokens that rows as trees hold."""
  ordered = sorted(map(tuple, rows))
  common = lambda a, b: next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
  return sum(len(row) - common(before, row) for before, row in zip([(), *ordered], ordered))


def group(episodes: Sequence[structs.Episode]) -> dict[str, int]:
  """Counts of tokens of one group."""
  rows = [[token for s in e.segments for token in s.ids] for e in episodes]
  prompts = [sum(len(s.ids) for s in e.segments[: next(_said(e), 0)]) for e in episodes]
  # What all have in common before any of them says a token.
  least = min(prompts)
  shared = next((i for i in range(least) if len({row[i] for row in rows}) > 1), least)
  results = collections.Counter(
    s.ids for e in episodes for s in e.segments[next(_said(e), 0) :] if s.owner != structs.MODEL and s.ids
  )
  return dict(
    tokens=sum(map(len, rows)),
    prompt=shared * (len(rows) - 1),
    tree=tree(rows),
    results=sum(len(ids) * times for ids, times in results.items()),
    repeated=sum(len(ids) * (times - 1) for ids, times in results.items()),
  )


def _said(episode: structs.Episode):
  return (i for i, s in enumerate(episode.segments) if s.owner == structs.MODEL)


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("workdir")
  cli.add_argument("--every", type=int, default=1, help="steps between two lines")
  args = cli.parse_args()
  print(f"{'step':>6s}{'groups':>8s}{'tokens':>8s}{'prompt':>8s}{'prefix':>8s}{'results':>9s}")
  whole = collections.Counter()
  for step, path in sorted(episodes_lib.steps(args.workdir).items()):
    groups = collections.defaultdict(list)
    for row in episodes_lib.read_episodes(path):
      groups[row["prompt_index"]].append(episodes_lib.episode_of(row))
    result = collections.Counter(groups=len(groups))
    for members in groups.values():
      result.update(group(members))
    whole += result
    if step % args.every == 0:
      show(step, result)
  if whole:
    show("all", whole)


def show(name, c):
  computed = c["tokens"] - c["prompt"]
  print(
    f"{name:>6}{c['groups']:8d}{c['tokens'] / c['groups']:8.0f}{c['prompt'] / c['tokens']:8.3f}"
    f"{(computed - c['tree']) / computed:8.3f}{c['repeated'] / max(c['results'], 1):9.3f}"
  )


if __name__ == "__main__":
  main()
