"""Executors over tiny models, and what they answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hybrid_openvino.executor import OpenVINOExecutor
from hybrid_openvino.ir_directory import MODEL_FILE
from numpy.typing import NDArray

from hybrid.api import (
    CheckpointFormat,
    ExecutorConfig,
    GenerateRequest,
    ModelSource,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)

BLOCKS = (3, 1, 5)
TOKEN_IDS = tuple(range(7, 80))


def load(
    folder: Path,
    *,
    dtype: str = "float32",
    cache_dir: Path | None = None,
    block_size: int = 32,
    **options: Any,
) -> OpenVINOExecutor:
    """Load a checkpoint or an IR, with a pool of eight blocks, on one thread."""
    executor = OpenVINOExecutor()
    is_ir = (folder / MODEL_FILE).is_file()
    kind = CheckpointFormat.COMPILED if is_ir else CheckpointFormat.HF_DIRECTORY
    executor.load(
        ModelSource("tiny", folder, kind),
        ExecutorConfig(
            dtype=dtype,
            block_size=block_size,
            num_threads=1,
            options=options,
            cache_dir=cache_dir,
        ),
    )
    executor.allocate_kv(8)
    return executor


def make_plan(
    token_ids: Sequence[int] = TOKEN_IDS,
    *,
    num_computed: int = 0,
    num_rows: int = 1,
    block_ids: tuple[int, ...] = BLOCKS,
) -> StepPlan:
    """A plan of one context: the tokens after those that were computed."""
    ids = tuple(token_ids)
    request = GenerateRequest("r", ids, SamplingParams())
    entry = ScheduledRequest(
        request, 0, ids[num_computed:], num_computed, block_ids, num_rows, 1
    )
    return StepPlan(0, (entry,), 1, (), (), ())


def logits(
    executor: OpenVINOExecutor, plan: StepPlan | None = None
) -> NDArray[np.float32]:
    """Run one plan: float32 ``[rows, vocab]``, a copy."""
    result = executor.execute(plan or make_plan()).logits
    assert result is not None
    return np.from_dlpack(result).copy()


def distance(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Norm of the difference over the norm."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
