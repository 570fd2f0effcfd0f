"""Tiny shapes of decoders, and what each family has besides."""

MORE = dict(  # besides SHAPE: windows shorter than the texts, and layers of both kinds
  qwen3_moe=dict(num_experts=5, experts_per_token=2),
  mistral=dict(window=5),
  gemma3_text=dict(window=3, sliding=(True, False), local_rope_theta=10.0, query_scale=6.0),
  qwen3_5_text=dict(
    attend_every=2, delta_key_heads=2, delta_value_heads=4, delta_key_dim=8, delta_value_dim=6, delta_conv=3,
    rotary_dim=4,
  ),
)  # fmt: skip
SHAPE = dict(d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=24, rope_theta=100.0, tied=True)
V = 29
