"""Our histogram counts as Prometheus' own does."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as OwnHistogram

from hybrid.serving.histogram import Histogram, bounds_125

BOUNDS = (0.5, 1.0, 2.5)
VALUES = st.sampled_from((0.0, *BOUNDS)) | st.floats(0, 5)


@given(st.lists(st.tuples(VALUES, st.integers(1, 3)), max_size=20))
def test_buckets_are_those_of_the_library(values: list[tuple[float, int]]) -> None:
    """Bounds, their spelling and the counts up to each, values at a bound included."""
    registry = CollectorRegistry()
    theirs = OwnHistogram("h", "text", buckets=BOUNDS, registry=registry)
    ours = Histogram(BOUNDS)
    for value, times in values:
        ours.observe(value, times)
        for _ in range(times):
            theirs.observe(value)
    for name, count in ours.cumulative():
        assert registry.get_sample_value("h_bucket", {"le": name}) == count
    assert len(ours.cumulative()) == len(BOUNDS) + 1
    total = registry.get_sample_value("h_sum")
    assert total is not None
    assert abs(total - ours.sum) < 1e-9


def test_bounds_of_sizes_grow_up_to_the_limit() -> None:
    """In steps that a reader can tell apart on any scale."""
    assert bounds_125(1) == [1]
    assert bounds_125(99) == [1, 2, 5, 10, 20, 50]
    assert bounds_125(1000)[-1] == 1000
