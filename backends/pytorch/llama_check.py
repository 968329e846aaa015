"""Accepts our model only if it answers as transformers' own code does.

Configurations have more switches than any list of ours; what one of them changes shows
in the logits of a few tokens, run by both when the model is loaded.
"""

from typing import TYPE_CHECKING, Final

import torch

from hybrid.bridge import KVLayout
from hybrid.scheduler.errors import UnsupportedFeature
from hybrid.scheduler.generate_request import GenerateRequest
from hybrid.scheduler.plan import ScheduledRequest, StepPlan
from hybrid.scheduler.sampling_params import SamplingParams

from .kv_pool import KVPool
from .llama import Llama
from .llama_attention import LlamaAttention
from .llama_shape import LlamaShape
from .model_probe import MAX_RELATIVE_ERROR, MAX_RELATIVE_ERROR_HALF, not_finite

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOKENS: Final = tuple(range(3, 14))


def reference_logits(loaded: "PreTrainedModel") -> torch.Tensor:
    """Run a few tokens through transformers' code: ``[tokens, vocab_size]``.

    Raises:
        CheckpointError: they are not finite, because a weight is not; names it.
        UnsupportedFeature: they are not finite although every weight is.
    """
    ids = torch.tensor([_ids(loaded.config.vocab_size)], device=loaded.device)
    logits: torch.Tensor = loaded(input_ids=ids, use_cache=False).logits[0].float()
    if not logits.isfinite().all():
        raise not_finite(loaded)
    return logits


def check_llama(
    model: Llama, shape: LlamaShape, reference: torch.Tensor, executor: str
) -> None:
    """Run the same tokens through ours, over an exact cache in plain torch.

    Args:
        model: ours, as it came out of transformers' model.
        shape: of both.
        reference: see ``reference_logits``.
        executor: who asks, for the message.

    Raises:
        UnsupportedFeature: the answers differ.
    """
    device, dtype = reference.device, model.dtype
    attention = LlamaAttention(
        KVPool(_layout(shape, dtype), device),
        num_heads=shape.num_heads,
        scale=shape.scale,
        windows=shape.windows,
    )
    ids = _ids(reference.shape[1])
    request = GenerateRequest("check", ids, SamplingParams())
    entry = ScheduledRequest(request, 0, ids, 0, (1,), len(ids), 0)
    batch = attention.begin_step(StepPlan(0, (entry,), 1, (), (), ()))
    logits = model.forward(
        torch.from_numpy(batch.input_ids).to(device),
        torch.from_numpy(batch.positions).to(device),
        None,
        attention,
    ).float()
    # Of the middle row: in 16 bits rounding makes of single rows whatever it likes (off
    # by their own length, seen of SmolLM2), a wrong model is wrong in most.
    rows = (logits - reference).norm(dim=1) / reference.norm(dim=1).clamp_min(1e-12)
    error = float(rows.median())
    limit = MAX_RELATIVE_ERROR.get(dtype, MAX_RELATIVE_ERROR_HALF)
    if not error <= limit:
        raise UnsupportedFeature(
            f"executor {executor} cannot run this model: its answer differs from "
            f"transformers' by more than rounding explains (relative error "
            f"{error:.2g}, at most {limit:g}); executor torch can run it"
        )


def _layout(shape: LlamaShape, dtype: torch.dtype) -> KVLayout:
    """Room for the tokens in one block, beside the null block."""
    return KVLayout(
        num_blocks=2,
        num_layers=len(shape.windows),
        num_kv_heads=shape.num_kv_heads,
        block_size=len(_TOKENS),
        head_dim=shape.head_dim,
        dtype=str(dtype).removeprefix("torch."),
    )


def _ids(vocab_size: int) -> tuple[int, ...]:
    return tuple(token_id % vocab_size for token_id in _TOKENS)
