"""The flags of launchers that train: on several hosts, and in a folder with a run in it."""

from typing import Any

import commands
from absl import flags

from ragrl_jax.parallel import hosts

DISTRIBUTED = flags.DEFINE_bool("distributed", False, "One of several hosts; JAX finds the others.")
COORDINATOR = flags.DEFINE_string("coordinator", None, "Address and port of process 0, as all hosts see it.")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Processes in all.")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Number of this one, from 0.")
HOSTS_WAIT_S = flags.DEFINE_integer("hosts_wait_s", 300, "How long to wait for all hosts to come.")
HEARTBEAT_S = flags.DEFINE_integer("heartbeat_s", 100, "A host that is not heard of for so long ends the job.")
RESUME = flags.DEFINE_enum(
  "resume",
  "auto",
  ["auto", "must", "never"],
  "auto: goes on if the workdir has a checkpoint; must: an error if it has none; never: an error if it has a run.",
)
ACCEPT_CHANGES = flags.DEFINE_bool("accept_changes", False, "Goes on with other settings than the run's so far.")


def going_on() -> dict[str, Any]:
  """What train and sft want to know of a folder with a run in it."""
  return dict(resume=RESUME.value, accept_changes=ACCEPT_CHANGES.value)


def joined() -> hosts.Joined:
  """This process as one of several, as the flags say, or alone: for a `with` block around everything."""
  return hosts.Joined(
    COORDINATOR.value,
    NUM_PROCESSES.value,
    PROCESS_ID.value,
    automatic=DISTRIBUTED.value,
    wait_s=HOSTS_WAIT_S.value,
    heartbeat_s=HEARTBEAT_S.value,
    tell=commands.tell,
  )
