"""Demonstrations without a model: plays a recipe by its own script, with the searches of training and evaluation."""

import collections
import random
from collections.abc import Callable, Sequence
from typing import Any

from ragrl_jax import recipes, retrieval, structs
from ragrl_jax.core.rewards import queries
from ragrl_jax.data import transcripts
from ragrl_jax.prompting.bytes import ByteTokenizer
from ragrl_jax.recipes import scripts
from ragrl_jax.recipes.recipe import Recipe
from ragrl_jax.rollout.tools import RetrievalTools
from ragrl_jax.run import environment_tools, prepared
from ragrl_jax.settings import Settings, fields
from ragrl_jax.testing.scripted import ScriptedPolicy

KEPT = "kept"
BYTES = 4  # bytes that count as a token if the config names no tokenizer
AT_ONCE = 64  # questions of a batch


class Tools(RetrievalTools):
  """The searches of config.retrieval. There is no judge, and no encoder: queries are compared by their letters."""

  async def judge(self, pairs: Sequence[tuple[str, str]], term: str = "") -> tuple[float | None, ...]:
    """No verdicts; a demonstration is right only by exact match."""
    return (None,) * len(pairs)

  async def embed(self, texts: Sequence[str]) -> tuple[tuple[float, ...], ...]:
    """See `structs.Tools`."""
    return tuple(map(tuple, queries.ngram_vectors(texts).astype(float).tolist()))


class Maker:
  """Makes demonstrations in the format of a config's recipe.

  Args:
    config: all settings. Without a tokenizer (config.prompting.tokenizer, config.model.path), BYTES bytes are a token.

  Raises:
    ValueError: the recipe has no script, or searches and config.retrieval.index is empty.
  """

  def __init__(self, config: Settings):
    recipe = prepared.recipe(config)
    if recipe.script is None:
      others = ", ".join(name for name in recipes.RECIPES if recipes.get(name).script is not None)
      raise ValueError(
        f"the recipe {recipe.name} with these switches has no demonstrations; there are some for {others} (--config)."
      )
    if recipe.searches and not recipe.needs_passages and not config.retrieval.index:
      raise ValueError(
        f"config.retrieval.index is empty, and {recipe.name} searches: name an index's folder or an address."
      )
    known = bool(config.prompting.tokenizer or config.model.path)
    size = 1 if known else BYTES
    if not known and recipe.switches.get("max_passage_tokens"):
      most = BYTES * recipe.switches["max_passage_tokens"]
      recipe = prepared.recipe(fields.replaced(config, {"switches.max_passage_tokens": most}))
    self.tokenizer = prepared.tokenizer(config, recipe) if known else ByteTokenizer()
    self.recipe: Recipe = recipe
    self.seed = config.seed
    self.room, self.longest = size * config.rollout.context, size * config.rollout.max_new_tokens
    where, how = config.retrieval.index, environment_tools.remote(config.retrieval)
    found = retrieval.load_index(where, **how) if self.recipe.searches and where else None
    self.tools = Tools(found, top_k=config.retrieval.top_k, timeout_s=600.0)

  async def many(
    self, examples: Sequence[structs.Example], most: int, progress: Callable[[int], None] = lambda kept: None
  ) -> tuple[list[tuple[structs.Example, transcripts.Turns]], collections.Counter]:
    """Up to `most` demonstrations (0: all) of the examples, drawn at random by config.seed; and the examples by fate.

    Args:
      most: number of demonstrations after which it stops.
      progress: called with the number of demonstrations so far.
    """
    drawn, kept, fates = list(examples), [], collections.Counter()
    random.Random(self.seed).shuffle(drawn)
    while drawn and (not most or len(kept) < most):
      batch = drawn[: min(AT_ONCE, most - len(kept)) if most else AT_ONCE]
      del drawn[: len(batch)]
      made, said = await transcripts.make(batch, self.one)
      kept, fates = kept + made, fates + said
      progress(len(kept))
    return kept, fates

  async def one(self, example: structs.Example) -> tuple[str, transcripts.Turns | None]:
    """(KEPT, the turns), or (why the example is left out, None)."""
    rng = random.Random(f"{self.seed}/{example.source}/{example.id}")
    script = self.recipe.script
    assert script is not None
    try:
      scripts.facts(example)
      written = lambda segments: script(example, segments, rng)
      # The chat template may have opened the thought that the script begins with.
      said = lambda segments: written(segments).removeprefix(structs.THINK * structs.opened(segments))
      policy: Any = ScriptedPolicy(said, room=self.room, tokenizer=self.tokenizer)
      episode = await self.recipe.play(example, policy, self.tools)
    except scripts.NotShown as why:
      return f"left out: {why}", None
    if (why := self.fault(example, episode)) is not None:
      return f"left out: {why}", None
    return KEPT, [(segment.owner, segment.text) for segment in episode.segments[1:]]

  def fault(self, example: structs.Example, episode: structs.Episode) -> str | None:
    """Why the episode is no demonstration: too long, not right, out of shape, or with a trick; None if it is one."""
    turns = [segment for segment in episode.turns if segment.owner == structs.MODEL]
    said = [len(segment.ids) + (segment.stop == "eos") for segment in turns]  # the model would sample EOS, too
    if episode.ended == "budget" or not said:
      return "longer than config.rollout.context"
    if max(said) > self.longest:
      return "a turn longer than config.rollout.max_new_tokens"
    if episode.ended == "searches":
      return "more searches than config.switches.max_searches"
    if self.recipe.outcome(example, episode) != 1.0 or self.recipe.score(example, episode).get("format", 1.0) != 1.0:
      return "the recipe does not give it the full reward for format and answer"
    tricks = self.recipe.unearned(example, episode) if self.recipe.unearned is not None else {}
    found = next((trick for trick, used in tricks.items() if used), None)
    return found and f"the recipe's guard finds the trick {found!r}"
