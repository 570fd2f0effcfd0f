"""Flags of the commands that train: for several hosts, for resuming a run, and for a profile."""

from typing import Any

from absl import flags

from ragrl_jax.cli import commands
from ragrl_jax.parallel import hosts
from ragrl_jax.run import progress

DISTRIBUTED = flags.DEFINE_bool("distributed", False, "This is one of several hosts; JAX finds the others.")
COORDINATOR = flags.DEFINE_string("coordinator", None, "Address and port of process 0, reachable from all hosts.")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Number of processes.")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Number of this process, from 0.")
HOSTS_WAIT_S = flags.DEFINE_integer("hosts_wait_s", 300, "Seconds to wait for all hosts at the start.")
HEARTBEAT_S = flags.DEFINE_integer("heartbeat_s", 100, "A host that is silent for this many seconds ends the job.")
RESUME = flags.DEFINE_enum(
  "resume",
  "auto",
  ["auto", "must", "never"],
  "auto: resume if the workdir has a checkpoint; must: fail if it has none; never: fail if it has a run.",
)
ACCEPT_CHANGES = flags.DEFINE_bool("accept_changes", False, "Resume with settings that differ from the run's.")
PROFILE_STEPS = flags.DEFINE_string(
  "profile_steps", "", "Steps whose profile is written to WORKDIR/profile, for xprof: 5:8, or 5."
)


def going_on() -> dict[str, Any]:
  """How to resume, and what to profile, as arguments of `train.train` and `sft.sft`."""
  steps = progress.steps_of(PROFILE_STEPS.value)
  return dict(resume=RESUME.value, accept_changes=ACCEPT_CHANGES.value, profile=steps)


def joined() -> "hosts.Joined":
  """Joins the other processes that the flags name, if any. Use it as a `with` block around the command."""
  return hosts.Joined(
    COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value, automatic=DISTRIBUTED.value, wait_s=HOSTS_WAIT_S.value,
    heartbeat_s=HEARTBEAT_S.value, tell=commands.tell,
  )  # fmt: skip
