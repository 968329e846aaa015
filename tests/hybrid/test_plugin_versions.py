"""The API version that a plugin carries, against the engine's."""

import pytest

from hybrid.api import API_VERSION
from hybrid.plugins.plugin_record import PluginStatus
from tests.hybrid.plugin_stand import Site, record_of, site

__all__ = ["site"]  # pytest finds the fixture here

MAJOR, MINOR = API_VERSION
REGISTER = """
    @hookimpl
    def hybrid_register_executors(register):
        register(ExecutorDescriptor(name="mine", path="a:B", description="c"))
"""


def version_line(version: object) -> str:
    """The head of a plugin that was written against another version."""
    return f"from hybrid.api import *\nhybrid_api_version = {version!r}\n"


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ((MAJOR + 1, 0), f"is {MAJOR + 1}.0, this engine takes {MAJOR}.0 to"),
        ((MAJOR - 1, MINOR), f"is {MAJOR - 1}.{MINOR}"),
        ((MAJOR, MINOR + 1), f"is {MAJOR}.{MINOR + 1}"),
        ("1.0", "is '1.0', must be (major, minor)"),
        ((1,), "must be (major, minor)"),
        ((True, 0), "must be (major, minor)"),
        ((MAJOR, -1), f"is ({MAJOR}, -1), must be (major, minor), both 0 or more"),
    ],
)
def test_another_contract_is_refused(site: Site, version: object, reason: str) -> None:
    """Majors must be equal and the minor no newer; a senseless version is named."""
    site.install(REGISTER, head=version_line(version))
    record = record_of(site.load())
    assert record.status is PluginStatus.FAILED
    assert reason in (record.reason or "")
    is_told = "must be" not in reason
    assert record.api_version == (version if is_told else None)


def test_a_plugin_without_a_version_is_told_the_line_it_lacks(site: Site) -> None:
    """The reason can be pasted."""
    site.install(REGISTER, head="from hybrid.api import *\n")
    assert f"hybrid_api_version = {API_VERSION}" in (
        record_of(site.load()).reason or ""
    )
