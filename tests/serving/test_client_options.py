"""A client's options are checked where they are given, and keep its token safe."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybrid import ConfigError
from hybrid.client import ClientOptions, HybridClient, RetryPolicy, TlsOptions
from hybrid.client.channel_settings import channel_settings
from hybrid.client.client_options import TOKEN_VARIABLE, read_token
from tests.serving.client_stand import IDS, PROMPT


@pytest.mark.parametrize("text", ["", " \n", "one two", "schlüssel"])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    """A client without its token would be told nothing useful; no token is shown."""
    path = tmp_path / "token"
    path.write_text(text, "utf-8")
    for arguments in ((path, {}), (None, {TOKEN_VARIABLE: text})):
        with pytest.raises(ConfigError) as caught:
            read_token(*arguments)
        assert not text.strip() or text not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "options", "is_refused"),
    [
        ("127.0.0.1:1", ClientOptions(), False),
        ("[::1]:1", ClientOptions(), False),
        ("localhost:1", ClientOptions(), False),
        ("192.0.2.1:1", ClientOptions(), True),
        ("example.org:1", ClientOptions(), True),
        ("example.org:1", ClientOptions(insecure=True), False),
        ("example.org:1", ClientOptions(tls=TlsOptions()), False),
    ],
)
def test_a_token_is_not_shown_to_the_network(
    address: str, options: ClientOptions, is_refused: bool
) -> None:
    """In plaintext it goes to this machine alone, unless that is asked for."""
    channel_settings(address, options, None)
    if is_refused:
        with pytest.raises(ConfigError, match="plaintext"):
            channel_settings(address, options, "s3cret")
    else:
        settings = channel_settings(address, options, "s3cret")
        assert settings.metadata == (("authorization", "Bearer s3cret"),)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:http"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """Before anything is sent, by what was given."""
    with pytest.raises(ConfigError, match="must be host:port"):
        HybridClient(address)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClientOptions(timeout_s=0),
        lambda: ClientOptions(timeout_s=float("nan")),
        lambda: ClientOptions(max_message_bytes=0),
        lambda: RetryPolicy(max_retries=-1),
        lambda: RetryPolicy(max_wait_s=float("inf")),
        lambda: TlsOptions(cert=Path("x")),
        lambda: TlsOptions(key=Path("x")),
    ],
)
def test_options_are_checked(make: Callable[[], Any]) -> None:
    """A value that cannot be meant is refused where it is given."""
    with pytest.raises(ConfigError):
        make()


def test_a_timeout_of_one_call_is_checked() -> None:
    """As that of the options is."""
    with HybridClient("127.0.0.1:1") as client, pytest.raises(ConfigError):
        client.generate(PROMPT, IDS, timeout_s=-1)
