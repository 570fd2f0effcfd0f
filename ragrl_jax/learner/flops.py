"""The number of floating-point operations of a step, and its share of the hardware's peak (MFU)."""

from typing import Any

# Peak bf16 operations per second of one device, dense, from the makers' data sheets; matched with `Device.device_kind`.
# The first matching name counts, so "v5 lite" must come before "v5", and a card of less power before its series.
PEAKS = (
  ("v6 lite", 918e12), ("v6e", 918e12),
  ("v5 lite", 197e12), ("v5e", 197e12),
  ("v5p", 459e12), ("v5", 459e12), ("v4", 275e12),
  ("gb200", 2500e12), ("b200", 2250e12), ("h200 nvl", 835e12), ("h200", 989e12),
  ("h100 pcie", 756e12), ("h100 nvl", 835e12), ("h100", 989e12), ("a100", 312e12),
)  # fmt: skip


def matmul_parameters(config: Any) -> int:
  """Parameters of the matrices that every token is multiplied with, without embedding and head."""
  c = config
  # Of a mixture a token is multiplied with its own experts' matrices, and with the router's.
  mlp = 3 * c.d_model * c.d_ff * (c.experts_per_token if c.num_experts else 1) + c.d_model * c.num_experts
  return c.attending * c.attention_matrices + (c.num_layers - c.attending) * c.delta_matrices + c.num_layers * mlp


def forward(config: Any, *, tokens: float, pairs: float, scored: float) -> float:
  """Operations of one forward pass; a multiply-add counts as two.

  Args:
    tokens: tokens without padding.
    pairs: (query, key) pairs of attention: n (n + 1) / 2 for a causal sequence of n tokens. Layers with a window are
      counted as if they had none.
    scored: tokens whose log-probability is computed; only these need the head.

  Source: Kaplan et al. (arXiv 2001.08361) sec. 2.1, with attention's scores and sums by pairs.
  """
  # A pair costs head_dim multiply-adds per head twice: for its score, and for its part of the weighted sum of values.
  c = config
  attention = 4.0 * c.attending * c.num_heads * c.head_dim * pairs
  # A delta layer's state is multiplied with the key, changed, and multiplied with the query.
  state = 3 * c.delta_value_heads * c.delta_key_dim * c.delta_value_dim + c.delta_conv * c.delta_channels
  delta = 2.0 * (c.num_layers - c.attending) * state * tokens
  return 2.0 * matmul_parameters(c) * tokens + attention + delta + 2.0 * c.vocab_size * c.d_model * scored


def teacher(config: Any, settings: Any, *, tokens: float, pairs: float, scored: float) -> float:
  """Operations of a teacher of this shape on one batch: a forward pass per epoch, or one in all for the reward.

  One behind a server has none. Of a policy that teaches itself, its own prompts are counted, although it reads longer
  ones.
  """
  s = settings.teacher
  passes = settings.epochs * s.in_loss + (s.in_reward and not s.remote)
  return passes * forward(config, tokens=tokens, pairs=pairs, scored=scored)


def update(config: Any, settings: Any, *, tokens: float, pairs: float, scored: float, adapters: int = 0) -> float:
  """Operations of the learner's work on one batch of episodes. An optimiser step costs three forward passes.

  The three are the forward pass F, gradients of inputs, and gradients of weights. Frozen matrices do not need the
  third. Attention multiplies inputs only, so it needs all three. Adapters with `a` parameters add 2 a · tokens to a
  pass, and need all three. With F_m for the matrices and the head and F_a for attention, a step is then
  2 F_m + 3 F_a + 3 · 2 a · tokens.

  Old and reference policies cost one forward pass each, the reference without adapters. A critic of its own has no
  adapters and no head, learns like a policy, and first computes its values. Recomputation by remat is not counted,
  since MFU measures the needed operations.

  Args:
    tokens, pairs, scored: of the batch, see `forward`.
    adapters: number of LoRA's parameters, if only these are trained; 0: all parameters are trained.
  """
  s = settings
  base, without_head = (forward(config, tokens=tokens, pairs=pairs, scored=n) for n in (scored, 0.0))
  more = 2.0 * adapters * tokens
  # Frozen matrices and the head need no gradient of their weights, so one of the three passes is omitted.
  unneeded = forward(config, tokens=tokens, pairs=0.0, scored=scored) if adapters else 0.0
  of_critic = dict(none=0.0, shared=without_head + more, own=(1.0 + 3.0 * s.epochs) * without_head)[s.critic.kind]
  return (
    s.epochs * (3.0 * (base + more) - unneeded) + s.scores_old * (base + more) + s.needs_reference * base + of_critic
  )


def peak(device: Any) -> float | None:
  """A `jax.Device`'s peak bf16 operations per second; None if it is unknown, as for CPUs."""
  kind = device.device_kind.lower()
  return next((value for name, value in PEAKS if name in kind), None)


def mfu(operations: float, seconds: float, devices: int, device: Any) -> float | None:
  """Model FLOPs utilisation in 0..1; None if the peak is unknown."""
  per_device = peak(device)
  return None if per_device is None else operations / (seconds * devices * per_device)
