"""Supervised fine-tuning on transcripts: the warm start. The learner's step is that of RL, with weights as advantages.

  transcripts → token ids and weights → pack_items → learner.prepare → learner.train → TrainState

A run is resumed in the order of train.py. There is no sampler, and no episodes are logged.
"""

import dataclasses
import functools
import logging
import pathlib
import random
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
from flax import nnx

from ragrl_jax import settings, structs
from ragrl_jax.core.text import forms
from ragrl_jax.data import columns, readers
from ragrl_jax.learner import learner as learner_lib, packing, row_layout, settings as settings_lib
from ragrl_jax.parallel import hosts, signals
from ragrl_jax.prompting import chat
from ragrl_jax.recipes import parts
from ragrl_jax.run import (
  contents,
  player as player_lib,
  prepared as prepared_lib,
  progress,
  questions,
  rooms as rooms_lib,
  saving,
  teaching,
)
from ragrl_jax.run.prepared import Prepared
from ragrl_jax.settings import fields
from ragrl_jax.store import metrics as metrics_lib, workdir as run_lib

Transcript = tuple[Sequence[int] | np.ndarray, Sequence[float] | np.ndarray]  # ids and weights
FIRST, SEEN = 8, 512  # row lengths are chosen from this many steps; without a batch size, of this many transcripts
FILL = 0.92  # share of a block that packing fills reliably; more would often need a second block


def sft(
  config,
  workdir: str | pathlib.Path,
  *,
  drawn: Callable[[int], Sequence[Transcript]] | None = None,
  evaluate: Callable[[int, nnx.Module], dict[str, Any]] | None = None,
  reached: Callable[[dict[str, Any]], bool] = lambda row: False,
  resume: str = "auto",
  accept_changes: bool = False,
  profile: range | None = None,
  say: Callable[[str], None] = print,
) -> Generator[dict[str, Any], Exception | None]:
  """Trains on the transcripts of config.data.train; yields each step's metrics.

  It trains for config.steps steps, or for config.sft.epochs. Each row of the data is a question with `turns`:
  [["model" | "environment", text], …]. They are tokenised turn by turn, as in play. Model tokens have weight 1,
  environment tokens config.sft.environment_weight. The result is saved as a Hugging Face folder, `workdir`/model.

  Args:
    config: all settings (`ragrl_jax.Config`), or what was `prepared` from them.
    workdir: gets config.json, metrics.jsonl, checkpoints/ and model/.
    drawn: step (from 0) → its transcripts, (ids, weights) each, instead of config.data.train. They must depend only on
      the step, because a resumed run draws them again.
    evaluate: (step, model) → more metrics for the step's row; called after every step.
    reached: a step's row → whether the run has reached its goal. It then ends as it would at config.steps.
    resume, accept_changes, profile, say: as for train.train.

  Raises:
    ValueError, lock.Held, learner.NonFinite, hosts.Stopped, hosts.Ended: as train.train does.
  """
  # ---- 1. settings and lock ------------------------------------------------------------------------------------------
  prepared = prepare(config, workdir)
  config = prepared.settings
  with run_lib.opened(
    pathlib.Path(workdir), config, objective="sft", resume=resume, accept_changes=accept_changes, say=say
  ) as run:
    if not run.finished:
      profiled = progress.Profile(run.workdir, profile, of=config.steps)
      yield from _tuned(prepared, run, drawn, evaluate, reached, profiled)


