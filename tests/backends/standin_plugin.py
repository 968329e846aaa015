"""A stand-in for TensorRT-LLM's attention plugin: it follows addresses, as that does.

Transformers' modelling code calls it in every layer, with rotated queries and keys. It
knows the tensors of a step and the sizes of the build, no plan and no pool.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from tests.bridge.raw_kv import RawKV

PLUGIN = "standin_gpt_attention_plugin"
INT8_SCALE = 1 / 8
"""Of an 8-bit integer cache; compiled into the engine, from a calibration."""
KNOBS = {0: (0, 1), 1: (-1, 0, 1)}
"""Values of ``multi_block_mode`` and of the accumulation in float32."""


@dataclass(frozen=True, slots=True)
class PluginStep:
    """A step's tensors by name, and what the engine holds itself."""

    inputs: Mapping[str, torch.Tensor]
    num_kv_heads: int
    head_dim: int
    block_size: int
    kv_dtype: torch.dtype

    @property
    def num_seqs(self) -> int:
        """Sequences of the step."""
        return len(self.inputs["sequence_length"])

    @property
    def num_contexts(self) -> int:
        """The plugin counts leading zeros."""
        types = self.inputs["host_request_types"].tolist()
        return types.index(1) if 1 in types else len(types)

    @property
    def query_lens(self) -> list[int]:
        """A context's length of this step, one for each generation."""
        lengths = self.inputs["host_context_lengths"][: self.num_contexts].tolist()
        return lengths + [1] * (self.num_seqs - self.num_contexts)

    def raw(self) -> RawKV:
        """Pointers and offsets as the kernel has them: the device's."""
        return RawKV(
            self.inputs["host_kv_cache_pool_pointers"].numpy(),
            self.inputs["host_kv_cache_pool_mapping"].numpy(),
            self.inputs["kv_cache_block_offsets"].numpy(),
            num_heads=self.num_kv_heads,
            block_size=self.block_size,
            head_dim=self.head_dim,
            element_bytes=self.kv_dtype.itemsize,
        )


def check_step(step: PluginStep) -> None:
    """Refuse what the plugin would take and misread."""
    inputs, contexts = step.inputs, step.num_contexts
    types = inputs["host_request_types"].tolist()
    assert types == [0] * contexts + [1] * (step.num_seqs - contexts), "out of order"
    lengths = inputs["sequence_length"].tolist()
    past = inputs["host_past_key_value_lengths"].tolist()
    prompts = inputs["host_context_lengths"].tolist()
    assert prompts == inputs["context_lengths"].tolist()
    assert past[:contexts] == lengths[:contexts], "a context's past is inclusive"
    assert past[contexts:] == [length - 1 for length in lengths[contexts:]]
    pairs = zip(prompts[contexts:], lengths[contexts:], strict=True)
    assert all(0 < prompt < length for prompt, length in pairs)
    for length, count in zip(lengths[:contexts], step.query_lens, strict=False):
        # Chunks before the last are whole blocks, so each begins at a boundary.
        assert (length - count) % step.block_size == 0, "a chunk begins within a block"
    queries = torch.tensor(step.query_lens)
    assert len(inputs["input_ids"]) == queries.sum(), "tokens do not add up"
    if "last_token_ids" in inputs:
        assert inputs["last_token_ids"].tolist() == queries.cumsum(0).tolist()
    positions = [
        torch.arange(length - count, length)
        for length, count in zip(lengths, step.query_lens, strict=True)
    ]
    assert inputs["position_ids"].tolist() == torch.cat(positions).tolist()
    _check_cache(step, max(lengths))


