"""A scheduling policy: one function from a request to its rank."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Final

from .config import SchedulingPolicy
from .errors import ConfigError, InvalidRequest, PluginError
from .generate_request import GenerateRequest
from .shown_value import shown

RankFunction = Callable[[GenerateRequest], float | tuple[float, ...]]
"""Asked once, when a request is added: a number, or a tuple of numbers compared place
by place, none of them NaN. The lowest is served first, the highest gives way when
blocks run out, equal ones go by the order of adding."""

_POLICY_RANKS: Final[dict[SchedulingPolicy, RankFunction]] = {
    SchedulingPolicy.FCFS: lambda _: 0,
    SchedulingPolicy.PRIORITY: lambda request: (
        request.priority,
        request.arrival_time_s,
    ),
}


def choose_rank(policy: SchedulingPolicy, rank: RankFunction | None) -> RankFunction:
    """The caller's function, or that of a built-in policy.

    Raises:
        ConfigError: ``rank`` is not callable, or another policy was asked for as well.
    """
    if rank is None:
        return _POLICY_RANKS[policy]
    if not callable(rank):
        raise ConfigError(f"rank is {shown(rank)}, must be callable with a request")
    if policy != SchedulingPolicy.FCFS:
        raise ConfigError(
            f"policy is {str(policy)!r}, and this scheduler ranks requests by a policy "
            f"of its own: leave it at {str(SchedulingPolicy.FCFS)!r}"
        )
    return rank


def rank_request(rank: RankFunction, request: GenerateRequest) -> tuple[float, ...]:
    """Ask a policy for a request's rank and make it one that compares with any other.

    Plain numbers alone are taken: a value that compares with some and not with others,
    or NaN, would leave the queues unsorted long after the request was added.

    Raises:
        InvalidRequest: the function's own, as it is.
        PluginError: the function is at fault: it raised something else, or returned no
            numbers.
    """
    try:
        value = rank(request)
    except (InvalidRequest, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # Libraries in other languages raise panics that are no Exception.
        raise PluginError(
            f"the scheduling policy failed to rank the request: {shown(error)}"
        ) from error
    items = value if isinstance(value, tuple) else (value,)
    try:
        return tuple(map(_plain_number, items))
    except (ValueError, OverflowError):
        raise PluginError(
            f"the scheduling policy ranked the request {shown(value)}, must be a "
            "number or a tuple of numbers, none NaN"
        ) from None


def _plain_number(item: object) -> float:
    if isinstance(item, Integral):
        return int(item)
    if isinstance(item, Real) and not math.isnan(item):
        return float(item)
    raise ValueError
