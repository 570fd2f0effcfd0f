"""Loads and checks the questions of a config for training, in their order, and for evaluation."""

import dataclasses
import logging
import random
import traceback
from collections.abc import Iterable, Sequence

from ragrl_jax import structs
from ragrl_jax.core.metrics import qa
from ragrl_jax.core.text import beginnings
from ragrl_jax.data import digests, readers, stream
from ragrl_jax.prompting import passages
from ragrl_jax.recipes.recipe import AT_LAST, Recipe
from ragrl_jax.run.player import Answerer
from ragrl_jax.run.prepared import Prepared
from ragrl_jax.settings import Settings
from ragrl_jax.store import episodes


def training(config: Settings, recipe: Recipe, tokenizer) -> tuple[list[structs.Example], stream.Stream]:
  """The questions of config.data.train, followed by those of config.data.hard, and the stream that draws them.

  No weights are needed, so that unusable questions are refused before the model is loaded. The tokenizer measures the
  prompts.

  Raises:
    ValueError: config.data.hard is set and the recipe has no curriculum; or the recipe cannot use the questions.
  """
  data, mixture = config.data, recipe.mixture
  if data.hard and mixture is None:
    raise ValueError(
      f"config.data.hard={data.hard!r}, but the recipe {recipe.name} has no curriculum that "
      "draws from it: leave it empty, or name both sets in config.data.train, with a comma between them."
    )
  easy = _fitting(config, recipe, tokenizer, "config.data.train", data.train)
  if not data.hard:
    return easy, stream.Stream(len(easy), seed=config.seed)
  hard = _fitting(config, recipe, tokenizer, "config.data.hard", data.hard)
  if config.rollout.filter.metric != "none":
    logging.warning(
      "config.data.hard with config.rollout.filter.metric=%r: the curriculum counts drawn prompts, of which a step has "
      "up to filter.max_draws=%d times prompts_per_step. So hard questions come that much sooner.",
      config.rollout.filter.metric,
      config.rollout.filter.max_draws,
    )
  share = lambda step: mixture(step, config.steps)
  return easy + hard, stream.Mixture(
    len(easy), len(hard), share=share, prompts_per_step=config.rollout.prompts_per_step, seed=config.seed
  )


def named(config: Settings) -> str:
  """The sets that a run reads, for its first line: by setting, "none" for an empty one."""
  sets = (f"config.data.{name}={getattr(config.data, name) or 'none'}" for name in ("train", "hard", "evaluate"))
  return f"questions: {', '.join(sets)}"


def check_passages(config: Settings, recipe: Recipe, examples: Sequence[structs.Example], what: str) -> None:
  """Refuses questions without the passages that the recipe's prompt shows.

  Args:
    examples: all questions of a set. Some may lack passages if others have them.
    what: the set's name in messages: a setting or a flag.

  Raises:
    ValueError: no question can be scored; or questions lack passages and the config names no retriever.
  """
  if config.data.noise and recipe.searches and not recipe.needs_passages:
    logging.warning(
      "%s: config.data.noise=%d adds passages to questions of which %s shows none: they change nothing, unless an "
      "agent's program reads them.",
      what,
      config.data.noise,
      recipe.name,
    )
  what += "" if config.data.own_passages else " with config.data.own_passages=False"
  without = sum(not example.passages for example in examples)
  if not recipe.needs_passages or not without:
    return
  if recipe.searches and not config.retrieval.index:
    raise ValueError(
      f"{what}: {without} of its {len(examples)} questions have no passages, and {recipe.name} has "
      "no retriever: set config.retrieval.index (`ragrl index` builds one), or attach passages with `ragrl retrieve`."
    )
  if not recipe.searches and without == len(examples):
    raise ValueError(
      f"{what}: none of its {len(examples)} questions has passages, which {recipe.name} needs: "
      "nothing in this set can be scored. Name one whose rows have `passages`: `ragrl retrieve` attaches an index's."
    )


def check_scores(recipe: Recipe, examples: Sequence[structs.Example], what: str) -> None:
  """Refuses a set in which the recipe cannot score a single question.

  Raises:
    ValueError: the message names the reward terms that are unknown for all questions.
  """
  if recipe.searches or not recipe.needs_passages:  # what is retrieved or judged is unknown before play
    return
  terms: dict = {}
  for example in examples:
    terms = recipe.score(example, structs.Episode(()))
    if recipe.reward(terms, 1) is not None:
      return
  unknown = ", ".join(name for name, value in terms.items() if value is None)
  raise ValueError(
    f"{what}: nothing in this set can be scored: {recipe.name}'s {unknown} is not known for any of its "
    f"{len(examples)} questions. Name one whose rows mark the `supporting` passages "
    "(`ragrl retrieve` marks them where rows know their gold passages)."
  )


