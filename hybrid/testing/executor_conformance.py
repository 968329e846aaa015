"""The whole kit in one class, for an author to subclass."""

from .correctness import CorrectnessTests
from .honesty import HonestyTests
from .lifecycle import LifecycleTests
from .sampling import SamplingTests
from .sharing import SharingTests


class ExecutorConformance(
    CorrectnessTests, SharingTests, SamplingTests, LifecycleTests, HonestyTests
):
    """Tests that every executor passes; name yours in a subclass and run pytest.

    ::

        class TestMine(ExecutorConformance):
            executor = "mine"

    ``ExecutorCase`` lists what else a subclass may set or replace.
    """
