"""Which plugins load, and what their names get: options, environment, errors."""

import re
from typing import Any

import pytest
from structlog.testing import capture_logs

from hybrid import LLM, ConfigError, EngineConfig, PluginError, SamplingParams
from hybrid.plugins.selection import PluginSelection
from tests.hybrid.plugin_stand import Site, site

__all__ = ["site"]  # pytest finds the fixture here

GREEDY = SamplingParams(temperature=0, max_tokens=4)
EXECUTOR = """
    from dataclasses import replace
    from hybrid.backends.null.executor import CAPABILITIES, NullExecutor

    class Mine(NullExecutor):
        def capabilities(self):
            return replace(CAPABILITIES, name="mine", **CHANGES)

    CHANGES = {}

    @hookimpl
    def hybrid_register_executors(register):
        register(
            ExecutorDescriptor("mine", "{module}:Mine", "a test's", needs_model=False)
        )
"""
PARTS = """
    class Latest(PagedScheduler):
        made = []
        def __init__(self, config):
            super().__init__(config, rank=lambda request: -request.arrival_time_s)
            self.made.append(self)

    class OnlyEven:
        def applies_to(self, request):
            return True
        def apply(self, request, sample_index, output_token_ids, row):
            row[1::2] = float("-inf")

    @hookimpl
    def hybrid_register_schedulers(register):
        register(SchedulerDescriptor("latest", "{module}:Latest", "last come"))

    @hookimpl
    def hybrid_register_logits_processors(register):
        register(LogitsProcessorDescriptor("even", "{module}:OnlyEven", "even ids"))
"""


def answer(**options: Any) -> tuple[int, ...]:
    """What a tiny engine answers."""
    with LLM(num_kv_blocks=16, **({"executor": "null"} | options)) as llm:
        (output,) = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
    return output.outputs[0].token_ids


def test_an_executor_of_a_plugin_runs_by_its_name(site: Site) -> None:
    """It is imported when it is chosen, and answers like any other."""
    site.install(EXECUTOR)
    assert answer(executor="mine") == answer()


def test_a_scheduler_and_a_processor_of_a_plugin_run_by_name(site: Site) -> None:
    """The scheduler gets the engine's limits, the processor edits the rows."""
    site.install(PARTS)
    assert answer(scheduler="latest") == answer()
    ids = answer(logits_processors=["even"])
    assert ids != answer()
    assert all(token_id % 2 == 0 for token_id in ids)


def test_a_processor_that_nobody_names_does_not_run(site: Site) -> None:
    """To be installed is not to be asked for."""
    before = answer(plugins=[])
    site.install(PARTS)
    assert answer() == before


@pytest.mark.parametrize(
    ("option", "known"),
    [
        ({"executor": "mime"}, "there are: auto, torch, null"),
        ({"scheduler": "mime"}, "there are: paged"),
        ({"logits_processors": ["mime"]}, "there are: "),
    ],
)
def test_an_unknown_name_lists_what_there_is_and_what_broke(
    site: Site, option: dict[str, Any], known: str
) -> None:
    """The plugin that would have had it is named with its distribution and reason."""
    site.install("import no_such_module_at_all")
    with pytest.raises(ConfigError, match="'mime' is unknown") as caught:
        answer(**option)
    assert known in str(caught.value)
    assert (
        "plugin mine (hybrid-mine 1.2) failed: the module 'no_such_module_at_all' "
        "is not installed"
    ) in str(caught.value)


def test_an_unknown_name_has_its_nearest(site: Site) -> None:
    """Names of plugins are suggested as the built-ins are."""
    site.install(EXECUTOR + PARTS)
    for option, nearest in (
        ({"executor": "mime"}, "mine"),
        ({"scheduler": "lates"}, "latest"),
        ({"logits_processors": ["evem"]}, "even"),
    ):
        with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
            answer(**option)


def test_a_broken_plugin_that_nobody_asked_for_is_one_warning(site: Site) -> None:
    """The engine starts and answers."""
    site.install("raise ValueError('bad luck')")
    with capture_logs() as events:
        assert answer()
    (event,) = [e for e in events if e["log_level"] == "warning"]
    assert (event["event"], event["plugin"]) == ("plugin.failed", "mine")
    assert event["reason"] == "ValueError: bad luck"


@pytest.mark.parametrize("by_option", [True, False])
def test_a_broken_plugin_that_was_asked_for_is_an_error(
    site: Site, monkeypatch: pytest.MonkeyPatch, by_option: bool
) -> None:
    """It names the plugin, its distribution and version, and what broke."""
    site.install("raise ValueError('bad luck')")
    if not by_option:
        monkeypatch.setenv("HYBRID_PLUGINS", "mine")
    options = {"plugins": ["mine"]} if by_option else {}
    message = "plugin mine (hybrid-mine 1.2) failed: ValueError: bad luck"
    with pytest.raises(PluginError, match=re.escape(message)):
        answer(**options)


