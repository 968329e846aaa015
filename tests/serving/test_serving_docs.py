"""The page for operators knows what the server can answer."""

import re

from tests.source_tree import ROOT

PAGE = ROOT / "docs" / "serving.md"


def test_every_status_is_in_the_table_of_errors() -> None:
    """Each that the sources name, and the one that a client gives itself."""
    sources = sorted((ROOT / "hybrid" / "serving").glob("*.py"))
    text = "".join(path.read_text("utf-8") for path in sources)
    named = set(re.findall(r"grpc\.StatusCode\.([A-Z_]+)", text))
    table = PAGE.read_text("utf-8").partition("### Errors")[2].partition("###")[0]
    told = set(re.findall(r"^\| `([A-Z_]+)` \|", table, re.MULTILINE))
    assert told == named | {"CANCELLED"}
