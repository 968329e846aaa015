"""The plugin that offers the gated executor."""

from collections.abc import Callable

from hybrid.api import API_VERSION, ExecutorDescriptor, hookimpl

hybrid_api_version = API_VERSION


@hookimpl
def hybrid_register_executors(register: Callable[[ExecutorDescriptor], None]) -> None:
    """Offer it by the name ``gated``."""
    register(
        ExecutorDescriptor(
            name="gated",
            path="tests.serving.gated_executor:GatedExecutor",
            description="led by files",
            needs_model=False,
        )
    )
