"""Rotated queries, and keys and values in their tokens' cells, against float64."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hybrid.backends.cpu.abi import Format, OpKind
from tests.backends.kernel_cells import Cells, CellShape
from tests.backends.kernel_plan import Arena, Plan, op
from tests.backends.kernel_stand import VARIANTS, KernelModel
from tests.backends.kernel_step import StepArrays, make_step

_Array = NDArray[Any]
FORMATS = [Format.F32, Format.BF16, Format.INT8]
NUM_BLOCKS = 60
ROPE_SCALE = 1.25
EPSILON = 1e-6


def frequencies(head_dim: int) -> _Array:
    """Compute Llama's: float32 ``[head_dim / 2]``."""
    exponents = np.arange(0, head_dim, 2) / head_dim
    return (10000.0**-exponents).astype(np.float32)


def rotated(heads: _Array, positions: _Array, norm: _Array | None) -> _Array:
    """Compute what queries or keys become.

    Args:
        heads: ``[tokens, heads, head_dim]``.
        positions: ``[tokens]``.
        norm: ``[head_dim]``, or none.
    """
    heads = heads.astype(np.float64)
    if norm is not None:
        squares = (heads * heads).mean(axis=-1, keepdims=True)
        heads = heads / np.sqrt(squares + np.float32(EPSILON)) * norm
    half = heads.shape[-1] // 2
    # Angles in float32, as transformers has them.
    angles = positions.astype(np.float32)[:, None] * frequencies(heads.shape[-1])
    angles = angles.astype(np.float64)[:, None]
    cosines, sines = np.cos(angles) * ROPE_SCALE, np.sin(angles) * ROPE_SCALE
    x, y = heads[..., :half], heads[..., half:]
    return np.concatenate([x * cosines - y * sines, y * cosines + x * sines], axis=-1)


def places(step: StepArrays, block_size: int) -> tuple[_Array, _Array]:
    """Say where the step's tokens go: blocks and slots, both ``[tokens]``."""
    blocks = []
    for seq in range(len(step.query_start) - 1):
        tokens = slice(step.query_start[seq], step.query_start[seq + 1])
        table = step.block_ids[step.table_start[seq] :]
        blocks += [table[p // block_size] for p in step.positions[tokens]]
    return np.asarray(blocks), step.positions % block_size


def error_of(form: Format, wanted: _Array) -> _Array:
    """Bound the error of numbers that were stored in a format."""
    arithmetic = 4e-6 * np.abs(wanted).max(axis=-1, keepdims=True)
    match form:
        case Format.F32:
            return arithmetic
        case Format.BF16:
            return arithmetic + np.abs(wanted) * 2.0**-8
    return arithmetic + np.abs(wanted).max(axis=-1, keepdims=True) / 127 * 0.501


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_heads_are_rotated_and_stored(
    variant: str, form: Format, data: st.DataObject
) -> None:
    """Any heads and blocks, with head norms or not; no other cell is written."""
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
    head_dim = 2 * data.draw(st.integers(1, 64))
    block_size = data.draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 16, 23, 32]))
    has_norms, layer = data.draw(st.booleans()), data.draw(st.integers(0, 1))
    lengths = st.tuples(st.integers(0, 40), st.integers(1, 9))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    step = make_step(
        data.draw(st.lists(lengths, min_size=1, max_size=1 if block_size <= 2 else 3)),
        block_size=block_size,
        block_ids=random.permutation(NUM_BLOCKS),
    )
    cells = Cells(
        CellShape(
            num_kv_heads=kv_heads,
            block_size=block_size,
            head_dim=head_dim,
            format=form,
        ),
        num_layers=2,
        num_blocks=NUM_BLOCKS,
    )
    heads = group * kv_heads
    qkv = random.normal(size=(step.num_tokens, heads + 2 * kv_heads, head_dim))
    qkv = qkv.astype(np.float32)
    norms = random.normal(size=(2, head_dim)).astype(np.float32)
    arena = Arena(rows=step.num_tokens)
    buffer = arena.plain(qkv[0].size)
    norm_ids = {"norm": 0, "norm2": 1} if has_norms else {}
    plan = Plan(
        ops=[op(OpKind.ROPE_KV, buffer, None, layer=layer, **norm_ids)],
        arena=arena,
        vectors=list(norms),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        windows=(0, 0),
        norm_epsilon=EPSILON,
        rope_scale=ROPE_SCALE,
        inverse_frequencies=frequencies(head_dim),
        num_threads=data.draw(st.integers(1, 3)),
    )
    with KernelModel(plan, variant, cells.pool()) as model:
        model.put(buffer, qkv)
        model.forward(step)
        after = model.get(buffer, np.float32, len(qkv)).reshape(qkv.shape)

    query_norm, key_norm = norms if has_norms else (None, None)
    queries = rotated(qkv[:, :heads], step.positions, query_norm)
    assert (np.abs(after[:, :heads] - queries) <= error_of(Format.F32, queries)).all()
    keys = rotated(qkv[:, heads:-kv_heads], step.positions, key_norm)
    blocks, slots = places(step, block_size)
    stored = cells.read()[layer][:, blocks, :, slots]
    untouched = cells.untouched()
    for kv, wanted in enumerate([keys, qkv[:, -kv_heads:].astype(np.float64)]):
        assert (np.abs(stored[:, kv] - wanted) <= error_of(form, wanted)).all()
        untouched[layer, kv, blocks, :, slots] = True
    assert untouched.all()
    assert cells.has_clean_padding()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block_size", [23, 32])
