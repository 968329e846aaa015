"""What counts as a failure of a part that others wrote, and its reason in one line."""

import sys
from traceback import walk_tb
from typing import Final

INTERRUPTS: Final = (KeyboardInterrupt, SystemExit)
"""What passes through whatever part it is raised in; all else is that part's failure,
``BaseException`` itself included: libraries in other languages raise panics that are no
``Exception``."""
MAX_CHARACTERS: Final = 500


def failure_reason(error: BaseException) -> str:
    """Say what broke, by kind and message; raises nothing but a ``KeyboardInterrupt``.

    An exception of a third party may fail to print itself; its kind is said then.
    """
    try:
        text = _reason(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - from the __str__ of what is being reported
        text = f"{type(error).__name__} (its message cannot be shown)"
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def failure_place(error: BaseException, package: str) -> str | None:
    """Where it was raised: the innermost line of a package that was at work.

    Args:
        error: with its traceback.
        package: top-level module whose lines count.

    Returns:
        ``file:line``, or ``None`` where no line of the package was at work or the
        reason names the line itself.
    """
    if isinstance(error, SyntaxError):
        return None
    place = None
    for frame, line in walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == package:
            place = f"{frame.f_code.co_filename}:{line}"
    return place


def _reason(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _missing_module(error.name)
    kind, text = type(error).__name__, str(error)
    if isinstance(error, SyntaxError) and error.filename:
        text = f"{error.msg} ({error.filename}:{error.lineno})"
    text = " ".join(text.split())
    return f"{kind}: {text}" if text else kind


def _missing_module(name: str) -> str:
    # Python imports the packages around a module first, and names the one it misses.
    package, _, module = name.rpartition(".")
    if package in sys.modules:
        return f"{package!r} is installed and has no module {module!r}"
    return f"the module {name!r} is not installed"
