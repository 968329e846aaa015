"""Puts what a plugin raised into one bounded line."""

from typing import Final

MAX_CHARACTERS: Final = 500


def failure_reason(error: BaseException) -> str:
    """Say what broke, by kind and message."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name:
        text = f"the module {error.name!r} is not installed"
    elif text:
        text = f"{type(error).__name__}: {text}"
    else:
        text = type(error).__name__
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
