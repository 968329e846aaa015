"""What the cpu executor does beyond the conformance kit."""

import gc
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hybrid import LLM
from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu import executor as executor_module
from hybrid.backends.cpu import native_runner
from hybrid.backends.cpu.executor import CpuExecutor
from hybrid.backends.interface import ExecutorConfig
from hybrid.scheduler import ConfigError, ExecutorFailed
from hybrid.testing import write_tiny_model
from tests.backends.cpu_stand import entry, load_cpu, logits_in_company, plan_of
from tests.backends.tiny_checkpoints import make_model, write_gguf
from tests.source_tree import ROOT

IDS = list(range(40, 75))
WARM_START = """
import sys

# Their import fails from here on.
sys.modules |= dict.fromkeys(("torch", "transformers"))

from pathlib import Path
from tests.backends.cpu_stand import entry, load_cpu, plan_of

folder, cache = map(Path, sys.argv[1:])
loaded = load_cpu(folder, cache_dir=cache)
result = loaded.executor.execute(plan_of(entry("a", [5, 6], 0, [1], 1)))
print(result.logits.shape)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama; nobody writes there."""
    return write_tiny_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.mark.parametrize(
    ("token_id", "block_id"), [(320, 1), (-1, 1), (1 << 40, 1), (5, 401), (5, -1)]
)
def test_an_id_out_of_range_is_refused_and_the_model_lives_on(
    folder: Path, token_id: int, block_id: int
) -> None:
    """Nothing is read or written outside of table and pool; the next step is right."""
    loaded = load_cpu(folder)
    with closing(loaded.executor):
        wanted = logits_in_company(loaded, IDS, [len(IDS)])
        with pytest.raises(ExecutorFailed, match="out of range"):
            loaded.executor.execute(
                plan_of(entry("bad", [5, token_id], 0, [block_id], 1))
            )
        assert np.array_equal(logits_in_company(loaded, IDS, [len(IDS)]), wanted)


def test_two_models_of_one_process_do_not_meet(tmp_path: Path, folder: Path) -> None:
    """Step by step in turn, each answers as alone."""
    other_folder = write_tiny_model(tmp_path, "qwen3", vocab_size=333)
    one, other = load_cpu(folder), load_cpu(other_folder, quantization="fp32")
    with closing(one.executor), closing(other.executor):
        alone = [logits_in_company(model, IDS, [35]) for model in (one, other)]
        assert alone[0].shape != alone[1].shape
        for _ in range(3):
            for model, wanted in zip((one, other), alone, strict=True):
                assert np.array_equal(logits_in_company(model, IDS, [35]), wanted)
    with closing(load_cpu(folder).executor):
        pass


def test_models_that_are_dropped_leave_no_threads(tmp_path: Path, folder: Path) -> None:
    """Who forgets to close has forgotten an object, not memory and threads."""
    tasks = Path("/proc/self/task")
    with closing(load_cpu(folder, cache_dir=tmp_path).executor):
        pass  # whatever libraries start for good, they have started now
    before = set(tasks.iterdir())  # of others, which may end meanwhile
    for _ in range(10):
        loaded = load_cpu(folder, cache_dir=tmp_path)
        assert set(tasks.iterdir()) - before
        del loaded
        gc.collect()
    assert not set(tasks.iterdir()) - before


def test_more_rows_than_sequences_are_given_in_full(folder: Path) -> None:
    """Prompt log-probabilities want a row for each token."""
    config = ExecutorConfig(
        dtype="bfloat16", block_size=16, max_num_seqs=2, num_threads=1
    )
    source = ModelSource("tiny", folder, CheckpointFormat.HF_DIRECTORY)
    with closing(CpuExecutor()) as executor:
        executor.load(source, config)
        executor.allocate_kv(8)
        share = entry("a", IDS, 0, (3, 1, 2), len(IDS))
        many = np.asarray(executor.execute(plan_of(share)).logits).copy()
        last = np.asarray(
            executor.execute(plan_of(share._replace(num_logits_rows=1))).logits
        )
    assert many.shape == (len(IDS), 320)
    assert np.array_equal(many[-1:], last)


def test_logits_that_nobody_needs_are_not_written(folder: Path) -> None:
    """The ids are those of the same step with them, alone as in company."""
    shares = [
        entry(f"{i}", IDS[i:], 0, (3 * i + 1, 3 * i + 2, 3 * i + 3), 1)
        for i in range(9)
    ]
    loaded = load_cpu(folder)
    with closing(loaded.executor) as executor:
        for count in (9, 1, 4):
            plan = plan_of(*shares[:count])
            logits = np.asarray(executor.execute(plan).logits)
            wanted = logits.argmax(axis=1).tolist()
            logits[:] = 7
            result = executor.execute(replace(plan, needs_logits=False))
            assert result.logits is None
            assert list(result.likeliest_ids or ()) == wanted
            assert (logits == 7).all()


