"""Scores a checkpoint, or a model behind a server, on questions: the rooms of training without the learner.

Read `evaluate` for a checkpoint on disk, `evaluator` for the held-out questions during training.
"""

import logging
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from flax import nnx

from ragrl_jax import settings as settings_lib, structs
from ragrl_jax.evaluation import answer_files, harness
from ragrl_jax.jobs import checkpoints
from ragrl_jax.models import hub
from ragrl_jax.parallel import hosts
from ragrl_jax.prompting import chat
from ragrl_jax.rollout import collect, group_sampler
from ragrl_jax.run import (
  contents,
  endpoint_player,
  player as player_lib,
  prepared as prepared_lib,
  progress,
  questions,
  rewards,
)
from ragrl_jax.settings import Settings, fields
from ragrl_jax.store import addresses, changes, jsonl, versions


def evaluate(
  config,
  checkpoint: str | pathlib.Path | None,
  data: str,
  out: str | pathlib.Path,
  *,
  sample: bool = False,
  seeds: int = 1,
  chosen_by: str = "",
  progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
  """Scores every question of `data` once; writes out/predictions.jsonl and out/metrics.json; returns the latter.

  Answers are greedy. With `sample`, or with several seeds, they are sampled with the settings of config.rollout. After
  a kill the same call continues.

  Args:
    config: recipe, retrieval and sizes (`ragrl_jax.Config`), in which the checkpoint's model replaces the model. None:
      the settings of the checkpoint's run.
    checkpoint: a Hugging Face folder, a PEFT folder with adapters, a name on the hub, a run's folder (its finished
      `model/`, else its newest checkpoint), or one step of a run, RUN/checkpoints/40. None: the model of
      config.endpoint answers.
    data: questions, as in config.data.train; config.data.max_examples limits them.
    seeds: number of answers to each question, with different random numbers. Seed 0 answers as `sample` does. With
      several seeds, the results are in `out`/seed_0 and so on, and out/metrics.json has means and deviations.
    chosen_by: the metric by which `best` chose the checkpoint, stored with the score.
    progress: called with (answers, total).

  Raises:
    ValueError, FileNotFoundError: an input cannot be read, or `out` has results of another evaluation.
    ConnectionError: the model's server refuses every question.
    harness.TooManyFailures: the retriever, a judge or the model's server is down.
  """
  if type(seeds) is not int or seeds < 1:
    raise ValueError(f"seeds={seeds!r}: it must be a whole number of at least 1.")
  answer_files.folders(pathlib.Path(out), seeds)  # refuses other results before a model is loaded
  sample = sample or seeds > 1
  config, player, examples, answers = opened(config, checkpoint, data, out)
  out = pathlib.Path(out)
  # Earlier results with the same settings are continued.
  answers |= dict(chosen_by=chosen_by) if chosen_by else {}
  settings = dict(**answers, data=str(data), questions=len(examples), **described(config, player, sample=sample))
  answered = lambda done: progress(done, len(examples) * seeds)
  return harness.evaluate(
    examples, play(player, greedy=not sample), player.recipe, out, settings=settings, seeds=seeds, progress=answered,
    **limits(config),
  )  # fmt: skip


def limits(config: Settings) -> dict[str, Any]:
  """The arguments of `harness.evaluate` that the settings determine."""
  return dict(
    batch=batch_of(config),
    max_failed_share=config.retrieval.max_failed_share,
    max_unjudged_share=config.judge.max_failed_share,
    # Behind a server, what answers has a price per token (`endpoint_player.priced`).
    **({} if config.endpoint.model else dict(devices=versions.devices(), price_per_hour=config.log.price_per_hour)),
  )


def settled(config, checkpoint: str | pathlib.Path | None) -> Settings:
  """The typed settings of `evaluate`'s `config`: without one, those of the checkpoint's run."""
  return settings_lib.of(checkpoints.config_of(checkpoint or "") if config is None else config)


def opened(
  config, checkpoint: str | pathlib.Path | None, data: str, out: str | pathlib.Path
) -> tuple[Settings, player_lib.Answerer, Sequence[structs.Example], dict[str, Any]]:
  """What an evaluation consists of: (settings, player with weights, questions, what identifies who answers).

  Arguments and errors are those of `evaluate`.
  """
  config = settled(config, checkpoint)
  if (checkpoint is None) != bool(config.endpoint.model):
    raise ValueError(
      "either a checkpoint answers (--checkpoint) or a model behind a server (config.endpoint.model): name one of them."
    )
  # ---- settings and questions: everything that can be refused before weights and index are read ---------------------
  if checkpoint is None:  # a server has the weights, so there are no shape and no devices to prepare
    config = hub.pinned(config, training=False)
    source, prepared, recipe = None, None, prepared_lib.recipe(config)
    endpoint_player.check(config, recipe)
  else:
    checkpoint = hub.with_commit(checkpoint, "--checkpoint")
    config, source = checkpoints.chosen(config, checkpoint)
    config = hub.pinned(config, training=False)  # not before: the run's own model may be here no more
    prepared = prepared_lib.prepare(config, purpose="play")
    recipe = prepared.recipe
  examples = questions.testing(config, data, max_examples=config.data.max_examples)
  if len(examples) == config.data.max_examples:  # which may have been meant for the run's training
    logging.warning("--data=%s: its first %d questions are asked (config.data.max_examples).", data, len(examples))
  questions.check_passages(config, recipe, examples, str(data))
  questions.say_trained_on(config, examples, f"--data={data}", hub=False)

  def fitting(reader: player_lib.Answerer | prepared_lib.Prepared) -> Sequence[structs.Example]:
    result = questions.fitting(config, reader, examples)
    questions.check_room(config, reader.tokenizer, reader.recipe, result, str(data))
    return result

  # ---- the rooms are built, with a server's address or with weights --------------------------------------------------
  if prepared is None:
    asked = endpoint_player.build(config, recipe, pathlib.Path(out) / "answers.sqlite")
    return config, asked, fitting(asked), dict(model=config.endpoint.model, endpoint=dict(asked.described))
  assert source is not None
  examples, player = fitting(prepared), player_lib.build(prepared)
  checkpoints.load(player, source)
  weights = checkpoints.fingerprint(nnx.split(player.model)[1])
  return config, player, examples, dict(checkpoint=str(checkpoint), weights=weights)


# Settings that change the answers. They are stored with a score if they are not the default.
DEFAULTS = Settings()
OTHERS = (
  "model.dtype",
  "prompting.chat",
  "prompting.markers",
  "prompting.tokenizer",
  "retrieval.query_encoder",
  "rollout.kv_dtype",
)


def described(config: Settings, player: player_lib.Answerer, *, sample: bool) -> dict[str, Any]:
  """The settings that are stored with a score. All results in a folder must have the same ones."""
  # Settings that only change the speed, such as lanes and chunks, are not included.
  r = config.rollout
  sampling = dict(temperature=r.temperature, top_k=r.top_k, top_p=r.top_p, seed=config.seed)
  retrieval = None
  if player.retriever is not None:
    index = addresses.without_credentials(config.retrieval.index)
    retrieval = dict(index=index, top_k=config.retrieval.top_k, **player.retriever.describe())
  texts = changes.digests(changes.wordings(changes.values(config)))
  program = contents.of_recipe(config.recipe)
  other = {name: value for name in OTHERS if (value := fields.at(config, name)) != fields.at(DEFAULTS, name)}
  for name in ("prompting.tokenizer", "retrieval.query_encoder"):
    if name in other and (digest := contents.of_folder(other[name], name)):
      other[f"{name}{answer_files.DIGEST}"] = digest
  if config.data.noise:  # it draws the passages
    other["seed"] = config.seed
  return dict(
    **versions.library(),
    **(dict(wordings=texts) if texts else {}),
    **(dict(other=other) if other else {}),
    **(dict(program=program) if program else {}),
    recipe=config.recipe,
    preset=config.preset,
    switches=dict(player.recipe.switches),
    sampling=sampling if sample else "greedy",
    noise=config.data.noise,
    own_passages=None if config.data.own_passages else False,
    evidence=config.data.evidence,
    cut_middle=config.data.cut_middle,
    thinking=chat.thinking(player.tokenizer) if config.prompting.thinking == "default" else config.prompting.thinking,
    max_new_tokens=r.max_new_tokens,
    context=r.context,
    reserve=None if r.least_room == r.max_new_tokens else r.least_room,
    retrieval=retrieval,
    judges={term: dict(judge.describe()) for term, judge in player.judges.items()},
  )


def evaluator(config, *, workdir: str | pathlib.Path | None = None) -> progress.Evaluate:
  """For `train(evaluate=…)`: measures held-out questions at config.steps, and every config.evaluate.every steps if set.

  Step 0 is included: the weights before training. A run that `reached` ends earlier is not measured at its end.

  Args:
    config: the run's settings, or what was prepared from them.
    workdir: the run's folder, in which the answers of each step are stored for the report; None stores nothing.

  Raises:
    ValueError: the questions cannot be read or do not fit, or a stage waits for a metric that is never measured.

  Returns:
    (step, player, params) → the metrics under "evaluation/"; empty at a step that is not measured. If more questions
    failed than a step of the run may (max_failed_share), these are only their numbers, and a warning is logged.
  """
  prepared = config if isinstance(config, prepared_lib.Prepared) else None
  if prepared is not None:
    config, recipe = prepared.settings, prepared.recipe
  else:
    config = settings_lib.of(config)
    recipe = prepared_lib.recipe(config)
  steps, interval, batch = config.steps, config.evaluate.every, batch_of(config)
  progress.waits_for_held_out(config, recipe, measured=bool(interval))
  most = config.evaluate.examples
  examples = questions.testing(config, config.data.evaluate, max_examples=most, setting="config.data.evaluate")
  what = f"config.data.evaluate={config.data.evaluate}"
  questions.check_passages(config, recipe, examples, what)
  if prepared is not None:  # now, and not when the run has reached its first evaluation, which may be its end
    fitting = questions.fitting(config, prepared, examples)
    questions.check_room(config, prepared.tokenizer, recipe, fitting, what)
  questions.say_trained_on(config, examples, what, hub=True)

  def evaluate_step(step: int, player: player_lib.Player, params: Any) -> dict[str, Any]:
    due = step == steps or (interval and step % interval == 0)
    if not due:
      return {}
    fitting = questions.fitting(config, player, examples)
    metrics, scored = measure(player, params, fitting, version=step, batch=batch)
    try:
      shares = config.retrieval.max_failed_share, config.judge.max_failed_share
      group_sampler.refuse_failures([one.episode for one in scored], *shares)
    except group_sampler.TooManyFailures as error:  # the scores of the few others would be compared with other steps'
      logging.warning("step %d: its held-out questions are not scored: %s", step, error)
      return harness.flat({name: metrics[name] for name in ("n", "failed", "unjudged")})
    if workdir is not None:
      keep(workdir, step, player.recipe, scored)
    return harness.flat(metrics)

  setattr(evaluate_step, "contents", contents.of_questions(examples))  # noqa: B010 - a function has no such field
  return evaluate_step


def keep(workdir: str | pathlib.Path, step: int, recipe, scored: Sequence[rewards.Scored]) -> None:
  """Stores the answers of one evaluation in a run's folder. The report compares the first with the last."""
  if hosts.is_first():
    folder = pathlib.Path(workdir) / jsonl.EVALUATIONS
    jsonl.write_step(folder, step, [harness.prediction(recipe, one) for one in scored])


def measure(
  player: player_lib.Player,
  params: Any,
  examples: Sequence[structs.Example],
  *,
  version: int = 0,
  batch: int = 256,
  sample: bool = False,
) -> tuple[dict[str, Any], list[rewards.Scored]]:
  """(metrics of `harness.summarise`, scored episodes) of these weights. Answers are greedy unless `sample`."""
  player.engine.load(params, version=version)
  results: dict[int, tuple[dict[str, Any], rewards.Scored]] = {}

  def keep(row: dict[str, Any], scored: rewards.Scored) -> None:
    results[scored.episode.prompt_index] = row, scored

  requests = [[collect.Request(example, index)] for index, example in enumerate(examples)]
  harness.answer_all(requests, play(player, greedy=not sample), player.recipe, keep, at_once=batch)
  in_order = [results[index] for index in range(len(examples))]
  return harness.summarise([row for row, _ in in_order]), [scored for _, scored in in_order]


def batch_of(config: Settings) -> int:
  """Episodes played at a time: enough that an episode is waiting whenever a cache row becomes free."""
  return config.evaluate.batch or 4 * config.rollout.rows


def play(player: player_lib.Answerer, *, greedy: bool = True) -> harness.Play:
  """Plays questions for the harness. The sampled tokens depend only on the numbers of the question and of the seed."""
  return lambda requests, at_once: player.rollout.stream(requests, step=0, at_once=at_once, greedy=greedy)
