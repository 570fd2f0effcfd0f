"""One side of benchmarks/learner.py, in its own process: SIDE FOLDER THREADS CLOCK, then commands on stdin.

The folder contains model/ (Hugging Face) and workload.json. Each command is answered by one line of JSON:
  step        one optimiser step: seconds, loss, gradient norm before clipping, peak resident MB so far
  check PATH  writes the gradient at the folder's weights as safetensors, under the names of the model's tensors
All sides compute GRPO's clipped surrogate at the current policy (one update per batch, no KL term), averaged over the
tokens of each completion and then over completions. They clip the gradient to norm 1 and apply AdamW.
"""

import json
import os
import pathlib
import resource
import sys
import time

import numpy as np

LEARNING_RATE = 1e-6


def padded(rows, width, left=False):
  """Rows of ids → (ids [B, width] padded with 0, which is no token's id, and the mask of the tokens)."""
  ids = np.zeros((len(rows), width), np.int32)
  for i, row in enumerate(rows):
    at = width - len(row) if left else 0
    ids[i, at : at + len(row)] = row
  return ids, ids != 0


class Ours:
  """Packed rows through `Learner.prepare` and `.train`; with "apart", every sequence has its own copy of the prompt."""

  def __init__(self, folder, work, threads, name):
    from ragrl_jax.learner import packing, row_layout
    from ragrl_jax.learner.learner import Learner, drain
    from ragrl_jax.learner.settings import OptimizerSettings, Settings
    from ragrl_jax.models import weights

    self.weights, self.drain = weights, drain
    self.model, self.config = weights.load_pretrained(folder / "model")
    self.learner = Learner(
      self.model,
      Settings(aggregation="seq_mean_token_mean"),
      OptimizerSettings(learning_rate=LEARNING_RATE, weight_decay=0.0),
    )
    self.items = []
    for e in work["episodes"]:
      tokens = np.asarray(e["prompt"] + e["completion"], np.int32)
      mask = np.arange(len(tokens)) >= len(e["prompt"])
      self.items.append(
        packing.Item(
          tokens, mask, np.full(len(tokens), e["advantage"], np.float32), np.zeros(len(tokens), np.float32), e["group"]
        )
      )
    sharing = row_layout.Sharing(not self.config.traits.hybrid) if name == "ours" and work["shares"] else None
    self.packed = packing.pack_items(self.items, **work["packing"], sharing=sharing)
    self.state = self.learner.init(0)

  def step(self):
    ready = self.learner.prepare(self.state, [self.items], lambda _: [self.packed])
    self.state, metrics = self.drain(self.learner.train(self.state, ready))
    return metrics["loss"], metrics["grad_norm"]

  def gradient(self, path):
    from flax import nnx

    from ragrl_jax.learner import blocks

    counts, trained = blocks.count(self.packed.blocks, self.learner.settings), self.learner.trained
    totals = np.asarray([counts["tokens"], counts["sequences"]], np.float32)
    grads, _ = self.drain(trained.gradient(self.learner.params, self.packed.blocks, totals, np.float32(0.0)))
    self.weights.save_pretrained(nnx.merge(nnx.split(self.model)[0], grads), self.config, path)


class Torch:
  """transformers and torch: prompts padded on the left, completions on the right, to each micro-batch's longest.

  If no prompt is padded, no mask is passed: tokens after a completion change nothing before them, and
  attention without a mask is faster.
  """

  def __init__(self, folder, work, threads, name):
    import torch
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    self.torch = torch
    self.model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).train()
    self.start = {name: x.clone() for name, x in self.model.state_dict().items()}
    self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    self.blocks, self.count = [], len(work["episodes"])
    for start in range(0, self.count, work["micro_batch"]):
      part = work["episodes"][start : start + work["micro_batch"]]
      prompts, asked = padded([e["prompt"] for e in part], max(len(e["prompt"]) for e in part), left=True)
      said, on = padded([e["completion"] for e in part], max(len(e["completion"]) for e in part))
      here = np.concatenate([asked, on], 1)
      block = dict(
        ids=np.concatenate([prompts, said], 1).astype(np.int64),
        here=here.astype(np.int64),
        on=on,
        positions=np.maximum(np.cumsum(here, 1) - 1, 0),
        advantages=np.asarray([e["advantage"] for e in part], np.float32),
      )
      self.blocks.append({name: torch.from_numpy(x) for name, x in block.items()})

  def backward(self):
    torch, loss = self.torch, 0.0
    for b in self.blocks:
      width = b["on"].shape[1]
      full = bool(b["here"][:, 0].all())
      logits = self.model(
        input_ids=b["ids"],
        attention_mask=None if full else b["here"],
        position_ids=b["positions"],
        use_cache=False,
        logits_to_keep=width + 1,
      ).logits[:, :-1]
      logprobs = -torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), b["ids"][:, -width:].reshape(-1), reduction="none"
      ).view(-1, width)
      ratio, advantages = torch.exp(logprobs - logprobs.detach()), b["advantages"][:, None]
      each = -torch.minimum(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages)
      part = ((each * b["on"]).sum(1) / b["on"].sum(1)).sum() / self.count
      part.backward()
      loss += part.item()
    return loss

  def step(self):
    self.optimizer.zero_grad(set_to_none=True)
    loss = self.backward()
    norm = self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
    self.optimizer.step()
    return loss, norm.item()

  def gradient(self, path):
    from safetensors.torch import save_file

    self.model.load_state_dict(self.start)
    self.optimizer.zero_grad(set_to_none=True)
    self.backward()
    pathlib.Path(path).mkdir()
    save_file(
      {name: p.grad.contiguous() for name, p in self.model.named_parameters()}, pathlib.Path(path) / "model.safetensors"
    )


