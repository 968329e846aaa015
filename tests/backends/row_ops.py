"""Runs the ops that work row by row, one at a time, and says what they should give."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format, OpKind
from tests.backends.activation_rows import read_rows
from tests.backends.kernel_plan import Arena, Plan, activation_stride, op
from tests.backends.kernel_stand import KernelModel
from tests.backends.kernel_step import make_step

_Array = NDArray[Any]
EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class RowOp:
    """One of NORM, CONVERT and SILU_MUL."""

    kind: OpKind
    format: Format
    width: int
    """Of what it puts out."""
    vector: _Array = field(default_factory=lambda: np.zeros(0, np.float32))
    """NORM: float32 ``[width]``."""

    def run(self, variant: str, x: _Array, num_threads: int = 1) -> _Array:
        """Run it: raw rows, uint8 ``[M, stride]``.

        Args:
            variant: one of ``VARIANTS``.
            x: float32 ``[M, width]``, SILU_MUL: ``[M, 2 * width]``.
            num_threads: of the model.
        """
        arena = Arena(rows=len(x))
        source = arena.plain(x.shape[1])
        target = arena.activation(self.format, self.width)
        has_norm = self.kind == OpKind.NORM
        made = op(
            self.kind,
            source,
            target,
            width=self.width,
            format=self.format,
            norm=0 if has_norm else -1,
        )
        plan = Plan(
            ops=[made],
            arena=arena,
            vectors=[self.vector] if has_norm else [],
            norm_epsilon=EPSILON,
            num_threads=num_threads,
        )
        with KernelModel(plan, variant) as model:
            model.put(source, x)
            model.forward(make_step([(0, len(x))]))
            raw = model.get(target, np.uint8, len(x))
        assert raw.shape[1] == activation_stride(self.format, self.width)
        return raw

    def wanted(self, x: _Array) -> _Array:
        """Compute it in float64, before the rounding to the format: ``[M, width]``."""
        x = x.astype(np.float64)
        if self.kind == OpKind.CONVERT:
            return x
        if self.kind == OpKind.NORM:
            scale = np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(EPSILON))
            return x / scale * self.vector
        gate, up = x[:, : self.width], x[:, self.width :]
        with np.errstate(over="ignore"):  # e^-gate may be infinite: the limit is 0
            return gate / (1 + np.exp(-gate)) * up

    def allowed_error(self, wanted: _Array) -> _Array:
        """Bound the error of each number, the format's rounding included."""
        # Below e^-87 the gated unit is 0.
        floor = 1e-28 if self.kind == OpKind.SILU_MUL else 1e-37
        arithmetic = 2e-6 * np.abs(wanted) + floor
        if self.format == Format.F32:
            return arithmetic
        if self.format == Format.BF16:
            return arithmetic + np.abs(wanted) * 2.0**-8
        # Half a step of a group, and what rounding of step and number may tip over.
        starts = np.arange(0, self.width, 32)
        steps = np.maximum.reduceat(np.abs(wanted), starts, axis=1) / 127
        # The row's largest step, halved as often as the group's allows.
        base = np.maximum(steps.max(axis=1, keepdims=True), 2.0**-126)
        with np.errstate(divide="ignore"):
            halvings = np.floor(np.log2(base / (steps * (1 + 1e-6))))
        steps = base * 2.0 ** -np.clip(halvings, 0, 64)
        steps = steps.repeat(32, axis=1)[:, : self.width]
        return arithmetic + steps * (0.5 + 1e-3) + 1e-36

    def check(self, raw: _Array, x: _Array) -> None:
        """Compare raw rows with what is wanted."""
        wanted = self.wanted(x)
        got = read_rows(self.format, raw, self.width)
        error = np.abs(got - wanted)
        assert (error <= self.allowed_error(wanted)).all(), error.max()
