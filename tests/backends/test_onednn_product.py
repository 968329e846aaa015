"""Products in 8 bits: exact sums of what was rounded, row by row."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hybrid.backends.cpu.onednn_product import Int8Product, check_int8_products
from hybrid.backends.pytorch.llama import Linear
from hybrid.scheduler import UnsupportedFeature
from tests.backends.onednn_stand import needs_int8

SHAPES = [(1, 1, 1), (2, 33, 5), (7, 64, 96), (40, 200, 48)]
"""Rows, columns of the weight, its rows."""


def made(num_rows: int, num_in: int, num_out: int) -> tuple[torch.Tensor, Linear]:
    """Draw rows and a product with a bias."""
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(num_out, num_in, generator=generator)
    bias = torch.randn(num_out, generator=generator)
    return torch.randn(num_rows, num_in, generator=generator), Linear(weight, bias)


def rounded(rows: torch.Tensor) -> np.ndarray:
    """Round each row to 127 steps either way, in numpy and float64."""
    exact = rows.numpy().astype(np.float64)
    step = np.abs(exact).max(1, keepdims=True) / 127
    return np.round(exact / step) * step


@needs_int8
@pytest.mark.parametrize(("num_rows", "num_in", "num_out"), SHAPES)
def test_the_product_is_that_of_the_rounded_numbers(
    num_rows: int, num_in: int, num_out: int
) -> None:
    """Both sides rounded by their own largest number, then multiplied exactly."""
    rows, linear = made(num_rows, num_in, num_out)
    assert linear.bias is not None
    expected = rounded(rows) @ rounded(linear.weight).T + linear.bias.numpy()
    product = Int8Product(linear)(rows)
    assert product.dtype == torch.float32
    np.testing.assert_allclose(product.numpy(), expected, rtol=1e-4, atol=1e-4)


@needs_int8
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_product_is_near_that_of_the_weights(dtype: torch.dtype) -> None:
    """Eight bits on both sides cost two parts in a hundred at most."""
    rows, linear = made(40, 200, 48)
    linear = Linear(linear.weight.to(dtype), None)
    exact = rows @ linear.weight.float().T
    error = (Int8Product(linear)(rows) - exact).norm() / exact.norm()
    assert error < 0.02


@needs_int8
def test_a_row_is_the_same_alone_and_among_others() -> None:
    """To the bit: whole numbers are added."""
    rows, linear = made(40, 200, 48)
    product = Int8Product(linear)
    together = product(rows)
    alone = torch.cat([product(row[None]) for row in rows])
    assert torch.equal(together, alone)


@needs_int8
def test_rows_without_a_number_harm_no_other() -> None:
    """Zeros give the bias, what is no number gives none, neighbours stay."""
    rows, linear = made(7, 64, 96)
    product = Int8Product(linear)
    before = product(rows)
    rows[1] = 0
    rows[3, 5] = float("nan")
    rows[5, 0] = float("inf")
    after = product(rows)
    assert linear.bias is not None
    assert torch.equal(after[1], linear.bias)
    assert not after[3].isfinite().any()
    assert not after[5].isfinite().any()
    assert torch.equal(after[::2], before[::2])


@needs_int8
def test_weights_of_zeros_give_zeros() -> None:
    """As of a head whose padding was never trained; nothing is divided by 0."""
    rows, _ = made(2, 33, 5)
    product = Int8Product(Linear(torch.zeros(5, 33), None))
    assert (product._scales > 0).all()
    assert torch.equal(product(rows), torch.zeros(2, 5))


def test_a_cpu_whose_sums_overflow_is_refused() -> None:
    """As older ones do: oneDNN adds pairs of products in 16 bits there."""
    module = "hybrid.backends.cpu.onednn_product"
    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", f"import {module} as m; m.check_int8_products()"],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert "UnsupportedFeature: this CPU has no 8-bit dot product" in run.stderr


def test_a_torch_without_the_operators_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By what it lacks."""
    monkeypatch.setattr(torch.ops, "onednn", SimpleNamespace())
    with pytest.raises(UnsupportedFeature, match="without oneDNN's quantised products"):
        check_int8_products()
