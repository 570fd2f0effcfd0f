"""How far sampler and learner are apart, and what it costs to correct it: python benchmarks/mismatch.py --model FOLDER

FOLDER is a model in Hugging Face's layout, QUESTIONS a file of questions. The engine answers each twice: half of the
tokens, then the next question as the environment's text, then the other half. The learner's forward pass scores the
same tokens. One row of docs/mismatch.jsonl per model holds what was found; benchmarks/collapse.py --docs prints it.

  pairs   float32: ways of computing a token's log-probability that are equal on paper
  gaps    |sampler - learner| by token and by sequence, for dtypes of the matmuls and of the cache
  costs   what the corrections leave out, how far they bring the gradient to the learner's own, and their time
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.flatten_util import ravel_pytree

from ragrl_jax.core import guards
from ragrl_jax.data import readers
from ragrl_jax.engine.engine import Engine
from ragrl_jax.engine.messages import Open, Turn
from ragrl_jax.engine.sizes import Sizes
from ragrl_jax.engine.stops import Stops
from ragrl_jax.learner import forward, packing, row_layout
from ragrl_jax.models import lora, weights
from ragrl_jax.prompting import tokenizer as tokenizer_lib

ROOT = pathlib.Path(__file__).parents[1]
RECORD = ROOT / "docs" / "mismatch.jsonl"
PROMPT, OBSERVED, PAGE = 48, 16, 64  # tokens: most of a prompt, most between two turns, of a page
FLOOR, CAP = 0.5, 5.0  # IcePop's bounds
LOW, HIGH = 0.99, 1.01  # of the geometric mean of a sequence's ratio
# Dtypes of the matmuls and of the cache ("model": that of the matmuls).
DTYPES = (
  ("float32", "model"),
  ("bfloat16", "model"),
  ("float32", "bfloat16"),
  ("float32", "int8"),
  ("bfloat16", "int8"),
)


class Ids:
  """A tokenizer of a vocabulary without texts: nothing stops a turn but its budget."""

  pad_id, eos_ids = 0, ()

  def __init__(self, vocab_size):
    self.vocab_size = vocab_size

  def token_bytes(self, token):
    return b""


def sample(model, texts, tokens: int, *, lanes=64, kv_dtype="model", speculate=0, given=()):
  """The conversations: [(ids, mask of sampled tokens, their log-probabilities)].

  Args:
    texts: (prompt, the environment's tokens) of each.
    tokens: sampled ones of each.
    given: conversations of an earlier call, whose first turn and observation are part of the prompt here.
  """
  model, vocab = lora.merged(model) if lora.has(model) else model, model.config.vocab_size
  graphdef, params = nnx.split(model)
  context = PAGE * -(-(PROMPT + OBSERVED + tokens) // PAGE)
  sizes = Sizes(
    lanes=lanes,
    rows=max(lanes, 32),
    context=context,
    chunk=16,
    prefill=PROMPT,
    page=PAGE,
    kv_dtype=kv_dtype,
    speculate=speculate,
  )
  engine = Engine(graphdef, Ids(vocab), Stops(Ids(vocab), (), rows=vocab), sizes)
  engine.load(params, version=0)
  found = []
  for number, (prompt, observed) in enumerate(texts):
    start = len(prompt) + tokens // 2 + len(observed) if given else len(prompt)
    ids = list(given[number][0][:start]) if given else list(prompt)
    engine.open(Open(conversation=number, ids=tuple(ids), key=(0, number)))
    engine.submit(Turn(conversation=number, budget=tokens // 2))
    found.append((ids, [False] * start, [0.0] * start))
  while engine.busy:
    for turn in engine.step():
      number, (ids, mask, logprobs) = turn.conversation, found[turn.conversation]
      first = not given and not any(mask)
      new = texts[number][1] if first else ()
      ids += [*turn.ids, *new]
      mask += [True] * len(turn.ids) + [False] * len(new)
      logprobs += [*turn.logprobs, *(0.0 for _ in new)]
      if first:
        engine.submit(Turn(conversation=number, new_ids=tuple(new), budget=tokens - tokens // 2))
      else:
        engine.close(number)
  return [(np.asarray(i, np.int32), np.asarray(m), np.asarray(p, np.float32)) for i, m, p in found]


def items(talks, group=8):
  zeros = lambda ids: np.zeros(len(ids), np.float32)
  return [packing.Item(ids, mask, zeros(ids), said, n // group) for n, (ids, mask, said) in enumerate(talks)]


@functools.partial(jax.jit, static_argnums=0)
def _score(graphdef, params, batch):
  return forward.scores(nnx.merge(graphdef, params), batch, temperature=1.0, chunk=1024)[0]


def score(model, talks, *, rows=8, length=512, share=False):
  """The learner's log-probabilities of each conversation's tokens; 0 where not sampled."""
  made = items(talks)
  packed = packing.pack_items(made, rows=rows, lengths=(length,), sharing=row_layout.Sharing() if share else None)
  graphdef, params = nnx.split(model)
  arrays = [np.asarray(_score(graphdef, params, block)) for block in packed.blocks]
  found = packed.of_items(arrays, made)
  return [np.where(mask, own, 0.0) for own, (_, mask, _) in zip(found, talks)]


def compare(ids, others, first, second):
  """The gaps of the tokens that both sampled, up to the first that differs, and the probabilities of those that do."""
  gaps, parted = [], []
  for mine, theirs, (a, on), (b, also) in zip(ids, others, first, second):
    n = min(len(mine), len(theirs))
    apart = np.flatnonzero(mine[:n] != theirs[:n])
    parted += [np.exp(a[n]) for n in apart[:1]]
    upto = np.arange(n) < (apart[0] if len(apart) else n)
    both = on[:n] & also[:n] & upto
    gaps.append(np.abs(a[:n][both].astype(np.float64) - b[:n][both]))
  return np.concatenate(gaps), parted


def pairs(model, adapted, talks, texts, tokens, known=()):
  """The rows of the table, one after the other as they are found: {name, tokens, largest gap in nats, share of tokens
  with the same bits, conversations apart, median probability of the token there}. `talks` are what the model has
  sampled of these texts. Rows whose names are known are left out.
  """
  ids, masks, said = zip(*talks)

  def sampled(**how):
    others, their, logprobs = zip(*sample(model, texts, tokens, **how))
    return compare(ids, others, zip(said, masks), zip(logprobs, their))

  def learned(by, **how):
    return compare(ids, ids, zip(by, masks), zip(score(model, talks, **how), masks))

  def with_adapters():
    mine = sample(adapted, texts, tokens)
    own, on, by = zip(*mine)
    return compare(own, own, zip(by, on), zip(score(adapted, mine), on))

  alone = functools.cache(lambda: score(model, talks, rows=8, length=256))
  for name, found in {
    "learner beside sampler": lambda: compare(ids, ids, zip(said, masks), zip(alone(), masks)),
    "learner: rows of 512 beside 256": lambda: learned(alone()),
    "learner: shared prompts beside none": lambda: learned(alone(), share=True),
    "learner: 1 row a block beside 8": lambda: learned(alone(), rows=1, length=256),
    "sampler: drafts of 4 beside none": lambda: sampled(speculate=4),
    "sampler: a prefilled beginning beside a sampled one": lambda: sampled(given=talks),
    "learner with adapters beside sampler with them merged": with_adapters,
    "sampler: 128 lanes beside 64": lambda: sampled(lanes=128),
    "sampler: 32 lanes beside 64": lambda: sampled(lanes=32),
    "sampler: 8 lanes beside 64": lambda: sampled(lanes=8),
    "sampler: the same again": sampled,
  }.items():
    if name in known:
      continue
    gaps, parted = found()
    rarity = dict(parted_at=np.median(parted)) if parted else {}
    yield dict(
      name=name, tokens=len(gaps), most=gaps.max(), same=float((gaps == 0).mean()), apart=len(parted), **rarity
    )


def gaps(model, talks) -> dict[str, float]:
  """What a row of the table says of these conversations, sampler beside learner."""
  apart = [(p - q)[m].astype(np.float64) for (_, m, q), p in zip(talks, score(model, talks))]
  one, whole = np.concatenate(apart), np.array([x.sum() for x in apart])
  each = np.abs(one)
  ratio, mean = np.exp(one), np.exp([x.mean() for x in apart])
  return dict(
    tokens=len(one),
    mean=each.mean(),
    most_99=np.quantile(each, 0.99),
    most=each.max(),
    kl=(ratio - 1 - one).mean(),
    sequence=np.abs(whole).mean(),
    sequence_most=np.abs(whole).max(),
    capped=float((ratio > 2.0).mean()),
    icepop=float(((ratio < FLOOR) | (ratio > CAP)).mean()),
    sequences=float(((mean < LOW) | (mean > HIGH)).mean()),
  )


# Correction → (log-probabilities of the learner, of the sampler, mask, segments) → constant factors.
CORRECTIONS = {
  "none": lambda p, q, m, ids: jnp.ones(p.shape),
  "importance_cap=2": lambda p, q, m, ids: guards.importance_weights(p, q, m, cap=2.0),
  "IcePop": lambda p, q, m, ids: guards.importance_weights(p, q, m, cap=CAP, floor=FLOOR),
  "sequence mask": lambda p, q, m, ids: guards.kept_sequences(p, q, m, low=LOW, high=HIGH, segment_ids=ids),
  "exact": lambda p, q, m, ids: guards.importance_weights(p, q, m, cap=1e9),
}


def costs(model, talks):
  """Rows of the table: distance of each correction's gradient from that with exact weights, and its time.

  The exact weights make the sampler's tokens stand for the learner's, so their gradient has no bias. Advantages are
  random signs, of mean 0 in each group of 8.
  """
  draw = np.random.default_rng(0)
  signs = np.concatenate([draw.permutation([1.0, -1.0] * 4) for _ in range(len(talks) // 8)])
  filled = [
    dataclasses.replace(item, advantages=np.full(len(item.tokens), sign, np.float32))
    for item, sign in zip(items(talks), signs)
  ]
  blocks = packing.pack_items(filled, rows=8, lengths=(512,)).blocks
  graphdef, params = nnx.split(model)
  arguments = [(_score(graphdef, params, one), one.sampler_logprobs, one.loss_mask, one.segment_ids) for one in blocks]
  factors = {name: [np.asarray(weigh(*args)) for args in arguments] for name, weigh in CORRECTIONS.items()}

  @jax.jit
  def gradient(params, batch, weights):
    def loss(params):
      p = forward.scores(nnx.merge(graphdef, params), batch, temperature=1.0, chunk=1024)[0]
      return -(weights * batch.advantages * p * batch.loss_mask).sum()

    return ravel_pytree(jax.grad(loss)(params))[0]

  def summed(weights):
    return sum(np.asarray(gradient(params, *one), np.float64) for one in zip(blocks, weights))

  def least(call, *args, times=20):
    """Seconds of the fastest call."""
    took = []
    for _ in range(times):
      began = time.perf_counter()
      jax.block_until_ready(call(*args))
      took.append(time.perf_counter() - began)
    return min(took)

  whole, exact = least(gradient, params, blocks[0], factors["none"][0], times=2), summed(factors["exact"])
  rows = []
  for name in CORRECTIONS:
    if name != "exact":
      same = all(map(np.array_equal, factors[name], factors["exact"]))
      far = 0.0 if same else float(np.linalg.norm(summed(factors[name]) - exact) / np.linalg.norm(exact))
      seconds = least(jax.jit(CORRECTIONS[name]), *arguments[0])
      rows.append(dict(name=name, far=far, micros=1e6 * seconds, share=seconds / whole))
  return rows


def tables() -> str:
  """The second half of docs/steady.md, from the record."""
  text, rows = [INTRODUCTION], recorded().values()
  pairs = {pair["name"] for row in rows for pair in row.get("pairs", ())}
  for row in rows:
    text.append(f"### {row['name']}\n")
    if "pairs" in row:
      text += ["| float32 on a CPU | tokens | largest gap, nats | tokens with the same bits | conversations apart |"]
      text += ["|---" * 5 + "|"]
      for x in row["pairs"]:
        at = f", at tokens of {x['parted_at']:.0e}" if x["apart"] else ""
        text.append(f"| {x['name']} | {x['tokens']:,} | {x['most']:.1e} | {x['same']:.1%} | {x['apart']}{at} |")
      text.append("")
    if "gaps" in row:
      text.append(
        "| matmuls, cache | tokens | mean gap | 99 % below | most | KL | sequence: mean | most | weights above 2 "
      )
      text[-1] += f"| IcePop leaves out | sequences outside [{LOW}, {HIGH}] |"
      text.append("|---" * 11 + "|")
      for x in row["gaps"]:
        numbers = " | ".join(f"{x[key]:.1e}" for key in ("mean", "most_99", "most", "kl", "sequence", "sequence_most"))
        shares = " | ".join(f"{x[key]:.2%}" for key in ("capped", "icepop", "sequences"))
        text.append(f"| {x['name']} | {x['tokens']:,} | {numbers} | {shares} |")
      text.append("")
    missing = {"gaps", "costs"} - row.keys() | pairs - {pair["name"] for pair in row.get("pairs", ())}
    text += [f"Not measured: {'; '.join(sorted(missing))}.\n"] if missing else []
    if "costs" in row:
      names = [x["name"] for x in next(iter(row["costs"].values()))]
      text += [f"| distance to the unbiased gradient | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
      for name, found in row["costs"].items():
        text.append(f"| {name} | " + " | ".join(f"{x['far']:.1e}" for x in found) + " |")
      most = max(x["share"] for found in row["costs"].values() for x in found)
      text.append(f"\nComputing the weights takes {most:.2%} of a block's forward and backward pass at most.\n")
  return "\n".join(text)


INTRODUCTION = f"""## Sampler and learner

The engine samples conversations of two turns, and the learner's forward pass scores the same tokens. Gaps are of
log-probabilities, in nats; of a sequence, of their sums. IcePop's bounds are [{FLOOR}, {CAP}]. The unbiased gradient
weighs each token by its exact ratio; advantages are random signs. Distances are of one sample of 64 conversations, so
a part of them is chance; 0 means that no weight lay beyond a correction's bounds. Two samplers with the same random
numbers part where a number falls between their sums of probabilities, mostly at tokens about as rare as these sums'
rounding (the median probability stands there); tokens are compared up to there. A conversation that an engine goes on
with, as after a resume, is the prefilled beginning; a run that resumes repeats its programs and ends with equal files.

So capping the weights, or IcePop's bounds, brings the gradient to the unbiased one at no cost. Masks of whole sequences
by [{LOW}, {HIGH}] leave out conversations that 16 or 8 bits have moved, up to a quarter of them at 135M, and take the
gradient farther from it than no correction does: with such bounds, keep float32.

Why float32 differs (XLA:CPU, found by comparing single operations):

- A matmul [n, K] @ [K, N] of fewer than 64 rows n uses another kernel, which sums in another order. So 64 and 128 lanes
  agree to the bit, 32 and 64 do not; give an engine on a CPU at least 64 lanes if runs shall be compared by bits.
- The learner's blocks of 512 tokens and fewer also have other kernels; 1,024 and 2,048 tokens agree to the bit.
- Attention adds up in pieces. The engine's are the call's own tokens and then the cache's pages, so a prefilled token
  or a draft adds its neighbours first. The learner's are 64 places of the row, so the bits of a sequence depend
  on the place in the row at which it begins.
- Adapters are merged into the engine's weights, x(W + AB); the learner computes xW + (xA)B.

Decode and the learner's forward would be equal to the bit only with the same pieces, counted from the sequence's start,
and matmuls of 64 rows and more: rows with gaps in the learner and wider steps in the engine. That is not done.
"""


def commit() -> str:
  """The checkout's commit, short."""
  return subprocess.run(
    ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
  ).stdout.strip()


def main():
  cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  cli.add_argument("--model", required=True)
  cli.add_argument("--questions", required=True)
  cli.add_argument("--name", required=True, help="of the model, in the record")
  cli.add_argument("--conversations", type=int, default=160)
  cli.add_argument("--tokens", type=int, default=64)
  cli.add_argument("--gradients", type=int, default=160, help="conversations whose gradients are compared")
  cli.add_argument("--parts", default="pairs,gaps,costs")
  cli.add_argument("--missing", action="store_true", help="only what the model's row of the record lacks")
  args = cli.parse_args()
  load = lambda dtype: weights.load_pretrained(args.model, compute_dtype=jnp.dtype(dtype))[0]
  words = tokenizer_lib.load_tokenizer(args.model)
  asked = [words.encode(example.question) for example in readers.read_examples(args.questions, max_examples=200)]
  prompts = [tuple(ids[:PROMPT]) for ids in asked]
  texts = [(prompts[n // 8], prompts[n // 8 + 100][:OBSERVED]) for n in range(args.conversations)]
  known = recorded().get(args.name, {}) if args.missing else {}
  if "pairs" in args.parts:
    adapted = load("float32")
    lora.add(adapted, rank=8, alpha=16.0, layers=".*", seed=0)
    draw = np.random.default_rng(1)  # B is 0 at first, which would change nothing
    for x in (x for key, x in vars(adapted.layers).items() if key.endswith(lora.B.format(""))):
      x[...] = jnp.asarray(draw.normal(0, 0.02, x.shape), jnp.float32)
    talks, found = sample(model := load("float32"), texts, args.tokens), [*known.get("pairs", ())]
    for row in pairs(model, adapted, talks, texts, args.tokens, {row["name"] for row in found}):
      print(row, flush=True)
      record(args.name, pairs=(found := [*found, row]))
  rows, paid = [*known.get("gaps", ())], known.get("costs", {})
  for dtype, cache in DTYPES if "gaps" in args.parts else ():
    name = f"{dtype}, cache {dict(model=dtype).get(cache, cache)}"
    measured, priced = name in {row["name"] for row in rows}, name in paid or "costs" not in args.parts
    if measured and priced:
      continue
    talks = sample(model := load(dtype), texts, args.tokens, kv_dtype=cache)
    if not measured:
      rows.append(dict(name=name) | gaps(model, talks))
      print(rows[-1], flush=True)
      record(args.name, gaps=rows)
    if not priced:
      paid[name] = costs(model, talks[: args.gradients])
      record(args.name, costs=paid)


def recorded() -> dict[str, dict]:
  """Each model's row of the record, by its name."""
  return {row["name"]: row for row in map(json.loads, RECORD.read_text().splitlines())} if RECORD.is_file() else {}


def record(name: str, **found) -> None:
  """Puts a part of a model's row into the record."""
  rows = recorded()
  rows[name] = rows.get(name, dict(name=name)) | found | dict(commit=commit())
  numbers = lambda x: float(f"{x:.3g}")  # of NumPy
  RECORD.write_text("".join(json.dumps(row, default=numbers) + "\n" for row in rows.values()))


if __name__ == "__main__":
  main()
