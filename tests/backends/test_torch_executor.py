"""What the torch executor does beyond the conformance kit."""

from pathlib import Path
from typing import Any, Final

import pytest

from hybrid.scheduler import ConfigError, UnsupportedFeature
from hybrid.testing import write_tiny_model
from tests.backends.engine_stand import load_torch

REFUSED: Final[dict[str, dict[str, Any]]] = {
    "mamba": {"num_hidden_layers": 2, "hidden_size": 32, "state_size": 4},
    "bloom": {"n_layer": 2, "hidden_size": 32, "n_head": 4},
    "gpt_oss": {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
}
"""Families that keep more than K and V: recurrent state, position biases, sinks."""


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_paging_would_break_is_refused(tmp_path: Path, kind: str) -> None:
    """What it keeps is named, never ignored."""
    import transformers  # noqa: PLC0415 - only here

    config = transformers.AutoConfig.for_model(kind, vocab_size=320, **REFUSED[kind])
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedFeature, match="executor torch"):
        load_torch(tmp_path, 16)


def test_an_unknown_option_or_order_is_refused_by_name(tmp_path: Path) -> None:
    """The messages say what there is."""
    folder = write_tiny_model(tmp_path, "llama")
    with pytest.raises(ConfigError, match="unknown option 'kv_ordr'"):
        load_torch(folder, 16, kv_ordr="layer_first")
    with pytest.raises(ConfigError, match="must be layer_first or block_first"):
        load_torch(folder, 16, kv_order="token_first")
