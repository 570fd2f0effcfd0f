"""Shapes of published models, for compiling programs without weights. Source: each model's config.json."""

from ragrl_jax.models import config_json
from ragrl_jax.models.config import DecoderConfig, RopeScaling


def _qwen2(d_model, num_layers, num_heads, num_kv_heads, d_ff, *, vocab_size=152_064, tied=False) -> DecoderConfig:
  return DecoderConfig(
    vocab_size=vocab_size,
    d_model=d_model,
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=num_kv_heads,
    head_dim=128,
    d_ff=d_ff,
    rope_theta=1e6,
    family="qwen2",
    qk_norm=False,
    attention_bias=True,
    tied=tied,
  )


def _qwen3(d_model, num_layers, num_heads, d_ff, *, tied=False) -> DecoderConfig:
  return DecoderConfig(
    vocab_size=151_936,
    d_model=d_model,
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=8,
    head_dim=128,
    d_ff=d_ff,
    rope_theta=1e6,
    family="qwen3",
    tied=tied,
    max_position=40_960,
  )


def _mistral(vocab_size, rope_theta, window) -> DecoderConfig:
  return DecoderConfig(
    vocab_size=vocab_size,
    d_model=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    d_ff=14_336,
    rope_theta=rope_theta,
    family="mistral",
    qk_norm=False,
    tied=False,
    norm_eps=1e-5,
    window=window,
  )


SHAPES = {
  "qwen2.5-1.5b": _qwen2(1536, 28, 12, 2, 8960, vocab_size=151_936, tied=True),
  "qwen2.5-7b": _qwen2(3584, 28, 28, 4, 18_944),
  "qwen2.5-14b": _qwen2(5120, 48, 40, 8, 13_824),
  "qwen2.5-72b": _qwen2(8192, 80, 64, 8, 29_568),
  "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
  "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
  "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
  "qwen3-8b": _qwen3(4096, 36, 32, 12_288),
  "qwen3-30b-a3b": DecoderConfig(
    vocab_size=151_936,
    d_model=2048,
    num_layers=48,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    d_ff=768,
    rope_theta=1e6,
    family="qwen3_moe",
    tied=False,
    max_position=40_960,
    num_experts=128,
    experts_per_token=8,
  ),
  "mistral-7b-v0.1": _mistral(32_000, 1e4, 4096),
  "mistral-7b-v0.3": _mistral(32_768, 1e6, None),
  "gemma-3-1b": DecoderConfig(
    vocab_size=262_144,
    d_model=1152,
    num_layers=26,
    num_heads=4,
    num_kv_heads=1,
    head_dim=256,
    d_ff=6912,
    rope_theta=1e6,
    family="gemma3_text",
    window=512,
    sliding=config_json.pattern(26),
    local_rope_theta=config_json.LOCAL_THETA,
  ),
  "llama-3.1-8b": DecoderConfig(
    vocab_size=128_256,
    d_model=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    d_ff=14_336,
    rope_theta=5e5,
    family="llama",
    qk_norm=False,
    tied=False,
    norm_eps=1e-5,
    max_position=131_072,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
  ),
}