def test_threads_store_tokens_side_by_side(variant: str, block_size: int) -> None:
    """INT8 keeps numbers of 16 tokens, or 4, together: each thread writes its own."""
    num_tokens, head_dim, kv_heads = 150, 20, 2
    qkv = np.random.default_rng(0).normal(size=(num_tokens, 3 * kv_heads * head_dim))
    stored = []
    for num_threads in (1, 2, 5):
        shape = CellShape(
            num_kv_heads=kv_heads,
            block_size=block_size,
            head_dim=head_dim,
            format=Format.INT8,
        )
        cells = Cells(shape, num_layers=1, num_blocks=8)
        arena = Arena(rows=num_tokens)
        buffer = arena.plain(qkv.shape[1])
        plan = Plan(
            ops=[op(OpKind.ROPE_KV, buffer, None)],
            arena=arena,
            num_heads=kv_heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            inverse_frequencies=frequencies(head_dim),
            num_threads=num_threads,
        )
        with KernelModel(plan, variant, cells.pool()) as model:
            model.put(buffer, qkv.astype(np.float32))
            model.forward(make_step([(0, num_tokens)], block_size=block_size))
        stored.append(cells.bytes.tobytes())
    assert stored[1] == stored[0]
    assert stored[2] == stored[0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-40, 1e-30, 1e18, 1e30])
def test_finite_heads_are_stored_as_numbers(
    variant: str, form: Format, value: float
) -> None:
    """Zeros, denormals and large numbers alike."""
    head_dim = 24
    cells = Cells(
        CellShape(num_kv_heads=1, block_size=4, head_dim=head_dim, format=form),
        num_layers=1,
        num_blocks=2,
    )
    arena = Arena(rows=1)
    buffer = arena.plain(3 * head_dim)
    plan = Plan(
        ops=[op(OpKind.ROPE_KV, buffer, None)],
        arena=arena,
        head_dim=head_dim,
        inverse_frequencies=frequencies(head_dim),
    )
    with KernelModel(plan, variant, cells.pool()) as model:
        model.put(buffer, np.full((1, 3 * head_dim), value, np.float32))
        model.forward(make_step([(0, 1)], block_size=4))
    stored = cells.read()[0, :, 1, 0, 0]
    assert np.abs(stored - value).max() <= value * 0.01 + 1e-36
