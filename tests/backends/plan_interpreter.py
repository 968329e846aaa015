"""Runs a built engine's plan in numpy, op by op, for one prompt.

Written from the comments of ``native/abi.h``. Buffers are bytes of one arena, at the
places that the engine names: where two overlap in time the answer is wrong.
"""

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format, OpFlag, OpKind
from hybrid.backends.cpu.engine_directory import BuiltEngine, PackedWeight
from hybrid.backends.cpu.placed_plan import PlacedOp
from hybrid.backends.cpu.weight_packing import from_bfloat16, to_bfloat16, unpack

Floats = NDArray[np.float32]


def run_plan(engine: BuiltEngine, token_ids: list[int]) -> Floats:
    """Prefill a prompt of at most a unit: logits of all its tokens."""
    return _Pass(engine, token_ids).run()


def unpacked(weight: PackedWeight) -> Floats:
    """Give the numbers of a packed matrix, ``[rows, columns]``."""
    shape = (weight.rows, weight.columns)
    return unpack(weight.format, weight.data, weight.scales, shape)


class _Pass:
    def __init__(self, engine: BuiltEngine, token_ids: list[int]) -> None:
        assert len(token_ids) <= engine.unit_tokens
        self.engine = engine
        self.ids = np.array(token_ids)
        self.arena = np.full(engine.memory.arena_bytes, 0xFF, np.uint8)
        self.logits: Floats | None = None

    def run(self) -> Floats:
        for op in self.engine.ops:
            getattr(self, f"_{OpKind(op.kind).name.lower()}")(op)
        assert self.logits is not None, "the plan ends with logits"
        return self.logits

    def _rows(self, offset: int, row_bytes: int) -> NDArray[np.uint8]:
        """Touch what a full unit would, give the rows of this prompt."""
        whole = self.arena[offset:][: row_bytes * self.engine.unit_tokens]
        return whole.reshape(self.engine.unit_tokens, row_bytes)[: len(self.ids)]

    def _plain(self, offset: int, width: int) -> Floats:
        return self._rows(offset, width * 4).view(np.float32)

    def _write(self, op: PlacedOp, values: Floats) -> None:
        padded = np.pad(values, ((0, 0), (0, -values.shape[1] % 32)))
        depth, form = padded.shape[1], Format(op.format)
        if form is Format.F32:
            self._rows(op.target_offset, depth * 4).view(np.float32)[:] = padded
            return
        if form is Format.BF16:
            rows = self._rows(op.target_offset, depth * 2)
            rows.view(np.uint16)[:] = to_bfloat16(padded)
            return
        groups = padded.reshape(len(padded), -1, 32)
        scales = np.abs(groups).max(axis=2) / np.float32(127)
        inverse = 1 / np.where(scales == 0, 1, scales)[..., None]
        quanta = np.rint(groups * inverse).astype(np.int8).reshape(padded.shape)
        rows = self._rows(op.target_offset, _int8_row_bytes(depth))
        rows[:, :depth] = quanta.view(np.uint8)
        rows[:, depth : depth + depth // 8] = scales.view(np.uint8)

    def _read(self, offset: int, weight: PackedWeight) -> Floats:
        depth = -(-weight.columns // 32) * 32
        if weight.format is Format.F32:
            rows = self._rows(offset, depth * 4).view(np.float32)
        elif weight.format is Format.BF16:
            rows = from_bfloat16(self._rows(offset, depth * 2).view(np.uint16))
        else:
            stored = self._rows(offset, _int8_row_bytes(depth))
            at = slice(depth, depth + depth // 8)
            scales = np.ascontiguousarray(stored[:, at]).view(np.float32)
            quanta = np.ascontiguousarray(stored[:, :depth]).view(np.int8)
            rows = quanta * np.repeat(scales, 32, axis=1)
        return rows[:, : weight.columns]

    def _embed(self, op: PlacedOp) -> None:
        table = unpacked(self.engine.weights[op.weight])
        self._plain(op.target_offset, op.width)[:] = table[self.ids]

    def _norm(self, op: PlacedOp) -> None:
        values = self._plain(op.source_offset, op.width)
        vector = self.engine.vectors[op.norm]
        self._write(op, _normalized(values, vector, self.engine.shape.norm_epsilon))

    def _linear(self, op: PlacedOp) -> None:
        weight = self.engine.weights[op.weight]
        product = self._read(op.source_offset, weight) @ unpacked(weight).T
        if weight.bias is not None:
            product += weight.bias
        if op.flags & OpFlag.LOGITS:
            assert op.flags & OpFlag.ROWS, "logits are of chosen rows"
            self.logits = product
        elif op.flags & OpFlag.ACCUMULATE:
            self._plain(op.target_offset, weight.rows)[:] += product
        else:
            self._plain(op.target_offset, weight.rows)[:] = product

    def _rope_kv(self, op: PlacedOp) -> None:
        shape = self.engine.shape
        heads = shape.num_heads + 2 * shape.num_kv_heads
        assert op.width == heads * shape.head_dim
        split = self._plain(op.source_offset, op.width).reshape(
            len(self.ids), heads, shape.head_dim
        )
        q, k = split[:, : shape.num_heads], split[:, shape.num_heads :]
        k = k[:, : shape.num_kv_heads]
        for part, norm in ((q, op.norm), (k, op.norm2)):
            if norm >= 0:
                vector = self.engine.vectors[norm]
                part[:] = _normalized(part, vector, shape.norm_epsilon)
            self._rotate(part)

    def _rotate(self, part: Floats) -> None:
        shape = self.engine.shape
        angles = np.outer(np.arange(len(self.ids)), shape.inverse_frequencies)
        cos = (np.cos(angles) * shape.rope_scale).astype(np.float32)[:, None]
        sin = (np.sin(angles) * shape.rope_scale).astype(np.float32)[:, None]
        half = shape.head_dim // 2
        x, y = part[..., :half].copy(), part[..., half:].copy()
        part[..., :half] = x * cos - y * sin
        part[..., half:] = y * cos + x * sin

    def _attention(self, op: PlacedOp) -> None:
        shape = self.engine.shape
        num_kv, dim = shape.num_kv_heads, shape.head_dim
        width = (shape.num_heads + 2 * num_kv) * dim
        split = self._plain(op.source_offset, width).reshape(len(self.ids), -1, dim)
        q, k, v = np.split(split, [shape.num_heads, shape.num_heads + num_kv], axis=1)
        group = shape.num_heads // num_kv
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(shape.attention_scale)
        back = np.subtract.outer(np.arange(len(self.ids)), np.arange(len(self.ids)))
        window = shape.windows[op.layer]
        hidden = (back < 0) | (back >= (len(self.ids) if window is None else window))
        scores[:, hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, v)
        target = self._plain(op.target_offset, op.width)
        target[:] = mixed.reshape(len(self.ids), -1)

    def _silu_mul(self, op: PlacedOp) -> None:
        gate, up = np.split(self._plain(op.source_offset, 2 * op.width), 2, axis=1)
        self._write(op, gate / (1 + np.exp(-gate)) * up)

    def _convert(self, op: PlacedOp) -> None:
        self._write(op, self._plain(op.source_offset, op.width))

    def _select_rows(self, op: PlacedOp) -> None:
        values = self._plain(op.source_offset, op.width)
        self._plain(op.target_offset, op.width)[:] = values


def _normalized(values: Floats, vector: Floats, epsilon: float) -> Floats:
    mean_square = np.square(values).mean(axis=-1, keepdims=True, dtype=np.float32)
    normalized: Floats = values / np.sqrt(mean_square + np.float32(epsilon)) * vector
    return normalized


def _int8_row_bytes(depth: int) -> int:
    """Quanta; a scale and a sum for each 32."""
    return -(-(depth + depth // 32 * 8) // 64) * 64
