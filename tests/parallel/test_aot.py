"""Reads the traffic of a compiled program from its text; also the errors when libtpu or a slice is missing."""

from unittest import mock

import jax
import pytest

from ragrl_jax.plan import aot

TEXT = """HloModule jit_f, is_scheduled=true

%inner (p: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %p = (s32[], bf16[4,8]) parameter(0)
  %ag = (bf16[4,8], bf16[32,8]) all-gather-start(bf16[4,8] %x), dimensions={0}
  ROOT %t = (s32[], bf16[4,8]) tuple(%i, %y)
}

%condition (p.1: (s32[], bf16[4,8])) -> pred[] {
  ROOT %less = pred[] compare(%a, %b), direction=LT
}

%fused (p.2: f32[6]) -> f32[3] {
  ROOT %rs = f32[3]{0} reduce-scatter(f32[6] %p.2), dimensions={0}, to_apply=%add
}

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(f32[] %a, f32[] %b)
}

%outer (p.3: (s32[], f32[6])) -> (s32[], f32[6]) {
  %w = (s32[], bf16[4,8]) while(%init), condition=%condition, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
  %f = f32[3]{0} fusion(f32[6] %g), kind=kCustom, calls=%fused
  ROOT %t.1 = (s32[], f32[6]) tuple(%i, %z)
}

%yes (p.4: pred[7]) -> pred[7] {
  ROOT %aa = pred[7]{0} all-to-all(pred[7] %p.4), dimensions={0}
}

%no (p.5: pred[7]) -> pred[7] {
  ROOT %p.5 = pred[7]{0} parameter(0)
}

ENTRY %main (x: f32[6]) -> f32[] {
  %w.1 = (s32[], f32[6]) while(%start), condition=%condition, body=%outer, backend_config={"known_trip_count":{"n":"3"}}
  %c = pred[7]{0} conditional(s32[] %which, pred[7] %u, pred[7] %u), branch_computations={%yes, %no}
  ROOT %ar = f32[] all-reduce(f32[] %r), replica_groups={}, to_apply=%add
}
"""


def test_loops_multiply_and_called_computations_are_counted():
  first, *others = sorted((c.kind, c.size, c.bytes, c.times, c.loops) for c in aot.collectives(TEXT))
  assert first == ("all-gather", 256, 512, 15, 2)  # the larger array of an asynchronous pair
  assert others == [("all-reduce", 1, 4, 1, 0), ("all-to-all", 7, 7, 1, 0), ("reduce-scatter", 3, 12, 3, 1)]


def test_a_collective_that_runs_beside_several_fusions_counts_once():
  """TPU compilers repeat the same channel in several fusions, and give the loop's count only in its condition."""
  text = """HloModule jit_g

%beside (p: bf16[4]) -> bf16[32] {
  ROOT %g = bf16[32]{0} all-gather(%p), channel_id=7, dimensions={0}
}

%then (p.1: bf16[4]) -> bf16[32] {
  ROOT %g.1 = bf16[32]{0} all-gather(%p.1), channel_id=7, dimensions={0}
}

%condition (s: (s32[])) -> pred[] {
  %bound = s32[]{:T(128)} constant(28)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %bound), direction=LT
}

%body (s.1: (s32[])) -> (s32[]) {
  %f = bf16[32]{0} fusion(%x), kind=kCustom, calls=%beside
  %f.1 = bf16[32]{0} fusion(%x), kind=kCustom, calls=%then
  ROOT %t = (s32[]) tuple(%j)
}

ENTRY %main (x: s32[]) -> (s32[]) {
  ROOT %w = (s32[]) while(%start), condition=%condition, body=%body
}
"""
  assert aot.collectives(text) == [aot.Collective("all-gather", 32, 64, 28, 1)]
  # One that starts before the loop and overlaps it is listed in its body too.
  outside = "ENTRY %main (x: s32[]) -> (s32[]) {"
  started = text.replace(outside, f"{outside}\n  %f.2 = bf16[32]{{0}} fusion(%x), kind=kCustom, calls=%beside")
  assert aot.collectives(started) == [aot.Collective("all-gather", 32, 64, 1, 0)]


