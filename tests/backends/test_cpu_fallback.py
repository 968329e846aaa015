"""Who answers where the compiled kernels cannot, and the one line that says why."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.cpu import implementations
from hybrid.backends.cpu.executor import CpuExecutor
from hybrid.backends.cpu.native_library import VARIANT_VARIABLE, NativeUnavailable
from hybrid.backends.interface import ExecutorConfig
from hybrid.scheduler import ConfigError, SamplingParams, UnsupportedFeature
from hybrid.testing import (
    LoadedExecutor,
    ids_of,
    load_executor,
    run,
    transformers_answers,
    write_tiny_model,
)
from tests.backends.onednn_stand import needs_int8

PROMPTS = [list(range(5, 45)), [9, 8, 7]]
NUM_TOKENS = 8
DYNAMIC_ROPE = {
    "rope_type": "dynamic",
    "rope_theta": 1e4,
    "factor": 2.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find none, as where no compiler was."""

    def find() -> None:
        raise NativeUnavailable("no kernels were built")

    monkeypatch.setattr(implementations, "load_library", find)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find some, which no test here comes to call."""
    _find_variants(monkeypatch, "portable", "avx2")


def _find_variants(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    library = SimpleNamespace(variants=lambda: names, choose_variant=lambda: names[-1])
    monkeypatch.setattr(implementations, "load_library", lambda: library)


@pytest.fixture
def no_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find a torch without oneDNN's."""

    def check() -> None:
        raise UnsupportedFeature("no 8-bit products")

    monkeypatch.setattr("hybrid.backends.cpu.onednn_runner.check_int8_products", check)


@contextmanager
def loaded_cpu(
    folder: Path,
    *,
    dtype: str = "float32",
    form: CheckpointFormat = CheckpointFormat.HF_DIRECTORY,
    **options: Any,
) -> Iterator[tuple[LoadedExecutor, list[EventDict]]]:
    """Load the executor; beside it, its lines about who stands in."""
    config = ExecutorConfig(dtype=dtype, num_threads=1, options=options)
    source = ModelSource("tiny", folder, form)
    with closing(CpuExecutor()) as executor:
        with capture_logs() as events:
            loaded = load_executor(executor, source, config, num_blocks=99)
        yield loaded, [event for event in events if event["event"] == "cpu.fallback"]


def check_answers(loaded: LoadedExecutor, folder: Path) -> None:
    """Compare with transformers, token by token."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    expected = transformers_answers(folder, PROMPTS, NUM_TOKENS)
    found = ids_of(run(loaded.engine(), PROMPTS, params))
    assert found == [list(answer.token_ids) for answer in expected]


def check_line(
    lines: list[EventDict], implementation: str, reasons: Mapping[str, str]
) -> None:
    """Assert that there is one line: who, and why not those before."""
    (line,) = lines
    assert line["log_level"] == "warning"
    assert line["implementation"] == implementation
    assert line["reasons"].keys() == reasons.keys()
    for name, words in reasons.items():
        assert words in line["reasons"][name]


@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_onednn_answers(tmp_path: Path) -> None:
    """In float32 with transformers' tokens."""
    folder = write_tiny_model(tmp_path, "llama")
    with loaded_cpu(folder) as (loaded, lines):
        check_line(lines, "onednn", {"native": "no kernels were built"})
        check_answers(loaded, folder)


@needs_int8
@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_weights_have_eight_bits(tmp_path: Path) -> None:
    """As the kernels' would in bfloat16; a cache as theirs."""
    folder = write_tiny_model(tmp_path, "llama")
    with loaded_cpu(folder, dtype="bfloat16") as (loaded, lines):
        check_line(lines, "onednn", {"native": "no kernels were built"})
        assert loaded.executor.kv_spec().dtype == "bfloat16"
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
        assert all(ids_of(run(loaded.engine(), PROMPTS, params)))


@pytest.mark.usefixtures("no_kernels", "no_products")
def test_without_products_torch_answers(tmp_path: Path) -> None:
    """Both reasons in one line."""
    folder = write_tiny_model(tmp_path, "llama")
    with loaded_cpu(folder, dtype="bfloat16") as (loaded, lines):
        reasons = {"native": "no kernels were built", "onednn": "no 8-bit products"}
        check_line(lines, "torch", reasons)
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
        assert all(ids_of(run(loaded.engine(), PROMPTS, params)))


@pytest.mark.usefixtures("kernels")
def test_a_model_of_another_shape_goes_to_torch(tmp_path: Path) -> None:
    """What no kernel runs, oneDNN under the same model does not either."""
    folder = write_tiny_model(tmp_path, "gemma2")
    with loaded_cpu(folder) as (loaded, lines):
        check_line(lines, "torch", {"native": "gemma2"})
        check_answers(loaded, folder)


@pytest.mark.usefixtures("no_kernels")
def test_a_model_of_another_shape_goes_to_torch_without_kernels(tmp_path: Path) -> None:
    """Each says why not."""
    folder = write_tiny_model(tmp_path, "gemma2")
    with loaded_cpu(folder) as (loaded, lines):
        check_line(lines, "torch", {"native": "no kernels", "onednn": "gemma2"})
        check_answers(loaded, folder)


