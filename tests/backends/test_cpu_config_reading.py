"""What a configuration asks for is either in the shape or refused by name."""

from pathlib import Path
from typing import Any

import pytest

from hybrid.backends.cpu.config_reading import read_shape
from hybrid.scheduler.errors import CheckpointError, UnsupportedFeature
from hybrid.testing.models import write_tiny_model
from tests.backends.model_directory import change_config


def _refused(folder: Path, architecture: str, **changes: Any) -> str:
    write_tiny_model(folder, architecture)
    change_config(folder, **changes)
    with pytest.raises(UnsupportedFeature) as error:
        read_shape(folder, ties_embeddings=None)
    return str(error.value)


def test_what_transformers_leaves_out_has_its_default(tmp_path: Path) -> None:
    """A configuration of the few keys that are needed is read as transformers does."""
    write_tiny_model(tmp_path, "llama", head_dim=None, num_key_value_heads=None)
    shape = read_shape(tmp_path, ties_embeddings=None)
    assert (shape.head_dim, shape.num_kv_heads) == (16, 4)
    assert shape.architecture == "LlamaForCausalLM"
    assert shape.attention_scale == 0.25
    assert shape.windows == (None, None, None)


@pytest.mark.parametrize("architecture", ["phi3", "gemma2"])
def test_other_architectures_are_refused(architecture: str, tmp_path: Path) -> None:
    """They differ in ways that no shape can say."""
    told = _refused(tmp_path, architecture)
    assert told.startswith(f"model_type is '{architecture}', the kernels run llama")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', the kernels run silu"),
        (
            {
                "rope_parameters": {
                    "rope_type": "dynamic",
                    "rope_theta": 1e4,
                    "factor": 2.0,
                }
            },
            "rope_type is 'dynamic'",
        ),
        (
            {"num_key_value_heads": 3},
            "num_attention_heads is 4, the kernels want",
        ),
    ],
)
def test_switches_without_an_op_are_refused(
    changes: dict[str, object], told: str, tmp_path: Path
) -> None:
    """By name and value, with what would do."""
    assert told in _refused(tmp_path, "llama", **changes)


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("llama", {"sliding_window": 7}, (None, None, None)),
        ("mistral", {"sliding_window": 7}, (7, 7, 7)),
        ("mistral", {"sliding_window": None}, (None, None, None)),
        ("qwen2", {"sliding_window": 7}, (None, None, None)),
        (
            "qwen3",
            {
                "sliding_window": 7,
                "use_sliding_window": True,
                "layer_types": [
                    "sliding_attention",
                    "full_attention",
                    "sliding_attention",
                ],
            },
            (7, None, 7),
        ),
    ],
)
def test_windows_are_those_of_the_modelling_code(
    architecture: str,
    changes: dict[str, object],
    windows: tuple[int | None, ...],
    tmp_path: Path,
) -> None:
    """Llama ignores the key, Mistral goes by it alone, Qwen by a switch and layers."""
    write_tiny_model(tmp_path, architecture)
    change_config(tmp_path, **changes)
    shape = read_shape(tmp_path, ties_embeddings=None)
    assert shape.windows == windows


def test_layers_of_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    """Whatever they do, no op does it."""
    kinds = ["full_attention", "chunked_attention", "full_attention"]
    told = _refused(tmp_path, "qwen2", layer_types=kinds)
    assert "layer_types is 'chunked_attention'" in told


@pytest.mark.parametrize("files", [None, True, False])
@pytest.mark.parametrize("configured", [True, False])
def test_files_decide_about_the_head_before_the_configuration(
    *, files: bool | None, configured: bool, tmp_path: Path
) -> None:
    """Only where they say nothing does config.json."""
    write_tiny_model(tmp_path, "llama", tie_word_embeddings=configured)
    shape = read_shape(tmp_path, ties_embeddings=files)
    assert shape.ties_embeddings is (configured if files is None else files)


def test_a_configuration_that_transformers_refuses_is_the_files_fault(
    tmp_path: Path,
) -> None:
    """Named by its directory, with transformers' reason."""
    write_tiny_model(tmp_path, "llama")
    change_config(tmp_path, hidden_size="wide")
    with pytest.raises(
        CheckpointError, match=r"config\.json cannot be used.*hidden_size"
    ):
        read_shape(tmp_path, ties_embeddings=None)
