"""Faults that users of other tools reported: results and runs that go by a path or a name. Threads name the kind."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_learner

from ragrl_jax import config as config_lib
from ragrl_jax import recipes
from ragrl_jax.evaluation import harness
from ragrl_jax.models import lora, peft, tensors, weights
from ragrl_jax.retrieval import build_index, load_index
from ragrl_jax.run import contents
from ragrl_jax.store import workdir
from ragrl_jax.structs import Episode, Example, Passage

RECIPE = recipes.get("search_r1")


def evaluate(folder, gold, replies=2):
  """(exact match, ids of the questions that were played); each reply is Paris, and a kill comes after `replies`."""
  examples, asked = [Example(f"q{i}", f"What is capital {i}?", (gold,)) for i in range(2)], []

  def play(groups, at_once):
    for (one,) in groups:
      if len(asked) == replies:
        raise KeyboardInterrupt
      asked.append(one.example.id)
      said = Episode.from_text(RECIPE, one.example, [("model", "<answer> Paris </answer>")])
      yield dataclasses.replace(said, prompt_index=one.prompt_index, sample=one.sample)

  return harness.evaluate(examples, play, RECIPE, folder, settings={}, batch=1)["em"], asked


def test_corrected_golds_are_scored_and_not_an_old_score_repeated(tmp_path):
  """lm-evaluation-harness #4063: cached answers of one setting are served as another's."""
  with pytest.raises(KeyboardInterrupt):
    evaluate(tmp_path, "Rome", replies=1)
  assert evaluate(tmp_path, "Paris") == (1.0, ["q1"])  # q0's answer is kept, its score is not
  assert evaluate(tmp_path, "Lyon") == (0.0, [])


def test_adapters_do_not_fit_another_revision_of_their_base(tmp_path):
  """peft #1567: adapters are put on another revision of the base, unchecked."""
  base, adapted = small_learner.model(), small_learner.model()
  lora.add(adapted, rank=2, alpha=4.0, layers="q", seed=0)
  weights.save_pretrained(base, base.config, tmp_path / "base")
  mark = tensors.TensorFolder(tmp_path / "base").fingerprint()
  peft.save_adapters(adapted, tmp_path / "adapters", base=str(tmp_path / "base"), fingerprint=mark)
  peft.load_adapters(small_learner.model(), tmp_path / "adapters", base=tmp_path / "base")
  base.layers.up[...] = base.layers.up[...] * 1.5
  weights.save_pretrained(base, base.config, tmp_path / "base")  # under the same path
  with pytest.raises(ValueError, match="trained on other weights than those in"):
    peft.load_adapters(small_learner.model(), tmp_path / "adapters", base=tmp_path / "base")


@pytest.mark.parametrize("changed", ["data.train", "retrieval.index"])
def test_a_run_does_not_go_on_with_other_data_under_the_same_path(tmp_path, changed):
  """TorchSpec #43, accelerate #2823, transgenic #59: a resumed run reads other data, or the same in another order."""
  examples = [Example(f"q{i}", f"Where is {i}?", ("here",)) for i in range(4)]
  config = config_lib.default_config()

  def go_on(questions, text):
    index = build_index([Passage("0", "", text)], "bm25", tmp_path / text, progress=False)
    found = {
      "data.train": contents.of_questions(questions),
      "retrieval.index": contents.of_retriever(load_index(index)),
    }
    with workdir.opened(tmp_path / "run", config, say=lambda text: None) as run:
      run.compare(found)
      run.restore(jax.tree.map(jnp.copy, dict(x=jnp.arange(3.0))))
      run.save(1, dict(x=jnp.arange(3.0)), {})

  go_on(examples, "something")
  other = (examples[::-1], "something") if changed == "data.train" else (examples, "nothing")
  with pytest.raises(ValueError, match=rf"config\.{changed} \(its contents\) was .*--accept_changes"):
    go_on(*other)


def test_a_fingerprint_covers_every_value():
  """Weights that differ in one value of many, wherever it stands, are other weights."""
  array = np.zeros((64, 33), np.float32)
  seen = {tensors.fingerprint(dict(w=array))}
  for place in (0, 1000, array.size - 1):
    changed = array.copy()
    changed.flat[place] = 1e-30
    seen.add(tensors.fingerprint(dict(w=changed)))
  assert len(seen) == 4


def test_the_question_digest_reads_golds_and_passages():
  """Two files with the same ids and questions are the same data only if the rest is equal, too."""
  one = Example("q", "Who?", ("a",), (Passage("p", "T", "x"),))
  others = [dict(golds=("b",)), dict(passages=(Passage("p", "T", "y"),)), dict(question="Who is it?")]
  digests = {contents.of_questions([dataclasses.replace(one, **change)]) for change in ({}, *others)}
  assert len(digests) == 4
