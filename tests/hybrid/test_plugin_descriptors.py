"""Descriptors: malformed ones are refused where they are made."""

import pytest

from hybrid.api import ExecutorDescriptor, PluginError
from tests.hybrid.plugin_stand import Site, record_of, site

__all__ = ["site"]  # pytest finds the fixture here


@pytest.mark.parametrize("requires", ["torch", ["torch"], None])
def test_requirements_are_a_tuple(requires: object) -> None:
    """A text would be taken letter by letter: ``not installed: t, o, r, h``."""
    with pytest.raises(PluginError, match=r"requires is .*, must be a tuple"):
        ExecutorDescriptor(
            name="x",
            path="a:B",
            description="c",
            requires=requires,  # type: ignore[arg-type]
        )


def test_a_scheduler_may_go_by_the_name_auto(site: Site) -> None:
    """The word means something to executors alone."""
    site.install(
        """
        @hookimpl
        def hybrid_register_schedulers(register):
            register(SchedulerDescriptor(name="auto", path="a:B", description="c"))
        """
    )
    assert record_of(site.load()).schedulers == ("auto",)


def test_a_requirement_without_a_specification_is_there() -> None:
    """Python's import system raises of ``__main__`` when it is looked for."""
    descriptor = ExecutorDescriptor(
        name="x", path="a:B", description="c", requires=("__main__", "no_such_module")
    )
    assert descriptor.missing == "not installed: no_such_module"
