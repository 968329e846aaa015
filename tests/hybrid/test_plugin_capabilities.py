"""Capabilities as authors get them wrong: each costs its executor's row alone."""

import json
import re

import pytest

from hybrid import PluginError
from hybrid.cli import run
from tests.hybrid.plugin_stand import EXECUTOR, Site, answer, site

__all__ = ["site"]  # pytest finds the fixture here

Captured = pytest.CaptureFixture[str]
MALFORMED = [
    ("block_sizes", "16", "16", "a tuple of int"),
    ("block_sizes", "(16, True)", "(16, True)", "a tuple of int"),
    ("block_sizes", "(16.0,)", "(16.0,)", "a tuple of int"),
    ("block_sizes", "None", "None", "a tuple of int"),
    ("devices", "'cpu'", "'cpu'", "a tuple of str"),
    ("devices", "('',)", "('',)", "a tuple of str"),
    ("devices", "['cpu']", "['cpu']", "a tuple of str"),
    ("dtypes", "(1, 2)", "(1, 2)", "a tuple of str"),
    ("kv_orders", "KVOrder.BLOCK_FIRST", "<KVOrder.BLOCK_FIRST", "a tuple of KVOrder"),
    ("kv_orders", "('block_first',)", "('block_first',)", "a tuple of KVOrder"),
    ("sampling_fields", "'seed'", "'seed'", "a tuple of str"),
    ("model_files", "'model.xml'", "'model.xml'", "a tuple of str"),
    ("fast_dtypes", "None", "None", "a mapping of a tuple by device"),
    ("fast_dtypes", "('float32',)", "('float32',)", "a mapping"),
    ("fast_dtypes", "{'cpu': 'float32'}", "'float32'", "a tuple of str"),
    ("fast_dtypes", "{'cpu': (['x'],)}", "(['x'],)", "a tuple of str"),
    ("prefix_reuse", "1", "1", "True or False"),
    ("description", "None", "None", "a str"),
]


def changed(field: str, value: str) -> str:
    """A plugin whose executor declares a field so."""
    return EXECUTOR.replace("CHANGES = {}", f"CHANGES = {{{field!r}: {value}}}")


def rows(capsys: Captured) -> dict[str, dict[str, object]]:
    """What ``hybrid executors --json`` says, by name."""
    assert run(["executors", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize(("field", "value", "shown", "must_be"), MALFORMED)
def test_a_field_of_another_type_is_refused_by_name_and_value(
    site: Site, field: str, value: str, shown: str, must_be: str
) -> None:
    """Before a model is looked for; the error says whose executor it is."""
    site.install(changed(field, value))
    with pytest.raises(PluginError) as caught:
        answer(executor="mine")
    text = str(caught.value)
    assert text.startswith("executor 'mine' of plugin mine (hybrid-mine 1.2): its ")
    assert re.search(f"its {field}.* is {re.escape(shown)}.*, must be {must_be}", text)


FAULTS = [
    changed("devices", "3"),
    changed("fast_dtypes", "None"),
    changed("description", "Bad()").replace(
        "    CHANGES",
        """
    class Bad:
        def __repr__(self):
            raise SystemExit(3)

    CHANGES""",
    ),
    EXECUTOR
    + """
    class Panic(BaseException):
        pass
    def capabilities(self):
        raise Panic("index")
    Mine.capabilities = capabilities
""",
    EXECUTOR
    + """
    class Panic(BaseException):
        pass
    def made(self):
        raise Panic("index")
    Mine.__init__ = made
""",
]


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_one_executor_at_fault_leaves_the_list_whole(
    capsys: Captured, site: Site, fault: int
) -> None:
    """It is listed as not available with the reason, in the table and as JSON."""
    site.install(FAULTS[fault])
    listed = rows(capsys)
    assert listed["null"]["available"] is True
    assert (listed["mine"]["available"], listed["mine"]["capabilities"]) == (
        False,
        None,
    )
    assert "plugin mine (hybrid-mine 1.2)" in str(listed["mine"]["reason"])
    assert run(["executors"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {("mine", "mine", "no"), ("null", "built-in", "yes")} <= {
        tuple(line[:3]) for line in lines
    }


def test_a_read_only_mapping_is_a_mapping(capsys: Captured, site: Site) -> None:
    """Constants are often made so, and cannot be copied."""
    site.install(
        changed(
            "fast_dtypes",
            "__import__('types').MappingProxyType({'cpu': ('float32',)})",
        )
    )
    capabilities = rows(capsys)["mine"]["capabilities"]
    assert isinstance(capabilities, dict)
    assert capabilities["fast_dtypes"] == {"cpu": ["float32"]}


def test_brackets_in_a_cell_are_text(capsys: Captured, site: Site) -> None:
    """What an executor calls its devices is no markup of the table's."""
    site.install(
        changed("devices", "('cpu[/]',)").replace(
            "('cpu[/]',)", "('cpu[/]',), 'fast_dtypes': {'cpu[/]': ('float32',)}"
        ),
        name="[bold]m[/]",
    )
    assert run(["executors"]) == 0
    out = capsys.readouterr().out
    assert "cpu[/]" in out
    assert "[bold]m[/]" in out
