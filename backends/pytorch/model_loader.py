"""Loads a Hugging Face directory into transformers' own model, or says what is wrong.

No parameter is ever left at its random initial value: what the files lack, have too
much of, or have in another shape is an error that names it.
"""

import logging
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import torch

from hybrid.backends.checkpoint.config_sizes import check_config_sizes
from hybrid.backends.checkpoint.garbage_collection import paused_garbage_collection
from hybrid.backends.checkpoint.json_file import read_json_object
from hybrid.backends.checkpoint.safetensors_index import (
    INDEX_NAME,
    SafetensorsSummary,
    check_safetensors,
)
from hybrid.backends.interface import ProgressCallback
from hybrid.scheduler.errors import CheckpointError, ConfigError, UnsupportedFeature

_DTYPES: Final = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
_FLOATING: Final = {"F64", "F32", "F16", "BF16"}
_QUANTIZATION_FILES: Final = ("quantize_config.json", "quant_config.json")
_QUANTIZATION_KEYS: Final = ("quantization_config", "compression_config")
_MAX_NAMED: Final = 5
_MAX_MADE_UP: Final = 1 << 26
"""Numbers beyond what the files hold that may be made before the misfit is reported:
made in half a second, and more than the buffers of any model."""
_NAMED_SIZES: Final = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
)


def load_model(
    directory: Path,
    *,
    dtype: str,
    device: str,
    attn_implementation: str,
    progress: ProgressCallback | None = None,
) -> torch.nn.Module:
    """Load the model in ``directory``, ready for inference.

    Where config.json ties the embeddings but the files hold another ``lm_head.weight``,
    the files win: the two are separate, as they were when the files were written.

    Args:
        directory: config.json and safetensors, as Hugging Face writes them.
        dtype: parameters are converted to it: ``float32``, ``bfloat16``, ``float16``.
        device: where torch puts them.
        attn_implementation: transformers' name of the attention function.
        progress: called with stage ``load`` and bytes of the files.

    Returns:
        The model in evaluation mode, its parameters frozen.

    Raises:
        CheckpointError: the files are at fault; names the file or parameter.
        UnsupportedFeature: the weights are quantised.
        ConfigError: ``dtype`` is unknown.
    """
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype={dtype!r}: known are {', '.join(_DTYPES)}")
    config = read_json_object(directory / "config.json")
    if config is None:
        raise CheckpointError(f"{directory} has no config.json")
    _refuse_quantized(directory, config)
    summary = check_safetensors(directory)
    _refuse_integers(directory, summary)
    _check_metadata(directory)
    check_config_sizes(directory / "config.json", config, summary)
    if progress is not None:
        progress("load", 0, summary.num_bytes)
    with paused_garbage_collection():
        _check_total(directory, summary)
        model, report = _from_pretrained(directory, dtype, attn_implementation)
    _check_report(directory, report)
    model.to(device)
    model.eval()
    model.requires_grad_(requires_grad=False)
    if progress is not None:
        progress("load", summary.num_bytes, summary.num_bytes)
    return model


def _refuse_quantized(directory: Path, config: dict[str, object]) -> None:
    """Refuse quantised weights by name, before transformers makes them random."""
    text_config = config.get("text_config")
    found: list[tuple[str, object]] = [
        (name, read_json_object(directory / name)) for name in _QUANTIZATION_FILES
    ]
    for level in (config, text_config):
        if isinstance(level, dict):
            found += [(name, level.get(name)) for name in _QUANTIZATION_KEYS]
    for name, settings in found:
        if settings is None:
            continue
        method = "unknown"
        details = ""
        if isinstance(settings, dict):
            method = str(settings.get("quant_method", method))
            details = ", ".join(
                f"{key}={value!r:.60}"
                for key, value in settings.items()
                if key != "quant_method"
            )
        raise UnsupportedFeature(
            f"{directory} is quantised ({name}: quant_method {method}; {details}); "
            "float32, bfloat16 and float16 weights can be loaded, no other"
        )


def _refuse_integers(directory: Path, summary: SafetensorsSummary) -> None:
    for name, (dtype, _) in summary.tensors.items():
        if name.endswith((".weight", ".bias")) and dtype not in _FLOATING:
            raise UnsupportedFeature(
                f"{directory}: {name} is stored as {dtype}; weights stored as "
                f"{', '.join(sorted(_FLOATING))} can be loaded, no other"
            )


def _check_metadata(directory: Path) -> None:
    """Say what transformers would call ``KeyError: 'metadata'``."""
    index = read_json_object(directory / INDEX_NAME)
    if index is not None and not isinstance(index.get("metadata"), dict):
        raise CheckpointError(
            f"{directory / INDEX_NAME} has no object 'metadata', which transformers "
            'needs; add "metadata": {} to it'
        )


def _check_total(directory: Path, summary: SafetensorsSummary) -> None:
    """Refuse a config of a much larger model, whose weights would be made up first.

    Smaller differences are reported by name, after loading.
    """
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

    try:
        config = AutoConfig.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
        with _quiet_transformers(), torch.device("meta"):
            outline = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=False
            )
    except Exception as error:  # as below
        raise _cannot_be_loaded(directory, error) from error
    needed = sum(map(torch.numel, (*outline.parameters(), *outline.buffers())))
    held = sum(math.prod(shape) for _, shape in summary.tensors.values())
    if needed > 2 * held + _MAX_MADE_UP:
        text_config = config.get_text_config()
        sizes = ", ".join(
            f"{name} {getattr(text_config, name, None)}" for name in _NAMED_SIZES
        )
        raise CheckpointError(
            f"{directory} does not fit its config.json; that describes a model of "
            f"{needed} numbers ({sizes}), the files hold {held}"
        )


def _from_pretrained(
    directory: Path, dtype: str, attn_implementation: str
) -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  (1.9 s)

    try:
        with _quiet_transformers():
            loaded = AutoModelForCausalLM.from_pretrained(
                str(directory),
                dtype=_DTYPES[dtype],
                attn_implementation=attn_implementation,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                # Reported to us by name instead of as a RuntimeError.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers raises whatever broke
        raise _cannot_be_loaded(directory, error) from error
    return cast("tuple[torch.nn.Module, dict[str, Any]]", loaded)


def _cannot_be_loaded(directory: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{directory} cannot be loaded: {type(error).__name__}: {error}"
    )


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep transformers' bars and reports off the terminal; our errors say it all."""
    from transformers.utils import logging as hf_logging  # noqa: PLC0415  (see above)

    verbosity = hf_logging.get_verbosity()
    had_bars = hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if had_bars:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _check_report(directory: Path, report: dict[str, Any]) -> None:
    kinds = {
        "missing_keys": "parameters that no file holds",
        "unexpected_keys": "tensors that are no parameter of this model",
        "mismatched_keys": "tensors whose shape is not the parameter's",
        "error_msgs": "errors",
    }
    faults = [
        f"{what}: {_some(report[kind])}"
        for kind, what in kinds.items()
        if report.get(kind)
    ]
    if faults:
        raise CheckpointError(
            f"{directory} does not fit its config.json; {'; '.join(faults)}"
        )


def _some(names: Collection[Any]) -> str:
    ordered = sorted(map(str, names))
    text = ", ".join(ordered[:_MAX_NAMED])
    more = len(ordered) - _MAX_NAMED
    return f"{text} and {more} more" if more > 0 else text
