"""What an index takes on chips: shares, candidates, the compiled search and an encoder, and a run's report with it."""

import types

import console
import encoder_plan
import jax
import pytest

from ragrl_jax.models import bert
from ragrl_jax.plan import index


def test_shares_by_hand():
  devices = jax.devices()[:8]
  one = index.Index(1000, dim=24, dtype="int8", queries=4)
  assert one.shape(devices) == (128, 1) and one.shape(devices[:3]) == (352, 1)  # whole groups of 32
  assert one.bytes(devices) == 128 * (24 + 4)  # codes, and a float32 scale for each row
  assert index.Index(1000, dim=24, dtype="bfloat16").bytes(devices) == 128 * 48
  big = index.Index(1_000_000, dim=24, dtype="float32")
  assert big.shape(devices) == (126_976, 1)  # 125,000 rows in 62 blocks of 2,048
  assert big.shape(devices[:1]) == (16 * 31 * 2048, 1)  # 16 chunks of 31 blocks, in one array
  # float32 fetches k + 8, the others 4 k, rounded up to a power of two.
  assert index.Index(9, top_k=10, dtype="float32").candidates == 32 and index.Index(9, top_k=10).candidates == 64


@pytest.mark.parametrize("settings, says", [(dict(dtype="int4"), "dtype='int4'"), (dict(queries=0), "at least 1")])
def test_bad_settings(settings, says):
  with pytest.raises(ValueError, match=says):
    index.Index(10, **settings)


@pytest.mark.parametrize("words, says", [
  ("--passages=100 --slices=2 --fill=0.9", "--slices, --fill without --config"),
  ("--config=arena --dim=8", "--dim without --passages"),
])  # fmt: skip
def test_settings_of_what_is_not_compiled_are_refused(words, says):
  done = console.ragrl("check", "--topology=v5e:2x4", *words.split())
  assert done.returncode == 2 and says in done.stderr and done.stdout == ""


def test_a_compiled_search_reads_every_vector_once():
  devices = jax.devices()[:4]
  asked = index.Index(4096, dim=16, dtype="bfloat16", queries=4, top_k=1)
  made = index.search(asked, devices, calls=3)
  assert made.flops == 2 * 16 * 4 * 1024 and made.hbm == 1024 * 32 + 2 * 4 * 4 * 1024
  assert made.calls == 3 and made.collectives and made.temporaries > 0


def test_a_compiled_encoder_counts_its_work():
  shape = bert.BertConfig(64, 16, 2, 2, 32, 32, 2, 1e-12)
  made = encoder_plan.encode(shape, jax.devices()[:2], texts=4, tokens=16)
  # A layer: four 16 x 16 matrices, two of 16 x 32; attention 4 · 16 · 16 a token. A chip has two texts of 16 tokens.
  assert made.flops == 2 * 16 * 2 * (2 * (4 * 256 + 2 * 512) + 4 * 16 * 16)


def test_an_index_that_needs_more_memory_than_jax_reserves_says_so():
  # 75 % of an H200 are 104.8 GiB, and 92 % are 128.5.
  for gib, fits, says in ((100, True, False), (110, True, True), (130, False, False)):
    alone = index.Alone(index.Index(10), "h200:1", 1, gib * 2**30, index.Program("x", 0.0, temporaries=2**30))
    assert (alone.fits, "XLA_PYTHON_CLIENT_MEM_FRACTION=0.92" in alone.text()) == (fits, says), gib


def test_a_search_that_the_compiler_refuses_does_not_fit():
  full, other = (jax.errors.JaxRuntimeError(text) for text in ("RESOURCE_EXHAUSTED: 27 G\nof 15 G", "INTERNAL"))
  lowered = lambda error: types.SimpleNamespace(compile=lambda: (_ for _ in ()).throw(error))
  made = index.program_of(index.SEARCH, lowered(full), jax.devices(), flops=1.0, hbm=2.0, calls=3)
  alone = index.Alone(index.Index(10), "v5e:2x2", 4, 2**30, made)
  assert not alone.fits and alone.to_json()["program"]["error"] == "RESOURCE_EXHAUSTED: 27 G of 15 G"
  assert "IT DOES NOT FIT" in alone.text() and "engine: search does not compile: RESOURCE_EXHAUSTED" in alone.text()
  with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
    index.program_of(index.SEARCH, lowered(other), jax.devices(), flops=1.0, hbm=2.0)
