"""Accepts a loaded model only if its paged answer equals its own unpaged one.

Modelling code may keep state of its own (convolutions, recurrences), bias attention by
position, or mix packed sequences. No list of names stays true, so a handful of tokens
is run both ways at load: packed, chunked and paged by us; and by transformers' own
eager attention.
"""

from itertools import chain
from typing import Final

import torch
from transformers import PreTrainedModel

from hybrid.backends.interface import KVSpec
from hybrid.scheduler.errors import CheckpointError, HybridError, UnsupportedFeature
from hybrid.scheduler.generate_request import GenerateRequest
from hybrid.scheduler.plan import ScheduledRequest, StepPlan
from hybrid.scheduler.sampling_params import SamplingParams

from .attention_function import ATTENTION_NAME, STEP_KEYWORD
from .kv_pool import KVPool
from .step_attention import make_step_attention

MAX_RELATIVE_ERROR: Final = {torch.float32: 1e-3}
"""Norm of the difference over the norm, by dtype. In float32 rounding gave 4e-7 at most
(18 small architectures); a model that paging breaks is off by more."""
MAX_RELATIVE_ERROR_HALF: Final = 0.25
"""The same for the 16-bit dtypes, where rounding grows with depth: 0.01 after 3 layers,
0.07 after the 30 of SmolLM2."""
_BLOCK_SIZE: Final = 4
_FIRST: Final = tuple(range(3, 14))
_SECOND: Final = tuple(range(20, 27))
_NUM_FIRST_CHUNK: Final = 6


def probe_model(model: PreTrainedModel, spec: KVSpec) -> None:
    """Run two short sequences paged and unpaged.

    Raises:
        UnsupportedFeature: the answers differ, or are no numbers although all
            parameters are, or a layer does not attend through us.
        CheckpointError: a parameter is not finite; names it.
    """
    name = type(model).__name__
    try:
        error = _relative_error(model, spec)
    except HybridError:
        raise
    except Exception as fault:
        # The model's own code failed on packed tokens, in whatever way: an answer too.
        raise UnsupportedFeature(
            f"executor torch cannot run {name}: its code raised {type(fault).__name__} "
            f"on packed tokens: {fault}"
        ) from fault
    limit = MAX_RELATIVE_ERROR.get(model.dtype, MAX_RELATIVE_ERROR_HALF)
    if not error <= limit:
        raise UnsupportedFeature(
            f"executor torch cannot run {name}: its answer changes when its cache is "
            f"paged (relative error {error:.2g}, at most {limit:g}); it keeps state or "
            "positions outside attention"
        )


def _relative_error(model: PreTrainedModel, spec: KVSpec) -> float:
    layer_types = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if "chunked_attention" in layer_types:
        raise UnsupportedFeature(
            f"executor torch cannot run {type(model).__name__}: chunked attention"
        )
    pool = KVPool(spec.layout(8, _BLOCK_SIZE), model.device)
    paged = _paged_logits(model, pool, spec.num_layers)
    try:
        model.set_attn_implementation("eager")
        unpaged = torch.cat([_unpaged_logits(model, ids) for ids in (_FIRST, _SECOND)])
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    if not unpaged.isfinite().all():
        raise not_finite(model)
    difference = (paged - unpaged).norm() / unpaged.norm().clamp_min(1e-12)
    return float(difference)


def not_finite(model: PreTrainedModel) -> HybridError:
    """Say which weight made the answer infinite or no number, if one did."""
    dtype = str(model.dtype).removeprefix("torch.")
    what = f"the logits of {type(model).__name__} in {dtype} are not finite"
    for name, weight in chain(model.named_parameters(), model.named_buffers()):
        if weight.is_floating_point() and not weight.isfinite().all():
            return CheckpointError(f"{what}: {name} holds what is no finite number")
    return UnsupportedFeature(
        f"{what} although every parameter is: config.json asks for something "
        f"impossible (as in rms_norm_eps), or its numbers are too large for {dtype}"
    )


def _unpaged_logits(model: PreTrainedModel, ids: tuple[int, ...]) -> torch.Tensor:
    input_ids = torch.tensor([_in_vocabulary(model, ids)], device=model.device)
    output = model(input_ids=input_ids, use_cache=False, logits_to_keep=1)
    logits: torch.Tensor = output.logits[0].float()
    return logits


def _paged_logits(
    model: PreTrainedModel, pool: KVPool, num_layers: int
) -> torch.Tensor:
    """Two steps: a chunk beside a whole prompt, then the rest beside one decode token.

    Returns:
        float32 ``[2, vocab_size]``: the last row of each sequence.
    """
    first, second = (_in_vocabulary(model, ids) for ids in (_FIRST, _SECOND))
    cut = _NUM_FIRST_CHUNK
    tables = ((3, 1, 6), (5, 2))
    steps = (
        (_entry(first[:cut], 0, tables[0]), _entry(second[:-1], 0, tables[1])),
        (_entry(first[cut:], cut, tables[0]), _entry(second[-1:], 6, tables[1])),
    )
    logits = torch.empty(0)
    for number, entries in enumerate(steps):
        plan = StepPlan(number, entries, 2 - number, (), (), ())
        step = make_step_attention(plan, pool, model.device)
        output = model(
            input_ids=torch.from_numpy(step.batch.input_ids)[None].to(model.device),
            position_ids=torch.from_numpy(step.batch.positions)[None].to(model.device),
            use_cache=False,
            logits_to_keep=torch.from_numpy(step.batch.logits_rows).to(model.device),
            **{STEP_KEYWORD: step},
        )
        logits = output.logits[0].float()
        if step.layers_seen != list(range(num_layers)):
            raise UnsupportedFeature(
                f"executor torch cannot run {type(model).__name__}: of {num_layers} "
                f"layers, those that attend through the attention interface are "
                f"{step.layers_seen}"
            )
    return logits


def _in_vocabulary(model: PreTrainedModel, ids: tuple[int, ...]) -> tuple[int, ...]:
    vocab_size = int(model.config.get_text_config().vocab_size)
    return tuple(token_id % vocab_size for token_id in ids)


def _entry(
    token_ids: tuple[int, ...], num_computed: int, block_ids: tuple[int, ...]
) -> ScheduledRequest:
    request = GenerateRequest("probe", token_ids, SamplingParams())
    return ScheduledRequest(request, 0, token_ids, num_computed, block_ids, 1, 0)
