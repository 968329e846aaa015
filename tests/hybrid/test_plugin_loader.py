"""Loading: each plugin on its own, what broke is named, nobody else is touched."""

import sys

import pytest
from structlog.testing import capture_logs

from hybrid.api import API_VERSION
from hybrid.plugins.plugin_record import PluginStatus
from tests.hybrid.plugin_stand import HEAD, Site, record_of, site

__all__ = ["site"]  # pytest finds the fixture here

REGISTER = """
    @hookimpl
    def hybrid_register_executors(register):
        register(
            ExecutorDescriptor(
                name="mine", path="{module}:Mine", description="a test's"
            )
        )
"""
WATCH = """
    @hookimpl
    def hybrid_step_finished(step):
        pass
"""


def test_the_built_ins_are_a_plugin_like_any_other(site: Site) -> None:
    """They are registered first, by name, and listed."""
    manager = site.load(allowed=[])
    first = manager.records[0]
    assert first.source.name == "built-in"
    assert first.status is PluginStatus.LOADED
    assert (
        first.executors
        == manager.executors.names
        == ("torch", "tensorrt_llm", "cpu", "null")
    )
    assert first.schedulers == manager.schedulers.names == ("paged",)
    assert first.api_version == API_VERSION


def test_registering_the_built_ins_imports_no_executor() -> None:
    """Descriptors name classes by dotted path; a class is imported when chosen."""
    import subprocess  # noqa: PLC0415 - this test alone asks a fresh process

    code = (
        "import sys; from hybrid.plugins.loader import load_plugins;"
        "from hybrid.plugins.selection import PluginSelection;"
        "load_plugins(PluginSelection(allowed=()));"
        "print([m for m in sys.modules if m == 'torch' or 'executor' in m])"
    )
    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_a_plugin_is_loaded_with_what_it_offers(site: Site) -> None:
    """Its record says whose it is and what it has; its executor is known by name."""
    site.install(REGISTER + WATCH)
    record = record_of(site.load())
    assert str(record.source) == "plugin mine (hybrid-mine 1.2)"
    assert record.status is PluginStatus.LOADED
    assert record.reason is None
    assert record.api_version == API_VERSION
    assert sorted(record.hooks) == ["hybrid_register_executors", "hybrid_step_finished"]
    assert record.executors == ("mine",)
    assert "mine" in site.load().executors.names


