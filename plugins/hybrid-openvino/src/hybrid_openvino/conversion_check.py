"""Accepts a conversion only if it answers, paged, as the torch model does.

Tracing records one path through a model's code: what depends on data or on lengths is
frozen without a word. So a few tokens, of other lengths than the traced ones, are run
both ways before the conversion is kept.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid.api import (
    CheckpointError,
    GenerateRequest,
    SamplingParams,
    ScheduledRequest,
    StepPlan,
    UnsupportedFeature,
)

from .kv_pool import KVPool
from .paged_model import PagedModel
from .step_inputs import make_step_inputs
from .traced_model import TracedModel

MAX_RELATIVE_ERROR: Final = 1e-3
"""Norm of the difference over the norm, in float32; rounding gives about 1e-6."""
_BLOCK_SIZE: Final = 32
_TOKEN_IDS: Final = tuple(range(3, 61))
_NUM_FIRST: Final = 37
_BLOCKS: Final = (3, 1)
_EXACT: Final = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def check_conversion(traced: TracedModel) -> None:
    """Compare the last logits of 58 tokens, run in two chunks and in one.

    Raises:
        UnsupportedFeature: they differ.
        CheckpointError: the torch model's own are not finite.
    """
    vocab_size = int(traced.source.config.get_text_config().vocab_size)
    token_ids = tuple(token_id % vocab_size for token_id in _TOKEN_IDS)
    expected = _own_logits(traced, token_ids)
    name = type(traced.source).__name__
    if not np.isfinite(expected).all():
        raise CheckpointError(
            f"the logits of {name} in float32 are not finite: a weight is no finite "
            "number, or config.json asks for something impossible"
        )
    found = _paged_logits(traced, token_ids)
    size = max(float(np.linalg.norm(expected)), 1e-12)
    error = float(np.linalg.norm(found - expected)) / size
    if not error <= MAX_RELATIVE_ERROR:
        raise UnsupportedFeature(
            f"executor openvino cannot run {name}: its converted form answers "
            f"otherwise (relative error {error:.2g}, at most {MAX_RELATIVE_ERROR:g}); "
            "its code depends on data or lengths, or keeps state outside attention"
        )


def _own_logits(traced: TracedModel, token_ids: tuple[int, ...]) -> NDArray[np.float32]:
    """Run the torch model with its own eager attention, the whole text at once."""
    traced.source.set_attn_implementation("eager")
    with torch.inference_mode():
        output = traced.source(torch.tensor([token_ids]), use_cache=False)
    logits: NDArray[np.float32] = output.logits[0, -1].numpy()
    return logits


def _paged_logits(
    traced: TracedModel, token_ids: tuple[int, ...]
) -> NDArray[np.float32]:
    # Paging changes the model in place; the one to keep stays as it is.
    paged = PagedModel(traced.model.clone(), traced.windows, _EXACT)
    pool = KVPool(paged.key_cell, paged.value_cell, paged.num_layers, max(_BLOCKS) + 1)
    paged.bind(pool)
    request = GenerateRequest("check", token_ids, SamplingParams())
    cut = _NUM_FIRST
    chunks = (
        ScheduledRequest(request, 0, token_ids[:cut], 0, _BLOCKS, 0, 0),
        ScheduledRequest(request, 0, token_ids[cut:], cut, _BLOCKS, 1, 1),
    )
    logits: NDArray[np.float32] = np.empty((0, paged.vocab_size), dtype=np.float32)
    for step, chunk in enumerate(chunks):
        plan = StepPlan(step, (chunk,), 1, (), (), ())
        logits = paged.run(make_step_inputs(plan, _BLOCK_SIZE))
    last: NDArray[np.float32] = logits[-1].copy()
    return last
