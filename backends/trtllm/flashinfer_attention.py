"""Attention by TensorRT-LLM's kernels as FlashInfer ships them: name ``flashinfer``.

Decode runs XQA on SM90 and SM12x and trtllm-gen on SM100 and SM103, as FlashInfer
itself chooses; prefill runs FMHA v2 on the former and trtllm-gen on the latter. They
read the pool and do not write it: ``scatter_kv`` does, first. A mixed step is two
calls, over the contexts and over the generations of the packed tokens.

FMHA v2 derives strides from shapes, so that a layer's K and V views do not serve it. It
takes pairs of K beside V, ``[pairs, 2, heads, tokens, dims]``: the whole block-first
pool is that, and seen from layer l on, block b is its pair ``b * num_layers``.

Source: FlashInfer 0.7.4, ``flashinfer/decode.py``, ``flashinfer/prefill.py``,
``csrc/fmha_v2_run.cu``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar, Final

import torch

from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.bridge import KVOrder, PackedBatch
from hybrid.bridge.flashinfer_tables import kv_views
from hybrid.scheduler.plan import StepPlan

from .attention import Attention, AttentionNeeds
from .flashinfer_refusal import DECODE, FMHA_V2, KERNEL_SETS, flashinfer_refusal
from .flashinfer_step import Contexts, DeviceStep, Generations
from .kv_scatter import scatter_kv
from .machine import Machine
from .scaled_kv_pool import FP8_MAX

WORKSPACE_BYTES: Final = 128 * 2**20
"""Of each of the two; what the kernels' own tests give them."""


