"""A model of a few ops, and where its activations lie in the arena."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from hybrid.backends.cpu import abi
from hybrid.backends.cpu.abi import Format, OpFlag, OpKind
from tests.backends.packed_matrix import PackedMatrix, padded_columns

_Array = NDArray[Any]
_GAP_BYTES: Final = 64


def activation_stride(kind: Format, width: int) -> int:
    """Return the bytes from one row of an activation to the next."""
    padded = padded_columns(width)
    match kind:
        case Format.F32:
            return padded * 4
        case Format.BF16:
            return padded * 2
    groups = padded // 32
    num_bytes = groups * 40
    if kind == Format.INT4:
        num_bytes = (groups + 1) // 2 * 84 + 4
    lines = -(-num_bytes // 64)
    return (lines + 1 - lines % 2) * 64


@dataclass(frozen=True, slots=True)
class Buffer:
    """Rows in the arena."""

    offset: int
    stride: int
    """Bytes from one row to the next."""
    rows: int


class Arena:
    """Buffers of ``rows`` rows each, gaps between them."""

    def __init__(self, rows: int) -> None:
        self.rows: Final = rows
        self.buffers: Final[list[Buffer]] = []
        self.num_bytes = _GAP_BYTES

    def plain(self, width: int) -> Buffer:
        """Add rows of ``width`` float32."""
        return self._add(width * 4)

    def activation(self, kind: Format, width: int) -> Buffer:
        """Add rows of what a product reads."""
        return self._add(activation_stride(kind, width))

    def _add(self, stride: int) -> Buffer:
        buffer = Buffer(self.num_bytes, stride, self.rows)
        self.buffers.append(buffer)
        size = stride * self.rows + _GAP_BYTES
        self.num_bytes += -(-size // 64) * 64
        return buffer


def op(
    kind: OpKind, source: Buffer | None, target: Buffer | None, **fields: int
) -> abi.Op:
    """Make an op; what is not given is absent."""
    made = abi.Op(kind=kind, flags=OpFlag.NONE, weight=-1, norm=-1, norm2=-1)
    setattr(made, "in", -1 if source is None else source.offset)
    made.out = -1 if target is None else target.offset
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A model of a few ops."""

    ops: Sequence[abi.Op]
    arena: Arena
    weights: Sequence[PackedMatrix] = ()
    vectors: Sequence[_Array] = ()
    num_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 8
    windows: Sequence[int] = (0,)
    """One a layer."""
    vocab_size: int = 64
    num_threads: int = 1
    chunk_tokens: int = 0
    """Tokens of a pass; 0: the arena's rows."""
    batch_invariant: bool = True
    norm_epsilon: float = 1e-5
    attention_scale: float = 1.0
    rope_scale: float = 1.0
    inverse_frequencies: _Array | None = None
