"""Accepts a fresh engine only if it answers as transformers' own code does.

Configurations have more switches than any list of ours; what one of them changes shows
in the logits of a few tokens, run by both when an engine is built. A kept engine was
accepted once.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from numpy.typing import NDArray

from hybrid.backends.interface import ExecutorConfig
from hybrid.backends.usable_cpus import num_usable_cpus
from hybrid.scheduler.errors import UnsupportedFeature
from hybrid.scheduler.generate_request import GenerateRequest
from hybrid.scheduler.plan import ScheduledRequest, StepPlan
from hybrid.scheduler.sampling_params import SamplingParams

from .engine_directory import BuiltEngine
from .native_library import NativeLibrary
from .native_runner import NativeRunner

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_RELATIVE_ERRORS: Final = {"fp32": 1e-3, "bf16": 0.25, "int8": 0.25, "int4": 0.5}
"""Norm of the difference over the norm, of the middle row, by quantization. SmolLM2 is
off by 2e-6, 0.01, 0.07 and 0.06, a random model of 3 layers by 0.3 in 4 bits, another
model by 1 and more."""
_TOKENS: Final = tuple(range(1000, 1011))
"""Text, not the tokens of a vocabulary's beginning: behind those that mark turns and
files, logits depend on the last bit (of SmolLM2, a third in bfloat16)."""
_NUM_FIRST_CHUNK: Final = 6
_BLOCK_SIZE: Final = 8


def check_built(
    library: NativeLibrary,
    engine: BuiltEngine,
    directory: Path,
    *,
    is_rounded: bool = False,
    num_threads: int | None = None,
) -> None:
    """Run a few tokens through the engine, over an exact cache, and transformers.

    Args:
        library: the kernels.
        engine: as it was built.
        directory: the Hugging Face directory that it was built from.
        is_rounded: the directory's weights were rounded to 16 bits from a GGUF, which
            the engine was built from.
        num_threads: of both; ``None``: all cores that this process may keep busy.

    Raises:
        UnsupportedFeature: the answers differ, or are no numbers although all
            parameters are.
        CheckpointError: a parameter is not finite; names it.
    """
    num_threads = num_threads or num_usable_cpus()
    reference = _centred(_reference(directory, engine, num_threads))
    exact = replace(engine, kv_cache_dtype="float32")
    config = ExecutorConfig(
        block_size=_BLOCK_SIZE, max_num_seqs=len(_TOKENS), num_threads=num_threads
    )
    found = _centred(_run(NativeRunner(library, exact, config)))
    distances = np.linalg.norm(found - reference, axis=1)
    # Of the middle row: rounding makes of single rows whatever it likes, a wrong model
    # is wrong in most.
    lengths = np.maximum(np.linalg.norm(reference, axis=1), 1e-12)
    error = float(np.median(distances / lengths))
    limit = MAX_RELATIVE_ERRORS[engine.quantization]
    if is_rounded:
        limit = max(limit, MAX_RELATIVE_ERRORS["bf16"])
    if not error <= limit:
        raise UnsupportedFeature(
            f"the answer of the built engine ({engine.quantization}) differs from "
            f"transformers' by more than rounding explains (relative error "
            f"{error:.2g}, at most {limit:g})"
        )


def _centred(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """What all of a row have in common changes no answer, and may be most of it."""
    centred: NDArray[np.float32] = logits - logits.mean(axis=1, keepdims=True)
    return centred


def _reference(
    directory: Path, engine: BuiltEngine, num_threads: int
) -> NDArray[np.float32]:
    """Logits by transformers: ``[tokens, vocab_size]``."""
    # Imported here: only who builds an engine waits for them.
    import torch  # noqa: PLC0415

    from hybrid.backends.pytorch.model_loader import load_model  # noqa: PLC0415
    from hybrid.backends.pytorch.model_probe import not_finite  # noqa: PLC0415

    torch.set_num_threads(num_threads)
    # A quantised engine is small; so should be what is loaded beside it.
    dtype = "float32" if engine.quantization == "fp32" else "bfloat16"
    model = cast(
        "PreTrainedModel",
        load_model(directory, dtype=dtype, device="cpu", attn_implementation="eager"),
    )
    ids = torch.tensor([_ids(engine.shape.vocab_size)])
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0].float()
        if not logits.isfinite().all():
            raise not_finite(model)
    found: NDArray[np.float32] = logits.numpy()
    return found


def _run(runner: NativeRunner) -> NDArray[np.float32]:
    """Logits by a fresh engine, which is closed, in two chunks."""
    ids = _ids(runner.info.vocab_size)
    try:
        runner.allocate_kv(3)
        cut = _NUM_FIRST_CHUNK
        rows = [
            _logits(runner, _plan(chunk, start))
            for start, chunk in ((0, ids[:cut]), (cut, ids[cut:]))
        ]
    finally:
        runner.close()
    return np.concatenate(rows)


def _logits(runner: NativeRunner, plan: StepPlan) -> NDArray[np.float32]:
    logits = runner.run(plan).logits
    assert logits is not None, "every token's row is wanted"
    return np.array(np.from_dlpack(logits), np.float32)


def _plan(ids: tuple[int, ...], num_computed: int) -> StepPlan:
    request = GenerateRequest("check", ids, SamplingParams())
    entry = ScheduledRequest(request, 0, ids, num_computed, (2, 1), len(ids), 0)
    return StepPlan(num_computed, (entry,), 1, (), (), ())


def _ids(vocab_size: int) -> tuple[int, ...]:
    return tuple(token_id % vocab_size for token_id in _TOKENS)
