"""GGUF to Hugging Face directory: the converted model computes what it did before."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from hybrid.scheduler.errors import CheckpointError
from tests.backends.conversion_stand import convert, load
from tests.backends.tiny_checkpoints import (
    gguf_tensors,
    logits_of,
    make_model,
    write_gguf,
)


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1}),
        ("llama", {"head_dim": 32}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {}),
        ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    ],
)
def test_converted_model_gives_the_same_logits(
    tmp_path: Path, kind: str, overrides: dict[str, object]
) -> None:
    """Grouped heads, head sizes, biases and tied embeddings survive."""
    model = make_model(kind, **overrides)
    source = write_gguf(tmp_path / "tiny.gguf", model)
    directory = convert(source, tmp_path)
    loaded = load(directory)
    torch.testing.assert_close(logits_of(loaded), logits_of(model), rtol=0, atol=1e-5)
    assert loaded.config.tie_word_embeddings == model.config.tie_word_embeddings


def test_weights_equal_the_originals_bit_for_bit(tmp_path: Path) -> None:
    """Rotary rows return to their places exactly; nothing else moves."""
    model = make_model("llama")
    directory = convert(write_gguf(tmp_path / "tiny.gguf", model), tmp_path)
    weights = load_file(directory / "model.safetensors")
    original = model.state_dict()
    assert weights.keys() == original.keys()
    for name, value in original.items():
        assert torch.equal(weights[name], value), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_rounded_as_torch_rounds(tmp_path: Path, dtype: str) -> None:
    """The stored dtype is the one asked for, rounded to nearest even."""
    model = make_model("qwen2")
    directory = convert(write_gguf(tmp_path / "tiny.gguf", model), tmp_path, dtype)
    weights = load_file(directory / "model.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(weights[name], value.to(getattr(torch, dtype))), name
    assert json.loads((directory / "config.json").read_text())["dtype"] == dtype


def test_numbers_beyond_float16_are_an_error(tmp_path: Path) -> None:
    """A weight that float16 cannot hold is named, not made infinite."""
    model = make_model("llama")
    tensors = gguf_tensors(model)
    tensors["output_norm.weight"] = np.full(64, 1e5, np.float32)
    source = write_gguf(tmp_path / "tiny.gguf", model, tensors=tensors)
    with pytest.raises(CheckpointError, match=r"output_norm\.weight.*65504"):
        convert(source, tmp_path, "float16")


QUANTIZATIONS = [
    kind
    for kind in gguf.GGMLQuantizationType
    if kind.name.startswith(("Q", "IQ", "TQ", "MXFP", "NVFP", "BF16", "F16", "F64"))
]


def dequantize(
    raw: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]",
    kind: gguf.GGMLQuantizationType,
) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None":
    """Ask the gguf package; ``None`` where it cannot."""
    if kind.name == "F64":
        return raw.view("<f8").astype(np.float32)
    try:
        with np.errstate(all="ignore"):
            return gguf.dequantize(raw, kind)
    except NotImplementedError:
        return None


@pytest.mark.parametrize("kind", QUANTIZATIONS, ids=lambda kind: kind.name)
def test_every_quantisation_is_dequantised_or_refused(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    """Whole quantised rows are put back; a type that gguf lacks is named."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    model = make_model("llama", head_dim=64, **sizes)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (256, 256 // block * block_bytes)).astype(np.uint8)
    if kind.name == "F64":
        raw = rng.normal(size=(256, 256)).view(np.uint8)
    source = write_gguf(
        tmp_path / "tiny.gguf", model, raw={"blk.0.attn_q.weight": (raw, kind)}
    )
    expected = dequantize(raw, kind)
    if expected is None:
        fault = rf"blk\.0\.attn_q\.weight has type {kind.name}.*supported: F32, F16"
        with pytest.raises(CheckpointError, match=fault):
            convert(source, tmp_path)
        return
    weights = load_file(convert(source, tmp_path) / "model.safetensors")
    # llama.cpp's order is x0 y0 x1 y1 ..., ours x0 x1 ... y0 y1 ...
    expected = expected.reshape(4, 32, 2, 256).swapaxes(1, 2).reshape(256, 256)
    got = weights["model.layers.0.self_attn.q_proj.weight"].numpy()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_1", "BF16"])
