"""Judges that run in this process: entailment by a T5, and a decoder that was trained to print verdicts."""

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ragrl_jax.core.text import beginnings
from ragrl_jax.judging import judge_api, prompts
from ragrl_jax.models import encoder, hub, lora, t5, tensors, weights
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.prompting import chat, declared, passages, tokenizer as tokenizer_lib
from ragrl_jax.store import disk_cache

LENGTHS = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)  # tokens; rows are padded to one
DEADLINE_S = 600.0  # a batch may have to wait while the accelerator compiles, decodes or updates
PROBE = "Doc 1(Title: Łódź) In 1906, it's a town.", "So Łódź was a town."  # its row shows tokenizer and chat template


class Local(judge_api.OfPairs):
  """A judge that scores rows of different lengths in batches of fixed size.

  A subclass gives `_compile` its model, and has `_row`: (premise, claim) → token ids, None if they are too long. If the
  text is too long, the end of the premise is cut. If the claim alone is too long, the verdict is None.

  Args:
    batch, max_tokens: rows per batch, B (a smaller batch is padded), and longest row in tokens.
    dispatch: runs the work; by default the calling thread does.

  Raises:
    ValueError: a size is out of range.
  """

  _mark: str  # of the weights

  def __init__(self, threshold: float, batch: int, max_tokens: int, dispatch: Callable[..., Any] | None):
    if batch < 1 or not 1 <= max_tokens <= LENGTHS[-1]:
      raise ValueError(
        f"batch={batch}, max_tokens={max_tokens}: batch must be at least 1, max_tokens 1 to {LENGTHS[-1]} "
        "(config.judge)."
      )
    self._threshold, self._batch, self._max_tokens = float(threshold), batch, max_tokens
    self._dispatch = dispatch or (lambda function, *arguments: function(*arguments))
    self.pace = judge_api.Pace(batch=batch, workers=1, deadline_s=DEADLINE_S)

  def _compile(self, model: Any, score: Callable[..., Any]) -> None:
    """Takes the model, and (model, tokens int32 [B, T], mask int32 [B, T], 1 on the text) → scores [B] from 0 to 1."""
    graphdef, params = nnx.split(model)
    run = jax.jit(lambda params, tokens, mask: score(nnx.merge(graphdef, params), tokens, mask))
    self._compute = lambda tokens, mask: np.asarray(run(params, tokens, mask))

  def _row(self, premise: str, claim: str) -> list[int] | None:
    raise NotImplementedError

  def _described(self, kind: str, **question: str) -> dict[str, Any]:
    limits = dict(threshold=self._threshold, max_tokens=self._max_tokens)
    return dict(kind=kind, weights=self._mark, row=disk_cache.key(self._row(*PROBE))[:16], **question, **limits)

  def _verdicts(self, pairs: list[judge_api.Pair]) -> judge_api.Verdicts:
    verdicts: judge_api.Verdicts = [None] * len(pairs)
    rows = {number: row for number, pair in enumerate(pairs) if (row := self._row(*pair)) is not None}
    numbers, padded = list(rows), lambda size: next(length for length in LENGTHS if size <= length)
    for places, arrays in encoder.batches([(row, [1] * len(row)) for row in rows.values()], self._batch, padded):
      for place, score in zip(places, self._dispatch(self._compute, *arrays)):
        verdicts[numbers[place]] = judge_api.graded(float(score), self._threshold)
    return verdicts


class NLI(Local):
  """Scores "premise: … hypothesis: …" by P("1", entailed) / (P("1") + P("0")) at the decoder's first step.

  Args:
    path: a Hugging Face folder, or a name on the hub, with a T5 and its tokenizer (spiece.model, or tokenizer.json).
    threshold: see `judge_api.graded`; 0.5 gives the model's greedy answer.
    max_tokens: longest text of premise and claim, in tokens.

  Raises:
    ValueError: the folder has no T5 or no tokenizer, or the tokenizer begins 1 and 0 with the same piece.

  Source: TRUE (arXiv 2204.04991), model google/t5_xxl_true_nli_mixture.
  """

  def __init__(
    self,
    path: str | os.PathLike,
    *,
    threshold: float = 0.5,
    batch: int = 8,
    max_tokens: int = 1024,
    dtype: str = "float32",
    mesh: Any = None,
    dispatch: Callable[..., Any] | None = None,
  ):
    if not path:
      raise ValueError("config.judge.path is empty: name the T5 that judges entailment.")
    super().__init__(threshold, batch, max_tokens, dispatch)
    folder = hub.folder(path, "config.judge.path")
    pieces = folder / "spiece.model"
    self._tokenizer = tokenizer_lib.load_tokenizer(pieces if pieces.is_file() else folder)
    model, shape = t5.load_t5(folder, dtype=jax.numpy.dtype(dtype), mesh=mesh)
    encoder.check_rows(folder, self._tokenizer.vocab_size, shape.vocab_size)
    yes, no = (self._tokenizer.encode(" " + label)[0] for label in ("1", "0"))
    if yes == no:
      raise ValueError(f"{folder}: its tokenizer begins 1 and 0 with the same piece, so it cannot be asked for either.")

    def score(model: t5.T5, tokens, mask):
      logits = model.first_logits(tokens, mask)
      return jax.nn.sigmoid(logits[:, yes] - logits[:, no])

    self._compile(model, score)
    self._mark = tensors.TensorFolder(folder).fingerprint()

  def describe(self) -> dict[str, Any]:
    return self._described("nli")

  def _row(self, premise: str, claim: str) -> list[int] | None:
    # Like T5's own tokenizer: white space is collapsed, and a space is put in front. Pieces never cross a space.
    ids = lambda text: self._tokenizer.encode(" " + " ".join(text.split()))
    short = lambda text: beginnings.for_ids(text, self._max_tokens, ids)
    end = ids(f"hypothesis: {short(claim)}") + [self._tokenizer.eos_ids[0]]
    start = ids(f"premise: {short(premise)}")
    room = self._max_tokens - len(end)
    return start[:room] + end if room > 0 else None


