"""Peak memory of transformers, eager in bfloat16, beside that of a built engine.

Each in a process of its own, mapped files included; the same prompts, greedy. A peak is
of the generation, or of the whole process from its start. What was resident before the
model came (Python and the libraries) is told apart. The engine is built before.

python -m tests.bench.cpu_memory --batch 8 --tokens 128
"""

import argparse
import multiprocessing
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Work:
    """What both generate."""

    model: str
    batch: int
    num_tokens: int
    """Of each prompt, and of each answer."""
    executor_options: dict[str, Any]

    def prompts(self) -> list[list[int]]:
        """Random ids."""
        ids = random.Random(0)
        shape = range(self.batch), range(self.num_tokens)
        return [[ids.randrange(40_000) for _ in shape[1]] for _ in shape[0]]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    before: int
    """Resident once everything is imported."""
    peak: int
    """While it generated."""
    peak_ever: int
    """From the start of the process: its load is in it."""
    weights: int
    kv: int
    """Of the tokens that were there in the end."""
    arena: int | None
    """Of activations, where that is planned."""


def resident(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process, bytes."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def forget_peak() -> int:
    """Let ``VmHWM`` begin anew; what it was, bytes."""
    peak = resident("VmHWM")
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    return peak


def transformers_memory(work: Work) -> Memory:
    """``generate`` on the model's weights in bfloat16."""
    import torch  # noqa: PLC0415 - in its own process only
    import transformers  # noqa: PLC0415

    from hybrid.backends.checkpoint.gguf_conversion import convert_gguf  # noqa: PLC0415
    from hybrid.models.cache import converted_dir  # noqa: PLC0415
    from hybrid.models.resolve import resolve_model  # noqa: PLC0415

    source = resolve_model(work.model)
    if source.path.suffix == ".gguf":
        source = convert_gguf(source, dtype="bfloat16", cache_dir=converted_dir())
    llama = transformers.AutoModelForCausalLM
    before = resident("VmRSS")
    model: Any = llama.from_pretrained(source.path, dtype=torch.bfloat16)
    model.eval()
    model.generation_config.eos_token_id = None
    peak_ever = forget_peak()
    ids = torch.tensor(work.prompts())
    with torch.inference_mode():
        answer = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=work.num_tokens,
            do_sample=False,
            return_dict_in_generate=True,
        )
    peak = resident("VmHWM")
    layers = answer.past_key_values.layers
    return Memory(
        before=before,
        peak=peak,
        peak_ever=max(peak, peak_ever),
        weights=sum(weight.nbytes for weight in model.parameters()),
        kv=sum(layer.keys.nbytes + layer.values.nbytes for layer in layers),
        arena=None,
    )


def engine_memory(work: Work) -> Memory:
    """Our engine on what was built of the same model."""
    from hybrid import LLM, SamplingParams  # noqa: PLC0415 - in its own process only
    from hybrid.backends.cpu.native_model import ARENAS_PER_THREAD  # noqa: PLC0415
    from hybrid.backends.cpu.native_runner import NativeRunner  # noqa: PLC0415
    from hybrid.backends.usable_cpus import num_usable_cpus  # noqa: PLC0415
    from hybrid.events import configure_logging  # noqa: PLC0415

    configure_logging("warning")
    before = resident("VmRSS")
    llm = LLM(
        work.model,
        executor="cpu",
        executor_options=work.executor_options,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,  # transformers has none here, either
    )
    runner = getattr(llm.llm_engine.executor, "_runner", None)
    if not isinstance(runner, NativeRunner):
        raise TypeError(f"it runs on {type(runner).__name__}, not on our kernels")
    peak_ever = forget_peak()
    params = SamplingParams(
        temperature=0, max_tokens=work.num_tokens, ignore_eos=True, detokenize=False
    )
    llm.generate(work.prompts(), params, use_tqdm=False)
    peak = resident("VmHWM")
    stats = llm.llm_engine.stats()
    num_blocks = stats.kv_peak_allocated_slots // stats.kv_block_size
    memory = runner._engine.memory
    return Memory(
        before=before,
        peak=peak,
        peak_ever=max(peak, peak_ever),
        weights=sum(memory.weights_by_format.values()),
        kv=num_blocks * runner.kv_spec().block_bytes(stats.kv_block_size),
        arena=memory.arena_bytes * ARENAS_PER_THREAD * num_usable_cpus(),
    )


def in_own_process(measure: Callable[[Work], Memory], work: Work) -> Memory:
    """Run it where nothing else was loaded."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(measure, work).result()


def main() -> None:
    """Print both, and what is saved."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128, help="in, and out")
    options = parser.parse_args()
    executor_options = {
        "quantization": options.quantization,
        "kv_cache_dtype": options.kv_cache_dtype,
        "implementation": "native",
    }
    work = Work(options.model, options.batch, options.tokens, executor_options)
    eager = in_own_process(transformers_memory, work)
    in_own_process(engine_memory, Work(options.model, 1, 1, executor_options))
    ours = in_own_process(engine_memory, work)
    rows = {
        "weights": (eager.weights, ours.weights),
        "K and V": (eager.kv, ours.kv),
        "activations, planned": (eager.arena, ours.arena),
        "Python and libraries": (eager.before, ours.before),
        "peak above those": (eager.peak - eager.before, ours.peak - ours.before),
        "peak RSS": (eager.peak, ours.peak),
        "peak RSS, load included": (eager.peak_ever, ours.peak_ever),
    }
    print(f"{'MiB':26}{'transformers':>14}{options.quantization:>10}{'saved':>9}")
    for name, (theirs, own) in rows.items():
        cells = [f"{value / MIB:.1f}" if value else "-" for value in (theirs, own)]
        saved = f"{1 - own / theirs:.1%}" if theirs and own else ""
        print(f"{name:26}{cells[0]:>14}{cells[1]:>10}{saved:>9}")


if __name__ == "__main__":
    main()