@pytest.mark.parametrize("raised, told, says", [
  (ModuleNotFoundError("libtpu"), RuntimeError, r"ragrl_jax\[tpu\]"),
  (RuntimeError("JAX TPU support not installed"), RuntimeError, r"ragrl_jax\[tpu\]"),
  (FileNotFoundError("libtpu.so"), RuntimeError, r"ragrl_jax\[tpu\]"),
  (jax.errors.JaxRuntimeError("INVALID_ARGUMENT: no such topology"), ValueError, "topology 'v9:1x1' with 1 slices"),
])  # fmt: skip
def test_what_is_missing_is_named(monkeypatch, raised, told, says):
  for name, value in aot.SETTINGS.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(aot.topologies, "get_topology_desc", mock.Mock(side_effect=raised))
  with pytest.raises(told, match=says):
    aot.devices("v9:1x1")


BETWEEN = """HloModule jit_f, is_scheduled=true

%body (p: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %s = (bf16[2,8,16]{2,1,0:T(8,128)(2,1)}, u32[], token[]) send(%x, %a), channel_id=2, is_host_transfer=true, \
frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_transfer_type="ALL_GATHER"}
  %sd = token[] send-done(%s), frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}
  %r = (bf16[2,2,8,16]{3,2,1,0}, u32[], token[]) recv(%a), channel_id=1, is_host_transfer=true, \
frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_transfer_type="ALL_GATHER"}
  %rd = (bf16[2,2,8,16]{3,2,1,0}, token[]) recv-done(%r)
  ROOT %t = (s32[], bf16[4,8]) tuple(%i, %y)
}

%condition (p.1: (s32[], bf16[4,8])) -> pred[] {
  ROOT %less = pred[] compare(%a, %b), direction=LT
}

ENTRY %main (x: f32[6]) -> f32[6] {
  %w = (s32[], bf16[4,8]) while(%init), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %s.1 = (f32[5]{0}, u32[], token[]) send(%x, %a), is_host_transfer=true, \
frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_transfer_type="ALL_REDUCE"}
  %s.2 = (f32[7]{0}, u32[], token[]) send(%x, %a), is_host_transfer=true
  ROOT %p = f32[6]{0} parameter(0)
}
"""


def test_bytes_between_slices():
  # Three times 256 numbers of two bytes are sent and 512 received. The entry sends five of four bytes. One send is to
  # the host itself.
  assert aot.between_slices(BETWEEN) == 3 * 2 * 512
  assert aot.between_slices(BETWEEN.replace("bf16[2,2,8,16]", "bf16[2,8,16]")) == 3 * 2 * 256 + 5 * 4
  assert aot.between_slices(TEXT) == 0


def test_the_slice_of_one_host_or_a_few():
  assert aot.of_hosts("v5e:16x16") == "v5e:2x2" and aot.of_hosts("v5p:8x8x8") == "v5p:2x2x1"
  assert [aot.of_hosts("v5e:16x16", n) for n in (2, 4, 8)] == ["v5e:2x4", "v5e:4x4", "v5e:4x8"]
  assert [aot.of_hosts("v5p:8x8x8", n) for n in (2, 4, 8)] == ["v5p:2x2x2", "v5p:2x2x4", "v5p:2x4x4"]
  assert aot.of_hosts("h200:4x8", 2) == "h200:2x8"


@pytest.mark.parametrize(
  "groups, devices", [("replica_groups={{0,2,4,6},{1,3,5,7}}", 4), ("replica_groups=[2,8]<=[4,4]T(1,0)", 8), ("", 1)]
)
def test_a_reduce_scatter_receives_more_than_it_returns(groups, devices):
  text = f"""%add (a: f32[], b: f32[]) -> f32[] {{
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[6]) -> f32[6] {{
  %rs = f32[3,2]{{1,0}} reduce-scatter(%x), channel_id=1, {groups}, dimensions={{0}}, to_apply=%add
  ROOT %p = f32[6]{{0}} parameter(0)
}}
"""
  assert aot.collectives(text) == [aot.Collective("reduce-scatter", 6 * devices, 24 * devices, 1, 0)]
