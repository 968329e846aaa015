"""What the documents hold as code: files of the example plugin, and examples to run."""

import re
from typing import Final

from tests.source_tree import ROOT

_SHOWN_FILE: Final = re.compile(r"`([\w./-]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)
_EXAMPLE: Final = re.compile(r"```python\n(.*?)```", re.DOTALL)


def read_page(name: str) -> str:
    """The text of a page, by its path from the project's root."""
    return (ROOT / name).read_text("utf-8")


def shown_files(page: str) -> list[tuple[str, str]]:
    """Path and text of each part of a file that stands, so labelled, on a page."""
    return _SHOWN_FILE.findall(page)


def examples(page: str) -> list[str]:
    """The Python code that a page gives to be run."""
    return _EXAMPLE.findall(_SHOWN_FILE.sub("", page))
