"""Log-probabilities as the protocol's messages.

The likeliest k ids of a position, without the one drawn where that is not among them:
the drawn one's has a place of its own.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from smg_grpc_proto import vllm_engine_pb2 as pb

from hybrid.outputs import PositionLogprobs


def output_logprobs(
    token_ids: Sequence[int], positions: Sequence[PositionLogprobs], num_top: int
) -> Any:
    """An ``OutputLogProbs``, one entry per token.

    Args:
        token_ids: those drawn.
        positions: one per token.
        num_top: alternatives per position; 0: the drawn id's alone.
    """
    pairs = zip(token_ids, positions, strict=True)
    return pb.OutputLogProbs(
        token_logprobs=[position[token_id].logprob for token_id, position in pairs],
        token_ids=token_ids,
        top_logprobs=_tops(positions, num_top),
    )


def input_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[PositionLogprobs | None],
    num_top: int,
) -> Any:
    """An ``InputLogProbs``; where nothing predicts the token, the wrapper is empty."""
    # A request that was aborted within its prompt has fewer positions than tokens.
    token_ids = token_ids[: len(positions)]
    return pb.InputLogProbs(
        token_logprobs=[
            pb.InputTokenLogProb(
                value=None if position is None else position[token_id].logprob
            )
            for token_id, position in zip(token_ids, positions, strict=True)
        ],
        token_ids=token_ids,
        top_logprobs=_tops(positions, num_top),
    )


def _tops(positions: Sequence[PositionLogprobs | None], num_top: int) -> list[Any]:
    return [_top(position or {}, num_top) for position in positions] if num_top else []


def _top(position: PositionLogprobs, num_top: int) -> Any:
    return pb.TopLogProbs(
        token_ids=islice(position, num_top),
        values=[entry.logprob for entry in islice(position.values(), num_top)],
    )
