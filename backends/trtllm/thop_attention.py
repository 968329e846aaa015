"""Attention by TensorRT-LLM's own operator over our pool: name ``thop``.

One call a layer writes the step's K and V into our blocks and attends, contexts and
generations together.

Source: TensorRT-LLM 1.2, ``thop/attentionOp.cpp``.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.bridge import PackedBatch
from hybrid.bridge.trtllm_pools import TrtllmPools
from hybrid.scheduler.errors import UnsupportedFeature
from hybrid.scheduler.plan import StepPlan

from .attention import Attention, AttentionNeeds
from .machine import Machine
from .thop_call import make_thop_call
from .thop_eras import FP8_KV_CACHE
from .thop_refusal import thop_refusal
from .thop_signature import find_installed_thop
from .thop_tables import ThopTables

WORKSPACE_BYTES: Final = 256 * 2**20
"""What AutoDeploy starts with; the operator grows it where it is too small."""


class ThopAttention(Attention):
    """One model's calls of ``thop.attention``.

    Raises:
        UnsupportedFeature: the installed operator is none that we know.
    """

    name: ClassVar[str] = "thop"
    description: ClassVar[str] = "TensorRT-LLM's own operator"
    can_capture: ClassVar[bool] = True

    @classmethod
    def refusal(cls, machine: Machine, needs: AttentionNeeds | None) -> str | None:
        """Ask the machine, the model's sizes, and the package last."""
        reason = thop_refusal(machine, needs)
        if reason is not None:
            return reason
        try:
            find_installed_thop()
        except UnsupportedFeature as error:
            return str(error)
        return None

    @classmethod
    def workspace_bytes(cls, needs: AttentionNeeds) -> int:
        """What it starts with."""
        del needs
        return WORKSPACE_BYTES

    def __init__(self, needs: AttentionNeeds, pool: KVPool) -> None:
        device = pool.memory.device
        pools = TrtllmPools.single(pool.layout)
        self._lease: Final = pool.lent.lend(self.name)
        self._tables: Final = ThopTables(pools, needs, device)
        # Grown in place when it is too small, which only a tensor of its own can be.
        self._workspace: Final = torch.empty(
            WORKSPACE_BYTES, dtype=torch.int8, device=device
        )
        constants = {
            "workspace_": self._workspace,
            "kv_cache_block_offsets": self._tables.device_offsets,
            "host_kv_cache_block_offsets": self._tables.host_offsets,
            # Read when the operator is called. Nothing ever changes it, and the mapping
            # tells the layers apart, so that one array serves them all, also captured.
            "host_kv_cache_pool_pointers": torch.from_numpy(
                pools.pointers([self._lease.address])
            ),
            "host_kv_cache_pool_mapping": torch.from_numpy(pools.mapping()),
            **_sizes(needs),
            **_quantisation(needs, device),
        }
        self._call: Final = make_thop_call(find_installed_thop(), constants)
        self._step: Mapping[str, Any] = {}

    def begin_step(self, plan: StepPlan, batch: PackedBatch) -> None:
        """Write tables and lengths, and send what changed to the device.

        Raises:
            ConfigError: the step is larger than the buffers.
            ExecutorFailed: the pool has moved.
        """
        self._lease.check()
        self._step = self._tables.update(plan, batch)
        self._call.begin_step(self._step)

    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """Call the operator, which writes K and V itself."""
        self._call.attend(layer, qkv, output)

    def close(self) -> None:
        """Give the pool's address back."""
        self._lease.end()

    @property
    def capture_key(self) -> int:
        """The workspace's address: the operator grows it where it is too small."""
        return self._workspace.data_ptr()

    @contextmanager
    def captured(self, num_seqs: int) -> Iterator[None]:
        """Tell the operator the longest lengths.

        It chooses kernels and grids by what it reads on the host, and a graph keeps
        what was chosen.
        """
        self._call.begin_step({**self._step, **self._tables.longest(num_seqs)})
        try:
            yield
        finally:
            self._call.begin_step(self._step)


def _sizes(needs: AttentionNeeds) -> Mapping[str, Any]:
    """Final from the first call on: the operator keeps one plan per configuration."""
    longest = needs.max_model_len
    return {
        "num_heads": needs.num_heads,
        "num_kv_heads": needs.num_kv_heads,
        "head_size": needs.head_dim,
        "tokens_per_block": needs.block_size,
        "max_num_requests": needs.max_num_seqs,
        "max_num_sequences": needs.max_num_seqs,
        "max_context_length": longest,
        "max_seq_len": longest,
        "attention_window_size": longest,
        # The operator's scale of the scores is 1 / (q_scaling * sqrt(head_size)).
        "q_scaling": 1 / (needs.scale * needs.head_dim**0.5),
        "rotary_embedding_max_position_info": [longest, longest],
        "rope_max_positions": longest,
        "rope_original_max_positions": longest,
    }


def _quantisation(needs: AttentionNeeds, device: torch.device) -> Mapping[str, Any]:
    """Say what a cell holds; the operator sees a bare pointer."""
    if needs.kv_dtype == needs.dtype:
        return {
            "quant_mode": 0,
            "kv_scale_orig_quant": None,
            "kv_scale_quant_orig": None,
        }
    return {
        "quant_mode": FP8_KV_CACHE,
        "kv_scale_orig_quant": torch.tensor([1 / needs.kv_scale], device=device),
        "kv_scale_quant_orig": torch.tensor([needs.kv_scale], device=device),
    }
