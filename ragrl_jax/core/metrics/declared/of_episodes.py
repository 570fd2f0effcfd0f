"""Metrics of the episodes of a step, and of their groups."""

from ragrl_jax.core.metrics.declared.metric import Metric

EPISODES = (
  Metric(
    "reward",
    "reward",
    "weighted sum of the terms, mean of episodes",
    "constant: see `zero_spread_groups`, then read episodes. Rises while `evaluation/em` does not: the policy "
    "exploits a term",
  ),
  Metric(
    "term/NAME",
    "reward",
    "one reward term, unweighted, mean of the episodes in which it could be scored",
    "a term stuck at 0 or 1 teaches nothing",
  ),
  Metric(
    "pooled/TERM",
    "share",
    "for a term that is a mean over an episode's pairs: the mean verdict over the pairs of all episodes. Episodes "
    "without a pair, whose term is 0, are left out",
    "far above `term/NAME`: many episodes have no pair, since they do not search",
  ),
  Metric("weight/NAME", "weight", "its weight at this step"),
  Metric(
    "unearned/TRICK",
    "share",
    'share of episodes with a trick that the published reward pays although it is not worth it: see "Unearned '
    "reward\" in the recipe's README, with the names",
    "rises with `reward` while `outcome` does not: set `config.switches.guarded=True`",
  ),
  Metric(
    "measure/NAME",
    "see there",
    "other measures of the recipe's paper, mean over the episodes in which they are known; the recipe's README has "
    "names and units",
  ),
  Metric(
    "outcome",
    "share",
    "share of episodes with a right answer, without shaping",
    "falls while `reward` rises: the weights reward something else",
  ),
  Metric(
    "searches",
    "count",
    "executed searches per episode",
    "0 with a recipe that searches: the stop string is never sampled. Rises to the limit: searches cost nothing",
  ),
  Metric(
    "response_tokens",
    "tokens",
    "tokens that the model wrote per episode",
    "falls to a few tokens: collapse. Rises to the budget: see `ended/length`",
  ),
  Metric(
    "episode_tokens",
    "tokens",
    "all tokens of an episode, prompt and results included",
    "near `rollout.context`: episodes end for lack of room",
  ),
  Metric("advantage_abs", "reward", "mean of episodes of abs(advantage)", "near 0: nothing to learn from"),
  Metric(
    "zero_spread_groups",
    "share",
    "share of groups whose samples all have the same reward",
    "above 0.9: questions are too easy or too hard, or the temperature is too low",
  ),
  Metric(
    "ended/WHY",
    "share",
    "share of episodes with this ending: `answer`, `eos`, `length` (a turn's budget), `budget` (no room for another "
    "turn), `searches` (the last allowed turn did not answer), `turns` (it called tools instead), `requests` (an "
    "agent's program asked too often), `silent` (the program asked nothing), `extract` (LEAR's evidence), `failed`; "
    "else the stop string of the last turn",
    "`length` and `budget` should be rare; raise `rollout.max_new_tokens`, `rollout.context`",
  ),
  Metric("episodes", "count", "episodes trained on in this step"),
  Metric(
    "failed_share",
    "share",
    "share of episodes in which a tool failed after all retries; they are masked, never scored as 0",
    "above `retrieval.max_failed_share` (or `judge.max_failed_share` if judges failed or gave no verdict) the run "
    "stops",
  ),
  Metric(
    "unscorable", "count", "number of episodes without a reward, failed ones included; they are in no mean and no loss"
  ),
  Metric(
    "unjudged",
    "count",
    "number of episodes that did not fail but have no outcome, because the judge gave no verdict; they are not in the"
    " mean of `outcome`",
    "above 0 for many steps: the judge's answers cannot be parsed; read them",
  ),
)

# With `rollout.filter` (dynamic sampling).
GROUPS = (
  Metric(
    "groups/draws groups/drawn",
    "count",
    "draws of this step, each of as many prompts as are missing over the share kept lately; prompts in them",
    "drawn is always `rollout.filter.max_draws` · `prompts_per_step`: see `groups/missing`",
  ),
  Metric(
    "groups/discarded_share",
    "share",
    "share of the drawn groups without spread (all samples equal), which are discarded",
    "above 0.8: questions are too easy or too hard",
  ),
  Metric(
    "groups/metric",
    "reward",
    "mean of `rollout.filter.metric` over all drawn episodes, discarded groups included; not logged without a filter",
    "`outcome` and `reward` cover only the kept groups; this metric shows how good the policy is",
  ),
  Metric(
    "groups/trained groups/missing",
    "count",
    "groups trained on; `rollout.prompts_per_step` minus that number",
    "missing above 0: raise `rollout.filter.max_draws` or `group_size`. With 0 trained groups the step changes "
    "nothing, and a warning says so",
  ),
  Metric(
    "groups/surplus",
    "count",
    "groups with a spread beyond those that the step needed: discarded, or used by the next step",
  ),
  Metric("groups/stale", "groups", "trained groups sampled by older weights"),
  Metric("staleness", "steps", "mean number of steps by which groups are older, at most 1"),
)