BROKEN = {
    "a missing dependency": ("import no_such_module_at_all", "'no_such_module_at_all'"),
    "an import that raises": ("raise ValueError('bad\\nluck')", "ValueError: bad luck"),
    "an import that exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "a panic": ("class Panic(BaseException): pass\nraise Panic('x')", "Panic: x"),
    "an unknown argument": (
        "@hookimpl\ndef hybrid_step_finished(step, speed): pass",
        "speed",
    ),
    "an unknown hook": ("@hookimpl\ndef hybrid_step_began(step): pass", "step_began"),
    "a hook without its mark": (
        "def hybrid_step_finished(step): pass",
        "hybrid_step_finished lacks the decorator @hookimpl",
    ),
    "an async hook": (
        "@hookimpl\nasync def hybrid_step_finished(step): pass",
        "hybrid_step_finished is async",
    ),
    "a registration that is a generator": (
        "@hookimpl\ndef hybrid_register_executors(register): yield",
        "hybrid_register_executors has a yield",
    ),
    "a registration that raises": (
        "@hookimpl\ndef hybrid_register_executors(register): 1 / 0",
        "ZeroDivisionError",
    ),
    "a shadow of a built-in": (
        (
            "@hookimpl\ndef hybrid_register_executors(register):\n"
            "    register(ExecutorDescriptor(name='null', path='a:B', description='c'))"
        ),
        "its executor would shadow executor 'null' of plugin built-in",
    ),
    "a name given twice": (
        (
            "@hookimpl\ndef hybrid_register_schedulers(register):\n"
            "    register(SchedulerDescriptor(name='x', path='a:B', description='c'))\n"
            "    register(SchedulerDescriptor(name='x', path='a:B', description='c'))"
        ),
        "scheduler 'x' is there twice",
    ),
    "a descriptor of another kind": (
        (
            "@hookimpl\ndef hybrid_register_executors(register):\n"
            "    register(SchedulerDescriptor(name='x', path='a:B', description='c'))"
        ),
        "which is no ExecutorDescriptor",
    ),
    "a malformed path": (
        "ExecutorDescriptor(name='x', path='no.colon', description='c')",
        "path is 'no.colon', must be 'module:name'",
    ),
    "a reserved name": (
        "ExecutorDescriptor(name='auto', path='a:B', description='c')",
        "'auto'",
    ),
    "a dotted requirement": (
        "ExecutorDescriptor(name='x', path='a:B', description='c', requires=('a.b',))",
        "'a.b', must be top-level modules",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_costs_itself_alone(site: Site, case: str) -> None:
    """It is recorded with what broke, and logged once; its neighbours are loaded."""
    source, reason = BROKEN[case]
    site.install(REGISTER, name="a", distribution="hybrid-a")
    site.install(HEAD + source, head="", name="mine")
    site.install(WATCH, name="z", distribution="hybrid-z")
    manager = site.load(allowed=["a", "mine", "z"])
    found = {record.source.name: record for record in manager.records}
    assert found["mine"].status is PluginStatus.FAILED
    assert reason in (found["mine"].reason or "")
    assert "\n" not in (found["mine"].reason or "")
    assert found["a"].status is found["z"].status is PluginStatus.LOADED
    with capture_logs() as events:
        manager.warn_of_failures()
    (event,) = events
    assert event["event"] == "plugin.failed"
    assert event["log_level"] == "warning"
    assert (event["distribution"], event["version"]) == ("hybrid-mine", "1.2")
    assert reason in event["reason"]


def test_a_refused_plugin_leaves_nothing_behind(site: Site) -> None:
    """Neither its other executors nor its hooks outlive the one offer at fault."""
    site.install(
        """
        @hookimpl
        def hybrid_register_executors(register):
            register(ExecutorDescriptor(name="good", path="a:B", description="c"))
        @hookimpl
        def hybrid_register_schedulers(register):
            register(SchedulerDescriptor(name="paged", path="a:B", description="c"))
        @hookimpl
        def hybrid_step_finished(step):
            raise AssertionError("called")
        """
    )
    manager = site.load(allowed=["mine"])
    assert "shadow scheduler 'paged'" in (record_of(manager).reason or "")
    assert "good" not in manager.executors.names
    assert not manager.lifecycle_hooks().step_finished


def test_a_class_for_an_entry_point_is_refused(site: Site) -> None:
    """Pluggy would take it and hand ``register`` over as ``self``."""
    module = site.install("class Plugin:\n    hybrid_api_version = API_VERSION")
    entry = site.folder / "hybrid_mine-1.2.dist-info" / "entry_points.txt"
    entry.write_text(f"[hybrid.plugins]\nmine = {module}:Plugin\n", "utf-8")
    assert "names the class Plugin" in (record_of(site.load()).reason or "")


def test_an_instance_for_an_entry_point_is_a_plugin(site: Site) -> None:
    """Its methods are its hooks, as a module's functions are."""
    module = site.install(
        """
        class Plugin:
            hybrid_api_version = API_VERSION
            @hookimpl
            def hybrid_register_executors(self, register):
                register(ExecutorDescriptor(name="mine", path="a:B", description="c"))
        plugin = Plugin()
        """
    )
    entry = site.folder / "hybrid_mine-1.2.dist-info" / "entry_points.txt"
    entry.write_text(f"[hybrid.plugins]\nmine = {module}:plugin\n", "utf-8")
    assert record_of(site.load()).executors == ("mine",)


def test_of_two_distributions_the_second_of_a_name_is_named(site: Site) -> None:
    """The first by distribution is loaded, the other is not even imported."""
    site.install(REGISTER, distribution="hybrid-b", version="2.0")
    site.install("raise ValueError", distribution="hybrid-c", version="3.0")
    rows = [r for r in site.load().records if r.source.name == "mine"]
    assert [row.status for row in rows] == [PluginStatus.LOADED, PluginStatus.DUPLICATE]
    assert rows[1].source.distribution == "hybrid-c"
    assert "hybrid-b 2.0 has a plugin of this name" in (rows[1].reason or "")


def test_nobody_takes_the_built_ins_name(site: Site) -> None:
    """An entry point called as they are is a duplicate."""
    site.install(REGISTER, name="built-in")
    status = [r.status for r in site.load().records if r.source.name == "built-in"]
    assert status == [PluginStatus.LOADED, PluginStatus.DUPLICATE]


def test_an_executor_of_another_plugin_is_not_shadowed(site: Site) -> None:
    """The later one by name is refused as a whole, and told whose name it took."""
    site.install(REGISTER, name="a", distribution="hybrid-a")
    site.install(REGISTER + WATCH, name="b", distribution="hybrid-b")
    manager = site.load(allowed=["a", "b"])
    record = record_of(manager, "b")
    assert record.status is PluginStatus.FAILED
    assert "executor 'mine' of plugin a (hybrid-a 1.2)" in str(record)
    assert not manager.lifecycle_hooks().step_finished


def test_the_order_is_that_of_the_names(site: Site) -> None:
    """Whatever order they were installed in, and wherever."""
    for name in ("c", "a", "b"):
        site.install(WATCH, name=name, distribution=f"hybrid-{name}")
    names = [
        record.source.name for record in site.load(allowed=["c", "b", "a"]).records
    ]
    assert [name for name in names if len(name) == 1] == ["a", "b", "c"]


def test_what_is_left_out_by_name_is_not_imported(site: Site) -> None:
    """Neither a disabled one nor one beside an allow list."""
    module = site.install("raise ValueError")
    for manager in (site.load(disabled=("mine",)), site.load(allowed=[])):
        record = record_of(manager)
        assert record.status is PluginStatus.DISABLED
        assert record.reason
        assert module not in sys.modules


def test_metadata_that_cannot_be_read_is_a_failed_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One corrupt distribution leaves the engine with its built-ins."""
    from hybrid.plugins import loader  # noqa: PLC0415 - to patch its look-up

    def broken(**_: str) -> None:
        raise UnicodeDecodeError("utf-8", b"x", 0, 1, "no")

    monkeypatch.setattr(loader, "entry_points", broken)
    built_in, failed = loader.load_plugins().records
    assert built_in.status is PluginStatus.LOADED
    assert "cannot be read: UnicodeDecodeError" in (failed.reason or "")


def test_a_half_removed_distribution_is_loaded_as_unknown(site: Site) -> None:
    """Without METADATA there is an entry point and neither name nor version."""
    site.install(REGISTER)
    (site.folder / "hybrid_mine-1.2.dist-info" / "METADATA").unlink()
    record = record_of(site.load())
    assert record.status is PluginStatus.LOADED
    assert record.source.distribution == "unknown"


def test_a_wrapper_of_pluggys_is_refused(site: Site) -> None:
    """Each plugin's hook is called by itself: there is nothing to wrap."""
    site.install(
        """
        @hookimpl(wrapper=True)
        def hybrid_step_finished(step):
            return (yield)
        """
    )
    assert "hybrid_step_finished has a yield" in (record_of(site.load()).reason or "")
