"""The forms in which a caller may give a prompt."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Final, TypedDict

from hybrid.scheduler import InvalidRequest
from hybrid.scheduler.shown_value import shown

from .nearest_name import nearest_hint


class TextPrompt(TypedDict, total=False):
    """``{"prompt": "..."}``, perhaps with a cache salt."""

    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """``{"prompt_token_ids": [...]}``, perhaps with a cache salt."""

    prompt_token_ids: Sequence[int]
    cache_salt: str


Prompt = str | TextPrompt | TokensPrompt | Sequence[int]
"""Text, one of the mappings, or token ids."""

MAX_ID: Final = 2**31 - 1
"""Executors take int32 ids."""
_KEYS: Final = ("prompt", "prompt_token_ids", "cache_salt")


def is_one_prompt(prompts: Any) -> bool:
    """Whether a caller gave one prompt, not a sequence of them.

    Raises:
        InvalidRequest: it gave neither.
    """
    if isinstance(prompts, (str, Mapping)):
        return True
    if isinstance(prompts, (bytes, set)) or not hasattr(prompts, "__iter__"):
        raise InvalidRequest(
            f"prompts is a {type(prompts).__name__}, must be a prompt or a sequence of "
            "prompts",
            field="prompts",
            value=prompts,
        )
    items = list(prompts)
    return bool(items) and all(isinstance(item, Integral) for item in items)


def parse_prompt(prompt: Any) -> tuple[str | None, tuple[int, ...] | None, str | None]:
    """Take a prompt apart.

    Returns:
        Text or ``None``, token ids or ``None``, cache salt or ``None``; exactly one of
        the first two is set.

    Raises:
        InvalidRequest: it is none of the forms.
    """
    if isinstance(prompt, str):
        return prompt, None, None
    if isinstance(prompt, Mapping):
        return _parse_mapping(prompt)
    return None, _token_ids("prompt", prompt), None


def _parse_mapping(
    prompt: Mapping[str, Any],
) -> tuple[str | None, tuple[int, ...] | None, str | None]:
    for key in prompt:
        if key not in _KEYS:
            hint = nearest_hint(str(key), _KEYS)
            raise InvalidRequest(
                f"prompt has an unknown key {shown(key)}{hint}",
                field="prompt",
                value=key,
            )
    if ("prompt" in prompt) == ("prompt_token_ids" in prompt):
        raise InvalidRequest(
            "a prompt mapping has either 'prompt' or 'prompt_token_ids'",
            field="prompt",
            value=sorted(prompt),
        )
    salt = prompt.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise InvalidRequest(
            f"cache_salt is {shown(salt)}, must be a text that is not empty",
            field="cache_salt",
            value=salt,
        )
    if "prompt_token_ids" in prompt:
        ids = _token_ids("prompt_token_ids", prompt["prompt_token_ids"])
        return None, ids, salt
    text = prompt["prompt"]
    if not isinstance(text, str):
        raise InvalidRequest(
            f"prompt is a {type(text).__name__}, must be text",
            field="prompt",
            value=text,
        )
    return text, None, salt


def _are_plain_ids(ids: tuple[Any, ...]) -> bool:
    """Say so of nearly all, without a Python call for each of a long prompt's."""
    return set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= MAX_ID


def _is_id(value: Any) -> bool:
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    return is_integer and 0 <= int(value) <= MAX_ID


def _token_ids(field: str, ids: Any) -> tuple[int, ...]:
    if isinstance(ids, (str, bytes, set, Mapping)) or not hasattr(ids, "__iter__"):
        raise InvalidRequest(
            f"{field} is a {type(ids).__name__}, must be text, token ids or a mapping",
            field=field,
            value=ids,
        )
    token_ids = tuple(ids)
    if _are_plain_ids(token_ids):
        return token_ids
    for token_id in token_ids:
        if not _is_id(token_id):
            raise InvalidRequest(
                f"{field} holds {shown(token_id)}, must hold ids from 0 to {MAX_ID}",
                field=field,
                value=token_id,
            )
    return tuple(map(int, token_ids))
