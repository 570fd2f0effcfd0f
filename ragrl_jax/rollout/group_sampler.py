"""Samples the groups that a step trains on, with DAPO's dynamic sampling.

A group whose samples are all right, or all wrong, has no gradient. So prompts are drawn and played until enough groups
have a spread, or until the step may draw no more. Then the step trains on the groups it has. The size of a draw is the
number of missing groups, divided by the share of groups that were kept recently.

    prompts_per_step = 2:   draw 1 → groups 0 1, group 0 has no spread   kept: 1
                            draw 2 → groups 2 3, both have one           kept: 1 2, surplus: 3

When sampling ahead, one version of the weights samples two steps. The prompts of the second step are started behind
those of the first. So the engine waits for its longest episode only once in two steps, and the first step is learned
during this wait:

    weights 0: take(1), sample_next(2), take(2)
    weights 2: take(3), sample_next(4), take(4)
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ragrl_jax.core import groups as groups_lib
from ragrl_jax.rollout.collect import OnEpisode, Request
from ragrl_jax.rollout.dispatch import Work
from ragrl_jax.rollout.timings import Timings
from ragrl_jax.settings import Filter
from ragrl_jax.store import episodes as episodes_lib
from ragrl_jax.structs import NO_VERDICT, Episode, Example

MAX_STALENESS = 1  # most steps between the weights that sampled an episode and those that train on it

Group = tuple[Episode, ...]  # the samples of one prompt


class TooManyFailures(RuntimeError):
  """More of the episodes failed than the config allows."""


@dataclasses.dataclass(frozen=True)
class StepGroups:
  """The groups that a step trains on, in the order drawn, and metrics of the draws."""

  groups: tuple[Group, ...]
  metrics: Mapping[str, float]

  @property
  def episodes(self) -> list[Episode]:
    """The episodes of all groups, in order."""
    return [episode for group in self.groups for episode in group]


@dataclasses.dataclass(frozen=True)
class NextStep:
  """What is known of the coming step. If it is sampled ahead, it is drawn, then played, then has groups.

  Attributes:
    draw: its first draw: first prompt, number of prompts.
    playing: session, its stack and the started draw, while the episodes are played.
    groups: the groups that it trains on.
    weights: older weights that have to sample it, because a tool failed while they did; None: its own.
  """

  draw: tuple[int, int] | None = None
  playing: tuple[Any, contextlib.ExitStack, Any] | None = None
  groups: StepGroups | None = None
  weights: Any = None


class GroupSampler:
  """Samples the groups of one step after another.

  Args:
    rollout: a Rollout: its `session` plays the episodes, `report` has their timings.
    draw: (cursor, count) → (running number of the prompt, position of its example) for `count` prompts.
    measure: (examples, episodes, step) → the filter's metric of each episode; None if it cannot be scored.
    max_failed_share: the run stops if a search or an encoder failed in more than this share of a step's episodes.
    max_unjudged_share: the run stops if more than this share of them got no verdict.
    ahead: one version of the weights samples two steps, the second one beside the first one's update.
    on_episode: called with each episode when it ends, as by `Rollout.session`.

  Attributes:
    cursor: number of prompts drawn so far.
    next: the coming step.
    report: timings since the last call of `reported`.
  """

  def __init__(
    self,
    rollout,
    examples: Sequence[Example],
    draw: Callable[[int, int], Sequence[tuple[int, int]]],
    measure: Callable[[Sequence[Example], Sequence[Episode], int], Sequence[float | None]],
    *,
    prompts_per_step: int,
    group_size: int,
    filter: Filter,
    max_failed_share: float,
    max_unjudged_share: float = 0.5,
    ahead: bool = False,
    on_episode: OnEpisode | None = None,
  ):
    self._told = {} if on_episode is None else dict(on_episode=on_episode)
    self._rollout, self._examples, self._draw, self._measure = rollout, examples, draw, measure
    self._prompts, self._group_size, self._filter = prompts_per_step, group_size, filter
    self._max_failed_share, self._max_unjudged_share = max_failed_share, max_unjudged_share
    self.ahead, self.cursor, self.next = ahead, 0, NextStep()
    self._taken = 0  # the cursor after the last `take`
    self.report = Timings()
    self._surplus: tuple[Group, ...] = ()
    self._seen = (0, 0)  # groups kept and groups drawn, by the newest step that has drawn any

  def take(self, step: int, *, last: bool = False) -> StepGroups:
    """The groups that this step trains on: those sampled ahead for it, or else groups sampled now.

    There are prompts_per_step of them, or fewer (even none) if the filter's max_draws is reached. The surplus of an
    earlier step comes first, because it was drawn first.

    Args:
      last: the run's last step. When sampling ahead, other steps that are sampled now by their own weights also start
        the next one behind them; `sample_next` finishes it, or `close` ends it.

    Raises:
      TooManyFailures: a tool is down.
      ValueError: an episode is older than MAX_STALENESS allows.
    """
    current, self.next, self._taken = self.next, NextStep(), self.cursor  # each group is trained on once
    if current.groups is not None:
      return _checked(step, current.groups)
    if self._surplus and self._filter.metric != "none":  # a stage that begins with this step may pay its samples alike
      self._surplus = tuple(self._with_spread(self._surplus, step)[0])
    with contextlib.ExitStack() as stack:
      session, missing = stack.enter_context(self._session()), self._prompts - len(self._surplus)
      first = self._start(session, step, current.draw or self._next_draw(missing)) if missing > 0 else None
      ahead, started = self.ahead and not last and current.weights is None, None
      if ahead:
        self.next = NextStep(self._next_draw(self._prompts))
        started = self._start(session, step + 1, self.next.draw)
      result, self._taken = _checked(step, self._gather(session, step, first, None)), self.cursor
      if ahead:
        self.next = dataclasses.replace(self.next, playing=(session, stack.pop_all(), started))
    return result

  def sample_next(self, step: int, work: Work) -> None:
    """Samples the groups of the coming step, which `take` has started, beside other work.

    Raises:
      TooManyFailures: a tool is down. `take` can still sample the groups once the engine has these weights again.
    """
    draw, cursor = self.next.draw, self.cursor
    (session, stack, first), self.next = self.next.playing, NextStep(draw)
    with stack:
      try:
        self.next = NextStep(groups=self._gather(session, step, first, work))
      except TooManyFailures:
        self.cursor = cursor
        raise

  def close(self) -> None:
    """Ends the sampling that `take` has started, after an error."""
    if self.next.playing is not None:
      (_, stack, _), self.next = self.next.playing, NextStep(self.next.draw)
      stack.close()

  def example(self, episode: Episode) -> Example:
    """The example that an episode answers."""
    ((_, place),) = self._draw(episode.prompt_index, 1)
    return self._examples[place]

  def reported(self) -> Timings:
    """Timings since the last call."""
    report, self.report = self.report, Timings()
    return report

  # ---- checkpoints ---------------------------------------------------------------------------------------------------

  def saved(self) -> dict[str, Any]:
    """The cursor, the counts of the last draws, and the groups not yet trained on, as JSON for a checkpoint."""
    groups, draw = self.next.groups, self.next.draw
    ahead = groups and dict(groups=_to_json(groups.groups), metrics=dict(groups.metrics))
    return dict(cursor=self.cursor, surplus=_to_json(self._surplus), ahead=ahead, coming=draw, seen=list(self._seen))

  def restore(self, state: Mapping[str, Any]) -> None:
    """Restores what `saved` returned. Raises ValueError if the config draws another question for a saved group now."""
    self.cursor = state["cursor"]
    self._surplus = self._from_json(state["surplus"])
    ahead = state["ahead"]
    draw, self._seen = state["coming"], tuple(state["seen"])
    groups = ahead and StepGroups(self._from_json(ahead["groups"]), ahead["metrics"])
    self.next = NextStep(draw and tuple(draw), groups=groups)

  def forget(self, state: Mapping[str, Any]) -> None:
    """Throws away all groups not yet trained on, because the run returns to older weights, and goes on after `take`.

    The next questions are those that would have come, whether or not `sample_next` has asked some of them.

    Args:
      state: the state that `saved` returned when the run had these weights; only the counts of its draws are used.
    """
    self.cursor, self.next, self._surplus, self._seen = self._taken, NextStep(), (), tuple(state["seen"])

  def _from_json(self, groups) -> tuple[Group, ...]:
    result = tuple(tuple(episodes_lib.of_record(record) for record in group) for group in groups)
    # One episode per group is enough, because its samples share the prompt.
    for episode in (group[0] for group in result):
      if (now := self.example(episode).id) != episode.example_id:
        raise ValueError(
          f"the checkpoint holds samples of prompt {episode.prompt_index} for example {episode.example_id!r}; with "
          f"this config that prompt is example {now!r}. config.data.train, max_examples or seed have changed: put them "
          "back, or start in a new workdir."
        )
    return result

  # ---- drawing -------------------------------------------------------------------------------------------------------

  @contextlib.contextmanager
  def _session(self) -> Iterator[Any]:
    try:
      with self._rollout.session(**self._told) as session:
        yield session
    finally:
      self.report.add(self._rollout.report)

  def _next_draw(self, missing: int, kept: int = 0, drawn: int = 0) -> tuple[int, int]:
    """The next draw (its first prompt, number of prompts) of a step that has kept and drawn so many groups."""
    # Of 6 recent groups 2 were kept, and 2 are missing: the draw asks for 2 · 7 / 3, so 5. Both counts start with 1,
    # so that the first share is 1 and no share is 0.
    kept, seen = 1 + kept + self._seen[0], 1 + drawn + self._seen[1]
    size = min(-(-missing * seen // kept), self._filter.max_draws * self._prompts - drawn)
    self.cursor += size
    return self.cursor - size, size

  def _start(self, session, step: int, draw: tuple[int, int]) -> Any:
    # The samples of a prompt are next to each other, so that the engine computes the prompt once.
    drawn, samples = self._draw(*draw), range(self._group_size)
    requests = [Request(self._examples[place], index, sample) for index, place in drawn for sample in samples]
    return session.start(requests, step=step)

  def _gather(self, session, step: int, started: Any, work: Work | None) -> StepGroups:
    """A step's groups. `started` is its first draw; None if that is yet to be made, or if the surplus suffices."""
    # dull: groups without a spread. values: the metric of every episode that could be scored.
    kept, drawn, dull, values, draws = list(self._surplus[: self._prompts]), [], 0, [], 0
    while len(kept) < self._prompts and len(drawn) < self._filter.max_draws * self._prompts:
      if started is None:
        draw = self._next_draw(self._prompts - len(kept), len(drawn) - dull, len(drawn))
        started = self._start(session, step, draw)
      episodes, started, draws = session.finish(started, work), None, draws + 1
      fresh = [tuple(episodes[at : at + self._group_size]) for at in range(0, len(episodes), self._group_size)]
      drawn += fresh
      # The share is over all draws of the step, because a draw of few groups says little.
      refuse_failures([e for group in drawn for e in group], self._max_failed_share, self._max_unjudged_share)
      if self._filter.metric != "none":
        spread, scores = self._with_spread(fresh, step)
        dull += len(fresh) - len(spread)
        values += scores
        fresh = spread
      kept += fresh
    surplus = kept[self._prompts :]
    # Kept groups are saved with the checkpoint, so a resumed run trains on the same ones.
    self._surplus = tuple(surplus) if self._filter.surplus == "keep" else ()
    if drawn:
      self._seen = len(drawn) - dull, len(drawn)
    metrics = {
      "groups/draws": draws,
      "groups/drawn": len(drawn),
      "groups/discarded_share": dull / max(len(drawn), 1),
      "groups/surplus": len(surplus),
      "groups/missing": max(0, self._prompts - len(kept)),
    }
    if values:
      metrics["groups/metric"] = float(np.mean(values))
    return StepGroups(tuple(kept[: self._prompts]), {name: float(x) for name, x in metrics.items()})

  def _with_spread(self, groups: Sequence[Group], step: int) -> tuple[list[Group], list[float]]:
    """The groups whose known values differ, and all known values.

    Source: DAPO (arXiv 2503.14476) sec. 3.2. DAPO and verl keep a group of one; here it goes, as it has no signal.
    """
    episodes = [episode for group in groups for episode in group]
    values = self._measure([self.example(episode) for episode in episodes], episodes, step)
    known: dict[int, list[float]] = {}
    for episode, value in zip(episodes, values, strict=True):
      if value is not None:  # an episode without a score neither makes nor hides a spread
        known.setdefault(episode.prompt_index, []).append(value)
    tolerance = self._filter.tolerance
    spread = {prompt for prompt, own in known.items() if not groups_lib.equal(own, tolerance=tolerance)}
    return [g for g in groups if g[0].prompt_index in spread], [value for value in values if value is not None]


