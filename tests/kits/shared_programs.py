"""Runs of one process share their programs: a learner or an engine that equals an earlier one traces nothing again.

Each has jitted functions of its own. Without sharing, most of a small run's time is tracing them at every start.
"""

import contextlib
import dataclasses
import hashlib

import jax
import numpy as np
from flax import nnx

from ragrl_jax.engine import programs
from ragrl_jax.learner import learner, trained

KEPT = {}  # (class, name of the program, what it depends on) → the program
GRADIENTS = {"zeros", "accumulate", "_accumulate_all", "_add", "_score", "_values"}  # do not depend on the optimizer
_making = []  # what the programs of the learners under construction depend on; their optimizers' settings


@contextlib.contextmanager
def shared():
  """Learners and engines that are made meanwhile share their programs with those of earlier such times."""
  makers = {one: one.__init__ for one in (learner.Learner, trained.Trained, programs.Programs)}

  def make_learner(self, model, settings, optimizer, *, mesh=None, **how):
    critic = dataclasses.replace(settings.critic, optimizer=None)
    rates = _rates(optimizer), critic.kind != "none" and _rates(settings.critic.optimizer)
    _making.append(((dataclasses.replace(settings, critic=critic), mesh, nnx.graphdef(model)), rates))
    try:
      makers[learner.Learner](self, model, settings, optimizer, mesh=mesh, **how)
    finally:
      made_of = _making.pop()
    _keep(self, *made_of)

  def make_trained(self, model, optimizer, objective, *, names, **how):
    makers[trained.Trained](self, model, optimizer, objective, names=names, **how)
    shapes = tuple((x.shape, x.dtype) for x in jax.tree.leaves((self.params, self.frozen)))
    if _making:  # two optimizers alone cannot be compared
      of, rates = _making[-1]
      _keep(self, (of, self.graphdef, names, shapes), rates)

  def make_programs(self, graphdef, stops, layout, **how):
    makers[programs.Programs](self, graphdef, stops, layout, **how)
    table = tuple((part.shape, hashlib.sha256(np.asarray(part).tobytes()).digest()) for part in stops)
    _keep(self, (graphdef, table, layout, *sorted(how.items())))

  try:
    learner.Learner.__init__, trained.Trained.__init__ = make_learner, make_trained
    programs.Programs.__init__ = make_programs
    yield
  finally:
    for one, make in makers.items():
      one.__init__ = make


def _rates(optimizer):
  """The settings without the number of steps, unless the rate falls with it."""
  steps = optimizer.total_steps if optimizer.schedule in ("cosine", "linear") else optimizer.warmup_steps + 1
  return dataclasses.replace(optimizer, total_steps=steps)


def _keep(one, key, rates=None):
  for name, value in list(vars(one).items()):
    if isinstance(value, jax.stages.Wrapped):
      setattr(one, name, KEPT.setdefault((type(one), name, key, None if name in GRADIENTS else rates), value))