class RewardModel(Local):
  """Scores a pair by P(word for 1) / (P(word for 1) + P(word for 0)) at the first token of the decoder's answer.

  Args:
    path: a Hugging Face folder, or a name on the hub, with the decoder and its tokenizer, or with PEFT adapters whose
      adapter_config.json names that model.
    prompt, wording: the prompt on which the decoder was trained, see `prompts.get`.
    threshold: see `judge_api.graded`; 0.5 gives the digit that the decoder would print.
    max_tokens: longest prompt, in tokens.

  Raises:
    ValueError: the folder has no decoder or no tokenizer, the tokenizer begins both words with the same token, or the
      chat template opens a thought.

  Source: VERITAS sec. 4: Qwen2.5-14B-Instruct with LoRA, which emits only the digit.
  """

  def __init__(
    self,
    path: str | os.PathLike,
    *,
    prompt: str,
    wording: str = "",
    threshold: float = 0.5,
    batch: int = 8,
    max_tokens: int = 2048,
    dtype: str = "float32",
    mesh: Any = None,
    dispatch: Callable[..., Any] | None = None,
  ):
    if not path:
      raise ValueError("config.judge.path is empty: name the decoder that judges.")
    super().__init__(threshold, batch, max_tokens, dispatch)
    path = hub.folder(path, "config.judge.path")
    folder = hub.folder(lora.find_base(path, ""), "config.judge.path") if lora.is_folder(path) else path
    self._tokenizer = _tokenizer_of(folder)
    self._prompt, self._name = prompts.get(prompt, wording), prompt
    labels = [self._tokenizer.encode(label)[0] for label in self._prompt.labels]
    if labels[0] == labels[1]:
      raise ValueError(f"{path}: its tokenizer begins {' and '.join(self._prompt.labels)} with the same token.")
    model, shape = weights.load_pretrained(folder, dtype=jnp.dtype(dtype), mesh=mesh)
    encoder.check_rows(folder, self._tokenizer.vocab_size, shape.vocab_size)
    self._mark = tensors.TensorFolder(folder).fingerprint()
    if folder != path:
      declared.say_other_template(path, folder)
      lora.load_adapters(model, path, base=folder)
      model = lora.merged(model)
      self._mark += "+" + tensors.TensorFolder(path, stem=lora.STEM, config=lora.CONFIG).fingerprint()
    self._compile(model, lambda model, tokens, mask: _preferred(model, tokens, mask, labels))

  def asking(self, prompt: str, wording: str = "") -> "RewardModel":
    """The same weights with another question, whose labels must be the same."""
    other = copy.copy(self)
    other._prompt, other._name = prompts.get(prompt, wording), prompt
    return other

  def describe(self) -> dict[str, Any]:
    return self._described("reward_model", prompt=self._name, wording=self._prompt.mark)

  def _row(self, premise: str, claim: str) -> list[int] | None:
    tokens, limit = self._tokenizer, self._max_tokens
    if beginnings.for_ids(claim, limit, tokens.encode) != claim:
      return None  # longer than a whole row
    premise = passages.cut(premise, tokens, limit)
    ids = tokens.render(self._prompt.messages(premise, claim))
    while len(ids) > limit:
      room = len(tokens.encode(premise)) - (len(ids) - limit)
      if room < 1:
        return None
      premise = passages.cut(premise, tokens, room)
      ids = tokens.render(self._prompt.messages(premise, claim))
    return ids


def _tokenizer_of(folder: os.PathLike) -> tokenizer_lib.Tokenizer:
  """The folder's tokenizer, with the role markers that `ragrl sft` can train it with."""
  try:
    result = tokenizer_lib.load_tokenizer(folder)
  except ValueError:  # the template rewrites earlier turns, as Qwen3's does
    result = tokenizer_lib.load_tokenizer(folder, markers="own")
  if chat.thinking(result) == "on":
    raise ValueError(
      "config.judge.path: the chat template opens a thought, and a verdict is the first token of the answer: name a "
      "model that answers at once, or take <think> out of the end of its template."
    )
  return result


def _preferred(model: Decoder, tokens, mask, labels: Sequence[int]):
  """P(first label) / (P(first) + P(second)) as the next token after the last one of the mask, float32 [B]."""
  states = model.hidden(tokens, segment_ids=mask)
  last = jnp.take_along_axis(states, (mask.sum(axis=1) - 1)[:, None, None] % states.shape[1], axis=1)[:, 0]
  rows = model.unembedding()[jnp.asarray(labels)].astype(jnp.float32)
  logits = jnp.einsum("bd,cd->bc", last.astype(jnp.float32), rows, precision=jax.lax.Precision.HIGHEST)
  return jax.nn.sigmoid(logits[:, 0] - logits[:, 1])
