"""The conformance kit for executors; needs pytest, the extra ``testing`` brings it.

In a test file::

    from hybrid.testing import ExecutorConformance


    class TestMine(ExecutorConformance):
        executor = "mine"
"""

import pytest

# Before their import, so that a failing assert of the kit shows its values.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "answer",
            "engine_run",
            "correctness",
            "sharing",
            "sampling",
            "sampling_fields",
            "lifecycle",
            "honesty",
        )
    )
)

from .answer import Answer, check_answers  # noqa: E402 - see above
from .engine_run import check_whole, ids_of, run  # noqa: E402
from .executor_case import DTYPE_TOLERANCES, ExecutorCase, Load  # noqa: E402
from .executor_conformance import ExecutorConformance  # noqa: E402
from .loaded_executor import LoadedExecutor, load_executor  # noqa: E402
from .models import ARCHITECTURES, transformers_answers, write_tiny_model  # noqa: E402
from .recomputation import recomputed_answers  # noqa: E402
from .workload import TokenIds  # noqa: E402

__all__ = [
    "ARCHITECTURES",
    "DTYPE_TOLERANCES",
    "Answer",
    "ExecutorCase",
    "ExecutorConformance",
    "Load",
    "LoadedExecutor",
    "TokenIds",
    "check_answers",
    "check_whole",
    "ids_of",
    "load_executor",
    "recomputed_answers",
    "run",
    "transformers_answers",
    "write_tiny_model",
]
