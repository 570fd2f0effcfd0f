"""The other side of the GPU benchmark, at a small size."""

import gpu_parts
import pytest

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
  "part, shape", [("decode", "qwen2.5-1.5b"), ("learn", "qwen2.5-1.5b"), ("learn", "qwen2.5-7b+lora")]
)
def test_transformers_and_torch_run_at_a_small_size(part, shape):
  found = gpu_parts.measure("torch", part, shape, gpu_parts.SMALL)
  assert dict(decode=lambda: found["tokens_per_s"], learn=lambda: found["single"]["tokens_per_s"])[part]() > 0
