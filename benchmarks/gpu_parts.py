"""One measurement of benchmarks/gpu.py in its own process: SIDE PART CASE [--rounds N]; prints one line of JSON.

SIDE is "ours" or "torch" (transformers). The functions take sizes, so that tests can run them on any device. Values
that need the hardware's figures are None if these are unknown.
"""

import argparse
import dataclasses
import json
import sys
import time
from importlib.metadata import version

import numpy as np

# (part of a device's name, its memory bandwidth in bytes per second by the maker); the first match counts.
BANDWIDTHS = (("h200", 4.8e12), ("h100 pcie", 2.0e12), ("h100", 3.35e12), ("a100-sxm4-80gb", 2.039e12))


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of the measurements.

  Attributes:
    lanes, prompt, new, chunk: decoding: conversations, prompt tokens and sampled tokens each, tokens per decode call.
    rows, length, micro_rows: a learner's step: rows of `length` tokens, half of each trained, rows per micro-batch.
    packed: sequences per row if rows are packed.
    rank: LoRA's rank.
    vectors, dim, queries, k: search: vectors, their length, queries a batch, results a query.
    rounds: rounds, of which the best counts.
  """

  lanes: int = 64
  prompt: int = 512
  new: int = 512
  chunk: int = 64
  rows: int = 16
  length: int = 4096
  micro_rows: int = 4
  packed: int = 4
  rank: int = 16
  vectors: int = 21_000_000
  dim: int = 768
  queries: int = 64
  k: int = 10
  rounds: int = 3


SMALL = Sizes(
  lanes=4,
  prompt=8,
  new=8,
  chunk=4,
  rows=4,
  length=32,
  micro_rows=2,
  packed=2,
  rank=2,
  vectors=4096,
  dim=16,
  queries=4,
  k=3,
  rounds=1,
)


def bandwidth(name: str) -> float | None:
  """The memory bandwidth of a device with this name, bytes per second; None if it is not in BANDWIDTHS."""
  return next((value for word, value in BANDWIDTHS if word in name.lower()), None)


def decode_bytes(config, lanes: int, tokens: float) -> float:
  """Bytes moved to decode one token in every lane: all matrices, the head, `tokens` of its cache, and its memories."""
  from ragrl_jax.learner import flops
  from ragrl_jax.models import cache

  weights = 2.0 * (flops.matmul_parameters(config) + config.vocab_size * config.d_model)
  layout = cache.layout(config, page=128, dtype="bfloat16", platform="gpu")
  return weights + lanes * (tokens * layout.token_bytes + 2.0 * layout.memory_bytes)


def best(rounds: int, run) -> float:
  """Seconds of the fastest of `rounds` runs, after one warm-up run."""
  run()
  seconds = []
  for _ in range(rounds):
    start = time.perf_counter()
    run()
    seconds.append(time.perf_counter() - start)
  return min(seconds)


# ---- ours ------------------------------------------------------------------------------------------------------------


class Ids:
  """A tokenizer without texts: it knows only the number of ids."""

  pad_id, eos_ids = 0, ()

  def __init__(self, size: int):
    self.vocab_size = size

  def token_bytes(self, token: int) -> bytes:
    return b""


def model(config, *, param_dtype, remat: bool = False):
  """A random decoder that computes in bfloat16; the weights are drawn on the device."""
  import jax
  import jax.numpy as jnp
  from flax import nnx

  from ragrl_jax.models.decoder import Decoder

  make = lambda: Decoder(config, rngs=nnx.Rngs(0), param_dtype=param_dtype, dtype=jnp.bfloat16, remat=remat)
  graphdef, _ = nnx.split(nnx.eval_shape(make))
  return nnx.merge(graphdef, jax.jit(lambda: nnx.state(make()))())


def engine(config, graphdef, sizes: Sizes, frozen=None):
  from ragrl_jax.engine.engine import Engine
  from ragrl_jax.engine.sizes import Sizes as EngineSizes
  from ragrl_jax.engine.stops import Stops

  tokenizer = Ids(config.vocab_size)
  return Engine(
    graphdef,
    tokenizer,
    Stops(tokenizer, [], rows=config.vocab_size),
    EngineSizes(
      lanes=sizes.lanes,
      rows=sizes.lanes,
      context=sizes.prompt + sizes.new,
      chunk=sizes.chunk,
      prefill=sizes.prompt,
      page=min(128, sizes.prompt),
    ),
    frozen=frozen,
  )


def decode(config, sizes: Sizes) -> dict:
  """The engine's tokens per second while every lane decodes, and the bound by reading weights and cache."""
  import jax
  import jax.numpy as jnp
  from flax import nnx

  from ragrl_jax.engine.messages import Open, Turn

  graphdef, params = nnx.split(model(config, param_dtype=jnp.bfloat16))
  built, draw, rates = engine(config, graphdef, sizes), np.random.default_rng(0), []
  built.load(params, version=0)
  for step in range(sizes.rounds + 1):
    counters = built.restart_counters()
    for lane in range(sizes.lanes):
      built.open(Open(lane, tuple(draw.integers(0, config.vocab_size, sizes.prompt).tolist()), (step, lane)))
      built.submit(Turn(lane, budget=sizes.new))
    while built.busy:
      built.step()
    for lane in range(sizes.lanes):
      built.close(lane)
    rates.append(counters.sampled_tokens / counters.decode_s)
  speed = bandwidth(jax.devices()[0].device_kind)
  needed = decode_bytes(config, sizes.lanes, sizes.prompt + sizes.new / 2)
  bound = None if speed is None else sizes.lanes * speed / needed
  return dict(tokens_per_s=max(rates[1:]), bound=bound, share=bound and max(rates[1:]) / bound)


