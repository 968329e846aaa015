"""Brings OpenAI-style messages into the one form that chat templates take.

Templates were written for strings; the API also allows lists of parts, null contents
and arguments as JSON text. What no template could take is refused, naming the message.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hybrid.scheduler.errors import InvalidRequest

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")


def normalize_messages(messages: object, template: str) -> list[dict[str, Any]]:
    """Check ``messages`` and return them in the form that ``template`` takes.

    - A list of text parts becomes one string, a line each; other parts are refused.
    - A null content beside tool calls becomes the empty string.
    - ``developer`` becomes ``system`` unless the template knows it by name.
    - Arguments of tool calls become objects.

    A role outside ``ROLES`` is allowed where the template mentions it.

    Raises:
        InvalidRequest: names the message and what is wrong with it.
    """
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequest(
            "messages must be a list of at least one message",
            field="messages",
            value=messages,
        )
    return [
        _normalize(f"messages[{index}]", message, template)
        for index, message in enumerate(messages)
    ]


def _normalize(where: str, message: object, template: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} is no object", field=where, value=message)
    normalized = dict(message)
    normalized["role"] = _role(where, message.get("role"), template)
    calls = message.get("tool_calls")
    if calls is None:
        normalized.pop("tool_calls", None)  # templates ask whether it is there
    else:
        normalized["tool_calls"] = _tool_calls(f"{where}.tool_calls", calls)
    content = message.get("content")
    if content is None and not calls:
        raise InvalidRequest(
            f"{where}.content is null; only a message with tool_calls may lack it",
            field=f"{where}.content",
            value=None,
        )
    normalized["content"] = _text(f"{where}.content", content)
    return normalized


def _role(where: str, role: object, template: str) -> str:
    if role == "developer" and role not in template:
        return "system"
    if isinstance(role, str) and role and (role in ROLES or role in template):
        return role
    raise InvalidRequest(
        f"{where}.role is {role!r}; known roles: {', '.join(ROLES)}",
        field=f"{where}.role",
        value=role,
    )


def _text(where: str, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest(
            f"{where} must be text or a list of text parts",
            field=where,
            value=content,
        )
    return "\n".join(
        _part(f"{where}[{index}]", part) for index, part in enumerate(content)
    )


def _part(where: str, part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(text, str):
        raise InvalidRequest(
            f"{where} is a part of type {kind!r}; only text parts are supported",
            field=where,
            value=kind,
        )
    return text


def _tool_calls(where: str, calls: object) -> list[dict[str, Any]]:
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        raise InvalidRequest(f"{where} is no list", field=where, value=calls)
    return [_tool_call(f"{where}[{index}]", call) for index, call in enumerate(calls)]


def _tool_call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if (
        not isinstance(call, Mapping)
        or not isinstance(function, Mapping)
        or not isinstance(name, str)
    ):
        raise InvalidRequest(
            f"{where} has no function with a name", field=where, value=call
        )
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"{where}.function.arguments is no JSON: {error}",
                field=f"{where}.function.arguments",
                value=arguments,
            ) from error
    if not isinstance(arguments, Mapping):
        raise InvalidRequest(
            f"{where}.function.arguments is no object",
            field=f"{where}.function.arguments",
            value=arguments,
        )
    return {**call, "function": {**function, "arguments": dict(arguments)}}
