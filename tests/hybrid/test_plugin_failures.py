"""What a plugin's failure says: its kind, its message, its file and line."""

import pytest

from hybrid import PluginError
from hybrid.failure_reason import failure_reason
from hybrid.plugins.plugin_record import PluginStatus
from tests.hybrid.plugin_stand import HEAD, Site, answer, record_of, site

__all__ = ["site"]  # pytest finds the fixture here

NUM_HEAD_LINES = HEAD.count("\n")


class MuteError(Exception):
    """Cannot be printed."""

    def __init__(self, raised: BaseException) -> None:
        """Take what ``str`` raises."""
        self._raised = raised

    def __str__(self) -> str:
        """Fail."""
        raise self._raised


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(3), BaseException()])
def test_an_exception_that_cannot_be_printed_has_its_kind(
    raised: BaseException,
) -> None:
    """Guards that report it would else raise themselves."""
    assert failure_reason(MuteError(raised)) == (
        "MuteError (its message cannot be shown)"
    )


def test_an_interrupt_while_a_message_is_made_passes_through() -> None:
    """It is the user's, not the exception's."""
    with pytest.raises(KeyboardInterrupt):
        failure_reason(MuteError(KeyboardInterrupt()))


def test_a_plugin_whose_error_cannot_be_printed_costs_itself_alone(site: Site) -> None:
    """It is a failed row like any other."""
    site.install(
        """
        class Mute(Exception):
            def __str__(self):
                raise ValueError
        raise Mute
        """
    )
    record = record_of(site.load())
    assert record.status is PluginStatus.FAILED
    assert (record.reason or "").startswith("Mute (its message cannot be shown)")


def test_an_import_that_fails_names_the_line(site: Site) -> None:
    """The innermost of the plugin's own, wherever in a library it went wrong."""
    module = site.install("import json\ndef read():\n    json.loads('{')\nread()\n")
    reason = record_of(site.load()).reason or ""
    assert reason.startswith("JSONDecodeError: ")
    assert reason.endswith(f"({site.folder / module}.py:{NUM_HEAD_LINES + 3})")


def test_a_registration_that_fails_names_the_line(site: Site) -> None:
    """Also where the engine is who refuses."""
    module = site.install(
        "@hookimpl\n"
        "def hybrid_register_executors(register):\n"
        "    register(ExecutorDescriptor(name='!', path='a:B', description='c'))\n"
    )
    reason = record_of(site.load()).reason or ""
    assert "ExecutorDescriptor.name is '!'" in reason
    assert reason.endswith(f"({site.folder / module}.py:{NUM_HEAD_LINES + 3})")


def test_a_syntax_error_names_its_own_file_and_line(site: Site) -> None:
    """The whole path, once."""
    module = site.install("x = 1\nx = = 2\n")
    place = f"{site.folder / module}.py:{NUM_HEAD_LINES + 2}"
    assert record_of(site.load()).reason == f"SyntaxError: invalid syntax ({place})"


def test_a_mistyped_module_of_an_installed_package_is_what_is_missing(
    site: Site,
) -> None:
    """Nobody is sent to install what is there."""
    site.install("import json.decodr")
    reason = record_of(site.load()).reason or ""
    assert reason.startswith("'json' is installed and has no module 'decodr' (")


def test_a_mistyped_entry_point_is_what_is_missing(site: Site) -> None:
    """No line of the plugin has run, so none is named."""
    site.install("")
    entry = site.folder / "hybrid_mine-1.2.dist-info" / "entry_points.txt"
    entry.write_text("[hybrid.plugins]\nmine = json.exec\n", "utf-8")
    assert record_of(site.load()).reason == (
        "'json' is installed and has no module 'exec'"
    )


def test_what_a_plugin_raised_is_the_cause_of_its_refusal(site: Site) -> None:
    """Whoever asked for it by name gets its traceback."""
    site.install("raise ValueError('bad luck')")
    with pytest.raises(PluginError) as caught:
        answer(plugins=["mine"])
    assert repr(caught.value.__cause__) == "ValueError('bad luck')"
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__traceback__ is not None
