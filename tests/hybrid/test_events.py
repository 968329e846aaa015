"""Events reach a stream as lines for people or objects for programs."""

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from hybrid.events import LEVELS, configure_if_unset, configure_logging
from hybrid.scheduler.errors import ConfigError


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        """Say yes."""
        return True


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Leave structlog as it was found."""
    before = structlog.get_config()
    was_configured = structlog.is_configured()
    yield
    structlog.reset_defaults()
    if was_configured:
        structlog.configure(**before)


def test_programs_get_one_object_a_line() -> None:
    """Off a terminal each event is JSON with level, time and its fields."""
    stream = io.StringIO()
    configure_logging("info", stream=stream)
    structlog.get_logger().info("request.finished", request_id="7", total_s=0.5)
    event = json.loads(stream.getvalue())
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "event": "request.finished",
        "level": "info",
        "request_id": "7",
        "total_s": 0.5,
    }


def test_people_get_text() -> None:
    """At a terminal an event is one readable line."""
    stream = Terminal()
    configure_logging("info", stream=stream)
    structlog.get_logger().info("engine.started", blocks=8)
    text = stream.getvalue()
    assert "engine.started" in text
    assert "blocks" in text
    assert not text.startswith("{")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("terminal", "as_json"), [(Terminal, True), (io.StringIO, False)]
)
def test_the_form_can_be_chosen(terminal: type[io.StringIO], as_json: bool) -> None:
    """A choice wins over what the stream is."""
    stream = terminal()
    configure_logging("info", as_json=as_json, stream=stream)
    structlog.get_logger().info("engine.started")
    assert stream.getvalue().startswith("{") is as_json


@pytest.mark.parametrize("level", LEVELS)
def test_lower_levels_are_dropped(level: str) -> None:
    """Exactly the chosen level and those above it are written."""
    stream = io.StringIO()
    configure_logging(level, stream=stream)
    for name in LEVELS:
        getattr(structlog.get_logger(), name)("x.happened")
    written = [json.loads(line)["level"] for line in stream.getvalue().splitlines()]
    assert written == list(LEVELS)[list(LEVELS).index(level) :]


def test_a_traceback_stays_inside_its_line() -> None:
    """An exception is part of the event's object."""
    stream = io.StringIO()
    configure_logging("info", stream=stream)
    try:
        int("the reason")
    except ValueError:
        structlog.get_logger().exception("executor.failed")
    (line,) = stream.getvalue().splitlines()
    assert "the reason" in line


def test_an_unknown_level_is_refused() -> None:
    """The error has the value and the levels there are."""
    with pytest.raises(ConfigError, match="'loud', must be one of debug, info"):
        configure_logging("loud")


def test_events_follow_a_replaced_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger made before stderr was replaced writes to the new one."""
    configure_logging("info")
    log = structlog.get_logger()
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    log.info("engine.started")
    assert "engine.started" in stream.getvalue()


def test_a_programs_own_configuration_is_left_alone() -> None:
    """Only a process that configured nothing gets ours."""
    own = [structlog.processors.JSONRenderer()]
    structlog.configure(processors=own)
    configure_if_unset()
    assert structlog.get_config()["processors"] is own
    structlog.reset_defaults()
    configure_if_unset()
    assert structlog.is_configured()


def test_without_a_stderr_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that has none (``2>&-``) keeps its events off stdout."""
    monkeypatch.setattr("sys.stderr", None)
    configure_logging("info")
    structlog.get_logger().info("engine.started")
    assert capsys.readouterr().out == ""


def test_an_event_that_cannot_be_written_ends_nothing() -> None:
    """A full disk or a closed stream is not the business of who logs."""

    class Full(io.StringIO):
        """A stream on a full disk."""

        def write(self, _text: str) -> int:
            """Fail."""
            raise OSError(28, "No space left on device")

    closed = io.StringIO()
    configure_logging("info", stream=closed)
    closed.close()
    structlog.get_logger().info("engine.started")
    configure_logging("info", stream=Full())
    structlog.get_logger().info("engine.started")
