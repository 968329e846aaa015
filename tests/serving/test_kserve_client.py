"""``hybrid serve --kserve``, driven by the official clients of Triton, as processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from tests.hybrid.cli_stand import write_tiny_model
from tests.serving.serve_process import PATIENCE_S, addresses, started
from tests.source_tree import ROOT

pytest.importorskip("tritonclient", reason="drives the service")


def test_tritons_clients_are_served(tmp_path: Path) -> None:
    """Sync, asyncio, whole and in pieces: one answer; refusals say what is wrong."""
    model = write_tiny_model(tmp_path / "model")
    options = ["--kserve", "-m", str(model), "--served-model-name", "tiny"]
    with started(tmp_path, "--port", "0", *options) as server:
        client = subprocess.run(  # noqa: S603 - our own interpreter
            [
                sys.executable,
                "-m",
                "tests.serving.kserve_client",
                addresses(server)["grpc"],
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert client.returncode == 0, (client.stderr, server.log)
    told = json.loads(client.stdout)
    assert told["unlike"] == []
    sync, aio = told["sync"], told["aio"]
    assert (sync["live"], sync["ready"], sync["model_ready"]) == (True, True, True)
    assert sync["other_ready"] is False
    assert sync["server"] == "hybrid"
    assert "text_output" in sync["outputs"]
    assert sync["refusal"] == "StatusCode.INVALID_ARGUMENT"
    assert sync["num_output_tokens"] == 6
    assert sync["text"]
    assert "".join(sync["stream"]["a"]) == sync["text"]
    (error,) = sync["stream"]["b"]
    assert "top_p" in error
    assert aio == {"text": sync["text"], "stream": dict.fromkeys("ab", sync["text"])}


def test_without_the_flag_there_is_no_such_service(tmp_path: Path) -> None:
    """UNIMPLEMENTED, as for any service that is not there."""
    with (
        started(tmp_path, "--port", "0") as server,
        grpc.insecure_channel(addresses(server)["grpc"]) as channel,
    ):
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        with pytest.raises(grpc.RpcError) as refusal:
            call(b"", timeout=PATIENCE_S)
    assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
