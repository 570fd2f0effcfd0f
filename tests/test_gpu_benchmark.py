import dataclasses
import json
import sys

import gpu
import gpu_compiled
import gpu_parts
import pytest

from ragrl_jax import config as config_lib
from ragrl_jax.models.shapes import SHAPES

SAID = dict(card="one H200", versions="jax 1", commit="abc", day="2026-01-02", rounds=1)


def test_the_page_is_that_of_the_figures_and_says_what_was_not_measured():
  assert gpu.PAGE.read_text() == gpu.page(gpu.read(), gpu_compiled.read())
  assert gpu.page({}).count(gpu.NONE) == 5 * 4 + 5 * (3 + 2) + 4 + 1  # every figure, and the table's head
  assert gpu.page({}).count(gpu.UNCOMPILED) == 5 + 10 + 3


def test_the_page_shows_what_compiling_counts():
  row = dict(host_loops=1, temporaries=3 * 2**29, plugin="0.10.2", commit="abc", kernels=400, layers=28)
  counted = {
    ("decode", gpu.LARGER): row | dict(moved=2.2e10, least=2e10),
    ("learn", f"{gpu.LARGER}+lora"): row | dict(kernels=2800),
    ("switch", gpu.SMALLER): row | dict(weights=3 * 2**30),
    ("search", ""): row | dict(moved=5.2e10, rows=4e10),
  }
  text = gpu.page({}, counted=counted)
  assert "| 400 | 1 | 1.10 |" in text and text.count("| 100 | 1 | 1.50 GiB |") == 2  # single and packed
  assert "| 1.50 GiB, beside weights of 3.00 GiB |" in text
  assert "| 1.50 GiB, 400 kernels, 1.30 × the rows' bytes |" in text
  assert "jax-cuda12-plugin 0.10.2, commit abc" in " ".join(text.split())
  assert text.count(gpu.NONE) == gpu.page({}).count(gpu.NONE)


def test_compiled_cases_are_those_of_the_page():
  assert set(gpu_compiled.read()) <= {(part, shape) for side, part, shape in gpu.WORK if side == "ours"}
  sizes = gpu_parts.Sizes()
  for part, rank in (("decode", 0), ("learn", 16)):
    config = gpu_compiled.config_of(part, rank, sizes)
    config_lib.validate(config)
    assert (config.rollout.lanes, config.rollout.context, config.rollout.prefill) == (64, 1024, 512)
    assert (config.learner.micro_rows, tuple(config.learner.row_lengths)) == (4, (4096,))
    assert bool(config.model.lora.rank) == bool(rank)


def test_the_page_shows_figures_and_reasons():
  single = dict(tokens_per_s=9000.0, mfu=0.512, loss=0.0)
  found = {
    ("ours", "decode", gpu.SMALLER): dict(tokens_per_s=12345.6, bound=20000.0, share=0.617) | SAID,
    ("torch", "decode", gpu.SMALLER): dict(error="torch has no CUDA"),
    ("ours", "learn", gpu.SMALLER): dict(single=single, packed=dict(single, tokens_per_s=8000.0, mfu=None)) | SAID,
    ("ours", "search", ""): dict(ms=9.44, bound_ms=6.72) | SAID,
  }
  text = gpu.page(found)
  assert "| qwen2.5-1.5b | 12,346 | 20,000 | 61.7% | not measured |" in text
  assert "one H200, jax 1, commit abc, 2026-01-02, best of 1 " in text
  assert "one sequence per row | 9,000 | 51.2% | not measured |" in text and "| 8,000 | not measured | – |" in text
  assert "| 9.4 ms |" in text and "| 6.7 ms |" in text and f"- torch decode {gpu.SMALLER}: torch has no CUDA" in text


def test_figures_are_written_one_by_one_and_the_last_one_counts(tmp_path, monkeypatch):
  monkeypatch.setattr(gpu, "KEPT", tmp_path / "kept")
  rows = [dict(error="no GPU"), dict(ms=3.0), dict(ms=2.0), dict(error="no memory")]
  gpu.KEPT.write_text("".join(json.dumps(dict(side="ours", part="search", shape="") | row) + "\n" for row in rows))
  assert gpu.read()["ours", "search", ""]["ms"] == 2.0


def test_measurements_have_their_minutes():
  work, pythons = [("ours", "search", "")] * 2, dict(ours=sys.executable)
  (stopped,) = gpu.measure(work, pythons, rounds=0, minutes=1e-4, each=1.0, card="none")
  assert stopped["error"] == "stopped after 0 seconds" and stopped["card"] == "none"
  assert not list(gpu.measure(work, pythons, rounds=0, minutes=0.0, each=1.0))
  (row,) = gpu.measure(work[:1], pythons, rounds=0, minutes=5.0, each=5.0)
  assert row["ms"] > 0 and row["versions"].startswith("jax ") and row["rounds"] == 0


def test_lower_bounds_by_hand():
  config = SHAPES["qwen2.5-1.5b"]
  # 28 layers of q, o 1536 × 1536, k, v 1536 × 256 and three times 1536 × 8960; the head 151,936 × 1536; 2 bytes each.
  weights = 2 * (28 * (2 * 1536 * 1536 + 2 * 1536 * 256 + 3 * 1536 * 8960) + 151_936 * 1536)
  assert gpu_parts.decode_bytes(config, 64, 768.0) == weights + 64 * 768 * 28 * 2 * 2 * 128 * 2
  assert gpu_parts.bandwidth("NVIDIA H200") == 4.8e12 and gpu_parts.bandwidth("NVIDIA H100 80GB HBM3") == 3.35e12
  assert gpu_parts.bandwidth("NVIDIA H100 PCIe") == 2.0e12 and gpu_parts.bandwidth("cpu") is None


def test_search_runs_at_a_small_size():
  assert gpu_parts.search(gpu_parts.SMALL)["ms"] > 0


@pytest.mark.long  # compiles an engine and two learners
@pytest.mark.parametrize("part, shape", [
  ("decode", "qwen2.5-1.5b"), ("learn", "qwen2.5-1.5b"), ("learn", "qwen2.5-7b+lora"), ("switch", "qwen2.5-7b+lora"),
])  # fmt: skip
def test_our_side_runs_at_a_small_size(part, shape):
  found = gpu_parts.measure("ours", part, shape, gpu_parts.SMALL)
  assert found.get("packed", found)["seconds" if part == "switch" else "tokens_per_s"] > 0


def test_sizes_equal_those_on_the_page():
  shown = dict(lanes=64, vectors=21_000_000, dim=768, queries=64, packed=4)
  assert dataclasses.asdict(gpu_parts.Sizes()).items() >= shown.items()
