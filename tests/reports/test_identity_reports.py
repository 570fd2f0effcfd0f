"""Faults that users of other tools reported: results and runs that go by a path or a name. Threads name the kind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ragrl_jax import config as config_lib
from ragrl_jax import settings
from ragrl_jax.models import tensors
from ragrl_jax.retrieval import build_index, load_index
from ragrl_jax.run import contents
from ragrl_jax.store import workdir
from ragrl_jax.structs import Example, Passage


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
    with workdir.opened(tmp_path / "run", settings.of(config), say=lambda text: None) as run:
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
