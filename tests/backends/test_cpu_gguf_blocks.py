"""A GGUF's blocks are used as they are, held against the gguf package's own numbers."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from hybrid.backends.checkpoint.gguf_conversion import convert_gguf
from hybrid.backends.checkpoint.json_file import read_json_object
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu.abi import Format
from hybrid.backends.cpu.gguf_blocks import GGUFParameters
from hybrid.backends.cpu.weight_packing import from_bfloat16
from hybrid.models.cache import cached_file
from hybrid.models.catalog import KNOWN_MODELS
from hybrid.scheduler.errors import CheckpointError
from tests.backends.built_cpu_engine import build
from tests.backends.plan_interpreter import run_plan, unpacked
from tests.backends.tiny_checkpoints import gguf_tensors, make_model, write_gguf

_TYPE = gguf.GGMLQuantizationType
PROMPT = [3, 7, 11, 2, 9, 14, 5, 8, 1]
Raw = dict[str, tuple[NDArray[np.uint8], gguf.GGMLQuantizationType]]


def _blocks(
    matrix: NDArray[np.float32], kind: gguf.GGMLQuantizationType
) -> NDArray[np.uint8]:
    """Quantise by the gguf package; Q4_K, which it only reads, at random."""
    if kind is not _TYPE.Q4_K:
        quantized: NDArray[np.uint8] = gguf.quantize(matrix, kind)
        return quantized
    rng = np.random.default_rng(matrix.size)
    blocks = rng.integers(0, 256, (matrix.size // 256, 144), np.uint8)
    scales = rng.uniform(1e-4, 1e-3, (len(blocks), 2)).astype(np.float16)
    blocks[:, :4] = scales.view(np.uint8)
    return blocks.reshape(len(matrix), -1)


def _write(
    folder: Path, kinds: dict[str, gguf.GGMLQuantizationType], arch: str = "llama"
) -> tuple[ModelSource, Raw]:
    """A tiny GGUF whose tensors are of the kind that the end of their names says."""
    model = make_model(arch, hidden_size=256, head_dim=64, intermediate_size=256)
    raw: Raw = {}
    for name, matrix in gguf_tensors(model).items():
        for end, kind in kinds.items():
            if matrix.ndim > 1 and name.endswith(end):
                raw[name] = (_blocks(matrix, kind), kind)
                break
    return write_gguf(folder / "tiny.gguf", model, raw=raw), raw


def _convert(source: ModelSource, folder: Path, dtype: str = "float32") -> ModelSource:
    return convert_gguf(source, dtype=dtype, cache_dir=folder / "converted")


def test_a_conversion_remembers_its_gguf(tmp_path: Path) -> None:
    """Found anew or made, it says where the exact numbers are."""
    source, _ = _write(tmp_path, {})
    for _ in range(2):
        assert _convert(source, tmp_path).origin == source.path


@pytest.mark.parametrize("kind", [_TYPE.Q4_0, _TYPE.Q4_1, _TYPE.Q4_K])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_four_bit_blocks_are_kept(
    kind: gguf.GGMLQuantizationType, arch: str, tmp_path: Path
) -> None:
    """Bit for bit Q4_0; the others' products and offsets are rounded.

    Rotary rows of a llama are put back.
    """
    source, _ = _write(tmp_path, {"weight": kind}, arch)
    converted = _convert(source, tmp_path)
    exact = build(converted, tmp_path / "exact", quantization="fp32")
    engine = build(converted, tmp_path / "engine")
    assert engine.quantization == "int4"
    for weight, reference in zip(engine.weights, exact.weights, strict=True):
        assert weight.format is Format.INT4
        numbers = unpacked(reference)
        # One rounding of the step, to eleven bits, up to eight times; one of what lies
        # in the middle, to eight bits.
        rounding = {_TYPE.Q4_0: 0, _TYPE.Q4_1: 2.0**-8, _TYPE.Q4_K: 2.0**-7}[kind]
        rounding *= np.abs(numbers).max()
        np.testing.assert_allclose(unpacked(weight), numbers, rtol=0, atol=rounding)


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_eight_bit_blocks_are_kept(arch: str, tmp_path: Path) -> None:
    """Bit for bit, also a quantum of -128 and a group that uses little of its range."""
    source, raw = _write(tmp_path, {"weight": _TYPE.Q8_0}, arch)
    rows, _ = raw["blk.1.ffn_up.weight"]
    quanta = rows.reshape(len(rows), -1, 34)[:, :, 2:].view(np.int8)
    quanta[5, 0, :] = -128
    quanta[6] //= 40
    model = make_model(arch, hidden_size=256, head_dim=64, intermediate_size=256)
    source = write_gguf(tmp_path / "changed.gguf", model, raw=raw)
    converted = _convert(source, tmp_path)
    exact = build(converted, tmp_path / "exact", quantization="fp32")
    engine = build(converted, tmp_path / "engine")
    assert engine.quantization == "int8"
    for weight, reference in zip(engine.weights, exact.weights, strict=True):
        assert weight.format is Format.INT8
        np.testing.assert_array_equal(unpacked(weight), unpacked(reference))


def test_exact_numbers_do_not_go_through_the_conversion(tmp_path: Path) -> None:
    """That is in bfloat16, where it was made for a fast dtype."""
    source, raw = _write(tmp_path, {"weight": _TYPE.Q8_0})
    converted = _convert(source, tmp_path, "bfloat16")
    engine = build(converted, tmp_path / "engine", quantization="fp32")
    down = next(w for w in engine.weights if w.name == "layers.1.down")
    expected = gguf.dequantize(*raw["blk.1.ffn_down.weight"])
    np.testing.assert_array_equal(unpacked(down), expected)


def test_a_file_of_mixed_kinds_keeps_what_it_can(tmp_path: Path) -> None:
    """As in Q4_K_M: a matrix with a part of more bits is int8, that part as it is."""
    kinds = {"attn_v.weight": _TYPE.Q8_0, "token_embd.weight": _TYPE.Q8_0}
    source, _ = _write(tmp_path, kinds | {"weight": _TYPE.Q4_1})
    converted = _convert(source, tmp_path)
    engine = build(converted, tmp_path / "engine")
    exact = build(converted, tmp_path / "exact", quantization="fp32")
    formats = {weight.name: weight.format for weight in engine.weights}
    assert formats.pop("embedding") is Format.INT8
    for name, form in formats.items():
        assert form is (Format.INT8 if name.endswith("qkv") else Format.INT4)
    for weight, reference in zip(engine.weights, exact.weights, strict=True):
        numbers = unpacked(reference)
        limit = np.zeros((weight.rows, 1), np.float32)
        if weight.format is Format.INT4:
            limit += 2.0**-8 * np.abs(numbers).max()
        elif weight.name.endswith("qkv"):
            values = weight.rows - engine.shape.num_kv_heads * engine.shape.head_dim
            largest = np.abs(numbers).max(axis=1, keepdims=True)
            limit[:values] = largest[:values] / 127 * 0.501
        assert (np.abs(unpacked(weight) - numbers) <= limit).all()
    found, expected = (run_plan(e, PROMPT) for e in (engine, exact))
    assert np.linalg.norm(found - expected) < 0.2 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("kind", "automatic"),
    [(_TYPE.Q8_0, "int8"), (_TYPE.F16, "int8"), (_TYPE.Q4_0, "int4")],
)
def test_auto_follows_the_matrices_of_the_file(
    kind: gguf.GGMLQuantizationType, automatic: str, tmp_path: Path
) -> None:
    """Four bits only where the file has them; float32 asks for exactness."""
    source, _ = _write(tmp_path, {"weight": kind})
    converted = _convert(source, tmp_path)
    assert build(converted, tmp_path / "a").quantization == automatic
    exact = build(converted, tmp_path / "b", dtype="float32")
    assert exact.quantization == "fp32"


def test_a_file_without_four_bit_blocks_can_get_four_bits(tmp_path: Path) -> None:
    """Asked for, they are found by our own search; what is delicate gets eight."""
    source, _ = _write(tmp_path, {"weight": _TYPE.Q8_0})
    engine = build(_convert(source, tmp_path), tmp_path / "e", quantization="int4")
    formats = {weight.name: weight.format for weight in engine.weights}
    delicate = {"embedding", "head", "layers.0.qkv", "layers.1.qkv"}
    for name, form in formats.items():
        assert form is (Format.INT8 if name in delicate else Format.INT4)


@pytest.mark.parametrize(
    ("kind", "scales"),
    [
        (_TYPE.Q4_1, [np.nan]),
        (_TYPE.Q4_1, [np.inf, -np.inf]),
        (_TYPE.Q8_0, [-np.inf]),
        (_TYPE.Q4_0, [np.inf]),
        (_TYPE.Q4_K, [60000.0]),
    ],
)
def test_a_scale_that_is_no_number_is_refused(
    kind: gguf.GGMLQuantizationType, scales: list[float], tmp_path: Path
) -> None:
    """By the parameter's name: no kernel multiplies with it."""
    source, raw = _write(tmp_path, {"weight": kind})
    rows, _ = raw["blk.1.ffn_up.weight"]
    rows[5, : 2 * len(scales)] = np.array(scales, np.float16).view(np.uint8)
    source = write_gguf(
        tmp_path / "broken.gguf",
        make_model("llama", hidden_size=256, head_dim=64, intermediate_size=256),
        raw=raw,
    )
    converted = _convert(source, tmp_path)
    with pytest.raises(
        CheckpointError, match=rf"layers.1.mlp.up_proj.weight \({kind.name}\)"
    ):
        build(converted, tmp_path / "e")


