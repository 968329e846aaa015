"""What the client's package is, seen from outside."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hybrid import client as package
from hybrid.client import AsyncHybridClient, HybridClient
from hybrid.serving.served_model import ServedModel
from tests.documents import examples, read_page
from tests.serving.client_stand import running_service
from tests.serving.service_stand import load_tiny
from tests.source_tree import ROOT

_PROBE = """
import json, sys
import {module}
print(json.dumps(sorted(sys.modules)))
"""


def modules_of(module: str) -> set[str]:
    """Every module that is there once ``module`` is imported."""
    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", _PROBE.format(module=module)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return set(json.loads(run.stdout))


def test_the_client_knows_nothing_of_the_server() -> None:
    """Nor of models: ids go in and out where neither is installed."""
    found = modules_of("hybrid.client")
    assert "grpc" in found
    heavy = {"torch", "transformers", "tokenizers", "numpy", "pydantic"}
    assert not found & heavy
    assert not [name for name in found if name.startswith("hybrid.serving")]


@pytest.mark.parametrize("module", ["hybrid", "hybrid.cli.app"])
def test_who_does_not_connect_does_not_load_grpc(module: str) -> None:
    """The command line starts without it."""
    assert not modules_of(module) & {"grpc", "smg_grpc_proto", "hybrid.client"}


def methods(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
    """Public methods and their parameters, with kinds and defaults."""
    return {
        name: [
            (parameter.name, parameter.kind, parameter.default)
            for parameter in inspect.signature(method).parameters.values()
        ]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_the_two_clients_are_one_to_learn() -> None:
    """Same methods, same parameters."""
    assert methods(HybridClient) == methods(AsyncHybridClient)


def test_every_name_is_explained() -> None:
    """Public names, methods and options stand in docs/client.md."""
    page = read_page("docs/client.md")
    names = {*package.__all__, *methods(HybridClient)}
    for options in (package.ClientOptions, package.RetryPolicy, package.TlsOptions):
        names |= set(options.__dataclass_fields__)
    hidden = {"ModelInfo", "ServerHealth", "ServerLoad", "TokenLogprob"}
    assert sorted(name for name in names - hidden if name not in page) == []


def test_the_pages_examples_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they stand, but for the port."""
    loaded = load_tiny(tmp_path)
    codes = examples(read_page("docs/client.md"))
    assert len(codes) == 2
    with running_service(loaded.engine, ServedModel.of(loaded)) as service:
        for code in codes:
            assert "127.0.0.1:50051" in code
            here = code.replace("127.0.0.1:50051", service.address)
            exec(compile(here, "example", "exec"), {})  # noqa: S102 - ours
            assert capsys.readouterr().out
