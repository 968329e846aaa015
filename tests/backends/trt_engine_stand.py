"""Compiled engines of tiny models, loaded against the stand-in package."""

from pathlib import Path
from typing import Any, Final

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import ExecutorConfig
from hybrid.backends.trtllm.engine_runner import EngineRunner
from hybrid.backends.trtllm.machine import Machine
from tests.backends.standin_engine import build_standin_engine

HERE: Final = Machine(("cpu",), (9, 0), kernel_device="cpu")
"""Real code against the stand-in, which keeps its tensors on the CPU."""
CONFIG: Final = ExecutorConfig(block_size=32, max_num_seqs=8, max_model_len=128)


def open_engine(
    weights: Path, out: Path, config: ExecutorConfig = CONFIG, **changes: Any
) -> EngineRunner:
    """Build an engine and load it."""
    build_standin_engine(weights, out, **changes)
    return EngineRunner(ModelSource("e", out, CheckpointFormat.COMPILED), config, HERE)
