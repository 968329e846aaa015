"""Checks of executors on a device: answers beside each other's, and speed."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import ExecutorConfig
from hybrid.executors import create_executor
from hybrid.plugins.loader import load_plugins
from hybrid.testing import (
    LoadedExecutor,
    load_executor,
    transformers_answers,
    write_tiny_model,
)
from hybrid.testing.answer import check_answers
from hybrid.testing.engine_run import ids_of, run
from hybrid.testing.workload import GREEDY, NUM_TOKENS, Workload
from tests.gpu.device_check import Setting
from tests.gpu.forced_plans import decode_plan, forced_plans

BLOCK_SIZE = 32
CLOSE_CALL = 0.01
"""Of a tiny model's logits, which go up to 200: rounding in float32."""
SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": None,
    "bos_token_id": None,
}
BATCHES = (1, 8, 32, 128, 256)
NUM_CACHED = 512
"""Tokens in the cache of every sequence whose decoding is timed."""
NUM_STEPS = 50


def check_tokens(setting: Setting) -> str:
    """Both executors give transformers' tokens, whatever shares a step.

    In float32, in which no compiled kernel attends: all else of the model is seen.
    """
    folder = setting.folder / "tiny"
    if not folder.exists():
        write_tiny_model(folder, "llama")
    prompts = Workload(BLOCK_SIZE, 320).prompts
    expected = transformers_answers(folder, prompts, NUM_TOKENS)
    for name in ("torch", "tensorrt_llm"):
        with opened(name, folder, "float32", setting.device) as loaded:
            got = ids_of(run(loaded.engine(max_num_batched_tokens=64), prompts, GREEDY))
        check_answers(expected, got, tolerance=CLOSE_CALL, setting=name)
    return f"{len(prompts)} prompts, {NUM_TOKENS} tokens each"


def check_attention(setting: Setting, attention: str) -> str:
    """At SmolLM2's size, in bfloat16, one implementation is as near as can be."""
    setting.need_cuda()
    need_attention(attention)
    return compare_logits(smollm2_folder(setting), setting.device, attention)


def compare_logits(folder: Path, device: str, attention: str) -> str:
    """Hold an implementation's distance from float32 to that of executor torch.

    Both compute in bfloat16 and round in other places. Tokens are forced: from one to
    the next nothing builds on what rounding decided.
    """
    source = np.random.default_rng(0)
    prompts = [
        tuple(source.integers(0, 320, size).tolist()) for size in (1, 31, 32, 97)
    ]
    answers = [tuple(source.integers(0, 320, 8).tolist()) for _ in prompts]
    plans = list(forced_plans(prompts, answers, BLOCK_SIZE))
    exact = _logits("torch", folder, "float32", device, plans)
    plain = _logits("torch", folder, "bfloat16", device, plans)
    ours = _logits(
        "tensorrt_llm", folder, "bfloat16", device, plans, attention=attention
    )
    near, far = _distance(plain, exact), _distance(ours, exact)
    assert far <= 2 * near + 0.01, f"{far:.4f} from float32, executor torch {near:.4f}"
    return f"{far:.4f} deviations from float32, executor torch {near:.4f}"


def _logits(
    name: str,
    folder: Path,
    dtype: str,
    device: str,
    plans: Sequence[Any],
    **options: Any,
) -> NDArray[np.float32]:
    """``[rows of all steps, vocab_size]``."""
    with opened(name, folder, dtype, device, **options) as loaded:
        rows = [
            np.array(np.from_dlpack(loaded.executor.execute(plan).logits))
            for plan in plans
        ]
    return np.concatenate(rows)


def _distance(found: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    """The largest error of any row, in standard deviations of its logits."""
    errors = np.abs(found - exact).max(axis=1) / exact.std(axis=1)
    return float(errors.max())


def check_decoding(setting: Setting, batch: int) -> str:
    """Decode steps of many sequences: tokens a second, and bytes read a second."""
    setting.need_cuda()
    return decode_rate(smollm2_folder(setting), setting.device, batch, NUM_STEPS)


def decode_rate(folder: Path, device: str, batch: int, num_steps: int) -> str:
    """Time steps of ``batch`` generations each, the logits' way to the host included.

    The bytes are those that no step can do without: every weight once, every cached K
    and V once.
    """
    num_blocks = batch * -(-(NUM_CACHED + 2 * num_steps) // BLOCK_SIZE)
    with opened(
        "tensorrt_llm",
        folder,
        "bfloat16",
        device,
        num_blocks=num_blocks,
        max_num_seqs=batch,
    ) as loaded:
        spec = loaded.executor.kv_spec()
        attention = loaded.executor._runner._attention_class.name
        plans = [
            decode_plan(step, batch, NUM_CACHED, num_blocks // batch, BLOCK_SIZE)
            for step in range(2 * num_steps)
        ]
        for plan in plans[:num_steps]:
            loaded.executor.execute(plan)
        started = time.perf_counter()
        for plan in plans[num_steps:]:
            loaded.executor.execute(plan)
        seconds = (time.perf_counter() - started) / num_steps
    num_tokens = batch * (NUM_CACHED + 1.5 * num_steps)
    cached = num_tokens * spec.block_bytes(BLOCK_SIZE) / BLOCK_SIZE
    read = _weight_bytes(folder) + cached
    return (
        f"{batch / seconds:,.0f} tok/s, {seconds * 1e3:.2f} ms a step, "
        f"{read / seconds / 1e9:,.0f} GB/s, attention {attention}"
    )


def _weight_bytes(folder: Path) -> int:
    """In bfloat16; of tied embeddings the one copy that the head reads."""
    from safetensors import safe_open  # noqa: PLC0415 - comes with transformers

    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                total += int(np.prod(file.get_slice(name).get_shape()))
    return 2 * total


def need_attention(name: str) -> None:
    """Skip an implementation that cannot be used on this machine."""
    executor = create_executor(load_plugins(), "tensorrt_llm", has_model=True)
    with closing(executor):
        reasons = {one.name: one.reason for one in executor.implementations()}
    reason = reasons.get(name, "it is not among the implementations")
    if reason is not None:
        pytest.skip(reason)


def smollm2_folder(setting: Setting) -> Path:
    """A model of SmolLM2-135M's sizes, random, which bfloat16 holds exactly."""
    import transformers  # noqa: PLC0415 - slow, and not every check needs it

    folder = setting.folder / "smollm2"
    if not folder.exists():
        config = transformers.AutoConfig.for_model("llama", **SMOLLM2)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        # A check that is ended meanwhile must not leave half a model to the next.
        part = folder.with_suffix(".part")
        model.to(torch.bfloat16).save_pretrained(part)
        part.rename(folder)
    return folder


@contextmanager
def opened(
    name: str,
    folder: Path,
    dtype: str,
    device: str,
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 32,
    **options: Any,
) -> Iterator[LoadedExecutor]:
    """Load an executor with a pool; close it afterwards."""
    source = ModelSource(folder.name, folder, CheckpointFormat.HF_DIRECTORY)
    config = ExecutorConfig(
        dtype=dtype,
        device=device,
        block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        options=options,
    )
    executor = create_executor(load_plugins(), name, has_model=True)
    with closing(executor):
        yield load_executor(executor, source, config, num_blocks=num_blocks)
