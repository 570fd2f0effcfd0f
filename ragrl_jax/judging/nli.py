"""A judge that runs natural language inference by a T5: does the premise entail the claim?"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from ragrl_jax.core.text import beginnings
from ragrl_jax.judging import judge_api, local
from ragrl_jax.models import hub, t5, tensors
from ragrl_jax.prompting import load


class NLI:
  """Scores "premise: … hypothesis: …" by P("1", entailed) / (P("1") + P("0")) at the decoder's first step.

  If the text is too long, the end of the premise is cut. If the claim alone is too long, the verdict is None.

  Args:
    path: a Hugging Face folder, or a name on the hub, with a T5 and its tokenizer (spiece.model, or tokenizer.json).
    threshold: see `judge_api.graded`; 0.5 gives the model's greedy answer.
    batch: pairs computed together.
    max_tokens: longest text of premise and claim, in tokens.
    dtype: dtype of weights and matmuls.
    mesh: the devices that share the weights.
    dispatch: see `judging.load`.

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
    folder = hub.folder(path, "config.judge.path")
    pieces = folder / "spiece.model"
    self._tokenizer = load.load_tokenizer(pieces if pieces.is_file() else folder)
    self._threshold = judge_api.in_range(threshold)
    model, _ = t5.load_t5(folder, dtype=jax.numpy.dtype(dtype), mesh=mesh)
    yes, no = (self._tokenizer.encode(" " + label)[0] for label in ("1", "0"))
    if yes == no:
      raise ValueError(f"{folder}: its tokenizer begins 1 and 0 with the same piece, so it cannot be asked for either.")
    graphdef, params = nnx.split(model)
    run = jax.jit(lambda params, tokens, mask: _entailed(nnx.merge(graphdef, params), tokens, mask, yes, no))
    self._rows = local.Rows(
      lambda tokens, mask: run(params, tokens, mask), batch=batch, max_tokens=max_tokens, dispatch=dispatch
    )
    self.pace, self._mark = self._rows.pace, tensors.TensorFolder(folder).fingerprint()

  def describe(self) -> dict[str, Any]:
    """The settings that are stored with every verdict: digest of the weights, threshold, longest input in tokens."""
    return dict(kind="nli", weights=self._mark, threshold=self._threshold, max_tokens=self._rows.max_tokens)

  def judge(self, pairs: Sequence[judge_api.Pair]) -> judge_api.Verdicts:
    """See `judge_api.Judge`."""
    return judge_api.each(pairs, self._verdicts)

  def _verdicts(self, pairs: list[judge_api.Pair]) -> judge_api.Verdicts:
    scores = self._rows.scores([self._row(*pair) for pair in pairs])
    return [None if score is None else judge_api.graded(score, self._threshold) for score in scores]

  def _row(self, premise: str, claim: str) -> list[int] | None:
    # Like T5's own tokenizer: white space is collapsed, and a space is put in front. Pieces never cross a space.
    ids = lambda text: self._tokenizer.encode(" " + " ".join(text.split()))
    short = lambda text: beginnings.for_ids(text, self._rows.max_tokens, ids)
    end = ids(f"hypothesis: {short(claim)}") + [self._tokenizer.eos_ids[0]]
    start = ids(f"premise: {short(premise)}")
    room = self._rows.max_tokens - len(end)
    return start[:room] + end if room > 0 else None


def _entailed(model: t5.T5, tokens, mask, yes: int, no: int):
  logits = model.first_logits(tokens, mask)
  return jax.nn.sigmoid(logits[:, yes] - logits[:, no])