def test_a_name_that_is_not_installed_is_an_error_with_the_nearest(site: Site) -> None:
    """An allow list is a demand."""
    site.install(EXECUTOR)
    with pytest.raises(PluginError, match=r"'mime' .*not installed; did you mean 'mi"):
        answer(plugins="mime")


def test_a_name_that_two_distributions_have_cannot_be_asked_for(site: Site) -> None:
    """Whoever says the name must know which it is."""
    site.install(EXECUTOR, distribution="hybrid-b")
    site.install(EXECUTOR, distribution="hybrid-c")
    with pytest.raises(PluginError, match=r"hybrid-c 1.2\) duplicate: hybrid-b 1.2"):
        answer(plugins=["mine"])


def test_a_disabled_plugin_has_no_executor(site: Site) -> None:
    """The error about its executor says who was left out, and by what."""
    site.install(EXECUTOR)
    with pytest.raises(ConfigError, match=r"mine \(hybrid-mine 1.2\) disabled"):
        answer(executor="mine", plugins_disabled=["mine"])


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ({}, {}, PluginSelection()),
        ({}, {"HYBRID_PLUGINS": "a, b,"}, PluginSelection(("a", "b"))),
        ({}, {"HYBRID_PLUGINS": ""}, PluginSelection(())),
        ({}, {"HYBRID_PLUGINS_DISABLED": "a"}, PluginSelection(None, ("a",))),
        ({"plugins": "x"}, {"HYBRID_PLUGINS": "a"}, PluginSelection(("x",))),
        ({"plugins": []}, {"HYBRID_PLUGINS": "a"}, PluginSelection(())),
        (
            {"plugins_disabled": ("x",)},
            {"HYBRID_PLUGINS_DISABLED": "a", "HYBRID_PLUGINS": "a"},
            PluginSelection(("a",), ("x",)),
        ),
    ],
)
def test_an_option_wins_over_its_variable(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    environment: dict[str, str],
    expected: PluginSelection,
) -> None:
    """Each list has its own; an empty one allows, or disables, nothing."""
    for name in ("HYBRID_PLUGINS", "HYBRID_PLUGINS_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert EngineConfig(**options).plugin_selection == expected


def test_what_is_asked_for_and_disabled_is_a_contradiction() -> None:
    """Whichever of option and environment said either."""
    with pytest.raises(ConfigError, match="'b' is both asked for"):
        LLM(executor="null", plugins=["a", "b"], plugins_disabled="b,c")


@pytest.mark.parametrize("value", [3, [3], {"a": 1}, b"a"])
def test_names_are_texts(value: object) -> None:
    """Anything else is refused by option and value."""
    with pytest.raises(ConfigError, match="plugins is "):
        EngineConfig(plugins=value)


CHOSEN_BADLY = {
    "an import that fails": (
        "'no_such_module:X', 'c', needs_model=False",
        "no_such_module:X: the module 'no_such_module' is not installed",
    ),
    "a name that is not there": (
        "'json:Mine', 'c', needs_model=False",
        "json:Mine: AttributeError",
    ),
    "a constructor that raises": (
        "'builtins:range', 'c', needs_model=False",
        "builtins:range: TypeError",
    ),
    "no executor": (
        "'builtins:dict', 'c', needs_model=False",
        "is a dict, must be Executor",
    ),
    "a requirement that is missing": (
        "'a:B', 'c', requires=('no_such_module',), install_hint='pip install x'",
        "cannot run here: not installed: no_such_module; pip install x",
    ),
    "a model that is missing": ("'a:B', 'c'", "'mine' needs a model"),
}


@pytest.mark.parametrize("case", CHOSEN_BADLY)
def test_an_executor_that_cannot_be_made_says_why(site: Site, case: str) -> None:
    """The descriptor was fine; what it names is found out when it is chosen."""
    fields, reason = CHOSEN_BADLY[case]
    site.install(
        "@hookimpl\ndef hybrid_register_executors(register):\n"
        f"    register(ExecutorDescriptor('mine', {fields}))"
    )
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        answer(executor="mine")
    if "cannot run" not in reason and "needs" not in reason:
        assert "executor 'mine' of plugin mine (hybrid-mine 1.2)" in str(caught.value)
    assert answer()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"api_version": (9, 0)}, "API version is 9.0"),
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


def test_capabilities_that_raise_are_refused(site: Site) -> None:
    """A machine that an executor cannot even describe is not run on."""
    site.install(EXECUTOR.replace("CHANGES = {}", ""))
    with pytest.raises(PluginError, match="failed in capabilities: NameError"):
        answer(executor="mine")


def test_a_scheduler_that_is_none_names_its_plugin(site: Site) -> None:
    """So does a processor without the methods of one."""
    site.install(
        PARTS.replace("{module}:Latest", "builtins:id").replace(
            "{module}:OnlyEven", "builtins:dict"
        )
    )
    with pytest.raises(PluginError, match=r"'latest' of plugin mine .*made a int"):
        answer(scheduler="latest")
    with pytest.raises(PluginError, match=r"'even' of plugin .*the method applies_to"):
        answer(logits_processors=["even"])