def test_a_step_without_rows_gives_none(folder: Path) -> None:
    """A chunk that is not the last wants no logits."""
    loaded = load_cpu(folder)
    with closing(loaded.executor):
        result = loaded.executor.execute(plan_of(entry("a", IDS, 0, (3, 1, 2), 0)))
        assert np.asarray(result.logits).shape == (0, 320)


def test_an_int8_cache_has_cells_of_its_own(folder: Path) -> None:
    """Their scales lie beside them, so that no layout describes them."""
    loaded = load_cpu(folder, kv_cache_dtype="int8")
    with closing(loaded.executor):
        spec = loaded.executor.kv_spec()
        assert spec.dtype == "int8"
        # K and V of 2 heads, 16 tokens: 16 numbers and a scale each.
        assert spec.cell_bytes == 2 * 2 * 16 * (16 + 4)
        assert loaded.layout is None


def test_memory_that_weights_will_take_is_not_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mapped ones the machine counts as available until they are read."""
    monkeypatch.setattr(native_runner, "free_host_memory_bytes", lambda: 1 << 30)
    left = {}
    for pages in ("mapped", "huge"):
        loaded = load_cpu(folder, quantization="fp32", weight_pages=pages)
        with closing(loaded.executor):
            left[pages] = loaded.executor.kv_spec().available_bytes
    stored = (folder / "model.safetensors").stat().st_size
    assert left["huge"] < 1 << 30  # there are logits, too
    assert stored // 2 < left["huge"] - left["mapped"] < 2 * stored


@pytest.mark.parametrize(
    ("quantization", "dtype", "kv_dtype"),
    [
        ("auto", "float32", "float32"),
        ("auto", "bfloat16", "int8"),
        ("fp32", "bfloat16", "float32"),
        ("bf16", "float32", "bfloat16"),
        ("int8", "float32", "int8"),
    ],
)
def test_the_cache_is_as_exact_as_the_weights(
    folder: Path, quantization: str, dtype: str, kv_dtype: str
) -> None:
    """Unless it is chosen, it has as many bits."""
    loaded = load_cpu(folder, quantization=quantization, dtype=dtype)
    with closing(loaded.executor):
        assert loaded.executor.kv_spec().dtype == kv_dtype


def test_the_next_start_needs_neither_torch_nor_transformers(
    tmp_path: Path, folder: Path
) -> None:
    """What was built is run with numpy alone."""
    with closing(load_cpu(folder, cache_dir=tmp_path).executor):
        pass
    run = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", WARM_START, str(folder), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert run.stdout.strip() == "(1, 320)"


def test_exact_weights_of_a_gguf_are_its_own(tmp_path: Path) -> None:
    """They are held against a conversion that rounded them, and accepted."""
    write_gguf(tmp_path / "tiny.gguf", make_model("llama"))
    with LLM(
        str(tmp_path / "tiny.gguf"),
        executor="cpu",
        executor_options={"quantization": "fp32", "implementation": "native"},
        dtype="bfloat16",
        num_kv_blocks=8,
        skip_tokenizer_init=True,
    ) as llm:
        assert llm.generate([[5, 6, 7]], use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize("implementation", ["onednn", "torch"])
def test_a_stand_in_has_as_many_threads_as_there_are_cores(
    folder: Path, monkeypatch: pytest.MonkeyPatch, implementation: str
) -> None:
    """Torch's own choice is the machine's, of which a container may use a part."""
    monkeypatch.setattr(executor_module, "num_usable_cpus", lambda: 3)
    source = ModelSource("tiny", folder, CheckpointFormat.HF_DIRECTORY)
    before = torch.get_num_threads()
    try:
        with closing(CpuExecutor()) as executor:
            options = {"implementation": implementation}
            executor.load(source, ExecutorConfig(options=options))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("source", [None, CheckpointFormat.GGUF])
def test_what_is_no_directory_is_refused(
    folder: Path, source: CheckpointFormat | None
) -> None:
    """The engine converts a GGUF first; the message says what is needed."""
    model = None if source is None else ModelSource("tiny", folder, source)
    with (
        closing(CpuExecutor()) as executor,
        pytest.raises(ConfigError, match="needs a Hugging Face directory"),
    ):
        executor.load(model, replace(ExecutorConfig(), dtype="float32"))
