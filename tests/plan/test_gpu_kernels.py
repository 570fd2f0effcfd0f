"""The kernels of a GPU program, and the bytes that they move, counted in its text."""

import dataclasses

import pytest

from ragrl_jax.plan import gpu_kernels

launches = lambda text, turns=1: dataclasses.replace(gpu_kernels.counted(text, turns), moved=0)
moved = lambda text, turns=1: gpu_kernels.counted(text, turns).moved

# As XLA writes it for GPUs: instructions outside fusions are kernels, memory copies, or cost nothing.
TEXT = """HloModule jit_f, is_scheduled=true

%fused_add (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %copy.9 = f32[4]{0} copy(%p)
  ROOT %sum = f32[4]{0} add(%copy.9, %p)
}

%layer (p.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.1 = (s32[], f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%p.1), index=1
  %f = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused_add
  %gemm = (f32[4]{0}, s8[32]{0}) custom-call(%f, %f), custom_call_target="__cublas$lt$matmul"
  %ag = ((f32[4]{0}), (f32[32]{0})) all-gather-start(%f), replica_groups={{0,1}}
  %agd = (f32[32]{0}) all-gather-done(%ag)
  ROOT %t = (s32[], /*index=1*/f32[4]{0}) tuple(%i, %f)
}

%few (p.2: (s32[], f32[4])) -> pred[] {
  %i.1 = s32[] get-tuple-element(%p.2), index=0
  ROOT %lt = pred[] fusion(%i.1), kind=kLoop, calls=%fused_add
}

%token (p.3: (s32[], f32[4])) -> (s32[], f32[4]) {
  %w = (s32[], f32[4]{0}) while(%p.3), condition=%few, body=%layer, backend_config={"known_trip_count":{"n":"28"}}
  %c = f32[4]{0} copy(%f)
  %d = (f32[4]{0}) conditional(%i, %t, %t), branch_computations={%long, %short}
  ROOT %t.1 = (s32[], f32[4]{0}) tuple(%i, %c)
}

%search (p.4: (s32[], f32[4])) -> (s32[], f32[4]) {
  %f.1 = f32[4]{0} fusion(%x), kind=kInput, calls=%fused_add
  ROOT %t.2 = (s32[], f32[4]{0}) tuple(%i, %f.1)
}

%long (p.5: f32[4]) -> f32[4] {
  %w.1 = (s32[], f32[4]{0}) while(%p.5), condition=%few, body=%search
  ROOT %f.2 = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused_add
}

%short (p.6: f32[4]) -> f32[4] {
  ROOT %p.6 = f32[4]{0} parameter(0)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %zero = s32[] constant(0)
  %b = f32[2,2]{1,0} bitcast(%x)
  %w.2 = (s32[], f32[4]{0}) while(%t), condition=%few, body=%token
  ROOT %f.3 = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused_add
}
"""


def test_a_layers_kernels_count_as_often_as_it_runs():
  # A layer is a fusion, a matmul and a gather, 28 times. Its condition does not run: the compiler knows the count.
  # Then a copy, the read of a condition, and its longer branch: a fusion, and once the body (1), the condition (1) and
  # the read (1) of a loop. A token also runs the outer loop's condition (1) and its read (1).
  token = 3 * 28 + 1 + 1 + (3 + 1) + 1 + 1
  least = token - 4  # the shorter branch launches nothing
  counted = dict(host_loops=2, host_branches=1)
  assert launches(TEXT) == gpu_kernels.Counts(token + 1, fewest=least + 1, **counted)
  assert launches(TEXT, turns=16) == gpu_kernels.Counts(16 * token + 1, fewest=16 * least + 1, **counted)
  # For a loop with a known count the host does not wait.
  known = TEXT.replace("body=%search", 'body=%search, backend_config={"known_trip_count":{"n":"7"}}')
  found, before = launches(known), launches(TEXT)
  assert found.host_loops == 1 and found.kernels == before.kernels - 3 + 7


def test_called_computations_count_at_each_call():
  text = """HloModule jit_g

%graph (p: f32[4]) -> f32[4] {
  %f = f32[4]{0} fusion(%p), kind=kLoop, calls=%fused
  ROOT %k = f32[4]{0} custom-call(%f), custom_call_target="__cudnn$fmhaSoftmax"
}

%fused (p.1: f32[4]) -> f32[4] {
  ROOT %p.1 = f32[4]{0} parameter(0)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %c = f32[4]{0} call(%x), to_apply=%graph
  ROOT %c.1 = f32[4]{0} call(%c), to_apply=%graph
}
"""
  assert launches(text) == gpu_kernels.Counts(4, 0, 0, 4)


