"""Query, key and value become one product, and no bit of the answer changes."""

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hybrid_openvino import paged_model
from hybrid_openvino.ir_directory import MODEL_FILE
from hybrid_openvino.joined_projections import join_projections
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
    joined = logits(
        load(checkpoint, cache_dir=cache, weights=weights, int4_group_size=16)
    )
    (directory,) = cache.iterdir()
    model = ov.Core().read_model(directory / MODEL_FILE)
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
    compiled = ov.Core().compile_model(
        model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    source = rng.standard_normal((2, 4), dtype=np.float32)
    found = compiled(source)
    for index, array in enumerate(arrays):
        assert np.allclose(found[index], source @ array.T, atol=1e-6)
