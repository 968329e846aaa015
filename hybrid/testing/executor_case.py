"""What an author says about the executor under test, and the fixtures made of it."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import pytest
import structlog

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import Capabilities, Executor, ExecutorConfig
from hybrid.executors import create_executor
from hybrid.plugins.loader import load_plugins

from .answer import Answer
from .bench import Bench, Reference
from .loaded_executor import LoadedExecutor, load_executor
from .models import ARCHITECTURES, transformers_answers, write_tiny_model
from .recomputation import recomputed_answers
from .workload import CHUNKS, TokenIds, Workload

DTYPE_TOLERANCES: Final[Mapping[str, float]] = {"bfloat16": 12.0, "float16": 2.0}
"""For the tiny models, whose logits go up to 200: some roundings in a row, of one part
in 256 (in 2048) each, where weights, activations and cache are all in that dtype."""

FindSource = Callable[[str | None], ModelSource | None]


class Load(NamedTuple):
    """One way to load the executor."""

    architecture: str | None
    block_size: int
    dtype: str
    device: str

    @property
    def label(self) -> str:
        """For test ids and messages."""
        model = self.architecture or "no model"
        return f"{model}, block size {self.block_size}, {self.dtype}, {self.device}"


class ExecutorCase:
    """Attributes to be set, and methods that may be replaced, in a subclass."""

    executor: ClassVar[str | type[Executor]]
    """A registered name, or a class that is made without arguments."""
    executor_options: ClassVar[Mapping[str, Any]] = {}
    architectures: ClassVar[Sequence[str]] = ARCHITECTURES
    """Of the tiny models, as transformers names them; empty for an executor class that
    needs no model (of a registered one it is known)."""
    block_sizes: ClassVar[Sequence[int] | None] = None
    """``None``: all that it declares."""
    dtype: ClassVar[str] = "float32"
    """Of all tests but the one that tries every declared dtype."""
    device: ClassVar[str | None] = None
    """``None``: all that it declares, each in turn."""
    num_threads: ClassVar[int | None] = None
    logit_tolerance: ClassVar[float] = 0.0
    """0: tokens are equal to the reference's. Above: they may differ where the
    reference's two highest logits are no farther apart."""
    dtype_tolerances: ClassVar[Mapping[str, float]] = DTYPE_TOLERANCES
    """By dtype, what its rounding adds to ``logit_tolerance``; nothing where it is not
    named."""

    def make_executor(self) -> Executor:
        """Make a fresh executor; skip what runs where it is not installed."""
        if not isinstance(self.executor, str):
            return self.executor()
        plugins = load_plugins()
        entry = plugins.executors.find(self.executor)
        if entry is not None and entry.descriptor.missing is not None:
            pytest.skip(f"executor {self.executor}: {entry.descriptor.missing}")
        return create_executor(plugins, self.executor, has_model=True)

    @classmethod
    @cache
    def declared(cls) -> Capabilities:
        """What the executor declares, asked for once."""
        with closing(cls().make_executor()) as executor:
            return executor.capabilities()

    def write_model(self, folder: Path, architecture: str) -> ModelSource:
        """Write a tiny model into a new folder; here: a Hugging Face directory."""
        write_tiny_model(folder, architecture)
        return ModelSource(architecture, folder, CheckpointFormat.HF_DIRECTORY)

    def reference(
        self, loaded: LoadedExecutor, prompts: Sequence[TokenIds], num_tokens: int
    ) -> list[Answer]:
        """Continue prompts greedily by other means than the paged loop.

        Here: transformers in float32; without a model, each token by a fresh prefill.
        """
        if loaded.source is None:
            return recomputed_answers(loaded, prompts, num_tokens)
        return transformers_answers(loaded.source.path, prompts, num_tokens)

    def executor_config(self, load: Load) -> ExecutorConfig:
        """Choose what the executor is loaded with."""
        return ExecutorConfig(
            dtype=load.dtype,
            device=load.device,
            block_size=load.block_size,
            num_threads=self.num_threads,
            options=self.executor_options,
        )

    def first_load(self) -> Load:
        """Choose the load of tests that need one only."""
        return self._loads(set(), self.declared())[0]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Spread the tests over what the executor declares."""
        names = set(metafunc.fixturenames)
        capabilities = self.declared()
        if self.device is not None and self.device not in capabilities.devices:
            here = ", ".join(capabilities.devices)
            pytest.skip(
                f"no device {self.device} for executor {capabilities.name}, "
                f"it has {here} here"
            )
        if "bench" in names:
            loads = self._loads(names, capabilities)
            labels = [load.label for load in loads]
            metafunc.parametrize(
                "bench", loads, indirect=True, scope="class", ids=labels
            )
        if "chunk" in names:
            metafunc.parametrize("chunk", _chunks(capabilities))
        if "sampling_field" in names:
            metafunc.parametrize("sampling_field", _sampling_fields(capabilities))

    @pytest.fixture(scope="class")
    @classmethod
    def find_source(cls, tmp_path_factory: pytest.TempPathFactory) -> FindSource:
        """Models by architecture, written when first asked for."""

        @cache
        def find(architecture: str | None) -> ModelSource | None:
            if architecture is None:
                return None
            folder = tmp_path_factory.mktemp(architecture)
            return cls().write_model(folder, architecture)

        return find

    @pytest.fixture(scope="class")
    @classmethod
    def bench(
        cls, request: pytest.FixtureRequest, find_source: FindSource
    ) -> Iterator[Bench]:
        """The executor, loaded in one way; one at a time."""
        load, case = request.param, cls()
        with closing(case.make_executor()) as executor:
            source = find_source(load.architecture)
            loaded = case._load(executor, source, load)
            reference: Reference = case.reference
            if load.dtype != cls.dtype:
                own = load._replace(dtype=cls.dtype)
                reference = partial(case._reference_under, own)
            more = cls.dtype_tolerances.get(load.dtype, 0.0)
            yield Bench(
                loaded,
                reference,
                label=load.label,
                tolerance=cls.logit_tolerance + more,
            )

    @pytest.fixture
    def every_bench(self, bench: Bench) -> Bench:
        """The executor with every model and every block size in turn."""
        return bench

    @pytest.fixture
    def dtype_bench(self, bench: Bench) -> Bench:
        """The executor in every dtype that it declares in turn."""
        return bench

    @pytest.fixture(autouse=True)
    def _few_events(self) -> Iterator[None]:
        """Leave a line per step out of the report of what failed."""
        if structlog.is_configured():
            yield
            return
        warnings_only = structlog.make_filtering_bound_logger(logging.WARNING)
        structlog.configure(wrapper_class=warnings_only)
        yield
        structlog.reset_defaults()

    @pytest.fixture(autouse=True)
    def _whole_pools(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """No test leaves a request or an owned block behind."""
        if "bench" not in request.fixturenames:
            yield
            return
        bench: Bench = request.getfixturevalue("bench")
        yield
        bench.check_pools()

    def _loads(self, fixtures: set[str], capabilities: Capabilities) -> list[Load]:
        models = self._models()
        sizes = self.block_sizes or capabilities.block_sizes
        devices = capabilities.devices if self.device is None else (self.device,)
        dtypes: Sequence[str] = (self.dtype,)
        if "dtype_bench" in fixtures:
            dtypes = capabilities.dtypes
        if "every_bench" not in fixtures:
            models, sizes = models[:1], sizes[:1]
        return [Load(*one) for one in product(models, sizes, dtypes, devices)]

    def _load(
        self, executor: Executor, source: ModelSource | None, load: Load
    ) -> LoadedExecutor:
        num_blocks = Workload(load.block_size, 1).num_blocks
        config = self.executor_config(load)
        return load_executor(executor, source, config, num_blocks=num_blocks)

    def _reference_under(
        self,
        load: Load,
        loaded: LoadedExecutor,
        prompts: Sequence[TokenIds],
        num_tokens: int,
    ) -> list[Answer]:
        """Answer under another load of the same model: no dtype judges itself."""
        with closing(self.make_executor()) as executor:
            other = self._load(executor, loaded.source, load)
            return self.reference(other, prompts, num_tokens)

    def _models(self) -> Sequence[str | None]:
        needs_model = bool(self.architectures)
        if isinstance(self.executor, str):
            entry = load_plugins().executors.find(self.executor)
            needs_model = entry is None or entry.descriptor.needs_model
        if not needs_model:
            return (None,)
        assert self.architectures, f"{self.executor} needs a model: name architectures"
        return self.architectures


def _chunks(capabilities: Capabilities) -> Sequence[int | None]:
    if not capabilities.chunked_prefill:
        return (None,)
    # Those that are aligned are a block, or more than any prompt of the kit.
    return (1, None) if capabilities.aligned_chunks else CHUNKS


def _sampling_fields(capabilities: Capabilities) -> list[Any]:
    """Those that the executor itself must honour, or the reason why there is none."""
    if capabilities.sampling_fields and not capabilities.returns_logits:
        return list(capabilities.sampling_fields)
    reason = "it declares no sampling_fields"
    if capabilities.returns_logits:
        reason = "it returns logits: the engine samples"
    return [pytest.param("none", marks=pytest.mark.skip(reason=reason))]
