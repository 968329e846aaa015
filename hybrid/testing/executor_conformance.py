"""The whole kit in one class, for an author to subclass."""

from .correctness import CorrectnessTests
from .honesty import HonestyTests
from .lifecycle import LifecycleTests
from .sampling import SamplingTests
from .sampling_fields import SamplingFieldTests
from .sharing import SharingTests


class ExecutorConformance(
    CorrectnessTests,
    SharingTests,
    SamplingTests,
    SamplingFieldTests,
    LifecycleTests,
    HonestyTests,
):
    """Tests that every executor passes; name yours in a subclass and run pytest.

    ::

        class TestMine(ExecutorConformance):
            executor = "mine"

    ``ExecutorCase`` lists what else a subclass may set or replace.
    """
