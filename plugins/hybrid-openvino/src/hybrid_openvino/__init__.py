"""OpenVINO's compiled kernels under hybrid's scheduler: a plugin."""

from collections.abc import Callable
from typing import Final

from hybrid.api import ExecutorDescriptor, hookimpl

hybrid_api_version: Final = (1, 0)


@hookimpl
def hybrid_register_executors(register: Callable[[ExecutorDescriptor], None]) -> None:
    """Register ``openvino``."""
    register(
        ExecutorDescriptor(
            name="openvino",
            path="hybrid_openvino.executor:OpenVINOExecutor",
            description="OpenVINO's compiled models and paged attention, on CPUs",
            requires=("openvino", "torch", "transformers"),
            install_hint="pip install hybrid-openvino",
        )
    )
