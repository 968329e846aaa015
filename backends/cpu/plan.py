"""The graph of a Llama-shaped model as a list of fused ops over buffers.

Buffers are numbers here; ``memory_plan`` gives them places.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from .abi import ALIGNMENT_BYTES, Format, OpFlag, OpKind
from .memory_plan import Lifetime
from .model_shape import CpuModelShape
from .weight_packing import GROUP, round_up

EMBEDDING: Final = "embedding"
HEAD: Final = "head"
QKV: Final = ".qkv"
"""How the names of the joined projections of attention end."""
_INT8_GROUP, _INT4_PAIR = 40, 84
"""Bytes of a group, and of two, in a row that whole numbers are multiplied with."""


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A matrix of the plan: parameters of the model, joined row under row."""

    name: str
    parts: tuple[str, ...]
    """Names of its parameters without ``.weight`` and ``.bias``."""
    part_rows: tuple[int, ...]
    columns: int
    has_bias: bool = False

    @property
    def rows(self) -> int:
        """Of all parts."""
        return sum(self.part_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOp:
    """An op over buffers, weights and vectors by number."""

    kind: OpKind
    reads: int | None = None
    writes: int | None = None
    flags: OpFlag = OpFlag.NONE
    layer: int = 0
    weight: int | None = None
    norm: int | None = None
    key_norm: int | None = None
    format: Format = Format.F32
    """Of the activation put out."""
    width: int = 0


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model's ops in order, and what they work on."""

    ops: tuple[PlannedOp, ...]
    row_bytes: tuple[int, ...]
    """Of each buffer, bytes of one token's row."""
    vectors: Mapping[str, int]
    """Parameters that ops name as norms by their place here, and how long each is."""

    def lifetimes(self, unit_tokens: int) -> list[Lifetime]:
        """Say when each buffer of ``unit_tokens`` rows is in use."""
        users: list[list[int]] = [[] for _ in self.row_bytes]
        for index, op in enumerate(self.ops):
            for buffer in (op.reads, op.writes):
                if buffer is not None:
                    users[buffer].append(index)
        return [
            Lifetime(row_bytes * unit_tokens, used[0], used[-1])
            for row_bytes, used in zip(self.row_bytes, users, strict=True)
        ]


def weight_specs(shape: CpuModelShape) -> tuple[WeightSpec, ...]:
    """Every matrix of a model, in the order that the plan numbers them."""
    table = ((shape.vocab_size,), shape.hidden_size)
    specs = [WeightSpec(EMBEDDING, ("model.embed_tokens",), *table)]
    for layer in range(shape.num_layers):
        specs += _layer_specs(shape, layer)
    if not shape.ties_embeddings:
        specs.append(WeightSpec(HEAD, ("lm_head",), *table))
    return tuple(specs)


def _layer_specs(shape: CpuModelShape, layer: int) -> Iterator[WeightSpec]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries = shape.num_heads * shape.head_dim
    keys = shape.num_kv_heads * shape.head_dim
    attention, mlp = (f"model.layers.{layer}.{part}" for part in ("self_attn", "mlp"))
    yield WeightSpec(
        f"layers.{layer}{QKV}",
        tuple(f"{attention}.{name}_proj" for name in "qkv"),
        (queries, keys, keys),
        hidden,
        shape.has_qkv_bias,
    )
    yield WeightSpec(
        f"layers.{layer}.o",
        (f"{attention}.o_proj",),
        (hidden,),
        queries,
        shape.has_output_bias,
    )
    yield WeightSpec(
        f"layers.{layer}.gate_up",
        (f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        (inner, inner),
        hidden,
        shape.has_mlp_bias,
    )
    yield WeightSpec(
        f"layers.{layer}.down",
        (f"{mlp}.down_proj",),
        (hidden,),
        inner,
        shape.has_mlp_bias,
    )


def plan_model(shape: CpuModelShape, formats: Mapping[str, Format]) -> ModelPlan:
    """Lay out one pass of a model.

    Args:
        shape: its sizes.
        formats: of each matrix, by ``WeightSpec.name``.
    """
    numbered = enumerate(spec.name for spec in weight_specs(shape))
    builder = _Builder(shape, {name: (i, formats[name]) for i, name in numbered})
    return ModelPlan(tuple(builder.ops()), tuple(builder.row_bytes), builder.vectors)


def activation_row_bytes(form: Format, width: int) -> int:
    """Bytes from one row to the next of what a LINEAR of such weights reads."""
    depth = round_up(width, GROUP)
    if form in {Format.F32, Format.BF16}:
        return depth * (4 if form is Format.F32 else 2)
    groups = depth // GROUP
    has_pairs = form is Format.INT4  # and the unit behind them
    row = -(-groups // 2) * _INT4_PAIR + 4 if has_pairs else groups * _INT8_GROUP
    # An odd number: see ``activation_stride`` of the kernels.
    return (-(-row // ALIGNMENT_BYTES) | 1) * ALIGNMENT_BYTES


@dataclass(slots=True)
class _Builder:
    """Makes ops, and numbers buffers and vectors as they come."""

    shape: CpuModelShape
    weights: Mapping[str, tuple[int, Format]]
    row_bytes: list[int] = field(default_factory=list)
    vectors: dict[str, int] = field(default_factory=dict)

    def ops(self) -> Iterator[PlannedOp]:
        shape = self.shape
        hidden = self._plain(shape.hidden_size)
        yield PlannedOp(
            kind=OpKind.EMBED,
            writes=hidden,
            weight=self.weights[EMBEDDING][0],
            width=shape.hidden_size,
        )
        queries, flags = shape.num_heads * shape.head_dim, OpFlag.NONE
        for layer in range(shape.num_layers):
            attended = self._plain(queries)
            yield from self._attention(layer, hidden, attended)
            if layer == shape.num_layers - 1:
                # After the last attention only rows with logits are asked for.
                flags = OpFlag.ROWS
                rows = self._plain(shape.hidden_size), self._plain(queries)
                yield self._select(hidden, rows[0], shape.hidden_size)
                yield self._select(attended, rows[1], queries)
                hidden, attended = rows
            yield from self._output(layer, attended, hidden, flags)
            yield from self._mlp(layer, hidden, flags)
        head = EMBEDDING if shape.ties_embeddings else HEAD
        yield (norm := self._norm("model.norm", hidden, head, flags))
        yield self._linear(head, norm.writes, None, flags | OpFlag.LOGITS)

    def _select(self, reads: int, writes: int, width: int) -> PlannedOp:
        return PlannedOp(
            kind=OpKind.SELECT_ROWS,
            reads=reads,
            writes=writes,
            flags=OpFlag.ROWS,
            width=width,
        )

    def _attention(self, layer: int, hidden: int, attended: int) -> Iterator[PlannedOp]:
        shape, at = self.shape, f"model.layers.{layer}"
        queries = shape.num_heads * shape.head_dim
        width = queries + 2 * shape.num_kv_heads * shape.head_dim
        qkv = self._plain(width)
        weight = f"layers.{layer}{QKV}"
        yield (norm := self._norm(f"{at}.input_layernorm", hidden, weight))
        yield self._linear(weight, norm.writes, qkv)
        yield PlannedOp(
            kind=OpKind.ROPE_KV,
            reads=qkv,
            layer=layer,
            norm=self._head_norm(f"{at}.self_attn.q_norm"),
            key_norm=self._head_norm(f"{at}.self_attn.k_norm"),
            width=width,
        )
        yield PlannedOp(
            kind=OpKind.ATTENTION,
            reads=qkv,
            writes=attended,
            layer=layer,
            width=queries,
        )

    def _output(
        self, layer: int, attended: int, hidden: int, flags: OpFlag
    ) -> Iterator[PlannedOp]:
        width = self.shape.num_heads * self.shape.head_dim
        weight = f"layers.{layer}.o"
        form = self._activation(weight)
        yield PlannedOp(
            kind=OpKind.CONVERT,
            reads=attended,
            writes=(fitting := self._buffer(form, width)),
            flags=flags,
            format=form,
            width=width,
        )
        yield self._linear(weight, fitting, hidden, flags | OpFlag.ACCUMULATE)

    def _mlp(self, layer: int, hidden: int, flags: OpFlag) -> Iterator[PlannedOp]:
        inner, weight = self.shape.intermediate_size, f"layers.{layer}.gate_up"
        name = f"model.layers.{layer}.post_attention_layernorm"
        gate_up = self._plain(2 * inner)
        yield (norm := self._norm(name, hidden, weight, flags))
        yield self._linear(weight, norm.writes, gate_up, flags)
        weight = f"layers.{layer}.down"
        form = self._activation(weight)
        yield PlannedOp(
            kind=OpKind.SILU_MUL,
            reads=gate_up,
            writes=(gated := self._buffer(form, inner)),
            flags=flags,
            format=form,
            width=inner,
        )
        yield self._linear(weight, gated, hidden, flags | OpFlag.ACCUMULATE)

    def _norm(
        self, vector: str, reads: int, weight: str, flags: OpFlag = OpFlag.NONE
    ) -> PlannedOp:
        """Normalise into what ``weight`` is multiplied with."""
        width, form = self.shape.hidden_size, self._activation(weight)
        return PlannedOp(
            kind=OpKind.NORM,
            reads=reads,
            writes=self._buffer(form, width),
            flags=flags,
            norm=self._vector(vector, width),
            format=form,
            width=width,
        )

    def _linear(
        self,
        weight: str,
        reads: int | None,
        writes: int | None,
        flags: OpFlag = OpFlag.NONE,
    ) -> PlannedOp:
        return PlannedOp(
            kind=OpKind.LINEAR,
            reads=reads,
            writes=writes,
            flags=flags,
            weight=self.weights[weight][0],
        )

    def _activation(self, weight: str) -> Format:
        return self.weights[weight][1]

    def _head_norm(self, name: str) -> int | None:
        if not self.shape.has_head_norms:
            return None
        return self._vector(name, self.shape.head_dim)

    def _vector(self, name: str, length: int) -> int:
        self.vectors[f"{name}.weight"] = length
        return len(self.vectors) - 1

    def _plain(self, width: int) -> int:
        self.row_bytes.append(width * 4)
        return len(self.row_bytes) - 1

    def _buffer(self, form: Format, width: int) -> int:
        self.row_bytes.append(activation_row_bytes(form, width))
        return len(self.row_bytes) - 1
