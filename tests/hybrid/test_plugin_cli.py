"""``hybrid plugins``, and plugins behind the other commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from hybrid._version import __version__
from hybrid.cli import run
from tests.hybrid.cli_stand import new_scripted_llm, write_tiny_model
from tests.hybrid.plugin_stand import Site, site

__all__ = ["site"]  # pytest finds the fixture here

Captured = pytest.CaptureFixture[str]
REGISTER = """
    @hookimpl
    def hybrid_register_executors(register):
        register(
            ExecutorDescriptor(
                name="mine", path="no_such_module:X", description="a test's"
            )
        )

    @hookimpl
    def hybrid_step_finished(step):
        pass
"""


def listed(capsys: Captured, command: str = "plugins") -> dict[str, dict[str, Any]]:
    """What a command's ``--json`` says, by name."""
    assert run([command, "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_every_plugin_is_listed_with_all_that_is_known(
    capsys: Captured, site: Site
) -> None:
    """The built-ins are in the list; what a plugin offers stands in its row."""
    site.install(REGISTER)
    rows = listed(capsys)
    assert rows["built-in"]["version"] == __version__
    assert rows["built-in"]["schedulers"] == ["paged"]
    assert rows["mine"] == {
        "name": "mine",
        "distribution": "hybrid-mine",
        "version": "1.2",
        "status": "loaded",
        "reason": None,
        "api_version": [1, 0],
        "hooks": ["hybrid_register_executors", "hybrid_step_finished"],
        "executors": ["mine"],
        "schedulers": [],
        "logits_processors": [],
    }
    assert run(["plugins"]) == 0
    out, err = capsys.readouterr()
    (line,) = [line for line in out.splitlines() if line.split()[:1] == ["mine"]]
    for word in ("hybrid-mine", "1.2", "1.0", "loaded", "step_finished"):
        assert word in line
    assert err == ""


def test_whatever_became_of_a_plugin_is_a_row(
    capsys: Captured, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed, duplicate and disabled ones have their reason, in the table as well."""
    site.install("raise ValueError('[bold]bad luck[/]')", name="broken")
    site.install(REGISTER, distribution="hybrid-b")
    site.install(REGISTER, distribution="hybrid-c", name="off")
    monkeypatch.setenv("HYBRID_PLUGINS_DISABLED", "off")
    rows = listed(capsys)
    assert rows["broken"]["status"] == "failed"
    assert rows["broken"]["reason"].startswith("ValueError: [bold]bad luck[/] (")
    assert rows["off"]["status"] == "disabled"
    assert "HYBRID_PLUGINS_DISABLED" in rows["off"]["reason"]
    assert run(["plugins"]) == 0
    assert "ValueError: [bold]bad luck[/]" in capsys.readouterr().out


def test_a_list_survives_an_allow_list_that_cannot_be_met(
    capsys: Captured, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an engine would refuse, a listing shows."""
    site.install("raise ValueError")
    monkeypatch.setenv("HYBRID_PLUGINS", "mine,absent")
    rows = listed(capsys)
    assert rows["mine"]["status"] == "failed"
    assert rows["absent"]["status"] == "missing"
    assert rows["absent"]["reason"] == "not installed"
    assert "null" in listed(capsys, "executors")


def test_what_a_plugin_prints_is_not_in_the_list(capsys: Captured, site: Site) -> None:
    """A program that reads stdout reads JSON."""
    site.install("print('hello from a plugin')" + REGISTER.replace("\n    ", "\n"))
    assert run(["plugins", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert "hello from a plugin" in err


def test_executors_of_plugins_are_listed_with_their_plugin(
    capsys: Captured, site: Site
) -> None:
    """One that cannot be imported says why, and whose it is."""
    site.install(REGISTER)
    row = listed(capsys, "executors")["mine"]
    assert (row["plugin"], row["available"]) == ("mine", False)
    assert "plugin mine (hybrid-mine 1.2)" in row["reason"]
    assert "'no_such_module' is not installed" in row["reason"]
    assert listed(capsys, "executors")["null"]["plugin"] == "built-in"


def test_a_broken_plugin_is_a_warning_beside_the_executors(
    capsys: Captured, site: Site
) -> None:
    """The list is whole, stderr has the event."""
    site.install("raise ValueError('bad luck')")
    assert run(["executors", "--json"]) == 0
    out, err = capsys.readouterr()
    assert {row["name"] for row in json.loads(out)} >= {"null", "torch"}
    assert "plugin.failed" in err
    assert "bad luck" in err


def test_the_options_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is the keyword of its name; what is not given is not passed."""
    scripted = new_scripted_llm()
    monkeypatch.setattr("hybrid.LLM", scripted)
    options = {"plugins": "a,b", "plugins-disabled": "c", "scheduler": "latest"}
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    assert run(["generate", "-m", "x", "Hello", *given]) == 0
    assert run(["generate", "-m", "x", "Hello"]) == 0
    first, second = scripted.instances
    assert first.keywords["plugins"] == "a,b"
    assert first.keywords["plugins_disabled"] == "c"
    assert first.keywords["scheduler"] == "latest"
    for name in ("plugins", "scheduler", "enable_prefix_caching"):
        assert name not in second.keywords


def test_what_is_printed_while_a_model_loads_is_no_answer(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin may print while it is imported; stdout is the answer alone."""

    class Loud(new_scripted_llm()):  # type: ignore[misc] # a class made for this test
        """Prints while it loads."""

        def __init__(self, **keywords: Any) -> None:
            print("hello from a plugin")  # noqa: T201 - what the test is about
            super().__init__(**keywords)

    monkeypatch.setattr("hybrid.LLM", Loud)
    assert run(["generate", "-m", "x", "Hello"]) == 0
    out, err = capsys.readouterr()
    assert out == "Paris.\n"
    assert "hello from a plugin" in err


def test_what_a_hook_prints_is_no_answer(
    capsys: Captured, site: Site, tmp_path: Path
) -> None:
    """It may print at any time, to the last event: stdout is the answer alone."""
    pytest.importorskip("tokenizers")
    model = write_tiny_model(tmp_path / "tiny")
    command = ["generate", "Hello", "--executor", "null", "-m", str(model)]
    command += ["--max-tokens", "5"]
    assert run([*command, "--plugins", ""]) == 0
    alone = capsys.readouterr().out
    site.install(
        """
        @hookimpl
        def hybrid_engine_started(engine):
            print("a start")
        @hookimpl
        def hybrid_step_finished(step):
            print("a step")
        @hookimpl
        def hybrid_engine_stopped(engine):
            print("an end")
        """
    )
    assert run([*command, "--plugins", "mine"]) == 0
    out, err = capsys.readouterr()
    assert out == alone
    assert [err.count(word) for word in ("a start", "a step", "an end")] == [1, 5, 1]


@pytest.mark.usefixtures("site")
def test_a_feature_that_was_not_asked_for_is_no_demand() -> None:
    """The command line runs an executor that lacks what is on by default."""
    from dataclasses import replace  # noqa: PLC0415 - for this test

    from hybrid.backends.null import executor  # noqa: PLC0415
    from hybrid.cli.engine_options import EngineOptions, open_engine  # noqa: PLC0415

    lacking = replace(executor.CAPABILITIES, prefix_reuse=False, chunked_prefill=False)
    options = EngineOptions(executor="null", num_kv_blocks=8, plugins="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "CAPABILITIES", lacking)
        with open_engine(options) as llm:
            assert llm.llm_engine.stats().kv_total_blocks == 8


def test_an_allow_list_that_cannot_be_met_is_one_line(
    capsys: Captured, site: Site
) -> None:
    """Exit code 1; the line names the plugin and its distribution."""
    site.install("raise ValueError('bad luck')")
    command = ["generate", "Hello", "--executor", "null", "--plugins", "mine"]
    assert run([*command, "-m", str(site.folder)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(
        "error: asked for by name: plugin mine (hybrid-mine 1.2) failed: "
        "ValueError: bad luck ("
    )
    assert err.count("\n") == 1
