"""Runs of one process share their programs: one that depends on the same as an earlier run's is not traced again.

Each has jitted functions of its own. Without sharing, most of a small run's time is tracing them at every start.
"""

import contextlib
import hashlib

import jax
import numpy as np
from flax import nnx

from ragrl_jax.engine import programs
from ragrl_jax.learner import learner, trained

KEPT = {}  # (class, what its programs depend on, name of the program) → the program
_making = []  # what the programs of the learners under construction depend on


@contextlib.contextmanager
def shared():
  """Learners and engines that are made meanwhile share their programs with those of earlier such times."""
  makers = {one: one.__init__ for one in (learner.Learner, trained.Trained, programs.Programs)}

  def make_learner(self, model, settings, optimizer, *, mesh=None, **how):
    _making.append((settings, optimizer, mesh, nnx.graphdef(model)))
    try:
      makers[learner.Learner](self, model, settings, optimizer, mesh=mesh, **how)
    finally:
      whole = _making.pop()
    scores = settings.temperature, settings.logprob_chunk, settings.critic.kind, *whole[2:]
    _keep(self, dict(learning_rate=optimizer, _score=scores, _values=scores), whole)

  def make_trained(self, model, transform, objective, *, names, kl_coef=0.0, **how):
    makers[trained.Trained](self, model, transform, objective, names=names, kl_coef=kl_coef, **how)
    shapes = tuple((x.shape, x.dtype) for x in jax.tree.leaves((self.params, self.frozen)))
    if _making:  # two transforms or objectives alone cannot be compared
      settings, optimizer, mesh, base = _making[-1]
      same = mesh, base, self.graphdef, names, shapes
      keys = dict.fromkeys(("init", "_take", "apply"), (optimizer, settings.critic, kl_coef, *same))
      keys |= dict.fromkeys(("accumulate", "_accumulate_all"), (settings, *same)) | dict(zeros=same, _add=same)
      _keep(self, keys, (settings, optimizer, *same))

  def make_programs(self, graphdef, stops, layout, **how):
    makers[programs.Programs](self, graphdef, stops, layout, **how)
    table = tuple((part.shape, hashlib.sha256(np.asarray(part).tobytes()).digest()) for part in stops)
    _keep(self, {}, (graphdef, table, layout, *sorted(how.items())))

  try:
    learner.Learner.__init__, trained.Trained.__init__ = make_learner, make_trained
    programs.Programs.__init__ = make_programs
    yield
  finally:
    for one, make in makers.items():
      one.__init__ = make


def _keep(one, keys, whole):
  """Shares each program by its name's key; one without a key, which may be new, only if all is equal."""
  for name, value in list(vars(one).items()):
    if isinstance(value, jax.stages.Wrapped):
      setattr(one, name, KEPT.setdefault((type(one), keys.get(name, whole), name), value))
