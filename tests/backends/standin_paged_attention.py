"""Paged attention as TensorRT-LLM's kernels do it, by following raw addresses.

Knows a pool's pointers, a layer's number inside it, offsets and lengths; no pool and no
layout of ours. Whole cells are mapped at once, so that a real model can be run.

Source: TensorRT-LLM 1.2, ``kernels/kvCacheUtils.h`` and ``thop/attentionOp.cpp``.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

FP8_MAX = 448.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedStep:
    """One layer of one step."""

    pointer: int
    """Of the layer's pool in device memory."""
    layer_in_pool: int
    offsets: NDArray[np.int32]
    """``[seqs, 2, max_blocks]``: the pool's part."""
    query_lens: list[int]
    seq_lens: list[int]
    """Tokens after this step."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    stored: torch.dtype
    """Of a number in a cell."""
    scale: float
    """Of the scores."""
    kv_scale: float = 1.0
    """Stored number times this = the true one."""

    def cell(self, seq: int, field: int, block: int) -> torch.Tensor:
        """Map one cell's memory: ``[heads, tokens, dims]`` of the stored dtype."""
        shape = (self.num_kv_heads, self.block_size, self.head_dim)
        num_bytes = self.stored.itemsize * shape[0] * shape[1] * shape[2]
        cells = self.layer_in_pool * 2 + int(self.offsets[seq, field, block])
        start = self.pointer + cells * num_bytes
        memory = (ctypes.c_uint8 * num_bytes).from_address(start)
        cell = torch.from_numpy(np.frombuffer(memory, dtype=np.uint8))
        return cell.view(self.stored).view(shape)

    def write(self, seq: int, field: int, new: torch.Tensor) -> None:
        """Put new K or V, ``[heads, new tokens, dims]``, into a sequence's cells."""
        position = self.seq_lens[seq] - self.query_lens[seq]
        scaled = new.double() / self.kv_scale
        if self.stored == torch.float8_e4m3fn:
            scaled = scaled.clamp(-FP8_MAX, FP8_MAX)
        numbers = scaled.to(self.stored)
        done = 0
        while done < numbers.shape[1]:
            block, place = divmod(position + done, self.block_size)
            count = min(self.block_size - place, numbers.shape[1] - done)
            cell = self.cell(seq, field, block)
            cell[:, place : place + count] = numbers[:, done : done + count]
            done += count

    def read(self, seq: int, field: int) -> torch.Tensor:
        """Take a sequence's K or V: float64 ``[heads, tokens, dims]``."""
        num_blocks = -(-self.seq_lens[seq] // self.block_size)
        cells = [self.cell(seq, field, block) for block in range(num_blocks)]
        numbers = torch.cat(cells, dim=1)[:, : self.seq_lens[seq]]
        return numbers.double() * self.kv_scale


def write_and_attend(step: PagedStep, qkv: torch.Tensor) -> torch.Tensor:
    """Write the new K and V of all sequences, then attend to what is in the cells.

    Args:
        step: where everything lies.
        qkv: ``[N, (num_heads + 2 * num_kv_heads) * head_dim]``.

    Returns:
        float64 ``[N, num_heads * head_dim]``.
    """
    sizes = (step.num_heads, step.num_kv_heads, step.num_kv_heads)
    packed = qkv.view(len(qkv), -1, step.head_dim).transpose(0, 1)
    queries, keys, values = packed.split(sizes)
    ends = np.cumsum(step.query_lens).tolist()
    spans = [slice(end - n, end) for end, n in zip(ends, step.query_lens, strict=True)]
    for seq, span in enumerate(spans):
        step.write(seq, 0, keys[:, span])
        step.write(seq, 1, values[:, span])
    attended = [_attend(step, seq, queries[:, span]) for seq, span in enumerate(spans)]
    return torch.cat(attended)


def _attend(step: PagedStep, seq: int, queries: torch.Tensor) -> torch.Tensor:
    """Causal softmax attention of one sequence: ``[new tokens, heads * dims]``."""
    keys, values = step.read(seq, 0), step.read(seq, 1)
    group = step.num_heads // step.num_kv_heads
    keys, values = (x.repeat_interleave(group, dim=0) for x in (keys, values))
    scores = queries.double() @ keys.transpose(1, 2) * step.scale
    num_new, num_all = scores.shape[1:]
    sees = torch.ones(num_new, num_all, dtype=torch.bool).tril(num_all - num_new)
    weights = scores.masked_fill(~sees, -torch.inf).softmax(-1)
    return (weights @ values).transpose(0, 1).reshape(num_new, -1)
