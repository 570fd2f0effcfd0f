"""The devices that a collective joins, and its traffic between hosts of GPUs."""

import pytest

from ragrl_jax.plan import aot


@pytest.mark.parametrize("text, expected", [
  ("replica_groups={{0,2},{1,3}}, dimensions={0}", [[0, 2], [1, 3]]),
  ("replica_groups=[2,4]<=[8], dimensions={0}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
  ("replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add", [[0, 4], [1, 5], [2, 6], [3, 7]]),
  ("replica_groups=mesh['a'=2,'b'=4] {'b'}, use_global_device_ids=true", [[0, 1, 2, 3], [4, 5, 6, 7]]),
  ("replica_groups=mesh['a'=2,'b'=2,'c'=2] {'a','c'}, to_apply=%add", [[0, 1, 4, 5], [2, 3, 6, 7]]),
  ("replica_groups=mesh['a'=1,'b'=4,'c'=1,'d'=2], device_ids=([2,4]T(1,0)) {'b'}, use_global_device_ids=true",
   [[0, 1, 2, 3], [4, 5, 6, 7]]),
  ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
  ("replica_groups=mesh['a'=2,'b'=2], device_ids=([4]) {'a'}", [[0, 2], [1, 3]]),
  ("channel_id=1, source_target_pairs={{0,1},{1,0}}", [[0, 1], [1, 0]]), ("replica_groups={}, to_apply=%add", []),
])  # fmt: skip
def test_the_forms_of_a_group(text, expected):
  line = f"  %x = f32[8]{{0}} all-gather(%y), {text}"
  assert aot.parse_groups(line) == expected and aot.parse_groups(aot.group_text(line)) == expected


@pytest.mark.parametrize("form", ["mesh['a'=8] {'a':(2)4}", "mesh['a'=8], other=1 {'a'}", "new(1,2)"])
def test_an_unknown_form_is_refused(form):
  """It must not pass for one group of all devices."""
  line = f"%x = f32[8] all-gather(%y), replica_groups={form}, dimensions={{0}}"
  with pytest.raises(ValueError, match="cannot read"):
    aot.parse_groups(aot.group_text(line))


WITHIN, ACROSS = "replica_groups={{0,1,2,3},{4,5,6,7}}", "replica_groups={{0,4},{1,5},{2,6},{3,7}}"  # two hosts of four
ALL = "replica_groups=[1,8]<=[8]"


@pytest.mark.parametrize("kind, where, each, expected", [
  ("all-gather", WITHIN, 4, 0),
  ("all-gather", ACROSS, 4, 400),  # the half that the other host has
  ("all-gather", ALL, 4, 100),  # the same half, divided among the host's four GPUs
  ("all-gather", "replica_groups={}", 4, 100), ("reduce-scatter", ALL, 4, 100),
  ("all-reduce", ALL, 4, 200),  # scattered and gathered
  ("all-gather", ALL, 2, 300),  # four hosts of two: three quarters, divided between two GPUs
  ("all-to-all", ALL, 4, 400),  # a GPU's own data for the other host's GPUs
  ("collective-permute", "source_target_pairs={{0,1},{3,4}}", 4, 800),
  ("collective-permute", "source_target_pairs={{0,1},{1,0}}", 4, 0),
])  # fmt: skip
def test_bytes_between_hosts(kind, where, each, expected):
  assert aot.between_hosts(kind, 800, where, each, 8) == expected


@pytest.mark.parametrize("instruction, size, moved", [
  # One instruction for two arrays: 8 · 4 and 16 · 2 bytes.
  ("((f32[1], bf16[2]), (f32[8], bf16[16])) all-gather-start(%a, %b)", 16, 64),
  ("(f32[8], bf16[16]) all-gather(%a, %b)", 16, 64), ("(f32[8], bf16[16]) all-reduce-start(%a, %b)", 16, 64),
  ("(bf16[4,8], bf16[32,8], u32[], u32[]) all-gather-start(%a)", 256, 512),
  ("(f32[8], f32[8], u32[], u32[]) collective-permute-start(%a)", 8, 32),
  ("((f32[64]), f32[8]) reduce-scatter-start(%a)", 64, 256),  # the type contains the argument
  ("(f32[8], f32[4]) reduce-scatter(%a, %b)", 64, 8 * (32 + 16)), ("((bf16[6]), bf16[6]) all-to-all-start(%a)", 6, 12),
])  # fmt: skip
def test_all_arrays_of_a_collective_are_counted(instruction, size, moved):
  text = f"""ENTRY %main (x: f32[6]) -> f32[6] {{
  %c = {instruction}, channel_id=1, replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}
  ROOT %p = f32[6]{{0}} parameter(0)
}}
"""
  [found] = aot.collectives(text)
  assert (found.size, found.bytes, found.groups) == (size, moved, "replica_groups={{0,1,2,3,4,5,6,7}}")
