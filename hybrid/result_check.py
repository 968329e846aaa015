"""Holds what came out of a step against what the executor said it would return."""

from hybrid.backends.interface import Capabilities, ForwardResult
from hybrid.scheduler import ExecutorFailed


def check_result(result: object, capabilities: Capabilities) -> None:
    """Check the kind of a result; the sampler checks shapes, dtypes and values.

    Raises:
        ExecutorFailed: it is no ``ForwardResult``, or holds logits where tokens were
            declared, or tokens where logits were.
    """
    if not isinstance(result, ForwardResult):
        raise ExecutorFailed(
            f"execute gave a {type(result).__name__}, must give a ForwardResult"
        )
    if capabilities.returns_logits and result.sampled_token_ids is not None:
        raise ExecutorFailed("it declares returns_logits=True and returned tokens")
    if not capabilities.returns_logits and result.logits is not None:
        raise ExecutorFailed("it declares returns_logits=False and returned logits")
    if not capabilities.returns_logits and result.sampled_token_ids is None:
        raise ExecutorFailed("it declares returns_logits=False and returned no tokens")
