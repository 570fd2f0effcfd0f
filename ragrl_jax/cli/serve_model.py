"""Serves a checkpoint with OpenAI's API: ragrl serve-model --checkpoint RUN --port 8000

POST /v1/chat/completions and /v1/completions, streamed or not, sample tokens and log-probabilities as in training.
docs/howto/serve.md lists the fields. Lanes, context and cache come from the run's config.json;
--config.rollout.lanes=64 changes a setting. A model's folder or Hugging Face name needs no run;
--config.rollout.context=8192 sets the length of a conversation.

POST /v1/weights with {} loads the newest checkpoint of the run after the running replies have ended, if they end within
--drain_s.

By default, all users of this machine can connect, and no other machine. --host 0.0.0.0 opens the server to other
machines. Then --key_variable NAME names the environment variable with the key that clients must send.
"""

import contextlib
import os
import pathlib
import sys

import uvicorn
from absl import app, flags

from ragrl_jax import config as config_lib
from ragrl_jax.cli import commands
from ragrl_jax.jobs import checkpoints
from ragrl_jax.protocol import http_limits
from ragrl_jax.run import checks
from ragrl_jax.serving import engine_thread, openai_server
from ragrl_jax.store import compile_cache

FROM_CHECKPOINT = "serve"
LIMITS = openai_server.Limits()
CHECKPOINT = flags.DEFINE_string(
  "checkpoint", None, "RUN, RUN/checkpoints/STEP, model's folder or Hugging Face name.", required=True
)
CONFIG = commands.config_flag()
BEST = flags.DEFINE_string(
  "best", "", "Serve the run's checkpoint with the highest value of this metric, such as evaluation/em."
)
NAME = flags.DEFINE_string("name", "", "Name of the model in requests; by default the folder's name.")
HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen on.")
PORT = flags.DEFINE_integer("port", 8000, "Port to listen on.", lower_bound=1, upper_bound=65535)
KEY_VARIABLE = flags.DEFINE_string("key_variable", "", "Environment variable with the key that clients must send.")
MAX_BYTES = flags.DEFINE_integer("max_bytes", LIMITS.max_bytes, "Most bytes of a request.", lower_bound=1)
MAX_TOKENS = flags.DEFINE_integer(
  "max_tokens", LIMITS.max_tokens, "Most tokens of a reply; 0: as many as fit into the context.", lower_bound=0
)
MAX_REPLIES = flags.DEFINE_integer("max_replies", LIMITS.max_replies, "Most replies to one request.", lower_bound=1)
MAX_WAITING = flags.DEFINE_integer(
  "max_waiting", LIMITS.max_waiting, "Most replies that are sampled or wait.", lower_bound=1
)
TIMEOUT_S = flags.DEFINE_float(
  "timeout_s", LIMITS.timeout_s, "Most seconds for a request, including waiting.", lower_bound=0.1
)
DRAIN_S = flags.DEFINE_float(
  "drain_s", LIMITS.drain_s, "Most seconds that new weights make new requests wait for running replies.", lower_bound=0
)


def main():
  compile_cache.keep()
  path_given, key, listener = CHECKPOINT.value, _key(), http_limits.bound(HOST.value, PORT.value)
  checkpoint = checkpoints.best(path_given, BEST.value) if BEST.value else path_given
  checkpoints.locate(checkpoint)
  checks.devices()
  sampler = checkpoints.opened(CONFIG.value, checkpoint, playing=False)
  run = config_lib.run_of(checkpoint)
  name = NAME.value or (run or pathlib.Path(checkpoint).absolute()).name

  def reload(step: int | None) -> int:
    if run is None and step is not None:
      raise ValueError(
        f"step {step}: {checkpoint} is a model's folder, which has no steps. Send {{}} to read it again."
      )
    path = pathlib.Path(checkpoint) if run is None else run / "checkpoints"
    return checkpoints.reopen(sampler, path if step is None else path / str(step))

  thread = engine_thread.EngineThread(sampler.engine)
  limits = openai_server.Limits(
    MAX_BYTES.value, MAX_TOKENS.value, MAX_REPLIES.value, MAX_WAITING.value, TIMEOUT_S.value, DRAIN_S.value
  )
  tools, local = checkpoints.tool_reader(sampler.engine.tokenizer), http_limits.is_loopback(HOST.value)
  application = openai_server.Application(thread, name, limits, reload=reload, tools=tools, key=key, local=local)
  server = uvicorn.Server(http_limits.configured(application, host=HOST.value, port=PORT.value))
  thread.failed = lambda error: setattr(server, "should_exit", True)
  thread.start()
  where = f"{http_limits.address(HOST.value, PORT.value)}/v1"
  print(f"{where} serves {name}, version {sampler.engine.version}, context {sampler.engine.context}", flush=True)
  with contextlib.suppress(KeyboardInterrupt):
    server.run(sockets=[listener])
  thread.close()
  if thread.error is not None:
    sys.exit(1)


def _key() -> str:
  if not KEY_VARIABLE.value:
    return ""
  key = os.environ.get(KEY_VARIABLE.value, "")
  if not (key and key.isascii() and key.isprintable() and key == key.strip()):
    raise app.UsageError(f"--key_variable={KEY_VARIABLE.value}: this environment variable holds no valid key.")
  return key
