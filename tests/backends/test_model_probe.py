"""The probe at load: it compares, and what it compares decides."""

from pathlib import Path

import pytest
import torch

from hybrid.backends.pytorch import paged_attention
from hybrid.backends.pytorch.step_attention import StepAttention
from hybrid.scheduler import UnsupportedFeature
from tests.backends.engine_stand import load_torch, write_model


def test_a_model_whose_paged_answer_differs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention that forgets its history in decode is caught before any request."""
    original = paged_attention.attend_generations

    def forgetful(
        step: StepAttention,
        layer: int,
        query: torch.Tensor,
        options: paged_attention.AttentionOptions,
    ) -> torch.Tensor:
        return original(step, layer, query, options) * 0.5

    monkeypatch.setattr(
        "hybrid.backends.pytorch.attention_function.attend_generations", forgetful
    )
    with pytest.raises(UnsupportedFeature, match="changes when its cache is paged"):
        load_torch(write_model(tmp_path, "llama"), 16)
