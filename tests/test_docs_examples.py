"""The Python examples of the documents run as they stand."""

import re

import pytest

from tests.documents import examples, read_page

PAGES = {
    "README.md": [pytest.mark.model],
    "docs/python-api.md": [pytest.mark.model],
    "docs/plugins.md": [],
    "plugins/hybrid-openvino/README.md": [pytest.mark.model],
}
"""And what their examples need."""
EXAMPLES = [
    pytest.param(code, id=f"{page}-{number}", marks=marks)
    for page, marks in PAGES.items()
    for number, code in enumerate(examples(read_page(page)))
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs_from_its_first_line_to_its_last(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block is whole: what it needs it imports, what it makes it prints.

    A plugin's module makes nothing: the engine calls its hooks.
    """
    exec(compile(code, "example", "exec"), {"__name__": "example"})  # noqa: S102 - ours
    printed = capsys.readouterr().out
    assert printed or "assert" in code or "@hookimpl" in code


@pytest.mark.model
def test_the_readme_shows_what_its_example_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Greedy answers repeat, so the page can be held to its word."""
    page = read_page("README.md")
    code, shown = re.search(
        r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL
    ).groups()
    exec(compile(code, "example", "exec"), {"__name__": "example"})  # noqa: S102 - ours
    first_words = [line[:20] for line in shown.splitlines()]
    printed = [line[:20] for line in capsys.readouterr().out.splitlines()]
    assert printed == first_words