@pytest.mark.usefixtures("kernels")
def test_float16_goes_to_torch(tmp_path: Path) -> None:
    """No kernel computes in it."""
    folder = write_tiny_model(tmp_path, "llama")
    with loaded_cpu(folder, dtype="float16") as (loaded, lines):
        check_line(lines, "torch", {"native": "dtype float16"})
        assert loaded.executor.kv_spec().dtype == "float16"


def test_kernels_that_are_slow_here_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The portable ones alone: a stand-in is faster, and the line says so."""
    _find_variants(monkeypatch, "portable")
    monkeypatch.delenv(VARIANT_VARIABLE, raising=False)
    folder = write_tiny_model(tmp_path, "llama")
    with loaded_cpu(folder) as (loaded, lines):
        check_line(lines, "onednn", {"native": "only the portable kernels run here"})
        check_answers(loaded, folder)
    assert "only the portable" in str(implementations.explain()[0].reason)


@pytest.mark.parametrize("by", ["option", "variable"])
def test_slow_kernels_run_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """By either name; they get as far as the model."""
    _find_variants(monkeypatch, "portable")
    monkeypatch.setenv(VARIANT_VARIABLE, "portable" if by == "variable" else "")
    reached = RuntimeError("the kernels were taken")

    def find(*_: object) -> None:
        raise reached

    monkeypatch.setattr(implementations, "find_or_build", find)
    folder = write_tiny_model(tmp_path, "llama")
    options = {"implementation": "native"} if by == "option" else {}
    with pytest.raises(RuntimeError, match="were taken"), loaded_cpu(folder, **options):
        pass


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("dtype", "name", "value"),
    [
        ("bfloat16", "quantization", "int4"),
        ("float32", "quantization", "bf16"),
        ("float16", "quantization", "fp32"),
        ("float32", "kv_cache_dtype", "int8"),
    ],
)
@pytest.mark.parametrize("implementation", ["auto", "torch"])
def test_what_torch_does_not_have_is_refused_not_dropped(
    tmp_path: Path, dtype: str, name: str, value: str, implementation: str
) -> None:
    """Option, value, and why it would come to torch."""
    folder = write_tiny_model(tmp_path, "gemma2")
    why = r"\(native: .*(gemma2|float16)" if implementation == "auto" else "leave"
    with (
        pytest.raises(ConfigError, match=f"{name} is {value}, but the torch.*{why}"),
        loaded_cpu(folder, dtype=dtype, implementation=implementation, **{name: value}),
    ):
        pass


@pytest.mark.usefixtures("kernels")
def test_what_torch_has_all_the_same_is_taken(tmp_path: Path) -> None:
    """Asked for by name, it is what torch does in this dtype."""
    folder = write_tiny_model(tmp_path, "gemma2")
    asked = {"quantization": "fp32", "kv_cache_dtype": "float32"}
    with loaded_cpu(folder, **asked) as (_, lines):
        check_line(lines, "torch", {"native": "gemma2"})


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("implementation", ["onednn", "torch"])
def test_who_is_asked_for_answers_without_a_line(
    tmp_path: Path, implementation: str
) -> None:
    """Nothing was passed over."""
    folder = write_tiny_model(tmp_path, "llama")
    with loaded_cpu(folder, implementation=implementation) as (loaded, lines):
        assert lines == []
        check_answers(loaded, folder)


@pytest.mark.usefixtures("no_kernels")
def test_kernels_that_are_asked_for_have_no_stand_in(tmp_path: Path) -> None:
    """Nor does what was built for them."""
    folder = write_tiny_model(tmp_path, "llama")
    with (
        pytest.raises(NativeUnavailable, match="no kernels were built"),
        loaded_cpu(folder, implementation="native"),
    ):
        pass
    with (
        pytest.raises(NativeUnavailable, match="no kernels were built"),
        loaded_cpu(folder, form=CheckpointFormat.COMPILED),
    ):
        pass


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(
    "asked", [{"quantization": "int4"}, {"kv_cache_dtype": "int8"}]
)
def test_what_was_asked_for_is_not_dropped_on_the_way(
    tmp_path: Path, asked: dict[str, str]
) -> None:
    """An option that only the kernels have is an error without them."""
    folder = write_tiny_model(tmp_path, "llama")
    with (
        pytest.raises(ConfigError, match="which needs the compiled kernels"),
        loaded_cpu(folder, **asked),
    ):
        pass


@pytest.mark.usefixtures("no_kernels")
def test_what_nobody_can_run_is_refused_with_every_reason(tmp_path: Path) -> None:
    """The last one's words alone would hide what could be mended."""
    folder = write_tiny_model(tmp_path, "llama", rope_parameters=DYNAMIC_ROPE)
    message = "native: no kernels.*onednn: .*dynamic rotary.*torch: .*dynamic rotary"
    with pytest.raises(UnsupportedFeature, match=message), loaded_cpu(folder):
        pass
