"""A step as a compiled engine's input tensors, by their names, in buffers that stay.

A tensor whose name begins with ``host_`` is read by the host while a step is enqueued,
the others by the device. The lengths mean what they mean in TensorRT-LLM's own batch
manager, which differs from its PyTorch operator in one: here a generation's
``host_past_key_value_lengths`` leaves out the token that is fed.

Source: TensorRT-LLM 1.2, ``models/generation_mixin.py`` (names, shapes, dtypes) and
``batch_manager/runtimeBuffers.cpp`` (values).
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.bridge import PackedBatch
from hybrid.bridge.trtllm_lengths import StepLengths
from hybrid.bridge.trtllm_offsets import BlockOffsets
from hybrid.bridge.trtllm_pools import TrtllmPools
from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.plan import StepPlan

from .sent_array import SentArray, host_allocator

_INT32: Final = (
    "input_ids",
    "position_ids",
    "last_token_ids",
    "context_lengths",
    "sequence_length",
    "cache_indirection",
    "kv_cache_block_offsets",
    "host_context_lengths",
    "host_past_key_value_lengths",
    "host_request_types",
    "host_max_attention_window_sizes",
    "host_sink_token_length",
    "host_kv_cache_block_offsets",
    "host_kv_cache_pool_mapping",
)
_INT64: Final = (
    "host_kv_cache_pool_pointers",
    "host_runtime_perf_knobs",
    "host_context_progress",
)
INPUT_DTYPES: Final = dict.fromkeys(_INT32, torch.int32) | dict.fromkeys(
    _INT64, torch.int64
)
"""What a step can be told, by name; an engine with other inputs was built for something
else."""
NUM_PERF_KNOBS: Final = 16
_SPLIT_LONG_SEQUENCES: Final = 0
"""The knob ``multi_block_mode``: several thread blocks for one sequence's past."""


def cache_indirection_bytes(max_num_seqs: int, max_model_len: int) -> int:
    """Tell the size of the one input that grows with both."""
    return max_num_seqs * max_model_len * torch.int32.itemsize


class EngineTensors:
    """Fills the buffers of one engine over one block-first pool, where the pool is.

    Raises:
        ConfigError: the pool cannot be addressed so.
    """

    def __init__(
        self,
        pool: KVPool,
        *,
        max_num_seqs: int,
        max_num_tokens: int,
        max_model_len: int,
    ) -> None:
        device = pool.memory.device
        pools = TrtllmPools.single(pool.layout)
        self._lease: Final = pool.lent.lend("engine")
        self._max_num_tokens: Final = max_num_tokens
        self._lengths: Final = StepLengths(max_num_seqs)
        self._offsets: Final = BlockOffsets(
            pools,
            max_num_seqs=max_num_seqs,
            max_num_blocks=-(-max_model_len // pool.layout.block_size),
            allocate=host_allocator(device),
        )
        (of_pool,) = self._offsets.array
        self._sent_offsets: Final = SentArray(of_pool, device)
        self._sent_tokens: Final = SentArray.zeros(
            (2, max_num_tokens), torch.int32, device
        )
        self._sent_lengths: Final = SentArray.zeros(
            (3, max_num_seqs), torch.int32, device
        )
        # Tokens before this step, read on the host alone.
        self._past: Final = np.zeros(max_num_seqs, np.int32)
        # Which beam a token's K and V are those of: with one beam always the first.
        self._cache_indirection: Final = torch.zeros(
            (max_num_seqs, 1, max_model_len), dtype=torch.int32, device=device
        )
        pointers = pools.pointers([self._lease.address])
        self._constants: Final = _constants(pointers, pools, max_model_len)

    def close(self) -> None:
        """Give the pool's address back."""
        self._lease.end()

    def fill(self, plan: StepPlan, batch: PackedBatch) -> Mapping[str, torch.Tensor]:
        """Write one step; the step before must be enqueued.

        Args:
            plan: contexts first; generations have one token each.
            batch: the same plan, packed.

        Returns:
            All of ``INPUT_DTYPES``, as views of the buffers.

        Raises:
            ConfigError: the step is larger than the buffers.
            ExecutorFailed: the pool has moved.
        """
        self._lease.check()
        self._check_size(plan)
        lengths = self._lengths
        lengths.update(plan)
        assert (lengths.query_lens[plan.num_contexts :] == 1).all(), "no draft tokens"
        num_seqs = len(plan.scheduled)
        past = self._past[:num_seqs]
        past[:] = lengths.sequence_length
        past[plan.num_contexts :] -= 1
        on_host = {
            "host_context_lengths": lengths.context_lengths,
            "host_past_key_value_lengths": past,
            "host_request_types": lengths.request_types,
            "host_kv_cache_block_offsets": self._offsets.array[:, :num_seqs],
        }
        self._sent_offsets.rewrite(lambda: self._offsets.update(plan.scheduled))
        return {
            **self._constants,
            **{name: torch.from_numpy(array) for name, array in on_host.items()},
            **self._send(batch),
            # Contiguous, for a block-first pool is one pool to a kernel.
            "kv_cache_block_offsets": self._sent_offsets.device[None, :num_seqs],
            "cache_indirection": self._cache_indirection[:num_seqs],
        }

    def _send(self, batch: PackedBatch) -> Mapping[str, torch.Tensor]:
        lengths = self._lengths
        ids, positions = self._sent_tokens.put(batch.input_ids, batch.positions)
        last, context, total = self._sent_lengths.put(
            batch.query_start_loc[1:],
            lengths.context_lengths,
            lengths.sequence_length,
        )
        return {
            "input_ids": ids,
            "position_ids": positions,
            "last_token_ids": last,
            "context_lengths": context,
            "sequence_length": total,
        }

    def _check_size(self, plan: StepPlan) -> None:
        num_tokens, limit = plan.num_scheduled_tokens, self._max_num_tokens
        if num_tokens > limit:
            raise ConfigError(
                f"a step has {num_tokens} tokens, the engine was built for {limit} "
                "(trtllm-build --max_num_tokens)"
            )


def _constants(
    pointers: NDArray[np.int64], pools: TrtllmPools, max_model_len: int
) -> Mapping[str, torch.Tensor]:
    knobs = torch.full((NUM_PERF_KNOBS,), -1, dtype=torch.int64)
    knobs[_SPLIT_LONG_SEQUENCES] = 1
    mapping = torch.from_numpy(pools.mapping())
    windows = torch.full((len(mapping),), max_model_len, dtype=torch.int32)
    return {
        "host_max_attention_window_sizes": windows,
        "host_sink_token_length": torch.zeros(1, dtype=torch.int32),
        "host_kv_cache_pool_pointers": torch.from_numpy(pointers),
        "host_kv_cache_pool_mapping": mapping,
        "host_runtime_perf_knobs": knobs,
        "host_context_progress": torch.zeros(1, dtype=torch.int64),
    }
