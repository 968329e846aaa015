"""What comes with the package; registered as a third party's plugin would be."""

from collections.abc import Callable
from typing import Final

from hybrid._version import __version__
from hybrid.backends.interface import API_VERSION

from .descriptors import ExecutorDescriptor, SchedulerDescriptor
from .markers import hookimpl
from .plugin_record import PluginSource

BUILT_IN: Final = PluginSource("built-in", "hybrid-llm-engine", __version__)


class BuiltInPlugin:
    """Executors and the scheduler that need no other distribution."""

    hybrid_api_version: Final = API_VERSION

    @hookimpl
    def hybrid_register_executors(
        self, register: Callable[[ExecutorDescriptor], None]
    ) -> None:
        """See ``HookSpecs``."""
        register(
            ExecutorDescriptor(
                name="torch",
                path="hybrid.backends.pytorch.executor:TorchExecutor",
                description="transformers' models with paged attention, CPU and CUDA",
                requires=("torch", "transformers", "safetensors", "gguf"),
                install_hint="pip install 'hybrid-llm-engine[torch]'",
            )
        )
        register(
            ExecutorDescriptor(
                name="tensorrt_llm",
                path="hybrid.backends.trtllm.executor:TrtllmExecutor",
                description="TensorRT-LLM's kernels or engines; else plain torch",
                requires=("torch", "transformers", "safetensors", "gguf"),
                install_hint="pip install 'hybrid-llm-engine[torch]'",
            )
        )
        register(
            ExecutorDescriptor(
                name="cpu",
                path="hybrid.backends.cpu.executor:CpuExecutor",
                description="compiled int8, 4-bit and float kernels for CPUs",
                requires=("safetensors",),
                install_hint="pip install 'hybrid-llm-engine[torch]'",
            )
        )
        register(
            ExecutorDescriptor(
                name="null",
                path="hybrid.backends.null.executor:NullExecutor",
                description="deterministic hash over the paged cache; for tests",
                needs_model=False,
            )
        )

    @hookimpl
    def hybrid_register_schedulers(
        self, register: Callable[[SchedulerDescriptor], None]
    ) -> None:
        """See ``HookSpecs``."""
        register(
            SchedulerDescriptor(
                name="paged",
                path="hybrid.scheduler:PagedScheduler",
                description="chunked prefill, prefix cache, preemption; any order",
            )
        )
