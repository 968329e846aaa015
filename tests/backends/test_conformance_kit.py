"""The conformance kit can fail: every fault is seen, by the tests that look for it."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from hybrid.backends.interface import Executor
from hybrid.testing import ExecutorConformance
from tests.backends import conformance_mutants
from tests.backends.conformance_mutants import SEEN_BY


class FailureRecorder:
    """A pytest plugin that notes which tests of which class failed."""

    def __init__(self) -> None:
        self.failed: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note one phase of one test."""
        if report.failed:
            _, class_name, test = report.nodeid.split("::", 2)
            self.failed[class_name].add(test.partition("[")[0])


@pytest.fixture(scope="module")
def failed() -> Mapping[str, set[str]]:
    """By class of the mutants' file, what failed in one run of it."""
    recorder = FailureRecorder()
    path = Path(conformance_mutants.__file__)
    arguments = [str(path), "-q", "--tb=no", "-p", "no:cacheprovider"]
    assert pytest.main(arguments, plugins=[recorder]) == pytest.ExitCode.TESTS_FAILED
    return recorder.failed


@pytest.mark.parametrize("mutant", SEEN_BY, ids=lambda mutant: mutant.__name__)
def test_a_fault_is_seen_by_the_tests_that_look_for_it(
    failed: Mapping[str, set[str]], mutant: type[Executor]
) -> None:
    """Those fail, and no others."""
    assert failed[f"Test{mutant.__name__}"] == SEEN_BY[mutant]


def test_every_test_of_the_kit_sees_a_fault() -> None:
    """None of them would pass whatever an executor does."""
    tests = {name for name in dir(ExecutorConformance) if name.startswith("test_")}
    assert set().union(*SEEN_BY.values()) == tests
