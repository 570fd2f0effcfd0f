"""Information gains: which contexts are scored, and that forks in shared rows score as separate sequences do."""

import dataclasses
import re

import jax
import numpy as np
import pytest
import small_learner as small

from ragrl_jax import config as config_lib, recipes, settings
from ragrl_jax.learner import packing, row_layout
from ragrl_jax.prompting.tokenizer import ByteTokenizer
from ragrl_jax.run import information, prepared, rewards
from ragrl_jax.structs import ENVIRONMENT, MODEL, Episode, Example

RECIPE = recipes.get("search_r1")
BLOCK = "\n\n<information>Doc 1(Title: {0}) {0} did.</information>\n\n"


def played(number, gold, *names, sample=0):
  """An episode that searches once for each name, and then answers with the last one."""
  turns = []
  for name in names:
    turns += [(MODEL, f"<search> {name} </search>"), (ENVIRONMENT, BLOCK.format(name))]
  example = Example(str(number), f"Who {number}?", (gold,))
  episode = Episode.from_text(RECIPE, example, [*turns, (MODEL, f"<answer> {names[-1]} </answer>")])
  return example, dataclasses.replace(episode, prompt_index=number, sample=sample)


def gained(pairs, score, context=4096, **how):
  """Each item's gains."""
  config = config_lib.default_config()
  config.advantage.update(dict(credit="information", **how))
  config.rollout.context = context
  scored = rewards.score(RECIPE, *zip(*pairs), 1)
  found = information.gained(rewards.items(scored), scored, settings.of(config), ByteTokenizer(), score)
  return [item.gains for item in found]


class Counting:
  """Scores each token of a gold by the number of results before it, and keeps the texts."""

  def __init__(self):
    self.texts, self.golds = [], []

  def __call__(self, forks):
    self.texts = [bytes(fork.tokens.tolist()).decode() for fork in forks]
    self.golds = [bytes(fork.tokens[fork.loss_mask].tolist()).decode() for fork in forks]
    counts = [text.count("</information>") + 10 * text.count("Eve did") for text in self.texts]
    return [np.where(fork.loss_mask, count, 0.0) for fork, count in zip(forks, counts)]


def test_a_gain_is_the_rise_from_before_a_turn_to_behind_its_results():
  score = Counting()
  pairs = [played(0, "Eve", "Bob", "Eve"), played(0, "Eve", "Eve", sample=1), played(1, "Ann", "Ann")]
  for gains, want in zip(gained(pairs, score), ([1, 11, np.nan], [11, np.nan], [1, np.nan]), strict=True):
    np.testing.assert_allclose(gains, want)
  # The prompt of a group is scored once: 3 + 1 and 2 contexts.
  assert len(score.texts) == 6 and sorted(set(score.golds)) == ["Ann", "Eve"]
  assert all(text.endswith(("<answer> Eve", "<answer> Ann")) for text in score.texts)


@pytest.mark.parametrize("over", ["before", "random"])
def test_a_gold_is_scored_behind_the_thought_that_the_template_opened(over):
  pairs, score = [], Counting()
  for number, name in enumerate(("Eve", "Ann")):
    example, episode = played(number, name, name)
    prompt, *rest = episode.segments
    opening = dataclasses.replace(prompt, ids=(*prompt.ids, *b"<think>"), text=f"{prompt.text}<think>")
    pairs.append((example, dataclasses.replace(episode, segments=(opening, *rest))))
  gained(pairs, score, gain_over=over)
  assert len(score.texts) == 4 and all(re.search("</think>\n\n<answer> (Eve|Ann)$", text) for text in score.texts)


def test_a_gain_over_random_results_is_over_those_of_another_question():
  score = Counting()
  first, second = gained([played(0, "Eve", "Bob", "Eve"), played(1, "Ann", "Ann")], score, gain_over="random")
  np.testing.assert_allclose(first, [0, 10, np.nan])
  assert second[0] in (0, -10) and np.isnan(second[1])  # Bob's results, or Eve's
  assert sum("Bob did" in text and "Ann did" in text for text in score.texts) >= 1
  (alone,) = gained([played(0, "Eve", "Bob")], score, gain_over="random")
  assert np.isnan(alone).all()  # there is no other question


def test_a_context_without_room_for_the_answer_has_no_gain():
  example, episode = played(0, "Eve", "Bob", "Eve")
  behind_one = sum(len(segment.ids) for segment in episode.segments[:3])
  (found,) = gained([(example, episode)], Counting(), context=behind_one + len("<answer> Eve"))
  np.testing.assert_allclose(found, [1, np.nan, np.nan])


def test_forks_in_shared_rows_score_as_separate_sequences():
  learner, kept = small.learner(mesh=None), {}
  pairs = [played(0, "Eve", "Bob", "Eve"), played(0, "Eve", "Bob", sample=1), played(1, "Ann", "Ann")]

  def score(forks):
    # The small model has 32 tokens.
    forks = [dataclasses.replace(fork, tokens=fork.tokens % small.CONFIG.vocab_size) for fork in forks]
    packed = packing.pack_items(forks, rows=2, lengths=(512, 1024), sharing=row_layout.Sharing())
    places = sum((np.asarray(block.until) > 0).sum() for block in packed.blocks)
    assert places < 0.6 * sum(len(fork.tokens) for fork in forks)
    kept["forks"], kept["found"] = forks, learner.scores(learner.params, packed, forks)
    return kept["found"]

  gained(pairs, score)
  model = jax.jit(lambda tokens: jax.nn.log_softmax(small.model()(tokens[None])[0]))
  longest = max(len(fork.tokens) for fork in kept["forks"])
  for fork, found in zip(kept["forks"], kept["found"]):
    logprobs = np.asarray(model(np.pad(fork.tokens, (0, longest - len(fork.tokens)))))  # one program for all lengths
    want = np.take_along_axis(logprobs[: len(fork.tokens) - 1], fork.tokens[1:, None], 1)[:, 0]
    np.testing.assert_allclose(found[1:], np.where(fork.loss_mask[1:], want, 0.0), atol=1e-6)


@pytest.mark.parametrize("name, changes, words", [
  ("care", {}, "plays one turn"), ("search_r1", {"switches.max_searches": 0}, "plays one turn"),
  ("search_r1", {"learner.share_prompts": False}, "share_prompts=True"),
  ("search_r1", {"advantage.gain_over": "random", "loss.minibatches": 2}, "so each needs two prompts"),
])  # fmt: skip
def test_runs_without_gains_to_measure_are_refused_before_anything_is_read(name, changes, words, tmp_path):
  config = config_lib.load(name, "smoke")
  config.prompting.tokenizer, config.advantage.credit, config.learner.share_prompts = "bytes", "information", True
  config.retrieval.index = str(tmp_path)
  config.update_from_flattened_dict(changes)
  with pytest.raises(ValueError, match=words):
    prepared.prepare(config)
