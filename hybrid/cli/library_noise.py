"""What libraries say unasked: kept from the terminal until ``-v`` asks for it.

Errors that they log are shown always.
"""

import logging
import sys
import warnings
from typing import Any, Final

_SHOW: Final = warnings.showwarning


def hush_libraries() -> None:
    """Drop warnings and log records up to their level, in the whole process."""
    logging.disable(logging.WARNING)
    # Who gave python -W or PYTHONWARNINGS has asked.
    if not sys.warnoptions:
        warnings.showwarning = _drop


def hear_libraries() -> None:
    """Undo ``hush_libraries``; changes nothing where that was not called."""
    if logging.root.manager.disable == logging.WARNING:
        logging.disable(logging.NOTSET)
    if warnings.showwarning is _drop:
        warnings.showwarning = _SHOW


def _drop(*_: Any, **__: Any) -> None:
    """Take a warning and show it nobody."""
