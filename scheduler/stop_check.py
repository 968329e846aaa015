"""When a sequence ends by its tokens. Stop strings are text: the engine's business."""

from typing import NamedTuple

from .interface import FinishReason
from .sequence_state import SequenceState


class SequenceEnd(NamedTuple):
    """Why a sequence ended."""

    finish_reason: FinishReason
    stop_reason: int | None
    """The entry of ``stop_token_ids`` it met; ``None`` for the model's own end."""


def find_end(sequence: SequenceState) -> SequenceEnd | None:
    """Whether the newest token ends the sequence; it stays part of the answer.

    An end id counts from the output after ``min_tokens`` on, as the sampler bans it
    before. It goes before the length limit, so that an answer that is complete says so.
    """
    token_ids = sequence.token_ids
    token_id = token_ids[-1]
    if token_id in sequence.end_token_ids:
        params = sequence.request.sampling_params
        num_outputs = len(token_ids) - sequence.prompt_len
        is_eos = not params.ignore_eos and token_id in sequence.request.eos_token_ids
        # A form that is complete can only end, however short it is.
        is_complete = is_eos and params.structured_output is not None
        if is_complete or num_outputs > params.min_tokens:
            return SequenceEnd(FinishReason.STOP, None if is_eos else token_id)
    if len(token_ids) >= sequence.max_num_tokens:
        return SequenceEnd(FinishReason.LENGTH, None)
    return None
