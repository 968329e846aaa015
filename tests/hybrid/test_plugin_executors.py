"""An executor that a plugin offers and that cannot be had: the error says whose."""

import re
import sys
from typing import Any

import pytest

from hybrid import ConfigError, ExecutorFailed, PluginError
from hybrid.executors import list_executors
from tests.hybrid.plugin_stand import EXECUTOR, Site, answer, site

__all__ = ["site"]  # pytest finds the fixture here

CHOSEN_BADLY = {
    "an import that fails": (
        "path='no_such_module:X', description='c', needs_model=False",
        "no_such_module:X: the module 'no_such_module' is not installed",
    ),
    "a name that is not there": (
        "path='json:Mine', description='c', needs_model=False",
        "json:Mine: AttributeError",
    ),
    "a constructor that raises": (
        "path='builtins:range', description='c', needs_model=False",
        "builtins:range: TypeError",
    ),
    "no executor": (
        "path='builtins:dict', description='c', needs_model=False",
        "is a dict, must be Executor",
    ),
    "a requirement that is missing": (
        (
            "path='a:B', description='c', requires=('no_such_module',), "
            "install_hint='pip install x'"
        ),
        "cannot run here: not installed: no_such_module; pip install x",
    ),
    "a model that is missing": ("path='a:B', description='c'", "'mine' needs a model"),
}


@pytest.mark.parametrize("case", CHOSEN_BADLY)
def test_an_executor_that_cannot_be_made_says_why(site: Site, case: str) -> None:
    """The descriptor was fine; what it names is found out when it is chosen."""
    fields, reason = CHOSEN_BADLY[case]
    site.install(
        "@hookimpl\ndef hybrid_register_executors(register):\n"
        f"    register(ExecutorDescriptor(name='mine', {fields}))"
    )
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        answer(executor="mine")
    if "cannot run" not in reason and "needs" not in reason:
        assert "executor 'mine' of plugin mine (hybrid-mine 1.2)" in str(caught.value)
    assert answer()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "other"}, "calls itself 'other' in its capabilities"),
        ({"devices": ()}, "have no devices"),
        ({"block_sizes": ()}, "have no block_sizes"),
        ({"block_sizes": (0,)}, "block_sizes has 0"),
        ({"fast_dtypes": {}}, "fast_dtypes of 'cpu' are ()"),
        ({"fast_dtypes": {"cpu": ("float8",)}}, "must be some of dtypes: float32"),
    ],
)
def test_capabilities_that_make_no_sense_are_refused_by_field(
    site: Site, changes: dict[str, Any], reason: str
) -> None:
    """Before a model is looked for; the plugin is named."""
    source = EXECUTOR.replace('name="mine", **CHANGES', "**CHANGES")
    source = source.replace("CHANGES = {}", f"CHANGES = {{'name': 'mine'}} | {changes}")
    site.install(source)
    with pytest.raises(PluginError, match=re.escape(reason)) as caught:
        answer(executor="mine")
    assert "executor 'mine' of plugin mine (hybrid-mine 1.2)" in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("SystemExit(3)", "SystemExit: 3"), ("Panic('index')", "Panic: index")],
)
def test_capabilities_that_end_the_process_cost_their_executor_alone(
    site: Site, fault: str, reason: str
) -> None:
    """It is listed with what broke, the others as ever; chosen, it is an error."""
    site.install(
        EXECUTOR
        + f"""
    class Panic(BaseException):
        pass
    def capabilities(self):
        raise {fault}
    Mine.capabilities = capabilities
"""
    )
    entries = {entry.name: entry for entry in list_executors(site.load())}
    assert reason in (entries["mine"].reason or "")
    assert entries["null"].available
    with pytest.raises(PluginError, match=reason):
        answer(executor="mine")


@pytest.mark.parametrize("fault", ["raise SystemExit(3)", "raise OSError('busy')"])
def test_a_listed_executor_is_closed_again(site: Site, fault: str) -> None:
    """Each is made to be asked; one that cannot be closed breaks no list."""
    module = site.install(
        EXECUTOR
        + f"""
    closed = []
    def close(self):
        closed.append(self)
        {fault}
    Mine.close = close
"""
    )
    entries = {entry.name: entry for entry in list_executors(site.load())}
    assert entries["null"].available
    assert len(sys.modules[module].closed) == 1


def test_a_panic_while_a_model_loads_names_the_executor(site: Site) -> None:
    """No library's own way of failing gets past the engine's."""
    site.install(
        EXECUTOR
        + """
    class Panic(BaseException):
        pass
    def load(self, *_):
        raise Panic("index")
    Mine.load = load
"""
    )
    with pytest.raises(ExecutorFailed, match="mine failed in load: Panic: index"):
        answer(executor="mine")


def test_capabilities_that_raise_are_refused(site: Site) -> None:
    """A machine that an executor cannot even describe is not run on."""
    site.install(EXECUTOR.replace("CHANGES = {}", ""))
    with pytest.raises(PluginError, match="failed in capabilities: NameError"):
        answer(executor="mine")


@pytest.mark.parametrize(
    ("ways", "reason"),
    [
        ("('fast',)", "implementations() has 'fast', must be Implementation"),
        ("['fast']", "gave a list from implementations, must give tuple"),
        ("1 / 0", "failed in implementations: ZeroDivisionError"),
    ],
)
def test_ways_to_compute_that_make_no_sense_cost_their_executor_alone(
    site: Site, ways: str, reason: str
) -> None:
    """It is listed with what is wrong; chosen, it runs: they are for the list."""
    site.install(
        EXECUTOR
        + f"""
    def implementations(self):
        return {ways}
    Mine.implementations = implementations
"""
    )
    plugins = site.load()
    asked = {entry.name: entry for entry in list_executors(plugins, explain=True)}
    assert reason in (asked["mine"].reason or "")
    assert asked["null"].available
    unasked = {entry.name: entry for entry in list_executors(plugins)}
    assert unasked["mine"].available
    assert answer(executor="mine")