def _check_cache(step: PluginStep, longest: int) -> None:
    inputs = step.inputs
    device, host = (
        inputs["kv_cache_block_offsets"],
        inputs["host_kv_cache_block_offsets"],
    )
    assert torch.equal(device, host), "the device's offsets are another step's"
    assert device.data_ptr() != host.data_ptr(), "one array cannot be on both"
    assert (
        inputs["context_lengths"].data_ptr()
        != inputs["host_context_lengths"].data_ptr()
    )
    assert device.shape[3] * step.block_size >= longest, "too few blocks"
    for row, length in enumerate(inputs["sequence_length"].tolist()):
        used = -(-length // step.block_size)
        keys, values = device[0, row]
        assert keys[:used].all(), "a sequence owns the null block"
        assert torch.equal(values[:used], keys[:used] + 1)
        assert len(set(keys[:used].tolist())) == used
    layers = len(inputs["host_kv_cache_pool_mapping"])
    assert inputs["host_kv_cache_pool_mapping"].tolist() == [
        [0, layer] for layer in range(layers)
    ]
    assert inputs["host_kv_cache_pool_pointers"].shape == (1, 2)
    assert inputs["host_kv_cache_pool_pointers"][0, 1] == 0
    assert (inputs["host_max_attention_window_sizes"] >= longest).all(), "it wraps"
    assert inputs["host_sink_token_length"].tolist() == [0]
    assert not inputs["cache_indirection"].any()
    assert len(inputs["cache_indirection"]) == step.num_seqs
    assert inputs["cache_indirection"].shape[2] >= longest
    assert inputs["host_context_progress"].tolist() == [0]
    for index, knob in enumerate(inputs["host_runtime_perf_knobs"].tolist()):
        assert knob in KNOBS.get(index, (-1,))


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """Write the step's K and V where the addresses say, then attend from there.

    Args:
        module: the layer.
        query: ``[1, heads, N, dims]``.
        key: ``[1, kv_heads, N, dims]``.
        value: as ``key``.
        attention_mask: transformers makes none.
        keywords: ``plugin_step`` and ``scaling``.

    Returns:
        ``[1, N, heads, dims]``, and no weights.
    """
    assert attention_mask is None
    step: PluginStep = keywords["plugin_step"]
    assert keywords.get("sliding_window") is None, "the engine knows no windows"
    layer: Any = module.layer_idx
    raw, outputs, start = step.raw(), [], 0
    lengths = step.inputs["sequence_length"].tolist()
    for seq, (length, count) in enumerate(zip(lengths, step.query_lens, strict=True)):
        part = slice(start, start + count)
        start += count
        cached = []
        for field, new in enumerate((key, value)):
            cells = _cells(step, raw, int(layer), seq, field, length)
            tokens = torch.arange(length - count, length)
            _write(cells, tokens, new[0, :, part].transpose(0, 1), step)
            whole = torch.stack(cells).transpose(1, 2).flatten(0, 1)[:length]
            scale = INT8_SCALE if step.kv_dtype == torch.int8 else 1.0
            cached.append(whole.to(query.dtype).transpose(0, 1)[None] * scale)
        visible = torch.ones(count, length, dtype=torch.bool).tril(length - count)
        output = torch.nn.functional.scaled_dot_product_attention(
            query[:, :, part],
            *cached,
            attn_mask=visible,
            scale=keywords["scaling"],
            enable_gqa=True,
        )
        outputs.append(output.transpose(1, 2))
    return torch.cat(outputs, dim=1), None


def _cells(
    step: PluginStep, raw: RawKV, layer: int, seq: int, field: int, length: int
) -> list[torch.Tensor]:
    """One sequence's K or V cells ``[heads, tokens, dims]``, as memory, not copies."""
    shape = (step.num_kv_heads, step.block_size, step.head_dim)
    num_bytes = torch.Size(shape).numel() * step.kv_dtype.itemsize
    cells = []
    for token in range(0, length, step.block_size):
        address = raw.address(layer, seq, field, token, 0, 0)
        memory = (ctypes.c_uint8 * num_bytes).from_address(address)
        cells.append(torch.frombuffer(memory, dtype=step.kv_dtype).view(shape))
    return cells


def _write(
    cells: list[torch.Tensor],
    tokens: torch.Tensor,
    new: torch.Tensor,
    step: PluginStep,
) -> None:
    for token, numbers in zip(tokens.tolist(), new, strict=True):
        block, place = divmod(token, step.block_size)
        if step.kv_dtype == torch.int8:
            numbers = (numbers / INT8_SCALE).round().clamp(-127, 127)  # noqa: PLW2901
        cells[block][:, place] = numbers.to(step.kv_dtype)


AttentionInterface.register(PLUGIN, attend)
