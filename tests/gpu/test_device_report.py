"""The report ends whatever its checks do, and its checks see what they are to see."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from hybrid.backends.trtllm.torch_attention import TorchAttention
from hybrid.testing import transformers_answers, write_tiny_model
from tests.gpu import device_report
from tests.gpu.attention_checks import LIMITS
from tests.gpu.device_check import NAME_WIDTH, Check, Setting, run_check
from tests.gpu.device_report import CHECKS, run_apart
from tests.gpu.forced_plans import decode_plan, forced_plans
from tests.gpu.model_checks import compare_logits, decode_rate, opened
from tests.source_tree import ROOT

HERE = Setting("cpu", Path())


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of three layers."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")


def test_without_a_gpu_what_can_be_checked_is_and_the_rest_says_why_not() -> None:
    """One row a check, in order; those of a CPU hold, the others name the lack."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.gpu.device_report"],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    head, *rows = run.stdout.splitlines()
    assert head.startswith("check")
    assert "no CUDA device" in head
    assert len(rows) == len(CHECKS)
    held = {"zero copy", "raw addresses", "KV scatter", "tokens, tiny model"}
    held |= {f"torch, {dtype}" for dtype in LIMITS}
    kernels = {
        f"{name}, {dtype}" for name in ("thop", "flashinfer") for dtype in LIMITS
    }
    for name, row in zip(CHECKS, rows, strict=True):
        lack = "its kernels need a cuda" if name in kernels else "no CUDA device"
        result = "ok " if name in held else f"skipped: {lack}"
        assert row.startswith(f"{name:{NAME_WIDTH}}{result}")


def passing(setting: Setting) -> str:
    """Say where it ran."""
    return f"on {setting.device}"


def skipping(setting: Setting) -> str:
    """Want what is not there."""
    setting.need_cuda()
    return "never"


def failing(setting: Setting) -> str:
    """Raise."""
    raise ValueError(f"not on {setting.device}")


def dying(setting: Setting) -> str:
    """Take the process along, as a fault of the driver does."""
    os._exit(len(setting.device))


def hanging(setting: Setting) -> str:
    """Wait for a kernel that never ends."""
    threading.Event().wait()
    return setting.device


@pytest.mark.parametrize(
    ("check", "result", "numbers"),
    [
        (passing, "ok", "on cpu"),
        (skipping, "skipped: no CUDA device", ""),
        (failing, "failed: ValueError: not on cpu", ""),
    ],
)
def test_whatever_a_check_does_is_a_row(
    check: Check, result: str, numbers: str
) -> None:
    """It ran, it could not, or it failed; only the last is an error."""
    row = run_check("some", check, HERE)
    assert (row.name, row.result, row.numbers) == ("some", result, numbers)
    assert row.has_failed == (check is failing)


@pytest.mark.parametrize(
    ("check", "timeout_s", "result"),
    [
        (passing, 60, "ok"),
        (dying, 60, "failed: its process ended with 3"),
        (hanging, 1, "failed: no end after 1 s"),
    ],
)
def test_a_check_in_its_own_process_costs_its_own_row(
    check: Check, timeout_s: int, result: str
) -> None:
    """It passes its row on; dead or hanging it is a row as well."""
    assert run_apart("some", check, HERE, timeout_s).result == result


@pytest.mark.parametrize(
    ("seconds", "status", "result"),
    [
        ("60", 1, "failed: ValueError: not on c"),
        ("0", 0, "skipped: no time was left"),
    ],
)
def test_the_status_tells_of_failures_alone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: str,
    status: int,
    result: str,
) -> None:
    """What there was no time for is no failure."""
    monkeypatch.setattr(device_report, "CHECKS", {"bad": failing})
    monkeypatch.setattr(device_report, "_log_less", lambda: None)
    assert device_report.main(["--seconds", seconds]) == status
    assert (
        capsys.readouterr()
        .out.splitlines()[1]
        .startswith(f"{'bad':{NAME_WIDTH}}{result}")
    )


def test_forced_plans_compute_what_they_seem_to(tiny_model: Path) -> None:
    """Given transformers' own tokens, every row's likeliest is the next of them."""
    prompts = [(1, 2, 3), tuple(range(40))]
    answers = [a.token_ids for a in transformers_answers(tiny_model, prompts, 5)]
    found = []
    with opened("torch", tiny_model, "float32", "cpu") as loaded:
        for plan in forced_plans(prompts, answers, 32):
            logits = np.from_dlpack(loaded.executor.execute(plan).logits)
            found.append(logits.argmax(axis=1).tolist())
    assert found[:-1] == [list(step) for step in zip(*answers, strict=True)]


def test_decode_plans_grow_by_one_token_and_share_no_block() -> None:
    """Tables cover the new token and nothing beyond, within the pool."""
    for step in range(40):
        plan = decode_plan(step, 3, 20, 2, 32)
        assert plan.num_contexts == 0
        tables = [entry.block_ids for entry in plan.scheduled]
        for entry in plan.scheduled:
            assert entry.num_computed_tokens == 20 + step
            assert len(entry.token_ids) == 1
            assert len(entry.block_ids) == (20 + step) // 32 + 1
        ids = [block_id for table in tables for block_id in table]
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(range(1, 7))


def test_an_attention_that_is_off_is_seen(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is, it rounds no worse than torch; with a small error it does."""
    assert "deviations from float32" in compare_logits(tiny_model, "cpu", "torch")
    attend = TorchAttention.attend

    def off(
        self: TorchAttention, layer: int, qkv: torch.Tensor, output: torch.Tensor
    ) -> None:
        attend(self, layer, qkv, output)
        output.mul_(1.1)

    monkeypatch.setattr(TorchAttention, "attend", off)
    with pytest.raises(AssertionError, match="from float32, executor torch"):
        compare_logits(tiny_model, "cpu", "torch")


def test_decoding_is_counted(tiny_model: Path) -> None:
    """Tokens, time and bytes, of steps that were run."""
    numbers = decode_rate(tiny_model, "cpu", batch=3, num_steps=2)
    pattern = r"([\d,]+) tok/s, [\d.]+ ms a step, [\d,]+ GB/s, attention torch"
    found = re.fullmatch(pattern, numbers)
    assert found, numbers
    assert found[1] != "0"