class FlashInferAttention(Attention):
    """One model's calls of FlashInfer."""

    name: ClassVar[str] = "flashinfer"
    description: ClassVar[str] = "TensorRT-LLM's kernels in FlashInfer"
    can_capture: ClassVar[bool] = True

    @classmethod
    def refusal(cls, machine: Machine, needs: AttentionNeeds | None) -> str | None:
        """See ``flashinfer_refusal``."""
        return flashinfer_refusal(machine, needs)

    @classmethod
    def workspace_bytes(cls, needs: AttentionNeeds) -> int:
        """Tell both workspaces together."""
        del needs
        return 2 * WORKSPACE_BYTES

    def __init__(self, needs: AttentionNeeds, pool: KVPool) -> None:
        device, layout = pool.memory.device, pool.layout
        assert layout.order is KVOrder.BLOCK_FIRST, "pairs are K beside V"
        assert needs.compute_capability is not None, "refused without a GPU"
        prefill = KERNEL_SETS[needs.compute_capability].prefill
        self._decode_kernel: Final[Callable[..., Any]] = getattr(
            import_module("flashinfer.decode"), DECODE
        )
        self._prefill_kernel: Final[Callable[..., Any]] = getattr(
            import_module("flashinfer.prefill"), prefill
        )
        self._uses_fmha_v2: Final = prefill == FMHA_V2
        # The pairs and cells below are addresses in captured graphs.
        self._lease: Final = pool.lent.lend(self.name)
        self._needs: Final = needs
        self._is_quantised: Final = needs.kv_dtype != needs.dtype
        self._value_scale: Final = needs.kv_scale if self._is_quantised else 1.0
        self._score_scale: Final = needs.scale * self._value_scale
        layers = range(layout.num_layers)
        self._cells: Final = [_cells(pool, layer) for layer in layers]
        pairs = pool.memory.view(-1, *layout.shape[2:])
        self._pairs: Final = [pairs[layer:] for layer in layers]
        self._pair_tables: torch.Tensor | None = None
        self._step: Final = DeviceStep(needs, device)
        # Two: XQA's begins with semaphores that must be zero at first and stay as XQA
        # leaves them.
        self._decode_workspace: Final = _workspace(device)
        self._prefill_workspace: Final = _workspace(device)

    def begin_step(self, plan: StepPlan, batch: PackedBatch) -> None:
        """See ``Attention``.

        Raises:
            ConfigError: the step is larger than the buffers.
            ExecutorFailed: the pool has moved.
        """
        self._lease.check()
        self._step.update(plan, batch)
        contexts = self._step.contexts
        if contexts is not None and self._uses_fmha_v2:
            self._pair_tables = contexts.tables * len(self._pairs)

    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """See ``Attention``."""
        step, needs = self._step, self._needs
        scatter_kv(qkv, *self._cells[layer], step.slots, self._value_scale)
        # The kernels take the next token's queries to follow this one's.
        queries = qkv[:, : needs.num_heads * needs.head_dim].contiguous()
        queries = queries.view(-1, needs.num_heads, needs.head_dim)
        output = output.view_as(queries)
        first = 0
        if step.contexts is not None:
            first = step.contexts.num_tokens
            self._prefill(layer, step.contexts, queries[:first], output[:first])
        if step.generations is not None:
            self._decode(layer, step.generations, queries[first:], output[first:])

    def close(self) -> None:
        """Give the pool's address back."""
        self._lease.end()

    @contextmanager
    def captured(self, num_seqs: int) -> Iterator[None]:
        """See ``Attention``: trtllm-gen chooses a grid by the longest sequence."""
        own = self._step.generations
        assert own is not None, "begin_step of a decode step comes first"
        assert len(own.kv_lens) == num_seqs
        self._step.generations = replace(own, max_kv_len=self._needs.max_model_len)
        try:
            yield
        finally:
            self._step.generations = own

    def _decode(
        self, layer: int, step: Generations, queries: torch.Tensor, output: torch.Tensor
    ) -> None:
        self._decode_kernel(
            query=queries,
            kv_cache=self._cells[layer],
            workspace_buffer=self._decode_workspace,
            block_tables=step.tables,
            seq_lens=step.kv_lens,
            max_seq_len=step.max_kv_len,
            bmm1_scale=self._score_scale,
            bmm2_scale=self._value_scale,
            window_left=self._window_left(layer),
            out=output,
            kv_layout="HND",
        )

    def _prefill(
        self, layer: int, step: Contexts, queries: torch.Tensor, output: torch.Tensor
    ) -> None:
        if self._is_quantised:
            # These kernels take queries in the pool's dtype. Floats keep their relative
            # precision whatever the scale, so none is needed below the largest.
            queries = queries.float().clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        window_left = self._window_left(layer)
        if self._uses_fmha_v2:
            of_kernel: dict[str, Any] = {
                "qkv": (queries, self._pairs[layer]),
                "input_layout": "Q_PAGED_KV_HND",
                "block_tables": self._pair_tables,
                "mask_mode": "causal" if window_left < 0 else "sliding_window",
            }
        else:
            of_kernel = {
                "query": queries,
                "kv_cache": self._cells[layer],
                "block_tables": step.tables,
                "kv_layout": "HND",
            }
        self._prefill_kernel(
            **of_kernel,
            workspace_buffer=self._prefill_workspace,
            seq_lens=step.kv_lens,
            max_q_len=step.max_query_len,
            max_kv_len=step.max_kv_len,
            bmm1_scale=self._score_scale,
            bmm2_scale=self._value_scale,
            batch_size=len(step.kv_lens),
            cum_seq_lens_q=step.query_starts,
            cum_seq_lens_kv=step.kv_starts,
            window_left=window_left,
            out=output,
        )

    def _window_left(self, layer: int) -> int:
        """Tokens before a query that it sees; -1: all."""
        window = self._needs.windows[layer]
        return -1 if window is None else window - 1


def _cells(pool: KVPool, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of one layer, ``[blocks, heads, tokens, dims]``, views of the pool."""
    views, start = kv_views(pool.layout, layer), pool.memory.storage_offset()
    keys, values = (
        torch.as_strided(pool.memory, views.shape, views.strides, start + offset)
        for offset in (views.key_offset, views.value_offset)
    )
    return keys, values


def _workspace(device: torch.device) -> torch.Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
