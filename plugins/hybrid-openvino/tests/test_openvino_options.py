"""Options of the executor: taken, or refused with their names and values."""

from pathlib import Path
from typing import Any

import pytest
from hybrid_openvino import options as options_module
from openvino_stand import load

from hybrid.api import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int3"}, "weights is 'int3', must be one of auto, f32"),
        ({"int4_group_size": 0}, "int4_group_size is 0"),
        ({"int4_group_size": True}, "int4_group_size is True"),
        ({"int4_group_size": 32}, "int4_group_size is 32, but weights is 'f32'"),
        ({"DYNAMIC_QUANTIZATION_GROUP_SIZE": 1.5}, "is 1.5, must be a whole number"),
        ({"INFERENCE_NUM_THREADS": 2}, "num_threads is 1; give one"),
        ({"kv": 1}, "unknown option 'kv'.*KV_CACHE_PRECISION"),
        ({"NETWORK_NAME": "x"}, "unknown option 'NETWORK_NAME'"),
        ({"KV_CACHE_PRECISION": "u3"}, "KV_CACHE_PRECISION=u3"),
        ({"INFERENCE_PRECISION_HINT": "bf16"}, "choose the precision by dtype"),
    ],
)
def test_a_bad_option_is_refused(
    llama: Path, options: dict[str, Any], message: str
) -> None:
    """With its name and value, and what there is."""
    with pytest.raises(ConfigError, match=message):
        load(llama, **options)


def test_another_block_size_is_refused(llama_ir: Path) -> None:
    """The kernel would read other slots than it wrote."""
    with pytest.raises(ConfigError, match=r"block_size is 16, .* knows 32"):
        load(llama_ir, block_size=16)


@pytest.mark.parametrize("options", [{"weights": "int4"}, {"int4_group_size": 32}])
def test_an_ir_stores_its_weights_already(
    llama_ir: Path, options: dict[str, Any]
) -> None:
    """An option that would do nothing is refused, not dropped."""
    with pytest.raises(ConfigError, match="stored already"):
        load(llama_ir, **options)


def test_a_missing_compressor_is_named_before_anything_is_done(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(options_module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"NNCF: pip install 'hybrid-openvino\[wei"):
        load(llama, weights="int8")