def test_quantised_model_is_near_the_original(tmp_path: Path, kind: str) -> None:
    """Quantising all matrices and converting gives what gguf's own rounding gives."""
    model = make_model("llama", intermediate_size=128)
    type_ = gguf.GGMLQuantizationType[kind]
    raw = {
        name: (gguf.quantize(value, type_), type_)
        for name, value in gguf_tensors(model).items()
        if value.ndim == 2
    }
    directory = convert(write_gguf(tmp_path / "tiny.gguf", model, raw=raw), tmp_path)
    weights = load_file(directory / "model.safetensors")
    embedding = gguf.dequantize(*raw["token_embd.weight"])
    np.testing.assert_array_equal(
        weights["model.embed_tokens.weight"].numpy(), embedding
    )
    for name, value in model.state_dict().items():
        difference = (weights[name] - value).norm() / value.norm()
        assert difference < {"Q4_0": 0.12, "Q4_1": 0.12}.get(kind, 0.06), name


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda w: w.add_expert_count(8), "expert_count is 8"),
        (lambda w: w.add_sliding_window(16), "sliding_window is 16"),
        (lambda w: w.add_value_length(8), "value_length is 8 while a head has 16"),
    ],
)
def test_settings_that_change_the_computation_are_refused(
    tmp_path: Path, change: object, fault: str
) -> None:
    """What the converted model would not compute is an error that names the key."""
    source = write_gguf(tmp_path / "t.gguf", make_model("llama"), metadata=change)
    with pytest.raises(CheckpointError, match=fault):
        convert(source, tmp_path)


def test_unknown_architecture_is_named_with_the_supported(tmp_path: Path) -> None:
    """The error says what the file is and what there is."""
    source = write_gguf(tmp_path / "t.gguf", make_model("llama"), arch="rwkv7")
    with pytest.raises(CheckpointError, match=r"'rwkv7'.*llama, qwen2, qwen3"):
        convert(source, tmp_path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"blk.1.ffn_up.weight": None}, r"blk\.1\.ffn_up\.weight .*is missing"),
        ({"token_embd.weight": None}, r"token_embd\.weight is missing"),
        ({"blk.0.ffn_up.weight": (96, 32)}, r"ffn_up\.weight has shape \(96, 32\)"),
        ({"blk.0.attn_k.bias": (32,)}, r"no llama model has: blk\.0\.attn_k\.bias"),
        ({"blk.7.ffn_up.weight": (96, 64)}, r"no llama model has: blk\.7"),
        ({"blk.0.attn_q.bias": (64,)}, r"attn_k\.bias .*is missing"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, change: dict[str, tuple[int, ...] | None], fault: str
) -> None:
    """A missing, misshapen or surplus tensor is an error, never a random parameter."""
    model = make_model("llama")
    tensors = gguf_tensors(model)
    for name, shape in change.items():
        if shape is None:
            del tensors[name]
        else:
            tensors[name] = np.zeros(shape, np.float32)
    source = write_gguf(tmp_path / "tiny.gguf", model, tensors=tensors)
    with pytest.raises(CheckpointError, match=fault):
        convert(source, tmp_path)
    assert list((tmp_path / "converted").glob("*")) == []


def test_end_ids_reach_config_and_generation_config(tmp_path: Path) -> None:
    """Both files of the converted model carry the list of end ids."""

    def turn(writer: gguf.GGUFWriter) -> None:
        writer.add_eot_token_id(0)

    source = write_gguf(tmp_path / "tiny.gguf", make_model("llama"), metadata=turn)
    directory = convert(source, tmp_path)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((directory / name).read_text())["eos_token_id"] == [0, 2]
    generation = transformers.GenerationConfig.from_pretrained(directory)
    assert generation.eos_token_id == [0, 2]


@pytest.mark.parametrize(("num_rows", "fits"), [(400, True), (300, False)])
def test_vocabulary_fits_the_embedding(
    tmp_path: Path, num_rows: int, fits: bool
) -> None:
    """Rows may pad the tokens; a token without a row is an error with both numbers."""
    model = make_model("llama", vocab_size=num_rows)
    source = write_gguf(tmp_path / "tiny.gguf", model)
    if fits:
        config = json.loads((convert(source, tmp_path) / "config.json").read_text())
        assert config["vocab_size"] == num_rows
        return
    with pytest.raises(CheckpointError, match=r"has 320 tokens.*has 300 rows"):
        convert(source, tmp_path)
