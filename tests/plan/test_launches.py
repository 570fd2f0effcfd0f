"""The kernels of a GPU program, counted in its text."""

from ragrl_jax.plan import launches

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
  assert launches.launches(TEXT) == launches.Launches(token + 1, fewest=least + 1, **counted)
  assert launches.launches(TEXT, turns=16) == launches.Launches(16 * token + 1, fewest=16 * least + 1, **counted)


def test_a_loop_with_a_known_count_does_not_wait_for_the_host():
  known = TEXT.replace("body=%search", 'body=%search, backend_config={"known_trip_count":{"n":"7"}}')
  found, before = launches.launches(known), launches.launches(TEXT)
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
  assert launches.launches(text) == launches.Launches(4, 0, 0, 4)
