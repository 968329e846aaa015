"""Ports that are found before what serves them starts."""

from socket import create_server

import pytest

from hybrid.scheduler.errors import ConfigError
from hybrid.serving.listeners import find_port


def test_a_port_of_our_own_choice_is_none_that_connections_get() -> None:
    """Those may be in use again before the server binds what was found."""
    for _ in range(20):
        assert 10_000 <= find_port("http", "127.0.0.1", 0) < 32_768


def test_a_port_that_was_asked_for_is_found_or_refused() -> None:
    """No other takes its place."""
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"http_port are 127.0.0.1:{port}, which"):
            find_port("http", "127.0.0.1", port)
    assert find_port("http", "127.0.0.1", port) == port
