"""Shapes of published models, for compiling programs without weights. Source: each model's config.json."""

from ragrl_jax.models import families
from ragrl_jax.models.config import DecoderConfig
from ragrl_jax.models.hf import RopeScaling

QWEN2 = dict(family="qwen2", qk_norm=False, attention_bias=True, tied=False)
QWEN3 = dict(family="qwen3", tied=False, max_position=40_960)
MISTRAL = dict(family="mistral", qk_norm=False, tied=False, norm_eps=1e-5)
LLAMA = dict(family="llama", qk_norm=False, tied=False, norm_eps=1e-5, max_position=131_072)
SMOL = dict(LLAMA, tied=True, max_position=8192)
SMOL3 = dict(family="smollm3", qk_norm=False, max_position=65_536, nope=(False, False, False, True) * 9)
LLAMA["rope_scaling"] = RopeScaling(8.0, 1.0, 4.0, 8192)
MOE = dict(QWEN3, family="qwen3_moe", num_experts=128, experts_per_token=8)
GEMMA = dict(family="gemma3_text", window=512, local_rope_theta=families.LOCAL_THETA)
QWEN3_5 = dict(family="qwen3_5_text", max_position=262_144, attend_every=families.ATTEND_EVERY, rotary_dim=64)
QWEN3_5 |= dict(delta_key_heads=16, delta_value_heads=16, delta_key_dim=128, delta_value_dim=128, delta_conv=4)

# In DecoderConfig's order: vocab_size, d_model, num_layers, num_heads, num_kv_heads, head_dim, d_ff, rope_theta.
SHAPES: dict[str, DecoderConfig] = {
  "qwen2.5-1.5b": DecoderConfig(151_936, 1536, 28, 12, 2, 128, 8960, 1e6, **QWEN2 | dict(tied=True)),
  "qwen2.5-7b": DecoderConfig(152_064, 3584, 28, 28, 4, 128, 18_944, 1e6, **QWEN2),
  "qwen2.5-14b": DecoderConfig(152_064, 5120, 48, 40, 8, 128, 13_824, 1e6, **QWEN2),
  "qwen2.5-72b": DecoderConfig(152_064, 8192, 80, 64, 8, 128, 29_568, 1e6, **QWEN2),
  "qwen3-0.6b": DecoderConfig(151_936, 1024, 28, 16, 8, 128, 3072, 1e6, **QWEN3 | dict(tied=True)),
  "qwen3-1.7b": DecoderConfig(151_936, 2048, 28, 16, 8, 128, 6144, 1e6, **QWEN3 | dict(tied=True)),
  "qwen3-4b": DecoderConfig(151_936, 2560, 36, 32, 8, 128, 9728, 1e6, **QWEN3 | dict(tied=True)),
  "qwen3-8b": DecoderConfig(151_936, 4096, 36, 32, 8, 128, 12_288, 1e6, **QWEN3),
  "qwen3-30b-a3b": DecoderConfig(151_936, 2048, 48, 32, 4, 128, 768, 1e6, **MOE),
  "qwen3.5-0.8b": DecoderConfig(248_320, 1024, 24, 8, 2, 256, 3584, 1e7, **QWEN3_5),
  "qwen3.5-2b": DecoderConfig(248_320, 2048, 24, 8, 2, 256, 6144, 1e7, **QWEN3_5),
  "qwen3.5-4b": DecoderConfig(248_320, 2560, 32, 16, 4, 256, 9216, 1e7, **QWEN3_5 | dict(delta_value_heads=32)),
  "qwen3.5-9b": DecoderConfig(
    248_320, 4096, 32, 16, 4, 256, 12_288, 1e7, **QWEN3_5 | dict(delta_value_heads=32, tied=False)
  ),
  "qwen3.5-27b": DecoderConfig(
    248_320, 5120, 64, 24, 4, 256, 17_408, 1e7, **QWEN3_5 | dict(delta_value_heads=48, tied=False)
  ),
  "mistral-7b-v0.1": DecoderConfig(32_000, 4096, 32, 32, 8, 128, 14_336, 1e4, **MISTRAL | dict(window=4096)),
  "mistral-7b-v0.3": DecoderConfig(32_768, 4096, 32, 32, 8, 128, 14_336, 1e6, **MISTRAL),
  "gemma-3-1b": DecoderConfig(262_144, 1152, 26, 4, 1, 256, 6912, 1e6, **GEMMA, sliding=families.pattern(26)),
  "smollm2-135m": DecoderConfig(49_152, 576, 30, 9, 3, 64, 1536, 1e5, **SMOL),
  "smollm3-3b": DecoderConfig(128_256, 2048, 36, 16, 4, 128, 11_008, 5e6, **SMOL3),
  "llama-3.1-8b": DecoderConfig(128_256, 4096, 32, 32, 8, 128, 14_336, 5e5, **LLAMA),
}
