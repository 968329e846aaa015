"""The Python examples of the documents run as they stand."""

import re

import pytest

from tests.source_tree import ROOT

pytestmark = pytest.mark.model

PAGES = ("README.md", "docs/python-api.md")
EXAMPLES = [
    pytest.param(code, id=f"{page}-{number}")
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs_from_its_first_line_to_its_last(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block is whole: what it needs it imports, what it makes it prints."""
    exec(compile(code, "example", "exec"), {"__name__": "example"})  # noqa: S102 - ours
    printed = capsys.readouterr().out
    assert printed or "assert" in code


def test_the_readme_shows_what_its_example_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Greedy answers repeat, so the page can be held to its word."""
    page = (ROOT / "README.md").read_text("utf-8")
    code, shown = re.search(
        r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL
    ).groups()
    exec(compile(code, "example", "exec"), {"__name__": "example"})  # noqa: S102 - ours
    first_words = [line[:20] for line in shown.splitlines()]
    printed = [line[:20] for line in capsys.readouterr().out.splitlines()]
    assert printed == first_words
