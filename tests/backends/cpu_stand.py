"""The cpu executor over a tiny model, and plans for it that are written by hand."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu.executor import CpuExecutor
from hybrid.backends.interface import ExecutorConfig
from hybrid.scheduler import (
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
)
from hybrid.testing import LoadedExecutor, load_executor

BLOCK_SIZE = 16
NUM_BLOCKS = 400


def load_cpu(
    folder: Path,
    *,
    num_threads: int = 2,
    dtype: str = "bfloat16",
    cache_dir: Path | None = None,
    num_blocks: int = NUM_BLOCKS,
    **options: Any,
) -> LoadedExecutor:
    """Load a directory into the kernels; whoever gets it closes its executor."""
    config = ExecutorConfig(
        dtype=dtype,
        block_size=BLOCK_SIZE,
        num_threads=num_threads,
        # No stand-in: what is tested here are the kernels.
        options={"implementation": "native"} | options,
        cache_dir=cache_dir,
    )
    source = ModelSource("tiny", folder, CheckpointFormat.HF_DIRECTORY)
    return load_executor(CpuExecutor(), source, config, num_blocks=num_blocks)


def entry(
    name: str,
    token_ids: Sequence[int],
    num_computed: int,
    block_ids: Sequence[int],
    num_rows: int,
) -> ScheduledRequest:
    """Write one share of a step."""
    ids = tuple(token_ids)
    request = GenerateRequest(name, ids, SamplingParams())
    blocks = tuple(block_ids)
    return ScheduledRequest(request, 0, ids, num_computed, blocks, num_rows, 1)


def plan_of(
    *entries: ScheduledRequest, num_contexts: int = 0, **fields: Any
) -> StepPlan:
    """Write one step."""
    defaults: dict[str, Any] = {"block_copies": (), "finished": (), "preempted": ()}
    return StepPlan(0, entries, num_contexts, **(defaults | fields))


def logits_in_company(
    loaded: LoadedExecutor,
    token_ids: Sequence[int],
    cuts: Sequence[int],
    *,
    num_others: int = 0,
    seed: int = 0,
) -> NDArray[np.float32]:
    """Run a sequence chunk by chunk, others beside it.

    Args:
        loaded: the executor.
        token_ids: of the sequence.
        cuts: tokens of each chunk.
        num_others: prompts and decoding neighbours in each step, at random places.
        seed: of the neighbours, and of where everybody's blocks lie.

    Returns:
        float32 ``[len(token_ids), vocab_size]``.
    """
    assert sum(cuts) == len(token_ids)
    rng, rows, start = Random(seed), [], 0
    blocks = rng.sample(range(1, loaded.num_blocks + 1), loaded.num_blocks)
    own = _take(blocks, -(-len(token_ids) // loaded.block_size))
    for cut in cuts:
        others = _others(rng, loaded, list(blocks), num_others)
        mine = entry("mine", token_ids[start : start + cut], start, own, cut)
        place = rng.randint(0, len(others))
        entries = (*others[:place], mine, *others[place:])
        logits = np.asarray(loaded.executor.execute(plan_of(*entries)).logits)
        first = sum(other.num_logits_rows for other in others[:place])
        rows.append(logits[first : first + cut].copy())
        start += cut
    return np.concatenate(rows)


def _others(
    rng: Random, loaded: LoadedExecutor, blocks: list[int], count: int
) -> list[ScheduledRequest]:
    """Chunks of one to forty tokens, over caches that hold whatever they hold."""
    entries = []
    for number in range(count):
        length = rng.choice((1, 1, rng.randint(1, 40)))
        computed = rng.choice((0, rng.randint(1, 60)))
        ids = [rng.randrange(loaded.info.vocab_size) for _ in range(length)]
        own = _take(blocks, -(-(computed + length) // loaded.block_size))
        entries.append(entry(f"r{number}", ids, computed, own, rng.randint(0, 1)))
    return entries


def _take(blocks: list[int], count: int) -> list[int]:
    return [blocks.pop() for _ in range(count)]