def _checked(step: int, groups: StepGroups) -> StepGroups:
  """Adds the groups' ages to the metrics, and refuses groups that are too old."""
  # Step s trains weights of version s − 1, so groups sampled by these weights are 0 steps old.
  ages = [step - 1 - group[0].version for group in groups.groups]
  if max(ages, default=0) > MAX_STALENESS:
    raise ValueError(
      f"step {step} would train on episodes that weights {max(ages)} steps old have sampled; at most {MAX_STALENESS} "
      "is allowed. The checkpoint's groups are not those of its step: start in a new workdir."
    )
  return dataclasses.replace(
    groups,
    metrics={
      **groups.metrics,
      "groups/trained": float(len(ages)),
      "groups/stale": float(sum(age > 0 for age in ages)),
      "staleness": float(np.mean(ages)) if ages else 0.0,
    },
  )


def refuse_failures(episodes: Sequence[Episode], share: float, unjudged_share: float) -> None:
  """Stops the run if a tool is down. A few episodes without a reward are masked; many would prevent training."""
  # Failures of judges and searches are counted separately: each has its own limit and its own advice.
  unjudged = [episode.facts[NO_VERDICT] for episode in episodes if NO_VERDICT in episode.facts]
  failed = [episode.failure for episode in episodes if episode.ended == "failed" and NO_VERDICT not in episode.facts]
  if len(failed) > share * len(episodes):
    raise TooManyFailures(
      f"{len(failed)} of {len(episodes)} episodes failed, more than config.retrieval.max_failed_share={share}. The "
      f"first said: {failed[0].rstrip('.')}. See that what it names answers (retriever, tool, agent's "
      "program or model's server), or raise its timeout_s and retries (of config.retrieval, switches or endpoint)."
    )
  if len(unjudged) > unjudged_share * len(episodes):
    raise TooManyFailures(
      f"{len(unjudged)} of {len(episodes)} episodes have no verdict, more than config.judge.max_failed_share="
      f"{unjudged_share}. The first one's reason: {unjudged[0].rstrip('.')}. See that the judge answers "
      "as its prompt asks, or raise config.judge.timeout_s and retries."
    )


def _to_json(groups: Sequence[Group]) -> list[list[dict[str, Any]]]:
  return [[episodes_lib.record(episode) for episode in group] for group in groups]
