"""A compiled engine's config.json that everything is right with."""

import json
from pathlib import Path

import pytest

from hybrid.backends.interface import ExecutorConfig
from hybrid.backends.trtllm.engine_config import BuiltEngine, read_engine_config
from tests.backends.standin_engine import engine_config

HF_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "vocab_size": 320,
    "max_position_embeddings": 512,
}
ASKED = ExecutorConfig(dtype="float32", block_size=32, max_num_seqs=8)
INSTALLED = "1.2.1"


def written(folder: Path, content: object) -> Path:
    """Write a config.json."""
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def engine(tmp_path: Path) -> BuiltEngine:
    """One that everything is right with."""
    return read_engine_config(written(tmp_path, engine_config(HF_CONFIG, INSTALLED)))
