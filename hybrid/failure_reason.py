"""What counts as a failure of a part that others wrote, and its reason in one line."""

from typing import Final

INTERRUPTS: Final = (KeyboardInterrupt, SystemExit)
"""What passes through whatever part it is raised in; all else is that part's failure,
``BaseException`` itself included: libraries in other languages raise panics that are no
``Exception``."""
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
