"""A judge that runs a decoder trained to print verdicts: VERITAS's distilled reward model."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ragrl_jax.core.text import beginnings
from ragrl_jax.judging import judge_api, local, prompts
from ragrl_jax.models import hub, lora, tensors, weights
from ragrl_jax.models.decoder import Decoder
from ragrl_jax.prompting import load, passages


class RewardModel:
  """Scores a pair by P(word for 1) / (P(word for 1) + P(word for 0)) at the first token of the decoder's answer.

  If the prompt is too long, the end of the premise is cut. If the claim alone is too long, the verdict is None.

  Args:
    path: a Hugging Face folder, or a name on the hub, with the decoder and its tokenizer, or with PEFT adapters whose
      adapter_config.json names that model.
    prompt, wording: the prompt on which the decoder was trained, see `prompts.get`.
    threshold: see `judge_api.graded`; 0.5 gives the digit that the decoder would print.
    batch: pairs computed together.
    max_tokens: longest prompt, in tokens.
    dtype: dtype of weights and matmuls.
    mesh: the devices that share the weights.
    dispatch: see `judging.load`.

  Raises:
    ValueError: the folder has no decoder or no tokenizer, or the tokenizer begins both words with the same token.

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
    path = hub.folder(path, "config.judge.path")
    folder = hub.folder(lora.find_base(path, ""), "config.judge.path") if lora.is_folder(path) else path
    self._tokenizer, self._prompt, self._name = load.load_tokenizer(folder), prompts.get(prompt, wording), prompt
    self._threshold = judge_api.in_range(threshold)
    labels = [self._tokenizer.encode(label)[0] for label in self._prompt.labels]
    if labels[0] == labels[1]:
      raise ValueError(f"{path}: its tokenizer begins {' and '.join(self._prompt.labels)} with the same token.")
    model, _ = weights.load_pretrained(folder, dtype=jnp.dtype(dtype), mesh=mesh)
    self._mark = tensors.TensorFolder(folder).fingerprint()
    if folder != path:
      lora.load_adapters(model, path, base=folder)
      model = lora.merged(model)
      self._mark += "+" + tensors.TensorFolder(path, stem=lora.STEM, config=lora.CONFIG).fingerprint()
    graphdef, params = nnx.split(model)
    run = jax.jit(lambda params, tokens, mask: _preferred(nnx.merge(graphdef, params), tokens, mask, labels))
    self._rows = local.Rows(
      lambda tokens, mask: run(params, tokens, mask), batch=batch, max_tokens=max_tokens, dispatch=dispatch
    )
    self.pace = self._rows.pace

  def asking(self, prompt: str, wording: str = "") -> RewardModel:
    """The same weights with another question, whose labels must be the same."""
    other = copy.copy(self)
    other._prompt, other._name = prompts.get(prompt, wording), prompt
    return other

  def describe(self) -> dict[str, Any]:
    """The settings that are stored with every verdict: digests of weights and wording, threshold, longest input."""
    return dict(
      kind="reward_model",
      weights=self._mark,
      prompt=self._name,
      wording=self._prompt.mark,
      threshold=self._threshold,
      max_tokens=self._rows.max_tokens,
    )

  def judge(self, pairs: Sequence[judge_api.Pair]) -> judge_api.Verdicts:
    """See `judge_api.Judge`."""
    return judge_api.each(pairs, self._verdicts)

  def _verdicts(self, pairs: list[judge_api.Pair]) -> judge_api.Verdicts:
    scores = self._rows.scores([self._row(*pair) for pair in pairs])
    return [None if score is None else judge_api.graded(score, self._threshold) for score in scores]

  def _row(self, premise: str, claim: str) -> list[int] | None:
    tokens, limit = self._tokenizer, self._rows.max_tokens
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


def _preferred(model: Decoder, tokens, mask, labels: Sequence[int]):
  """P(first label) / (P(first) + P(second)) as the next token after the last one of the mask, float32 [B]."""
  states = model.hidden(tokens, segment_ids=mask)
  last = jnp.take_along_axis(states, (mask.sum(axis=1) - 1)[:, None, None] % states.shape[1], axis=1)[:, 0]
  rows = model.unembedding()[jnp.asarray(labels)].astype(jnp.float32)
  logits = jnp.einsum("bd,cd->bc", last.astype(jnp.float32), rows, precision=jax.lax.Precision.HIGHEST)
  return jax.nn.sigmoid(logits[:, 0] - logits[:, 1])
