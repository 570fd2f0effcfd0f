"""Compiles the programs that copy the learner's weights to the engine, leaf by leaf, and counts memory and traffic."""

import time
from typing import Any

import jax

from ragrl_jax.engine import loader
from ragrl_jax.models import lora
from ragrl_jax.parallel import mesh as mesh_lib, rules
from ragrl_jax.plan import aot
from ragrl_jax.plan.summary import SWITCH, Program
from ragrl_jax.settings import Rollout

NAME = f"{SWITCH}: weights"


def program(model: Any, rollout: Rollout, mesh: jax.sharding.Mesh, here: jax.sharding.Mesh) -> Program:
  """The programs of all leaves as one: the largest temporaries, and the sum of bytes sent.

  Args:
    mesh: the learner's mesh.
    here: the engine's mesh; `mesh` itself on one host.

  Only trained weights are copied at every step: those that adapters leave as they were are copied once.
  """
  start = time.perf_counter()
  sizes = vars(rollout.mesh)
  engines_mesh = None if here is mesh else mesh_lib.engines(mesh, **sizes)
  cast = loader.Caster(model.dtype, model.config, mesh_lib.of_engine(here, **sizes), engines=engines_mesh, own=True)
  room, sent, found = 0, 0.0, {}
  params = rules.place(mesh, lora.split(model)[1])
  for _, one in cast.programs(params):
    # Leaves of one shape and sharding, such as gate and up, have the same program.
    if (key := repr(one)) not in found:
      compiled = one.function.lower(one.argument).compile()
      found[key] = aot.measured(compiled, aot.collectives(compiled.as_text()))
    room, sent = max(room, found[key]["temporaries"]), sent + found[key]["sent"]
  return Program(NAME, time.perf_counter() - start, room, hbm=aot.on_chip(cast.abstract(params)), sent=sent)
