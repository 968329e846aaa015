"""TensorRT-LLM's ``Session`` around one engine: its tensors by name, and its steps.

Everything of the foreign library is behind this class, which knows no plan and no pool.

Source: TensorRT-LLM 1.2, ``runtime/session.py``, ``plugin/plugin.py``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from hybrid.scheduler.errors import CheckpointError, ExecutorFailed, UnsupportedFeature

from .optional_library import import_library

LOGITS: Final = "logits"
_ESSENTIAL: Final = (
    "input_ids",
    "sequence_length",
    "kv_cache_block_offsets",
    "host_kv_cache_pool_pointers",
)
"""Without these a step would be dropped in silence, or its cache."""
_FLOATS: Final = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
}
"""By TensorRT's name."""
_INTEGERS: Final = {"INT32": torch.int32, "INT64": torch.int64}
"""As above."""


def installed_version() -> str:
    """Name the version of the TensorRT-LLM that is here.

    Raises:
        UnsupportedFeature: it cannot be imported; says why.
    """
    package = import_library("tensorrt_llm")
    return str(getattr(package, "__version__", "of unknown version"))


class EngineSession:
    """An engine on the current GPU.

    Raises:
        CheckpointError: the file cannot be read, or TensorRT refuses it.
        UnsupportedFeature: it has tensors that nobody here knows; names them.
    """

    def __init__(self, path: Path, known: Mapping[str, torch.dtype]) -> None:
        """Load an engine.

        Args:
            path: of the serialised engine.
            known: dtypes of the inputs that can be given, by name.
        """
        if not path.stat().st_size:
            raise CheckpointError(f"{path} is empty")
        plugin = import_library("tensorrt_llm.plugin")
        try:
            plugin._load_plugin_lib()  # noqa: SLF001 - the only way to the attention
        except Exception as error:
            raise UnsupportedFeature(
                f"TensorRT-LLM's plugins cannot be loaded: {error}"
            ) from error
        self._runtime: Final[Any] = import_library("tensorrt_llm.runtime")
        try:
            # TensorRT copies what it needs: the bytes live no longer than this call.
            session = self._runtime.Session.from_serialized_engine(path.read_bytes())
            engine = session.engine
            names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
            self._session: Any = session
            self._dtypes: Final = {
                name: engine.get_tensor_dtype(name) for name in names
            }
            modes = {name: engine.get_tensor_mode(name).name for name in names}
        except Exception as error:  # whatever TensorRT raises, or None has not
            raise CheckpointError(
                f"{path} cannot be loaded: {error}; an engine runs on the kind of GPU "
                "that it was built on"
            ) from error
        self.inputs: Final = frozenset(
            name for name, mode in modes.items() if mode == "INPUT"
        )
        """Names of what it must be given."""
        self._check_tensors(path, known)

    @property
    def logits_dtype(self) -> torch.dtype:
        """Of its output."""
        return _FLOATS[self._dtypes[LOGITS].name]

    def output_shape(self, inputs: Mapping[str, torch.Tensor]) -> tuple[int, ...]:
        """Fix the shapes of the next step's inputs; shape of its logits.

        Args:
            inputs: all that the engine takes, and no more.

        Raises:
            ExecutorFailed: the engine was not built for these shapes.
        """
        infos = [
            self._runtime.TensorInfo(name, self._dtypes[name], tuple(tensor.shape))
            for name, tensor in inputs.items()
        ]
        try:
            outputs = self._session.infer_shapes(infos)
        except (ValueError, RuntimeError) as error:
            raise ExecutorFailed(f"the engine refused a step: {error}") from error
        (logits,) = (info for info in outputs if info.name == LOGITS)
        return tuple(logits.shape)

    def run(
        self, inputs: Mapping[str, torch.Tensor], logits: torch.Tensor, stream: int
    ) -> None:
        """Enqueue a step, whose shapes are fixed; does not wait for its end.

        Args:
            inputs: as ``output_shape`` had them.
            logits: of the shape and dtype that were told; written.
            stream: handle of the CUDA stream.

        Raises:
            ExecutorFailed: TensorRT could not enqueue it.
        """
        if not self._session.run(dict(inputs), {LOGITS: logits}, stream):
            raise ExecutorFailed("TensorRT could not enqueue a step of the engine")

    def close(self) -> None:
        """Free engine and context. Twice is no error."""
        self._session = None

    def _check_tensors(self, path: Path, known: Mapping[str, torch.dtype]) -> None:
        outputs = set(self._dtypes) - self.inputs
        strange = (self.inputs - set(known)) | (outputs - {LOGITS})
        if strange:
            raise UnsupportedFeature(
                f"{path}: it has tensors that are unknown here: "
                f"{', '.join(sorted(strange))}"
            )
        missing = {*_ESSENTIAL, LOGITS} - set(self._dtypes)
        if missing:
            raise UnsupportedFeature(
                f"{path}: it has no tensors {', '.join(sorted(missing))}"
            )
        for name in sorted(self.inputs):
            found = self._dtypes[name].name
            if _INTEGERS.get(found) != known[name]:
                raise UnsupportedFeature(
                    f"{path}: {name} is {found}, must be {known[name]}"
                )
        found = self._dtypes[LOGITS].name
        if found not in _FLOATS:
            raise UnsupportedFeature(
                f"{path}: {LOGITS} is {found}, must be one of {', '.join(_FLOATS)}"
            )
