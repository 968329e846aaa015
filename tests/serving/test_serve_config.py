"""The options of a server: what is refused, and in which words."""

from pathlib import Path
from typing import Any

import pytest

from hybrid.cli import run
from hybrid.scheduler import ConfigError
from hybrid.serving.gateway import _arguments
from hybrid.serving.listeners import Listener
from hybrid.serving.serve_config import ServeConfig
from hybrid.wire.loopback import is_loopback
from tests.serving.signal_stand import kept_signals

CERT: dict[str, Any] = {"tls_cert": Path("c.pem"), "tls_key": Path("k.pem")}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "65536"], "port is 65536, must be from 0 to 65535"),
        (["--port", "-1"], "port is -1, must be from 0 to 65535"),
        (["--http-port", "70000"], "http_port is 70000, must be from 0 to 65535"),
        (["--max-requests", "0"], "max_requests is 0, must be at least 1"),
        (["--max-inflight-tokens", "0"], "max_inflight_tokens is 0, must be"),
        (["--max-request-size", "12"], "max_request_size is 12, must be from 1024"),
        (["--max-request-size", "big"], "max_request_size is 'big': must be a number"),
        (["--max-response-size", "3GiB"], "to 2147483647"),
        (["--shutdown-timeout", "-1"], "shutdown_timeout is -1.0, must be from 0"),
        (["--shutdown-timeout", "nan"], "shutdown_timeout is nan, must be from 0"),
        (["--shutdown-timeout", "inf"], "shutdown_timeout is inf, must be from 0"),
        (["--stream-interval", "-1"], "stream_interval is -1.0, must be from 0"),
        (["--stream-interval", "20000"], "20000.0, must be from 0 to 10000"),
        (["--stream-interval", "nan"], "stream_interval is nan, must be from 0"),
        (["--stream-interval", "soon"], "is 'soon', must be milliseconds, or auto"),
        (["--host", ""], "host is empty"),
        (["--http-host", ""], "http_host is empty"),
        (["--served-model-name", ""], "served_model_name is empty"),
        (["--tls-cert", "c.pem"], "tls_cert is 'c.pem', which needs tls_key"),
        (["--tls-key", "k.pem"], "tls_key is 'k.pem', which needs tls_cert"),
        (["--tls-client-ca", "a.pem"], "tls_client_ca is 'a.pem', which needs"),
        (["--gateway-option", "policy=random"], "gateway_option needs http_port"),
        (["--gateway-option", "=x"], "gateway_option is '=x', must be name=value"),
        (["--metrics-port", "-2"], "metrics_port is -2, must be from 0 to 65535"),
        (["--metrics-host", ""], "metrics_host is empty"),
        (["--otlp-traces-endpoint", ""], "otlp_traces_endpoint is empty"),
        (["--otlp-traces-endpoint", "banana"], "is 'banana', must be a URL such as"),
        (["--http-host", "192.0.2.1"], "http_host is '192.0.2.1': it needs http_p"),
        (["--metrics-host", "::"], "metrics_host is '::': it needs metrics_port"),
        (
            ["--metrics-port", "0", "--metrics-host", "192.0.2.1"],
            "metrics_host is '192.0.2.1', whose port other machines read",
        ),
        (
            ["--metrics-port", "0", "--metrics-host", "192.0.2.1", "--insecure"],
            "metrics_host and me",
        ),
        (
            ["--http-port", "0", "--gateway-option", "--host=0.0.0.0"],
            "gateway_option is 'host', but host is set by this server: use http_host",
        ),
        (["--token-file", "/no/such/file"], "/no/such/file: No such file"),
        (["--host", "192.0.2.1"], "host is '192.0.2.1', which other machines reach"),
        (["--http-port", "0"], "which needs a model with a tokenizer: null has none"),
        (["--host", "192.0.2.1", "--insecure"], "192.0.2.1:0, which cannot be bound"),
    ],
)
def test_an_option_out_of_range_is_one_line(
    options: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It names option, value and limit, before anything is loaded; the code is 1."""
    with kept_signals():
        assert run(["serve", "--port", "0", "--executor", "null", *options]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - the very thing
        ("::", False),
        ("10.0.0.7", False),
        ("gpu7", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    """A name that we cannot be sure of counts as public."""
    assert is_loopback(host) is expected


PUBLIC = {"host": "10.0.0.7"}
PUBLIC_HTTP = {"http_port": 8000, "http_host": "10.0.0.7"}
PUBLIC_METRICS = {"metrics_port": 9090, "metrics_host": "10.0.0.7"}
MUTUAL = CERT | {"tls_client_ca": Path("a.pem")}
GATEWAY_METRICS = {
    "http_port": 8000,
    "gateway_options": {"prometheus-host": "10.0.0.7"},
}


@pytest.mark.parametrize(
    ("options", "has_tokens", "words"),
    [
        (PUBLIC, False, "host is '10.0.0.7', which other machines reach in plaintext"),
        (PUBLIC, True, "host is '10.0.0.7', which other machines reach in plaintext"),
        (PUBLIC | CERT, False, "host is '10.0.0.7', which other machines reach whoe"),
        (PUBLIC | CERT, True, None),
        (PUBLIC | MUTUAL, False, None),
        (PUBLIC_HTTP, True, "http_host is '10.0.0.7', .* in plaintext"),
        (PUBLIC_HTTP | CERT, False, "http_host is '10.0.0.7', .* whoever they are"),
        (PUBLIC_HTTP | MUTUAL, False, "http_host is '10.0.0.7', .* whoever they are"),
        (PUBLIC_HTTP | CERT, True, None),
        (PUBLIC | MUTUAL | {"http_port": 0}, False, None),
        (PUBLIC_METRICS | CERT, True, "metrics_host is '10.0.0.7', whose port other"),
        (GATEWAY_METRICS | CERT, True, "gateway_option prometheus-host is '10.0.0.7'"),
        ({}, False, None),
    ],
)
def test_strangers_are_let_in_on_purpose_only(
    options: dict[str, Any], has_tokens: bool, words: str | None
) -> None:
    """A public port needs TLS, and a token or certificate; or else the order."""
    config = ServeConfig(**options)
    if words is None:
        config.check_exposure(has_tokens=has_tokens)
    else:
        with pytest.raises(ConfigError, match=f"^{words}"):
            config.check_exposure(has_tokens=has_tokens)
    ServeConfig(**options, insecure=True).check_exposure(has_tokens=has_tokens)


SERVERS_OWN = {
    "host": "http_host",
    "port": "http_port",
    "tls-cert-path": "tls_cert",
    "tls-key-path": "tls_key",
    "tenant-api-key": "token_file",
    "api-key": "token_file",
    "control-plane-api-keys": "token_file",
    "shutdown-grace-period-secs": "shutdown_timeout",
    "worker-urls": "this server's engine",
    "enable-mesh": "no mesh",
    "rdma-listen-ip": "no images",
}


@pytest.mark.parametrize("name", SERVERS_OWN)
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "beginning"])
def test_the_gateway_is_not_told_what_the_server_tells_it(
    name: str, is_whole: bool
) -> None:
    """Nothing goes round what was checked, not even a name cut short."""
    given = name if is_whole else name[:-1]
    with pytest.raises(ConfigError, match=f"{name} is set by .*{SERVERS_OWN[name]}"):
        ServeConfig(http_port=0, gateway_options={given: "10.0.0.7"}, insecure=True)


def test_the_gateway_s_own_metrics_stay_here() -> None:
    """Their address may be another one of this machine, by its whole name."""
    options = {"prometheus-host": "127.0.0.2", "prometheus-port": "29000"}
    ServeConfig(http_port=0, gateway_options=options).check_exposure(has_tokens=False)
    with pytest.raises(ConfigError, match="must be the whole name: prometheus-host"):
        ServeConfig(http_port=0, gateway_options={"prometheus-h": "10.0.0.7"})


def test_the_server_sets_nothing_that_its_user_may_set_again() -> None:
    """Each option on the gateway's command line is refused, or harmless."""
    harmless = {"prometheus-host", "prometheus-port", "log-level", "log-json"}
    config = ServeConfig(http_port=1, **CERT)
    told = _arguments(config, Listener(None, "127.0.0.1", 2), ["secret"])
    names = {word.removeprefix("--") for word in told if word.startswith("--")}
    assert names - harmless <= SERVERS_OWN.keys()


def test_the_value_of_a_gateway_option_is_no_option() -> None:
    """Options of the gateway that take any number of values take this one, too."""
    options = {"cors-allowed-origins": "--host=0.0.0.0", "disable-retries": None}
    config = ServeConfig(http_port=1, gateway_options=options)
    *_, first, last = _arguments(config, Listener(None, "127.0.0.1", 2), [])
    assert first == "--cors-allowed-origins=--host=0.0.0.0"
    assert last == "--disable-retries"


def test_reflection_follows_the_address_unless_it_is_chosen() -> None:
    """What is there is shown to this machine, and to others if somebody says so."""
    assert ServeConfig().has_reflection
    assert not ServeConfig(host="10.0.0.7").has_reflection
    assert ServeConfig(host="10.0.0.7", reflection=True).has_reflection
    assert not ServeConfig(reflection=False).has_reflection


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("smg", "gateway"),
        ("grpc", "grpc"),
        ("smg_grpc_proto", "grpc"),
    ],
)
def test_what_is_not_installed_is_named(
    module: str,
    extra: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error says what is missing, and which extra brings it."""
    from importlib import util  # noqa: PLC0415 - for this test

    find = util.find_spec
    for home in ("hybrid.cli.serve", "hybrid.serving.gateway"):
        monkeypatch.setattr(
            f"{home}.find_spec", lambda name: None if name == module else find(name)
        )
    command = ["serve", "--port", "0", "--http-port", "0", "--executor", "null"]
    assert run(command) == 1
    assert f"pip install 'hybrid-llm-engine[{extra}]'" in capsys.readouterr().err
