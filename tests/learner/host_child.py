"""One of several hosts that train together; run by test_hosts.py. Arguments: number, count, port, file to write."""

import json
import sys

import jax

number, count, port, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
jax.config.update("jax_num_cpu_devices", 4 // count)
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=number, initialization_timeout=120)

import small_learner as small  # noqa: E402

from ragrl_jax.parallel import mesh as mesh_lib  # noqa: E402

learner = small.learner(small.HOSTS_SETTINGS, mesh=mesh_lib.make(jax.devices(), data=2, fsdp=2))
sequences = small.items(14)
# Unequal shares: the first host needs several blocks of two row lengths, the second one block.
batches = small.packed(sequences[:11] if number == 0 else sequences[11:], rows=2, lengths=(14, 9))
state, first = learner.update(learner.init(0), batches)
state, second = learner.update(state, batches)
if number == 0:
  with open(out, "w") as file:
    json.dump(dict(rows=[first, second], blocks=len(batches)), file)
