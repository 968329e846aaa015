"""Rotary embeddings that depend on the batch are refused; the others are exact."""

from pathlib import Path
from typing import Any

import pytest

from hybrid.scheduler import SamplingParams, UnsupportedFeature
from hybrid.testing import ids_of, run, write_tiny_model
from tests.backends.engine_stand import load_torch, reference

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = [[1, 2, 3, 4], list(range(60))]
FACTORS = [1.0 + 0.1 * index for index in range(8)]
DYNAMIC: dict[str, Any] = {
    "rope_type": "dynamic",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 32,
}
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": FACTORS,
    "long_factor": [4 * factor for factor in FACTORS],
    "original_max_position_embeddings": 32,
}
LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("rope", [DYNAMIC, LONG], ids=["dynamic", "longrope"])
def test_angles_that_depend_on_the_batch_are_refused(
    tmp_path: Path, rope: dict[str, Any]
) -> None:
    """A long neighbour would rotate a short prompt otherwise; the way out is named."""
    folder = write_tiny_model(tmp_path, "llama", rope_parameters=rope)
    with pytest.raises(UnsupportedFeature, match="must be at most 32"):
        load_torch(folder, 16)
    load_torch(folder, 16, max_model_len=32)


@pytest.mark.parametrize("rope", [LINEAR, YARN], ids=["linear", "yarn"])
def test_constant_angles_give_transformers_tokens_beside_any_neighbour(
    tmp_path: Path, rope: dict[str, Any]
) -> None:
    """Scaled frequencies that never change are no obstacle."""
    folder = write_tiny_model(tmp_path, "llama", rope_parameters=rope)
    engine = load_torch(folder, 16).engine(max_prefill_chunk_tokens=16)
    assert ids_of(run(engine, PROMPTS, PARAMS)) == reference(folder, PROMPTS, 8)