# As XLA writes it for GPUs. An embedding of 1,000 rows and two layers in a loop; then one token is written in place.
MOVING = """HloModule jit_f, is_scheduled=true

%embed (p: bf16[1000,8], ids: s32[4]) -> bf16[4,8] {
  %p = bf16[1000,8]{1,0} parameter(0)
  %ids = s32[4]{0} parameter(1)
  %wide = bf16[1000,8]{1,0} bitcast(%p)
  ROOT %rows = bf16[4,8]{1,0} gather(%wide, %ids), offset_dims={1}, slice_sizes={1,8}
}

%put (p.1: f32[64,8], new: f32[8], at: s32[]) -> f32[64,8] {
  %p.1 = f32[64,8]{1,0} parameter(0)
  %new = f32[8]{0} parameter(1)
  %at = s32[] parameter(2)
  %row = f32[1,8]{1,0} bitcast(%new)
  ROOT %put.1 = f32[64,8]{1,0} dynamic-update-slice(%p.1, %row, %at, %at)
}

%sum (p.2: f32[4,8]) -> (f32[4], f32[4]) {
  %p.2 = f32[4,8]{1,0} parameter(0)
  %a = f32[4]{0} reduce(%p.2), dimensions={1}, to_apply=%plus
  %b = f32[4]{0} reduce(%p.2), dimensions={1}, to_apply=%most
  ROOT %both = (f32[4]{0}, f32[4]{0}) tuple(%a, %b)
}

%layer (s: (s32[], f32[4,8], bf16[100,2,4,16,8])) -> (s32[], f32[4,8], bf16[100,2,4,16,8]) {
  %s = (s32[], f32[4,8]{1,0}, bf16[100,2,4,16,8]{4,3,2,1,0}) parameter(0)
  %x = f32[4,8]{1,0} get-tuple-element(%s), index=1
  %pages = bf16[100,2,4,16,8]{4,3,2,1,0} get-tuple-element(%s), index=2
  %both.2 = (f32[4,8]{1,0}, bf16[100,2,4,16,8]{4,3,2,1,0}) custom-call(%x, %pages), backend_config="paged_attention"
  %y = f32[4,8]{1,0} get-tuple-element(%both.2), index=0
  %g = (f32[4,8]{1,0}, s8[32]{0}) custom-call(%y, %w), custom_call_target="__cublas$lt$matmul"
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%i, %y)
}

%more (s.1: (s32[], f32[4,8])) -> pred[] {
  ROOT %lt = pred[] fusion(%i.1), kind=kLoop, calls=%sum
}

%long (l: f32[4,8]) -> f32[4,8] {
  %l = f32[4,8]{1,0} parameter(0)
  %l.1 = f32[4,8]{1,0} copy(%l)
  ROOT %l.2 = f32[4,8]{1,0} copy(%l.1)
}

%short (m: f32[4,8]) -> f32[4,8] {
  ROOT %m = f32[4,8]{1,0} parameter(0)
}

ENTRY %main (table: bf16[1000,8], ids.1: s32[4], row.1: f32[8], all: f32[64,8]) -> f32[64,8] {
  %table = bf16[1000,8]{1,0} parameter(0)
  %ids.1 = s32[4]{0} parameter(1)
  %row.1 = f32[8]{0} parameter(2)
  %all = f32[64,8]{1,0} parameter(3)
  %zero = s32[] constant(0)
  %e = bf16[4,8]{1,0} fusion(%table, %ids.1), kind=kLoop, calls=%embed
  %c = f32[4,8]{1,0} convert(%e)
  %w = (s32[], f32[4,8]{1,0}) while(%c), condition=%more, body=%layer, backend_config={"known_trip_count":{"n":"2"}}
  %d = f32[4,8]{1,0} conditional(%i, %c, %c), true_computation=%long, false_computation=%short
  %both.1 = (f32[4]{0}, /*index=1*/f32[4]{0}) fusion(%c), kind=kInput, calls=%sum
  ROOT %out = f32[64,8]{1,0} fusion(%all, %row.1, %zero), kind=kLoop, calls=%put
}
"""
EMBED = 4 * 8 * 2 * 2 + 4 * 4  # four rows are read and written, and the ids read; not the table
CONVERT = 4 * 8 * (2 + 4)
LAYER = 2 * 4 * 8 * 4 + (4 * 8 * 4 + 4 * 8 * 4 + 32)  # queries and what comes out, without pages; then a product
SUM = 4 * 8 * 4 + 2 * 4 * 4  # the operand of both sums is read once
PUT = 8 * 4 * 2 + 4  # the new row is read and written, and its place is read; not the other rows


