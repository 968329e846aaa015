"""Buffers share memory only if they never live together."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hybrid.backends.cpu.abi import ALIGNMENT_BYTES
from hybrid.backends.cpu.memory_plan import Lifetime, plan_memory


@st.composite
def _lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    buffers = []
    for _ in range(draw(st.integers(0, 14))):
        first, last = sorted(draw(st.tuples(st.integers(0, 9), st.integers(0, 9))))
        buffers.append(Lifetime(draw(st.integers(1, 1000)), first, last))
    return buffers


@given(_lifetimes())
def test_no_two_live_buffers_overlap(buffers: list[Lifetime]) -> None:
    """Checked op by op and byte by byte, not by the rule that the plan uses."""
    plan = plan_memory(buffers)
    spans = [
        range(offset, offset + buffer.size_bytes)
        for offset, buffer in zip(plan.offsets, buffers, strict=True)
    ]
    assert all(offset % ALIGNMENT_BYTES == 0 for offset in plan.offsets)
    assert all(span.stop <= plan.arena_bytes for span in spans)
    for step in range(10):
        live = [
            span
            for span, buffer in zip(spans, buffers, strict=True)
            if buffer.first <= step <= buffer.last
        ]
        for one, other in combinations(live, 2):
            assert one.stop <= other.start or other.stop <= one.start


@given(_lifetimes())
def test_the_peak_is_between_what_lives_at_once_and_the_sum(
    buffers: list[Lifetime],
) -> None:
    """Never less than the fullest op needs, never more than sharing nothing."""
    plan = plan_memory(buffers)
    needed = [
        sum(b.size_bytes for b in buffers if b.first <= step <= b.last)
        for step in range(10)
    ]
    assert max(needed) <= plan.arena_bytes <= plan.unshared_bytes


def test_a_chain_takes_the_memory_of_its_two_largest_neighbours() -> None:
    """Each buffer is read by the op that writes the next; sizes fall."""
    buffers = [Lifetime(64 * (10 - i), i, i + 1) for i in range(10)]
    plan = plan_memory(buffers)
    assert plan.arena_bytes == 64 * (10 + 9)
    assert plan.unshared_bytes == 64 * sum(range(1, 11))


def test_a_gap_between_two_is_used_if_it_is_wide_enough() -> None:
    """The last two live beside both ends: one fits between them, one does not."""
    ends = [Lifetime(640, 0, 9), Lifetime(320, 0, 3), Lifetime(256, 0, 9)]
    late = [Lifetime(192, 5, 6), Lifetime(128, 5, 6), Lifetime(192, 5, 6)]
    plan = plan_memory(ends + late)
    assert plan.offsets == (0, 640, 960, 640, 832, 1216)
    assert plan.arena_bytes == 1408
