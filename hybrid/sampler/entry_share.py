"""What one entry of the plan gets out of a step."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid.scheduler.plan import ScheduledRequest

from .sampled_step import TokenLogprobs
from .token_logprobs import token_logprobs


class EntryShare(NamedTuple):
    """Its part of a ``SampledStep``."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None


UNDRAWN: Final = EntryShare((), None, None)


def placeholder(entry: ScheduledRequest) -> EntryShare:
    """The share of a failed request: the plan's shape, and no meaning."""
    return EntryShare((0,) * entry.num_samples, None, None)


def output_logprobs(
    entry: ScheduledRequest, logits: NDArray[np.float32], token_ids: tuple[int, ...]
) -> tuple[TokenLogprobs, ...] | None:
    """Those of the drawn ``token_ids``, ``None`` where the request asked for none.

    Args:
        entry: whose they are.
        logits: its rows, float32 ``[rows, vocab]``, raw.
        token_ids: what was drawn from the last row.
    """
    num_top = entry.request.sampling_params.logprobs
    if num_top is None:
        return None
    return token_logprobs(logits[-1], token_ids, num_top) if token_ids else ()