def sequences(config, sizes: Sizes, parts: int):
  """(items, their rows of `parts` sequences each); the second half of each sequence is trained."""
  from ragrl_jax.learner import packing

  draw, size = np.random.default_rng(0), sizes.length // parts
  zeros = np.zeros(size, np.float32)
  items = [
    packing.Item(
      draw.integers(0, config.vocab_size, size).astype(np.int32),
      np.arange(size) >= size // 2,
      zeros + np.float32(draw.normal()),
      zeros,
    )
    for _ in range(sizes.rows * parts)
  ]
  return items, packing.pack_items(items, rows=sizes.micro_rows, lengths=(sizes.length,))


def learner(config, sizes: Sizes, rank: int):
  import jax.numpy as jnp

  from ragrl_jax.learner.learner import Learner
  from ragrl_jax.learner.settings import OptimizerSettings, Settings
  from ragrl_jax.models import lora

  network = model(config, param_dtype=jnp.bfloat16 if rank else jnp.float32, remat=True)
  if rank:
    lora.add(network, rank=rank, alpha=2.0 * rank, layers=".*", seed=0)
  return network, Learner(network, Settings(logprob_chunk=1024), OptimizerSettings(total_steps=1000))


def learn(config, sizes: Sizes, rank: int = 0) -> dict:
  """Tokens per second and MFU of optimiser steps, with one sequence per row and with packed rows."""
  import jax

  from ragrl_jax.learner import flops
  from ragrl_jax.learner.learner import drain

  _, made = learner(config, sizes, rank)
  state, result = made.init(0), {}
  for name, parts in dict(single=1, packed=sizes.packed).items():
    (items, packed), metrics = sequences(config, sizes, parts), {}

    def step(items=items, packed=packed, metrics=metrics):
      nonlocal state
      state, new = drain(made.train(state, made.prepare(state, [items], lambda _: [packed])))
      metrics.update(new)

    seconds = best(sizes.rounds, step)
    result[name] = dict(
      tokens_per_s=sizes.rows * sizes.length / seconds,
      loss=metrics["loss"],
      mfu=flops.mfu(metrics["flops"], seconds, 1, jax.devices()[0]),
    )
  return result


def switch(config, sizes: Sizes, rank: int = 0) -> dict:
  """Seconds from the learner's parameters to an engine that samples with them, both in memory."""
  import jax

  from ragrl_jax.models import lora

  made, trains = learner(config, sizes, rank)
  graphdef, _, frozen = lora.split(made)
  draws, state = engine(config, graphdef, sizes, frozen), trains.init(0)

  def load():
    draws.load(trains.policy(state.params), version=0)
    jax.block_until_ready(draws.weights)

  return dict(seconds=best(sizes.rounds, load))


def search(sizes: Sizes) -> dict:
  """Milliseconds per batch of exact search over random rows, and the time to read the rows once."""
  import jax
  import jax.numpy as jnp
  from jax.sharding import Mesh

  from ragrl_jax.retrieval import device

  parts, rows, chunk, block = device.cut(sizes.vectors, jax.devices()[:1])
  mesh = Mesh(np.array(jax.devices()[:1]), (device.AXIS,))
  draw = jax.jit(lambda key: jax.random.normal(key, (rows, sizes.dim), jnp.float32).astype(jnp.bfloat16))
  stored = [draw(key) for key in jax.random.split(jax.random.key(0), parts)]
  scan = device.scan_of(mesh, chunk=chunk, block=block, total=sizes.vectors)
  queries = jax.random.normal(jax.random.key(1), (sizes.queries, sizes.dim), jnp.float32).astype(jnp.bfloat16)
  places = jnp.zeros(sizes.k, jnp.int32)
  seconds = best(max(10, sizes.rounds), lambda: jax.block_until_ready(scan(stored, None, queries, None, places)))
  speed = bandwidth(jax.devices()[0].device_kind)
  return dict(ms=1e3 * seconds, bound_ms=speed and 1e3 * 2.0 * sizes.vectors * sizes.dim / speed)


