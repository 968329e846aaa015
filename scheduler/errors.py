"""Every error the engine raises on purpose, alone in a leaf module.

Imports no room, so that each may import it. Messages name the field, the value and
the limit; the attributes carry the same for programs.
"""

from typing import Any


class HybridError(Exception):
    """Base of all errors that the engine raises on purpose."""


class InvalidRequest(HybridError):
    """A request asks for something that no engine could do; the caller must change it.

    Attributes:
        field: the parameter at fault, as the caller spells it, or ``None``.
        value: what was passed.
    """

    def __init__(
        self, message: str, *, field: str | None = None, value: object = None
    ) -> None:
        super().__init__(message)
        self.field = field
        self.value = value


class RequestTooLong(InvalidRequest):
    """A prompt, or prompt and answer together, exceed the context or the budget.

    Attributes:
        num_tokens: what the request needs.
        limit: what there is.
    """

    def __init__(
        self, message: str, *, field: str, num_tokens: int, limit: int
    ) -> None:
        super().__init__(message, field=field, value=num_tokens)
        self.num_tokens = num_tokens
        self.limit = limit


class OutOfBlocks(InvalidRequest):
    """A request can never fit into the block pool, even alone.

    A pool that is merely full now is no error: the scheduler waits or preempts.

    Attributes:
        num_blocks: blocks that the request needs at its longest.
        limit: blocks that the pool has.
    """

    def __init__(
        self, message: str, *, num_blocks: int, limit: int, field: str = "max_tokens"
    ) -> None:
        super().__init__(message, field=field, value=num_blocks)
        self.num_blocks = num_blocks
        self.limit = limit


class DuplicateRequest(InvalidRequest):
    """A request id is already in use by a request that has not finished."""


class Overloaded(HybridError):
    """A server has as much in hand as it may; the request is fine, the time is not.

    Attributes:
        retry_after_s: when to ask again, seconds.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ConfigError(HybridError):
    """An option of the engine is unknown, out of range, or contradicts another."""


class PluginError(ConfigError):
    """A plugin that was asked for by name cannot be had; says what broke.

    Also raised within a plugin whose descriptors are malformed (that refuses it), and
    where a scheduling policy is at fault, no request.
    """


class UnsupportedFeature(HybridError):
    """The chosen executor cannot do what was asked; the message names both."""


class CheckpointError(HybridError):
    """A model's files are missing, truncated, contradictory or of an unknown kind."""


class ModelNotFound(CheckpointError):
    """No model answers to the given name; the message lists what was tried."""


class EngineFailed(HybridError):
    """An engine has ended by an error of its own; the message says what failed.

    Attributes:
        outputs: every last ``RequestOutput`` that nobody has been given: of the
            requests that ended with the engine, their ``error`` set, and of those that
            had finished in the same step.
    """

    def __init__(self, message: str, *, outputs: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        # Any: their class lives above this module.
        self.outputs = outputs


class ExecutorFailed(EngineFailed):
    """The executor raised, or gave what the contract rules out; the message names it.

    Raised while an engine is built, too; then there is none.
    """


class SamplingFailed(HybridError):
    """No token can be drawn for one request; the others of the step are unharmed.

    The executor's logits are not finite, or a logits processor raised or left nothing.

    Attributes:
        request_id: whose draw it is.
        is_executors: whether the executor's own logits are at fault.
    """

    def __init__(
        self, message: str, *, request_id: str, is_executors: bool = False
    ) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.is_executors = is_executors


class FormFailed(SamplingFailed):
    """An answer cannot go on in the form that its request asks for.

    A limit of its work is met, or nothing fits it and the request's other fields.
    """


class EngineClosed(HybridError):
    """The engine was shut down; it takes no more requests."""