def check_reward(recipe: Recipe, example: structs.Example, what: str) -> None:
  """Scores an empty reply, so that slips in a reward of the user's own are found before anything is loaded.

  An exception is only logged, with its file and line: a reward may need more than an empty reply.

  Raises:
    ValueError: `score` does not return the terms of `weights` at the first step and after the last one.
  """
  episode = structs.Episode.from_text(recipe, example, [(structs.MODEL, "")])
  try:
    terms = recipe.score(example, episode)
  except Exception as error:  # noqa: BLE001 – a user's function may raise anything
    at = traceback.extract_tb(error.__traceback__)[-1]
    logging.warning(
      "%s: recipe %s cannot score an empty reply to question %r (%s:%s: %s: %s). If a reply can be empty, the run will "
      "end there.",
      what, recipe.name, example.id, at.filename, at.lineno, type(error).__name__, error,
    )  # fmt: skip
  else:
    for step in (1, AT_LAST):  # a schedule's last terms would be missed after hours
      recipe.reward(terms, step)


def prompt_tokens(recipe: Recipe, tokenizer, example: structs.Example) -> int:
  """Number of tokens of the example's prompt, with the tools that it shows."""
  tools = 0 if recipe.tool_tokens is None else recipe.tool_tokens(tokenizer)
  return len(tokenizer.render(recipe.prompt.messages(example))) + tools


def check_room(config: Settings, tokenizer, recipe: Recipe, examples: Sequence[structs.Example], what: str) -> None:
  """Refuses a set in which every prompt fills the whole context (config.rollout.context).

  Raises:
    ValueError: the message has the shortest prompt's length.
  """
  sizes = []
  for example in examples:
    sizes.append(prompt_tokens(recipe, tokenizer, passages.shortened(example, tokenizer, config.rollout.context)))
    if sizes[-1] < config.rollout.context:
      return
  raise ValueError(
    f"{what}: no prompt fits: the shortest of {len(sizes)} has {min(sizes)} tokens, and "
    f"config.rollout.context={config.rollout.context} must hold prompt, turns and results. Raise it, and "
    "config.learner.row_lengths with it."
  )


def _read(config: Settings, path: str, max_examples: int, setting: str) -> list[structs.Example]:
  read = readers.read_examples(path, max_examples=max_examples, setting=setting)
  # Passages that are not shown are let go at once: those of HotpotQA's 90,447 questions take 0.8 GB.
  examples = [example if config.data.own_passages else without_passages(example) for example in read]
  sets, named_sets = len({example.source for example in examples}), len(readers.parts(path))
  if len(examples) == max_examples and sets < named_sets:
    said = "%s: its first %d questions are of %d of its %d sets. Raise the limit to read the others."
    logging.warning(said, setting, max_examples, sets, named_sets)
  return examples


def without_passages(example: structs.Example) -> structs.Example:
  """The example without the passages of its row, for recipes that search. Its meta keeps the gold passages.

  The gold passages show which searches are wasted (`store.episodes.gold_ids`). Gold sentences stay, without passages.
  """
  golds = episodes.gold_passages(example)
  return dataclasses.replace(
    example,
    passages=(),
    supporting=(),
    evidence=tuple((0, sentence) for _, sentence in example.evidence),
    meta={**example.meta, **({episodes.GOLDS: golds} if golds else {})},
  )


def marked(example: structs.Example) -> structs.Example:
  """The example, whose passages were retrieved, with the known gold ones in `supporting`.

  Gold sentences that no passage holds are left out of `evidence`, which names their passages.
  """
  ids = {str(name) for name in example.meta.get("gold_ids") or ()}
  articles = {episodes.content(gold) for gold in example.meta.get(episodes.GOLDS, ())}
  gold = lambda passage: episodes.gold_id(passage, ids) if ids else episodes.content(passage) in articles
  supporting = tuple(place for place, passage in enumerate(example.passages) if gold(passage))
  evidence = tuple(
    (place, sentence)
    for _, sentence in example.evidence
    for place in [next((i for i, passage in enumerate(example.passages) if sentence in passage.text), None)]
    if place is not None
  )
  return dataclasses.replace(example, supporting=supporting, evidence=evidence)


