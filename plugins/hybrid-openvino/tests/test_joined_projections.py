"""Query, key and value become one product, and no bit of the answer changes."""

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hybrid_openvino import paged_model
from hybrid_openvino.ir_directory import MODEL_FILE
from hybrid_openvino.joined_projections import join_projections
from hybrid_openvino.runtime import core
from openvino import opset13 as ops
from openvino_stand import load, logits

from hybrid.testing import write_tiny_model


def _num_products(model: ov.Model) -> int:
    return sum(node.get_type_name() == "MatMul" for node in model.get_ops())


@pytest.mark.parametrize("weights", ["f32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_no_bit_changes(
    architecture: str,
    weights: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With and without biases, in every form that weights are stored in."""
    if weights.startswith("int"):
        pytest.importorskip("nncf", reason="the extra `weights` is not installed")
    checkpoint = write_tiny_model(tmp_path / "model", architecture)
    cache = tmp_path / "cache"
    groups = {"int4_group_size": 16} if weights == "int4" else {}
    joined = logits(load(checkpoint, cache_dir=cache, weights=weights, **groups))
    (directory,) = cache.iterdir()
    model = core().read_model(directory / MODEL_FILE)
    before = _num_products(model)
    assert join_projections(model) == 3
    assert _num_products(model) == before - 2 * 3
    monkeypatch.setattr(paged_model, "join_projections", lambda _: 0)
    assert np.array_equal(logits(load(directory)), joined)


def _three_products(*weights: Any) -> ov.Model:
    source = ops.parameter([2, 4], ov.Type.f32)
    products = [ops.matmul(source, matrix, False, True) for matrix in weights]
    return ov.Model(products, [source])


def test_products_of_unlike_weights_are_left_alone() -> None:
    """Two stored as float32 and one in eight bits: nothing is joined or lost."""
    plain = [ops.constant(np.ones((3, 4), dtype=np.float32)) for _ in range(2)]
    small = ops.convert(ops.constant(np.ones((3, 4), dtype=np.int8)), "f32")
    model = _three_products(*plain, small)
    assert join_projections(model) == 0
    assert _num_products(model) == 3


def test_each_product_keeps_its_own_rows() -> None:
    """Of matrices of three widths, against numpy."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, 4), dtype=np.float32) for n in (5, 1, 3)]
    model = _three_products(*(ops.constant(array) for array in arrays))
    assert join_projections(model) == 1
    compiled = core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    source = rng.standard_normal((2, 4), dtype=np.float32)
    found = compiled(source)
    for index, array in enumerate(arrays):
        assert np.allclose(found[index], source @ array.T, atol=1e-6)


def _answers(model: ov.Model, *sources: Any) -> list[Any]:
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core().compile_model(model, "CPU", exact)
    found = compiled(list(sources))
    return [found[index].copy() for index in range(len(model.outputs))]


def _quantized(rng: np.random.Generator, width: int, scale: float, zero: int) -> Any:
    """int8 numbers with one zero point and one scale for the whole matrix."""
    numbers = ops.constant(rng.integers(-9, 9, (width, 4)).astype(np.int8))
    shifted = ops.subtract(
        ops.convert(numbers, "f32"), ops.constant(np.array([[zero]], np.float32))
    )
    return ops.multiply(shifted, ops.constant(np.array([[scale]], np.float32)))


@pytest.mark.parametrize(
    ("scales", "zeros", "num_joined"),
    [
        ((0.1, 0.1, 0.1), (3, 3, 3), 1),
        ((0.1, 0.2, 0.3), (3, 3, 3), 0),
        ((0.1, 0.1, 0.1), (3, 3, 4), 0),
    ],
)
def test_numbers_for_a_whole_matrix_are_shared_or_nothing_is_joined(
    scales: tuple[float, ...], zeros: tuple[int, ...], num_joined: int
) -> None:
    """One scale for all channels says nothing of another matrix's."""
    rng = np.random.default_rng(0)
    parts = zip((3, 4, 5), scales, zeros, strict=True)
    model = _three_products(*(_quantized(rng, *part) for part in parts))
    source = rng.standard_normal((2, 4), dtype=np.float32)
    before = _answers(model.clone(), source)
    assert join_projections(model) == num_joined
    for one, other in zip(before, _answers(model, source), strict=True):
        assert np.allclose(one, other, atol=1e-6)


def test_inputs_are_told_apart_whatever_they_are_called() -> None:
    """Friendly names repeat: a product must not change its input."""
    rng = np.random.default_rng(0)
    inputs = [ops.parameter([2, 4], ov.Type.f32, name=name) for name in "xy"]
    middle = [ops.relu(node) for node in inputs]
    for node in middle:
        node.set_friendly_name("same")
    matrices = [ops.constant(rng.random((3, 4), dtype=np.float32)) for _ in range(3)]
    pairs = zip((middle[0], middle[0], middle[1]), matrices, strict=True)
    products = [ops.matmul(node, matrix, False, True) for node, matrix in pairs]
    model = ov.Model(products, inputs)
    sources = [rng.random((2, 4), dtype=np.float32) for _ in range(2)]
    before = _answers(model.clone(), *sources)
    assert join_projections(model) == 0
    assert np.array_equal(before, _answers(model, *sources))


@pytest.mark.parametrize("shape", [(1,), (3,), (1, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_bias_is_added_in_its_own_shape_and_type(
    dtype: type[Any], shape: tuple[int, ...]
) -> None:
    """A number for all channels, one each, in 16 bits too."""
    rng = np.random.default_rng(0)
    source = ops.parameter([2, 4], ov.Type(dtype), name="x")
    sums = [
        ops.add(
            ops.matmul(
                source, ops.constant(rng.random((3, 4)).astype(dtype)), False, True
            ),
            ops.constant(rng.random(shape).astype(dtype)),
        )
        for _ in range(3)
    ]
    model = ov.Model(sums, [source])
    values = rng.random((2, 4)).astype(dtype)
    before = _answers(model.clone(), values)
    assert join_projections(model) == 1
    for one, other in zip(before, _answers(model, values), strict=True):
        assert np.allclose(one, other, atol=1e-3 if dtype is np.float16 else 1e-6)
