"""Products of int8 weights in oneDNN, through the operators that torch brings.

They stand in for our own kernels where those were not compiled. Weights are int8 per
output channel, activations unsigned 8-bit per row around 128: oneDNN has no fast path
for signed ones. Sums are whole numbers, so that a row's product does not depend on the
rows beside it.
Source: torch 2.13, ``aten/src/ATen/native/quantized/cpu/qlinear.cpp``.
"""

from typing import Final

import torch

from hybrid.backends.pytorch.llama import Linear
from hybrid.scheduler.errors import UnsupportedFeature

_LIMIT: Final = 127
_ZERO_POINT: Final = 128
_SMALLEST_SCALE: Final = 1e-30
"""Of rows of zeros, whose own would be 0."""
_PROBE_COLUMNS: Final = 64


class Int8Product:
    """Multiplies by the weights of a ``Linear``, rounded to 8 bits."""

    def __init__(self, linear: Linear) -> None:
        weight = linear.weight.float()
        scales = _scales(weight)
        rounded = (weight / scales).round_().to(torch.int8)
        self._weight: Final = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._scales: Final = scales.flatten()
        self._zero_points: Final = torch.zeros(len(weight), dtype=torch.int32)
        self._bias: Final = None if linear.bias is None else linear.bias.float()
        # Half more than the zero point: the cast that follows cuts off.
        self._shift: Final = torch.tensor(_ZERO_POINT + 0.5)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply float32 ``[N, in]`` to ``[N, out]``."""
        scales = _scales(rows)
        quantised = torch.addcdiv(self._shift, rows, scales).to(torch.uint8)
        # The operator takes one scale for all rows: 1, theirs follow.
        product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            quantised,
            1.0,
            _ZERO_POINT,
            self._weight,
            self._scales,
            self._zero_points,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        if self._bias is None:
            return product.mul_(scales)
        return torch.addcmul(self._bias, product, scales)


def check_int8_products() -> None:
    """Ask torch and this CPU for exact 8-bit products.

    Raises:
        UnsupportedFeature: torch was built without oneDNN, or the CPU has no 8-bit dot
            product: oneDNN then adds pairs in 16 bits, which the largest overflow.
    """
    if not hasattr(torch.ops.onednn, "qlinear_pointwise"):
        raise UnsupportedFeature(
            f"torch {torch.__version__} was built without oneDNN's quantised products "
            "(torch.ops.onednn.qlinear_pointwise)"
        )
    ones = torch.ones(1, _PROBE_COLUMNS)
    product = Int8Product(Linear(ones, None))(ones)
    if product.item() != _PROBE_COLUMNS:
        raise UnsupportedFeature(
            "this CPU has no 8-bit dot product (AVX-512 VNNI, AVX-VNNI), without which "
            f"oneDNN's sums overflow: {product.item():g} where {_PROBE_COLUMNS} is "
            "right"
        )


def _scales(rows: torch.Tensor) -> torch.Tensor:
    """What one step of 8 bits is worth in each row: ``[N, 1]``."""
    # A norm, or minimum and maximum at once, take ten times as long (seen).
    largest = rows.abs().amax(-1, keepdim=True)
    return largest.div_(_LIMIT).clamp_min_(_SMALLEST_SCALE)