# ---- transformers and torch ------------------------------------------------------------------------------------------


def torch_model(config, *, dtype):
  import torch
  import transformers

  transformers.logging.set_verbosity_error()
  where = "cuda" if torch.cuda.is_available() else "cpu"
  values = config.to_hf()
  with torch.device(where):
    return transformers.AutoModelForCausalLM.from_config(
      transformers.AutoConfig.for_model(**values), dtype=dtype, attn_implementation="sdpa"
    ), where


def _waiting(where: str) -> None:
  import torch

  if where == "cuda":
    torch.cuda.synchronize()


def torch_decode(config, sizes: Sizes) -> dict:
  """transformers' `generate` at temperature 1 in bfloat16. The time includes the prefill, which is a small part."""
  import torch

  made, where = torch_model(config, dtype=torch.bfloat16)
  made.eval()
  ids = torch.randint(0, config.vocab_size, (sizes.lanes, sizes.prompt), device=where)

  def run():
    with torch.no_grad():
      made.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=sizes.new,
        min_new_tokens=sizes.new,
        eos_token_id=None,
        pad_token_id=0,
      )
    _waiting(where)

  return dict(tokens_per_s=sizes.lanes * sizes.new / best(sizes.rounds, run))


def torch_learn(config, sizes: Sizes, rank: int = 0) -> dict:
  """GRPO's step on the same rows, one sequence each: float32 weights with autocast, or LoRA by peft on bfloat16."""
  import torch

  made, where = torch_model(config, dtype=torch.bfloat16 if rank else torch.float32)
  made.train()
  made.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
  if rank:
    import peft

    made = peft.get_peft_model(
      made,
      peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, task_type="CAUSAL_LM", target_modules="all-linear"
      ),
    )
    for name, parameter in made.named_parameters():
      if "lora_" in name:
        parameter.data = parameter.data.float()
  trained = [parameter for parameter in made.parameters() if parameter.requires_grad]
  optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=where == "cuda")
  ids = torch.randint(0, config.vocab_size, (sizes.rows, sizes.length), device=where)
  said = sizes.length - sizes.length // 2
  advantages = torch.randn(sizes.rows, 1, device=where)

  def step():
    optimizer.zero_grad(set_to_none=True)
    for start in range(0, sizes.rows, sizes.micro_rows):
      part = ids[start : start + sizes.micro_rows]
      with torch.autocast(where, dtype=torch.bfloat16):
        logits = made(input_ids=part, use_cache=False, logits_to_keep=said + 1).logits[:, :-1]
      logprobs = -torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), part[:, -said:].reshape(-1), reduction="none"
      ).view(-1, said)
      ratio, gain = torch.exp(logprobs - logprobs.detach()), advantages[start : start + sizes.micro_rows]
      each = -torch.minimum(ratio * gain, torch.clamp(ratio, 0.8, 1.2) * gain)
      (each.sum() / (sizes.rows * said)).backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    _waiting(where)

  return dict(single=dict(tokens_per_s=sizes.rows * sizes.length / best(sizes.rounds, step)))


def measure(side: str, part: str, shape: str, sizes: Sizes) -> dict:
  """The result of one process; `shape` names the model, with the suffix "+lora" for adapters."""
  from ragrl_jax.models.shapes import SHAPES

  if part == "search":
    return search(sizes)
  name, _, adapters = shape.partition("+")
  config = SHAPES[name]
  if sizes == SMALL:
    config = dataclasses.replace(
      config, vocab_size=64, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48
    )
  run = {"ours": dict(decode=decode, learn=learn, switch=switch), "torch": dict(decode=torch_decode, learn=torch_learn)}
  return run[side][part](config, sizes, **(dict(rank=sizes.rank) if adapters else {}))


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("side", choices=("ours", "torch"))
  cli.add_argument("part", choices=("decode", "learn", "switch", "search"))
  cli.add_argument("shape", nargs="?", default="")
  cli.add_argument("--rounds", type=int, default=3, help="0: once, at a small size that any device takes")
  args = cli.parse_args()
  sizes = dataclasses.replace(Sizes(), rounds=args.rounds) if args.rounds else SMALL
  versions = ", ".join(
    f"{name} {version(name)}" for name in dict(ours=["jax"], torch=["torch", "transformers"])[args.side]
  )
  json.dump(measure(args.side, args.part, args.shape, sizes) | dict(versions=versions), sys.stdout)
  print()


if __name__ == "__main__":
  main()