@pytest.mark.model
def test_smollm2s_own_blocks_are_read_exactly(tmp_path: Path) -> None:
    """Of a real Q4_1 file the numbers are gguf's, row by row, norms and table too."""
    path = cached_file(KNOWN_MODELS[0])
    assert path is not None
    reader = gguf.GGUFReader(path)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    source = ModelSource("s", path, CheckpointFormat.GGUF)
    converted = convert_gguf(source, dtype="bfloat16", cache_dir=tmp_path)
    config = read_json_object(converted.path / "config.json")
    assert config is not None
    parameters = GGUFParameters(path, config)
    for layer in (0, 29):
        at, there = f"model.layers.{layer}", f"blk.{layer}"
        for ours, theirs in (
            (f"{at}.mlp.down_proj.weight", f"{there}.ffn_down.weight"),
            (f"{at}.self_attn.v_proj.weight", f"{there}.attn_v.weight"),
            (f"{at}.input_layernorm.weight", f"{there}.attn_norm.weight"),
        ):
            tensor = stored[theirs]
            expected = gguf.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(parameters.read(ours), expected)
            if parameters.group_format(ours) is Format.INT4:
                groups = parameters.read_int4(ours)
                d = np.repeat(groups.d.astype(np.float32), 32, axis=1)
                m = np.repeat(from_bfloat16(groups.m), 32, axis=1)
                quanta = groups.quanta.astype(np.float32) - 8
                off = np.abs(d * quanta + m - expected)
                assert (off <= np.abs(m) * 2.0**-8 + 1e-8).all()
                assert np.mean(off) < np.mean(np.abs(d)) / 400
    table, rows = stored["token_embd.weight"], slice(1000, 2000)
    eights = parameters.read_int8("model.embed_tokens.weight", rows)
    scales = np.repeat(eights.scales.astype(np.float32), 32, axis=1)
    expected = gguf.dequantize(table.data[rows], table.tensor_type)
    np.testing.assert_array_equal(scales * eights.quanta, expected)