def _fitting(config: Settings, recipe: Recipe, tokenizer, what: str, path: str) -> list[structs.Example]:
  examples = answerable(config, _read(config, path, config.data.max_examples, what), what, path)
  check_passages(config, recipe, examples, f"{what}={path}")
  check_scores(recipe, examples, f"{what}={path}")
  check_reward(recipe, examples[0], f"{what}={path}")
  if not config.data.drop_long:
    check_room(config, tokenizer, recipe, examples, f"{what}={path}")
    return examples
  room = config.rollout.context - config.rollout.max_new_tokens
  fits = lambda example: prompt_tokens(recipe, tokenizer, passages.shortened(example, tokenizer, room)) <= room
  fitting = [example for example in examples if fits(example)]
  if not fitting:
    raise ValueError(
      f"{what}={path}: no prompt of its {len(examples)} questions fits into the {room} tokens that "
      "config.rollout.context leaves after max_new_tokens: raise it, or show fewer passages."
    )
  _say_left_out(what, path, len(examples) - len(fitting), len(examples), "drop_long")
  return fitting


def is_kept(config: Settings, example: structs.Example) -> bool:
  """Whether a question is trained on: not if config.data.drop_unanswerable is set and it is marked as unanswerable."""
  return not config.data.drop_unanswerable or bool(example.meta.get("answerable", True))


def answerable(config: Settings, examples: Sequence[structs.Example], what: str, path: str) -> list[structs.Example]:
  """The questions of a set that are trained on (`is_kept`). Logs how many are left out; refuses a set without any."""
  kept = [example for example in examples if is_kept(config, example)]
  if not kept:
    raise ValueError(f"{what}={path}: all its questions are marked as unanswerable (config.data.drop_unanswerable).")
  _say_left_out(what, path, len(examples) - len(kept), len(examples), "drop_unanswerable")
  return kept


def _say_left_out(what: str, path: str, left: int, of: int, rule: str) -> None:
  if left:
    logging.warning("%s=%s: %d of %d questions are left out (config.data.%s=True).", what, path, left, of, rule)


def fitting(
  config: Settings, player: Answerer | Prepared, examples: Sequence[structs.Example]
) -> Sequence[structs.Example]:
  """With config.data.cut_middle, shortens passages until every prompt leaves room for max_new_tokens.

  The longest passage loses as many tokens from its middle as needed, then the next longest. The evidence does not
  change, even if it was cut out of a passage.

  Raises:
    ValueError: a question does not fit even without its passages.

  Source: LongBench's prediction code and CARE's, which cut prompts to 32,768 tokens.
  """
  if not config.data.cut_middle:
    return examples
  tokenizer, room = player.tokenizer, config.rollout.context - config.rollout.max_new_tokens
  return [_cut(example, tokenizer, player.recipe, room) for example in examples]


def _cut(example: structs.Example, tokenizer, recipe: Recipe, room: int) -> structs.Example:
  most = 2 * beginnings.LETTERS * 4 * room
  if any(len(p.text) > most for p in example.passages):  # first to four times the room, as it is not tokenized whole
    short = lambda p: dataclasses.replace(p, text=passages.cut_middle(p.text, tokenizer, 4 * room))
    example = dataclasses.replace(
      example, passages=tuple(short(p) if len(p.text) > most else p for p in example.passages)
    )
  while (over := prompt_tokens(recipe, tokenizer, passages.shortened(example, tokenizer, 4 * room)) - room) > 0:
    sizes = [len(tokenizer.encode(passage.text)) for passage in example.passages]
    size = max(sizes, default=0)
    if not size:
      raise ValueError(
        f"example {example.id!r}: its question alone is {over} tokens longer than the {room} that "
        "config.rollout.context leaves after max_new_tokens: raise it."
      )
    at = sizes.index(size)
    passage = example.passages[at]
    passage = dataclasses.replace(passage, text=passages.cut_middle(passage.text, tokenizer, max(size - over, 0)))
    example = dataclasses.replace(example, passages=(*example.passages[:at], passage, *example.passages[at + 1 :]))
  return example


def testing(config: Settings, path: str, *, max_examples: int, setting: str = "--data") -> list[structs.Example]:
  """The questions for evaluating a model, with gold sentences from config.data.evidence and noise by config.data.noise.

  Args:
    path: the questions; see `readers.read_examples`.
    max_examples: stop after this number; 0 reads all.
    setting: what names the path, for messages.
  """
  examples = _read(config, path, max_examples, setting)
  if config.data.evidence:
    examples = with_evidence(examples, readers.read_examples(config.data.evidence, setting="config.data.evidence"))
  return with_noise(examples, config.data.noise, seed=config.seed)


