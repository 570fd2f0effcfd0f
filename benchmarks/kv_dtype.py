"""Keys and values in other dtypes: the error of the sampled log-probabilities.

    python benchmarks/kv_dtype.py [--model FOLDER] [--dtype float32] [--conversations 32] [--tokens 256]

Each side samples the same conversations with an engine whose cache has another dtype (config.rollout.kv_dtype). The
model then scores what was sampled in one pass, without a cache: this is the difference that a run logs as `mismatch`.
FOLDER is a model in Hugging Face's layout, such as a run's `model/`; without one it is a random decoder of four layers,
whose attention is made sharp. Text is drawn at temperature 1, after a prompt of random tokens.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.messages import Open, Turn
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.engine.stops import Stops
from ragrl_jax.models import weights
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.decoder import Decoder

PROMPT = 32  # tokens
RANDOM = DecoderConfig.from_shape(
  512, family="qwen3", d_model=256, num_layers=4, num_heads=8, num_kv_heads=4, head_dim=64, d_ff=512, rope_theta=1e4
)
SHARP = 3.0  # factor on a random decoder's queries: its attention looks at single tokens, as a trained one's does


class Ids:
  """A tokenizer of a vocabulary without texts: nothing stops a turn but its budget."""

  pad_id, eos_ids = 0, ()

  def __init__(self, vocab_size):
    self.vocab_size = vocab_size

  def token_bytes(self, token):
    return b""


def random_model(dtype):
  made = Decoder(RANDOM, rngs=nnx.Rngs(0), dtype=dtype)
  made.layers.q_norm[...] = made.layers.q_norm[...] * SHARP
  return made


def sampled(model, kv_dtype, conversations, tokens):
  """(ids [n, PROMPT + tokens], log-probabilities as sampled [n, tokens])."""
  vocab, lanes = model.config.vocab_size, min(32, conversations)
  graphdef, params = nnx.split(model)
  sizes = Sizes(lanes=lanes, rows=lanes, context=PROMPT + tokens, chunk=32, prefill=PROMPT, page=64, kv_dtype=kv_dtype)
  engine = Engine(graphdef, Ids(vocab), Stops(Ids(vocab), (), rows=vocab), sizes)
  engine.load(params, version=0)
  ids = np.random.default_rng(0).integers(0, vocab, (conversations, PROMPT)).tolist()
  for number, prompt in enumerate(ids):
    engine.open(Open(conversation=number, ids=tuple(prompt), key=(0, number)))
    engine.submit(Turn(conversation=number, budget=tokens))
  logprobs = [()] * conversations
  while engine.busy:
    for turn in engine.step():
      ids[turn.conversation] += turn.ids
      logprobs[turn.conversation] = turn.logprobs
      engine.close(turn.conversation)
  return np.array(ids, np.int32), np.array(logprobs, np.float32)


@functools.partial(jax.jit, static_argnums=0)
def scored(graphdef, params, ids):
  """The model's log-probabilities of the drawn tokens of one conversation."""
  table = jax.nn.log_softmax(nnx.merge(graphdef, params)(ids[None])[0, PROMPT - 1 : -1])
  return jnp.take_along_axis(table, ids[PROMPT:, None], axis=1)[:, 0]


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--model", default="")
  cli.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
  cli.add_argument("--conversations", type=int, default=32)
  cli.add_argument("--tokens", type=int, default=256)
  args = cli.parse_args()
  dtype = jnp.dtype(args.dtype)
  if args.model:
    model, _ = weights.load_pretrained(args.model, dtype=jnp.float32, compute_dtype=dtype)
  else:
    model = random_model(dtype)
  graphdef, params = nnx.split(model)
  print(f"{args.model or 'a random decoder'}, matmuls in {args.dtype}, {args.conversations} × {args.tokens} tokens")
  for kv_dtype in ("model", "bfloat16", "int8"):
    ids, said = sampled(model, kv_dtype, args.conversations, args.tokens)
    gap = np.abs(said - np.stack([scored(graphdef, params, one) for one in ids]))
    print(
      f"kv_dtype={kv_dtype:8} |log-probability as sampled − as scored|, nats: mean {gap.mean():.2g}, "
      f"99 % below {np.quantile(gap, 0.99):.2g}, most {gap.max():.2g}",
      flush=True,
    )


if __name__ == "__main__":
  main()