class Tunix:
  """google-tunix: its model, its loss and its padding, to the longest prompt and completion of the whole batch.

  Gradients of micro-batches are accumulated in the program that computes them, which costs less than its MultiSteps.
  """

  def __init__(self, folder, work, threads, name):
    import jax
    import optax
    from flax import nnx
    from tunix.models.qwen3 import model as model_lib, params
    from tunix.rl import algo_core, common
    from tunix.rl.grpo.grpo_learner import GRPOConfig

    c = json.loads((folder / "model" / "config.json").read_text())
    config = model_lib.ModelConfig(
      num_layers=c["num_hidden_layers"],
      vocab_size=c["vocab_size"],
      embed_dim=c["hidden_size"],
      hidden_dim=c["intermediate_size"],
      num_heads=c["num_attention_heads"],
      head_dim=c["head_dim"],
      num_kv_heads=c["num_key_value_heads"],
      rope_theta=c["rope_theta"],
      norm_eps=c["rms_norm_eps"],
      use_tied_embedding=True,
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    model = params.create_model_from_safe_tensors(str(folder / "model"), config, mesh, dtype=np.float32)
    graphdef, self.params = nnx.split(model)
    episodes, size = work["episodes"], work["micro_batch"]
    widths = [max(len(e[part]) for e in episodes) for part in ("prompt", "completion")]
    self.blocks = []
    for start in range(0, len(episodes), size):
      part = episodes[start : start + size]
      (prompts, asked), (said, on) = (
        padded([e[name] for e in part], width, left=name == "prompt")
        for name, width in zip(("prompt", "completion"), widths)
      )
      self.blocks.append(
        common.TrainExample(
          prompt_ids=prompts,
          prompt_mask=asked,
          completion_ids=said,
          completion_mask=on.astype(np.int32),
          advantages=np.asarray([e["advantage"] for e in part], np.float32),
          ref_per_token_logps=None,
          old_per_token_logps=None,
        )
      )
    algorithm, share = GRPOConfig(beta=0.0), 1 / len(self.blocks)
    algorithm.temperature = 1.0  # its learner sets this from the rollout's config
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE, weight_decay=0.0))

    def loss(params, block):
      return algo_core.grpo_loss_fn(nnx.merge(graphdef, params), block, algorithm, pad_id=0, eos_id=c["vocab_size"])

    def accumulate(grads, params, block):
      (value, _), new = jax.value_and_grad(loss, has_aux=True)(params, block)
      return jax.tree.map(lambda a, b: a + share * b, grads, new), share * value

    def apply(params, state, grads):
      updates, state = optimizer.update(grads, state, params)
      return optax.apply_updates(params, updates), state, optax.tree.norm(grads)

    self.accumulate = jax.jit(accumulate, donate_argnums=0)
    self.apply = jax.jit(apply, donate_argnums=(0, 1))
    self.zeros = jax.jit(lambda params: jax.tree.map(jax.numpy.zeros_like, params))
    self.state = jax.jit(optimizer.init)(self.params)

  def step(self):
    grads, losses = self.zeros(self.params), []
    for block in self.blocks:
      grads, value = self.accumulate(grads, self.params, block)
      losses.append(value)
    self.params, self.state, norm = self.apply(self.params, self.state, grads)
    return sum(map(float, losses)), float(norm)


def main():
  side, folder, threads = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
  clock = dict(wall=time.perf_counter, cpu=time.process_time)[sys.argv[4]]
  # Output printed by libraries must not mix with the answers.
  answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
  answer = lambda **row: print(json.dumps(row), file=answers, flush=True)
  peak_mb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  work = json.loads((folder / "workload.json").read_text())
  side = dict(ours=Ours, apart=Ours, torch=Torch, tunix=Tunix)[side](folder, work, threads, side)
  answer(ready=True, peak_mb=peak_mb())
  for line in sys.stdin:
    command, *rest = line.split()
    if command == "check":
      side.gradient(rest[0])
      answer(done=True)
    else:
      begin = clock()
      loss, norm = side.step()
      answer(seconds=clock() - begin, loss=loss, grad_norm=norm, peak_mb=peak_mb())


if __name__ == "__main__":
  main()