def _tuned(prepared: Prepared, run: run_lib.Run, draws, evaluate, reached, profiled: progress.Profile):
  # ---- 2. the rooms are built: every check comes before the weights are read -----------------------------------------
  config, recipe, tokenizer, mesh = prepared.settings, prepared.recipe, prepared.tokenizer, prepared.mesh
  steps, save_every = config.steps, config.checkpoint.every
  objective = settings_lib.from_config(config, objective="sft")
  optimizer = settings_lib.optimizer_from_config(config, total_steps=steps)
  rows, lengths = config.learner.micro_rows, config.learner.row_lengths
  sharing = settings_lib.sharing(config, prepared.shape, mesh)
  teaching.check_tokens(config, tokenizer)
  digests = contents.of_folders(config) if hosts.is_first() else {}
  digests["recipe.program"] = contents.of_recipe(config.recipe)
  longest = 0
  if draws is None:
    transcripts, digests["data.train"] = read(config, recipe, tokenizer)
    refuse_untrained(transcripts, config)
    longest = max(len(ids) for ids, _ in transcripts)
  run.compare(digests)
  model, shape = player_lib.model(config, tokenizer, prepared.shape, mesh)
  teacher = teaching.load(config, model)
  learner = learner_lib.Learner(model, objective, optimizer, mesh=mesh, teacher=teacher)

  # ---- 3. the train state is restored --------------------------------------------------------------------------------
  state, host = run.restore(learner.init(config.seed, keep=False))
  first, done = run.restored or 0, host is not None and host["reached"]
  step, last_saved = first, first
  # Lengths are programs, and without config.sft.batch they decide what a step has: those chosen at the start are kept.
  kept = () if host is None or lengths else tuple(host.get(rooms_lib.ROWS, ()))  # older checkpoints have none
  kept = kept if max(kept, default=0) >= longest else ()  # other transcripts are an accepted change
  if draws is None:
    # Each part is spread over the whole file, which may be sorted by length.
    parts = -(-len(transcripts) // (config.sft.batch or SEEN))
    some = [transcripts[part::parts] for part in range(min(parts, FIRST))]
    lengths = kept or row_lengths(config, mesh, some, sharing, longest)
    draws = batches(transcripts, batch=config.sft.batch, rows=rows, lengths=lengths, seed=config.seed)
  elif not lengths:
    lengths = kept or row_lengths(config, mesh, [draws(step) for step in range(min(steps, FIRST))], sharing, longest)
  pack = lambda parts: [packing.pack_items(part, rows=rows, lengths=lengths, sharing=sharing) for part in parts]
  log = metrics_lib.MetricWriter.of_run(run.workdir, config, restored=run.restored, silent=not hosts.is_first())

  # ---- the steps -----------------------------------------------------------------------------------------------------
  with signals.Signals() as received, log as writer, profiled:
    clock = progress.Clock()
    for step in range(first + 1, first + 1 if done else steps + 1):
      # One mini-batch per step. Nothing needs to be scored first, and the weights take the place of advantages.
      with profiled(step), clock("update"):
        ready = learner.prepare(state, [items(draws(step - 1), teaching.coefficient(config, step))], pack)
        state, metrics = learner_lib.drain(learner.train(state, ready, checkpoint=str(last_saved or "")))
      if evaluate is not None:
        nnx.update(model, state.params)
        metrics |= progress.evaluated(clock, evaluate, step, model)
      metrics |= clock.report()  # what follows counts in the next row
      # The first host decides for all, because rows have seconds of their own.
      done = hosts.exchange(bool(reached(dict(step=step, **metrics))))[0]
      last = done or step == steps
      with clock("writing"):
        if last and hosts.is_first():
          metrics |= progress.costs(run.workdir, metrics, config)
        row = writer.write(step, metrics)

      # ---- its checkpoint --------------------------------------------------------------------------------------------
      if step % save_every == 0 or last:
        with clock("checkpoint"):
          run.save(step, state, {rooms_lib.ROWS: [*lengths]}, reached=done)
        last_saved = step
      with clock("handing_over"):
        failed = yield row
      if last:
        break
      if end := received.end(failed):
        run.leave(step, state, {rooms_lib.ROWS: [*lengths]})
        raise end

  # ---- the model -----------------------------------------------------------------------------------------------------
  nnx.update(model, state.params)
  saving.save(model, shape, tokenizer, config, run.workdir / "model", base=run.base)
  run.end(step, reached=done)


def prepare(config, workdir: str | pathlib.Path | None = None) -> Prepared:
  """What a run of `sft` consists of: `prepared.prepare` of the planned settings."""
  if isinstance(config, Prepared):
    return config
  return prepared_lib.prepare(planned(settings.of(config)), workdir, purpose="sft")


def planned(config: settings.Settings) -> settings.Settings:
  """The settings, with the steps and the warm-up that follow from config.sft.epochs if it is set.

  Raises:
    ValueError: a warm-up in steps, which would have no effect; or config.data.train cannot be read.
  """
  sft, warmup = config.sft, config.optimizer.warmup_steps
  if not sft.epochs:
    return config
  if warmup and not sft.warmup_share:
    raise ValueError(
      f"config.optimizer.warmup_steps={warmup} with config.sft.epochs={sft.epochs}: with epochs the warm-up is a share "
      "of the steps. Set config.sft.warmup_share, or warmup_steps to 0."
    )
  count = max(1, sum(questions.is_kept(config, example) for example in _rows(config)))  # `read` refuses none
  steps = -(-count // sft.batch) * sft.epochs
  return fields.replaced(config, {"steps": steps, "optimizer.warmup_steps": int(sft.warmup_share * steps)})


def _rows(config: settings.Settings) -> Iterator[structs.Example]:
  """The rows of config.data.train."""
  data = config.data
  return readers.read_examples(data.train, max_examples=data.max_examples, setting="config.data.train")


def read(config: settings.Settings, recipe, tokenizer) -> tuple[list[Transcript], str]:
  """(the transcripts of config.data.train as arrays, the digest of its rows).

  A token has 8 bytes here. In lists it has 44: half a million transcripts of 1,500 tokens would take 33 GB.
  """
  examples = questions.answerable(config, [*_rows(config)], "config.data.train", config.data.train)
  digest = contents.of_questions(examples)
  hosts.refuse_different("config.data.train", digest)
  how = dict(most=config.sft.max_tokens, longest=max(config.learner.row_lengths, default=0))
  transcripts = []
  for example in examples:
    ids, weights = tokenised(recipe, example, tokenizer, config.sft.environment_weight, **how)
    transcripts.append((np.asarray(ids, np.int32), np.asarray(weights, np.float32)))
  return transcripts, digest


def tokenised(
  recipe, example: structs.Example, tokenizer, environment_weight: float, *, most: int = 0, longest: int = 0
) -> tuple[list[int], list[float]]:
  """(ids, weights) of one transcript. The prompt has the environment's weight.

  A model turn without a stop string is followed by the EOS of its chat template, which is trained too. Otherwise the
  model would not learn to end it. EOS and padding that its text spells at its end are left out.

  Args:
    environment_weight: weight of the tokens that the model did not write.
    most: a transcript of more tokens is cut at the end; 0: none is.
    longest: the longest row in tokens; 0: any.

  Raises:
    ValueError: an example without turns, a transcript that does not fit into the longest row, or one whose answer or
      evidence would be inside of a thought, because the chat template opens one and the transcript does not end it.
  """
  # Texts of other tools may end with EOS and padding. They would be trained as the letters that they are spelled with.
  spelled = "|".join(re.escape(tokenizer.control_names[i]) for i in (*tokenizer.eos_ids, tokenizer.pad_id))
  ends = re.compile(rf"(?:(?:{spelled})\s*)+")
  without = lambda owner, text: forms.without_last(ends, text) if owner == structs.MODEL else text
  turns = [(owner, without(owner, text)) for owner, text in _turns(example)]
  episode = structs.Episode.from_text(recipe, example, turns, tokenizer=tokenizer)
  if structs.opened(episode.segments[:1]):
    prompt, *said = episode.segments
    bare = dataclasses.replace(episode, segments=(dataclasses.replace(prompt, text=""), *said))
    if any(_told(recipe, example, bare)) and not any(_told(recipe, example, episode)):
      raise ValueError(
        f"the transcript of example {example.id!r} would be a thought as a whole, in which nothing counts: the chat "
        "template opens a thought, and the transcript does not end it. Set config.prompting.thinking=off, also in what "
        "follows, or write </think> into the transcripts (config.data.train)."
      )
  ids, weights = [], []
  for segment in episode.segments:
    ends = segment.owner == structs.MODEL and segment.stop == "eos"
    said = [*segment.ids, _end_of_turn(tokenizer)] if ends else segment.ids
    ids += said
    weights += [1.0 if segment.owner == structs.MODEL else environment_weight] * len(said)
  if most:
    ids, weights = ids[:most], weights[:most]
  if longest and len(ids) > longest:
    raise ValueError(
      f"the transcript of example {example.id!r} has {len(ids)} tokens, the longest row {longest}: raise "
      "config.learner.row_lengths, or cut transcripts with config.sft.max_tokens (config.data.drop_long is for RL)."
    )
  return ids, weights


@functools.lru_cache(maxsize=8)  # the chat template is rendered for it
def _end_of_turn(tokenizer: Any) -> int:
  return chat.Appender(tokenizer).end_of_turn()


def _turns(example: structs.Example) -> list[tuple[str, str]]:
  """The (owner, text) pairs of a transcript, which a table holds as JSON text."""
  if example.meta.get("turns") is None:
    raise ValueError(
      f"example {example.id!r} has no `turns`: SFT needs transcripts, a list of "
      "['model' | 'environment', text] pairs in each row (config.data.train)."
    )
  try:
    turns = columns.listed(example.meta, "turns")
  except ValueError as error:
    raise ValueError(f"config.data.train, example {example.id!r}: {error}") from None
  is_pair = lambda turn: isinstance(turn, list | tuple) and len(turn) == 2 and all(isinstance(x, str) for x in turn)
  if odd := [turn for turn in turns if not is_pair(turn) or turn[0] not in (structs.MODEL, structs.ENVIRONMENT)]:
    raise ValueError(
      f"example {example.id!r}: its `turns` hold {odd[0]!r:.80}, but each must be ['model' | 'environment', text]: "
      "the model's texts, and what its searches returned, without the prompt (config.data.train)."
    )
  return [tuple(turn) for turn in turns]


def refuse_untrained(transcripts: Sequence[Transcript], config: settings.Settings) -> None:
  """Logs how many transcripts have no trained token.

  Raises:
    ValueError: none of them has one.
  """
  silent = sum(not np.any(weights[1:]) for _, weights in transcripts)  # the first token is never trained
  said = (
    f"config.data.train: in {silent} of {len(transcripts)} transcripts nothing is trained, because the model says "
    f"nothing in them, or nothing within config.sft.max_tokens={config.sft.max_tokens} (0: no limit)."
  )
  if silent == len(transcripts):
    raise ValueError(f"{said} Give their `turns` the model's texts, or raise max_tokens.")
  if silent:
    logging.warning(said)


def _told(recipe, example: structs.Example, episode: structs.Episode) -> tuple[str | None, str | None]:
  """(the answer of an episode, its evidence), as the recipe reads them."""
  evidence = None if recipe.evidence is None else recipe.evidence(example, episode)
  return parts.find_answer(recipe.parser, episode), evidence


def row_lengths(config, mesh, steps: Sequence[Sequence[Transcript]], sharing, longest: int) -> tuple[int, ...]:
  """The row lengths for these transcripts of a few steps, and one for `longest` tokens; see `row_layout.choose`."""
  return row_layout.choose(
    [items(some) for some in steps],
    rows=config.learner.micro_rows,
    lengths=config.learner.row_lengths,
    sharing=sharing,
    context=longest,
    multiple=1 if mesh is None else mesh.shape["sequence"],
  )


def batches(
  transcripts: Sequence[Transcript], *, batch: int = 0, rows: int, lengths: Sequence[int], seed: int
) -> Callable[[int], list[Transcript]]:
  """step (from 0) → its transcripts. Every epoch is shuffled again, depending on the seed and the epoch.

  Args:
    transcripts: (ids, weights), see `tokenised`.
    batch: transcripts per step, in as many blocks as needed. The last step of an epoch has the remaining ones. 0: as
      many as nearly always fit into one block.
    rows, lengths: sizes of the blocks, see `packing.pack_items`.
  """
  mean = np.mean([len(ids) for ids, _ in transcripts])
  size = batch or max(1, int(FILL * rows * max(lengths) / mean))  # transcripts per step
  steps_an_epoch = -(-len(transcripts) // size)

  @functools.lru_cache(maxsize=1)
  def order(epoch: int) -> list[int]:
    shuffled = list(range(len(transcripts)))
    random.Random(f"sft/{seed}/{epoch}").shuffle(shuffled)
    return shuffled

  def at(step: int) -> list[Transcript]:
    epoch, part = divmod(step, steps_an_epoch)
    return [transcripts[i] for i in order(epoch)[part * size : (part + 1) * size]]

  return at


def items(transcripts: Sequence[Transcript], coef: float = 0.0) -> list[packing.Item]:
  """One step's transcripts, to be packed. `coef` times a token's weight is that of the teacher's term."""
  packed_items = [packing.of_demonstration(*one, number) for number, one in enumerate(transcripts)]
  return [dataclasses.replace(one, teaching=coef * one.advantages) for one in packed_items]