def test_fusions_that_start_early_move_the_same():
  before = "ROOT %out = f32[64,8]{1,0} fusion(%all, %row.1, %zero), kind=kLoop, calls=%put"
  start = "%out = ((f32[64,8]{1,0}, f32[8]{0}, s32[]), f32[64,8]{1,0}, u32[]) fusion-start(%all, %row.1, %zero), "
  after = f"{start}kind=kLoop, calls=%put\n  ROOT %done = f32[64,8]{{1,0}} fusion-done(%out)"
  text = MOVING.replace(before, after)
  assert text != MOVING and moved(text) == moved(MOVING) and launches(text) == launches(MOVING)


def test_kernels_move_what_they_take_and_put_in_as_many_turns_as_the_host_or_the_compiler_counts():
  text = MOVING.replace(', backend_config={"known_trip_count":{"n":"2"}}', "")
  found = [moved(MOVING), moved(text, 1), moved(text, 7)]
  assert found == [EMBED + CONVERT + turns * LAYER + SUM + PUT for turns in (2, 1, 7)]


@pytest.mark.parametrize("before, after, more", [
  # The cheaper branch counts: without the one that returns what it is given, both copies are made in either.
  ("false_computation=%short", "false_computation=%long", 4 * 4 * 8 * 4),
  # An operand that is used whole and in part is read once.
  ("ROOT %rows", "%twice = bf16[1000,8]{1,0} add(%wide, %p)\n  ROOT %rows", 1000 * 8 * 2 - 4 * 8 * 2),
])  # fmt: skip
def test_what_a_change_moves(before, after, more):
  assert moved(MOVING.replace(before, after)) == moved(MOVING) + more


def test_a_slice_of_what_is_computed_first_reads_a_part_and_a_computed_whole_all():
  text = """HloModule jit_f, is_scheduled=true

%part (p: bf16[8,16]) -> f32[2,16] {
  %p = bf16[8,16]{1,0} parameter(0)
  %wide = f32[8,16]{1,0} convert(%p)
  %back = f32[8,16]{1,0} reverse(%wide), dimensions={0}
  ROOT %cut = f32[2,16]{1,0} slice(%back), slice={[0:2], [0:16]}
}

%whole (q: bf16[8,16]) -> f32[8,16] {
  %q = bf16[8,16]{1,0} parameter(0)
  ROOT %c = f32[8,16]{1,0} convert(%q)
}

ENTRY %main (x: bf16[8,16]) -> (f32[2,16], f32[8,16]) {
  %x = bf16[8,16]{1,0} parameter(0)
  %a = f32[2,16]{1,0} fusion(%x), kind=kLoop, calls=%part
  %b = f32[8,16]{1,0} fusion(%x), kind=kLoop, calls=%whole
  ROOT %t = (f32[2,16]{1,0}, f32[8,16]{1,0}) tuple(%a, %b)
}
"""
  assert moved(text) == 2 * 16 * (2 + 4) + 8 * 16 * (2 + 4)


def test_paths_that_part_and_meet_are_followed_once():
  lines = ["  %x0 = f32[8]{0} parameter(0)"]
  for n in range(40):
    lines += [f"  %n{n} = f32[8]{{0}} negate(%x{n})", f"  %x{n + 1} = f32[8]{{0}} add(%x{n}, %n{n})"]
  body = "\n".join((*lines, "  ROOT %cut = f32[2]{0} slice(%x40), slice={[0:2]}"))
  text = f"""HloModule jit_f, is_scheduled=true

%f (x0: f32[8]) -> f32[2] {{
{body}
}}

ENTRY %main (x: f32[8]) -> f32[2] {{
  %x = f32[8]{{0}} parameter(0)
  ROOT %a = f32[2]{{0}} fusion(%x), kind=kLoop, calls=%f
}}
"""
  assert moved(text) == 8 * 4 + 2 * 4  # read on several paths, so no more than the whole is known
