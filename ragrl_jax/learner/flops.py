"""How many floating-point operations a step needs, and what share of the hardware's that is (MFU)."""

from typing import Any

# Peak bf16 operations per second of one device, dense, as the makers state them; found in `Device.device_kind`.
# The first name that fits counts, so "v5 lite" must come before "v5".
PEAKS = (
  ("v6 lite", 918e12),
  ("v6e", 918e12),
  ("v5 lite", 197e12),
  ("v5e", 197e12),
  ("v5p", 459e12),
  ("v5", 459e12),
  ("v4", 275e12),
  ("b200", 2250e12),
  ("h200", 989e12),
  ("h100", 989e12),
  ("a100", 312e12),
)


def matmul_parameters(config: Any) -> int:
  """Parameters of the layers that every token is multiplied with; embedding and head are not among them."""
  c = config
  # Queries and output by the heads, keys and values by the fewer key-value heads; gate, up and down in the MLP.
  attention = c.d_model * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads)
  return c.num_layers * (attention + 3 * c.d_model * c.d_ff)


def forward(config: Any, *, tokens: float, pairs: float, scored: float) -> float:
  """Operations of one forward pass: two a multiply-add.

  Args:
    config: a DecoderConfig.
    tokens: real tokens; padding is nothing anyone asked for.
    pairs: (query, key) pairs attended to: n (n + 1) / 2 for a causal sequence of n tokens.
    scored: tokens whose log-probability is wanted: only they need the head.

  Source: Kaplan et al. (arXiv 2001.08361) sec. 2.1, with attention's scores and sums by pairs.
  """
  # A pair costs head_dim multiply-adds per head twice: once for its score, once for its share of the values.
  attention = 4.0 * config.num_layers * config.num_heads * config.head_dim * pairs
  return 2.0 * matmul_parameters(config) * tokens + attention + 2.0 * config.vocab_size * config.d_model * scored


def update(config: Any, settings: Any, *, tokens: float, pairs: float, scored: float, adapters: int = 0) -> float:
  """Operations of the learner's work on one batch of episodes: an optimiser step is three forward passes.

  The three are the forward pass F, gradients of inputs, and gradients of weights. Frozen matrices need no third; what
  attention multiplies are all inputs, and adapters of a parameters in all add 2 a a token to a pass and need all three.
  With F_m for the matrices and the head, F_a for attention, a step is then 2 F_m + 3 F_a + 3 · 2 a · tokens.

  Old and reference policies take a forward pass each, the reference without adapters; a critic of its own has none,
  learns as a policy does, but needs no head, and is asked for its values first. What remat computes twice is not
  counted: MFU measures what was needed, not what was done.

  Args:
    config: a DecoderConfig.
    settings: the learner's.
    tokens, pairs, scored: of the batch, see `forward`.
    adapters: LoRA's parameters, the only ones that are trained; 0: all are.
  """
  s = settings
  base, without_head = (forward(config, tokens=tokens, pairs=pairs, scored=n) for n in (scored, 0.0))
  more = 2.0 * adapters * tokens
  # Frozen matrices and the head need no gradient of their weights: one pass of three falls away.
  unneeded = forward(config, tokens=tokens, pairs=0.0, scored=scored) if adapters else 0.0
  of_critic = dict(none=0.0, shared=without_head + more, own=(1.0 + 3.0 * s.epochs) * without_head)[s.critic.kind]
  return (
    s.epochs * (3.0 * (base + more) - unneeded) + s.scores_old * (base + more) + s.needs_reference * base + of_critic
  )


def peak(device: Any) -> float | None:
  """A `jax.Device`'s peak operations a second in bf16; None if we do not know it (CPUs among others)."""
  kind = device.device_kind.lower()
  return next((value for name, value in PEAKS if name in kind), None)


def mfu(operations: float, seconds: float, devices: int, device: Any) -> float | None:
  """Model FLOPs utilisation in 0..1; None where the peak is unknown."""
  per_device = peak(device)
  return None if per_device is None else operations / (seconds * devices * per_device)