def say_trained_on(config: Settings, examples: Sequence[structs.Example], what: str, *, hub: bool) -> None:
  """Warns if questions of an evaluation (`what` names them) are among those that the model was trained on.

  These are config.data.train and config.data.hard of its run. With `hub`, sets of the Hugging Face hub are read, too;
  else only files that are there.
  """
  for name in ("train", "hard"):
    path = getattr(config.data, name)
    try:
      others = readers.read_examples(path) if path and (hub or "hf:" not in path) else ()
      repeated = digests.also_in(examples, others)
    except FileNotFoundError:  # the model was trained elsewhere
      logging.info("%s: not compared with config.data.%s=%s, which is not here.", what, name, path)
      continue
    if repeated:
      logging.warning(
        "%s: %d of its %d questions are also in config.data.%s=%s, such as %r: their scores may be memory. "
        "Leave them out of one of the two sets.",
        what, len(repeated), len(examples), name, path, repeated[0].question[:200],
      )  # fmt: skip


def with_evidence(examples: Sequence[structs.Example], originals: Iterable[structs.Example]) -> list[structs.Example]:
  """Gives examples without gold sentences those of the original with the same question.

  Questions are compared by `digests.key_of`. The sentences need not occur in the example's own
  passages, so all of them refer to its first passage.

  Raises:
    ValueError: no example has an original.

  Source: CARE sec. 5.4, which compares quotes on LongBench's HotpotQA with HotpotQA's own supporting facts.
  """
  known = {
    digests.key_of(original.question): tuple((0, sentence) for _, sentence in original.evidence)
    for original in originals
    if original.evidence
  }
  result = [
    e if e.evidence else dataclasses.replace(e, evidence=known.get(digests.key_of(e.question), ())) for e in examples
  ]
  if not any(example.evidence for example in result):
    raise ValueError(
      f"none of {len(examples)} questions occurs in the set with gold sentences "
      "(config.data.evidence): name the set that they come from."
    )
  return result


TRIES = 1001  # most draws for a passage that fits


def with_noise(examples: Sequence[structs.Example], count: int, *, seed: int) -> list[structs.Example]:
  """Adds `count` passages of other examples at random positions to each example.

  The draw depends only on (seed, id) and the set, not on the order of the questions. A larger count draws the same
  passages as a smaller one, and more. Passages that an example already has are not drawn. Neither are passages that
  contain one of its golds (`qa.has_answer`, in title or text), because they would not be noise ("yes" and "no" are not
  checked).

  Raises:
    ValueError: the set has too few other passages.

  Source: LEAR sec. 4 (the test with 0 to 8 random passages beside five retrieved ones).
  """
  if not count:
    return list(examples)
  found = {(passage.title, passage.text): passage for example in examples for passage in example.passages}
  pool = [found[key] for key in sorted(found)]
  return [_noisy(example, count, pool, random.Random(f"noise/{seed}/{example.id}")) for example in examples]


def _noisy(example: structs.Example, count: int, pool: Sequence[structs.Passage], rng: random.Random):
  own = {(passage.title, passage.text) for passage in example.passages}
  golds = [gold for gold in example.golds if qa.searchable([gold])]
  unfit = lambda drawn: (drawn.title, drawn.text) in own or qa.has_answer(f"{drawn.title}\n{drawn.text}", golds)
  order = list(range(len(example.passages)))  # the current positions of the example's own passages
  result = list(example.passages)
  for _ in range(count):
    draws = (rng.choice(pool) for _ in range(TRIES if pool else 0))  # none from an empty pool
    if (drawn := next((one for one in draws if not unfit(one)), None)) is None:
      raise ValueError(
        f"example {example.id!r}: {count} random passages are needed, but the set's {len(pool)} passages have fewer "
        "that do not answer it (config.data.noise)."
      )
    own.add((drawn.title, drawn.text))
    at = rng.randint(0, len(result))
    result.insert(at, drawn)
    order = [place + (place >= at) for place in order]
  return dataclasses.replace(
    example,
    passages=tuple(result),
    supporting=tuple(order[place] for place in example.supporting),
    # An example that has only the gold sentences of config.data.evidence keeps their position, 0.
    evidence=tuple((order[place] if order else place, sentence) for place, sentence in example.evidence),
  )
