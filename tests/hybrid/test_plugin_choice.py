"""Which plugins load, and what their names get: options, environment, errors."""

import re
from typing import Any

import pytest
from structlog.testing import capture_logs

from hybrid import LLM, ConfigError, EngineConfig, PluginError
from hybrid.plugins.selection import PluginSelection
from tests.hybrid.plugin_stand import EXECUTOR, Site, answer, site

__all__ = ["site"]  # pytest finds the fixture here

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
        register(
            SchedulerDescriptor(
                name="latest", path="{module}:Latest", description="last come"
            )
        )

    @hookimpl
    def hybrid_register_logits_processors(register):
        register(
            LogitsProcessorDescriptor(
                name="even", path="{module}:OnlyEven", description="even ids"
            )
        )
"""


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
        ({"executor": "mime"}, "there are: auto, torch, tensorrt_llm, cpu, null"),
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
    assert event["reason"].startswith("ValueError: bad luck (")


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


def test_a_disabled_name_that_is_not_installed_is_one_warning(site: Site) -> None:
    """It may be misspelt, and then what it was to disable is loaded."""
    site.install(EXECUTOR)
    with capture_logs() as events:
        assert answer(plugins_disabled=["mime", "mime"])
    (event,) = [e for e in events if e["log_level"] == "warning"]
    assert (event["event"], event["plugin"]) == ("plugin.unknown_disabled", "mime")
    assert event["reason"] == "disabled, and not installed; did you mean 'mine'?"


def test_a_plugin_beside_an_allow_list_is_told_so(site: Site) -> None:
    """The reason names both places where such a list may stand."""
    site.install(EXECUTOR)
    reason = (
        "plugins or HYBRID_PLUGINS lists the plugins to load, and this one is not "
        "among them"
    )
    with pytest.raises(ConfigError, match=reason):
        answer(executor="mine", plugins=[])


def test_a_text_is_no_sequence_of_processors() -> None:
    """It would be taken letter by letter: ``logits processor 'e' is unknown``."""
    with pytest.raises(ConfigError, match="logits_processors is 'even', must be a seq"):
        EngineConfig(logits_processors="even")
