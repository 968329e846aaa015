"""Arguments that may be one for all, or one each."""

from collections.abc import Mapping
from typing import Any

from hybrid.scheduler import InvalidRequest, SamplingParams
from hybrid.scheduler.shown_value import shown


def list_conversations(messages: Any) -> list[Any]:
    """Give one conversation or several as a list of conversations.

    Raises:
        InvalidRequest: it is neither.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not hasattr(messages, "__iter__"):
        raise InvalidRequest(
            f"messages is {shown(messages)}, must be a list of messages, or of lists",
            field="messages",
            value=messages,
        )
    listed = list(messages)
    is_one = not listed or isinstance(listed[0], Mapping)
    return [listed] if is_one else listed


def one_each(name: str, values: Any, length: int) -> list[Any]:
    """Spread one value over all prompts, or insist on one each.

    Raises:
        InvalidRequest: there are more or fewer, or it is neither.
    """
    if values is None or isinstance(values, SamplingParams):
        return [values] * length
    if isinstance(values, (str, bytes, type)) or not hasattr(values, "__iter__"):
        raise InvalidRequest(
            f"{name} is {shown(values)}, must be one entry per prompt",
            field=name,
            value=values,
        )
    listed = list(values)
    if len(listed) != length:
        raise InvalidRequest(
            f"{name} has {len(listed)} entries for {length} prompts",
            field=name,
            value=len(listed),
        )
    return listed
