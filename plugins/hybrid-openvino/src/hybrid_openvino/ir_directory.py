"""OpenVINO IR on disk: directories that were exported, and those we convert into.

A converted checkpoint is kept in the executor's cache folder as an ordinary IR
directory, named by what it was made from, so that the next start only reads it.
"""

import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import openvino as ov
import structlog

from hybrid.api import (
    CheckpointError,
    CheckpointFormat,
    ExecutorConfig,
    ModelSource,
    ProgressCallback,
    UnsupportedFeature,
    keep_directory,
)

from .options import OpenVINOOptions
from .runtime import core

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

log = structlog.get_logger()

MODEL_FILE: Final = "openvino_model.xml"
CONVERTER_VERSION: Final = 1
"""Raised when the same checkpoint would convert to something else."""
_WINDOWS_INFO: Final = ["hybrid", "sliding_windows"]
_COPIED: Final = ("*.json", "*.jinja", "tokenizer.model")
_MAX_NAME: Final = 60


@dataclass(frozen=True, slots=True)
class LoadedIR:
    """A stateful model, not yet paged, and what its configuration says."""

    model: ov.Model
    windows: Sequence[int] | None
    """Sliding window of each layer; ``None``: as the export says."""
    architecture: str
    max_model_len: int


def load_ir(
    source: ModelSource,
    options: OpenVINOOptions,
    config: ExecutorConfig,
    progress: ProgressCallback | None,
) -> LoadedIR:
    """Read an IR directory, or convert a checkpoint and keep the result.

    Raises:
        CheckpointError: the files are at fault.
        UnsupportedFeature: the model cannot be converted.
    """
    settings = _read_config(source.path)
    text = settings.get_text_config()
    directory = source.path
    if source.format is CheckpointFormat.COMPILED:
        model = _read_model(directory)
    else:
        model = _converted(source, options, config.cache_dir, progress)
    names = settings.architectures or [settings.model_type]
    return LoadedIR(model, _windows(model, text), names[0], _max_model_len(text))


def _read_config(directory: Path) -> "PreTrainedConfig":
    from transformers import AutoConfig  # noqa: PLC0415 - seconds to import

    if not (directory / "config.json").is_file():
        raise CheckpointError(
            f"{directory} has no config.json, which says what model it is; an export "
            "by optimum-cli writes one"
        )
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises whatever broke
        raise CheckpointError(
            f"{directory}: config.json cannot be read: {error}"
        ) from error
    return config


def _max_model_len(config: "PreTrainedConfig") -> int:
    found = getattr(config, "max_position_embeddings", None)
    if not isinstance(found, int) or found < 1:
        raise UnsupportedFeature(
            f"executor openvino cannot run {config.model_type}: its configuration's "
            f"max_position_embeddings is {found!r}"
        )
    return found


def _read_model(directory: Path) -> ov.Model:
    path = directory / MODEL_FILE
    try:
        return core().read_model(path)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} cannot be read: {str(error).strip()[:300]}"
        ) from error


def _converted(
    source: ModelSource,
    options: OpenVINOOptions,
    cache_dir: Path | None,
    progress: ProgressCallback | None,
) -> ov.Model:
    """Read what an earlier start kept, or convert and keep it."""
    if cache_dir is None:
        return _convert(source, options, progress)
    target = cache_dir / _directory_name(source, options)
    if _is_whole(target):
        return _read_model(target)
    if target.exists():
        log.warning("openvino.conversion_broken", directory=str(target))
    model = _convert(source, options, progress)
    try:
        keep_directory(
            target, lambda working: _write_ir(model, source.path, working), _is_whole
        )
        # What the cache holds is what runs, and it lies in mapped files.
        return _read_model(target)
    except (OSError, RuntimeError, CheckpointError) as error:
        # OpenVINO says of a full disk that a stream failed.
        log.warning(
            "openvino.conversion_not_kept", directory=str(target), reason=str(error)
        )
        return model


def _is_whole(directory: Path) -> bool:
    """Whether a kept conversion is there and can be read.

    A machine that lost power may keep a file's name and lose its bytes.
    """
    try:
        _read_model(directory)
    except CheckpointError:
        return False
    return True


def _write_ir(model: ov.Model, origin: Path, directory: Path) -> None:
    """Write the model and, beside it, what belongs to it: a directory of its own."""
    ov.save_model(model, directory / MODEL_FILE, compress_to_fp16=False)
    for pattern in _COPIED:
        for file in origin.glob(pattern):
            if not file.name.endswith(".index.json"):
                shutil.copy(file, directory)


def _convert(
    source: ModelSource, options: OpenVINOOptions, progress: ProgressCallback | None
) -> ov.Model:
    from .conversion_check import check_conversion  # noqa: PLC0415 - torch
    from .traced_model import trace_model  # noqa: PLC0415 - torch
    from .weight_storage import store_weights  # noqa: PLC0415 - with the conversion

    traced = trace_model(source.path, progress)
    windows = ",".join(map(str, traced.windows))
    check_conversion(traced)
    traced.model.set_rt_info(windows, _WINDOWS_INFO)
    return store_weights(traced.model, options.weights, options.int4_group_size)


def _directory_name(source: ModelSource, options: OpenVINOOptions) -> str:
    group_size = options.int4_group_size if options.weights == "int4" else None
    key = (source.fingerprint, options.weights, group_size)
    made_by = (CONVERTER_VERSION, ov.get_version())
    digest = hashlib.sha256(repr((key, made_by)).encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", source.path.name).strip(".-")[:_MAX_NAME]
    return f"{name}-{options.weights}-{digest}"


def _windows(model: ov.Model, config: "PreTrainedConfig") -> Sequence[int] | None:
    """Find the windows: noted by our conversion, else said by the configuration."""
    if model.has_rt_info(_WINDOWS_INFO):
        noted: Any = model.get_rt_info(_WINDOWS_INFO)
        return _noted_windows(noted.astype(str), config.num_hidden_layers)
    window = getattr(config, "sliding_window", None)
    if not window:
        return None
    num_layers: int = config.num_hidden_layers
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * num_layers
    return [window if kind == "sliding_attention" else 0 for kind in types]


def _noted_windows(text: str, num_layers: int) -> Sequence[int]:
    windows = text.split(",")
    if len(windows) != num_layers or not all(window.isdecimal() for window in windows):
        raise CheckpointError(
            f"{MODEL_FILE} notes the sliding windows {text[:80]!r}, must be a number "
            f"for each of {num_layers} layers"
        )
    return [int(window) for window in windows]
