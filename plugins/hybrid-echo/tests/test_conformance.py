"""The engine's conformance kit, run against the echo executor."""

from hybrid.testing import ExecutorConformance


class TestEcho(ExecutorConformance):
    """Everything that the engine asks of an executor."""

    executor = "echo"
