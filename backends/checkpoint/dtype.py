"""Which dtype a model runs in: the one asked for, or what ``auto`` stands for."""

from typing import Final

from hybrid.backends.interface import Capabilities
from hybrid.scheduler.errors import ConfigError

from .json_file import read_json_object
from .model_source import CheckpointFormat, ModelSource

AUTO: Final = "auto"
_ALIASES: Final = {"half": "float16", "float": "float32"}


def resolve_dtype(
    requested: str, source: ModelSource, capabilities: Capabilities, device: str
) -> str:
    """Choose the dtype to load ``source`` in.

    ``auto`` is the checkpoint's own dtype where ``device`` is fast in it, else the
    device's first fast one; a GGUF has none of its own. Of a compiled TensorRT engine
    it is the one that was compiled in, for no other can be had. ``half`` and ``float``
    are ``float16`` and ``float32``.

    Args:
        requested: the option.
        source: the model.
        capabilities: the executor's.
        device: one of its devices.

    Raises:
        ConfigError: the executor does not compute in it; names those that it does.
        CheckpointError: config.json cannot be read.
    """
    if requested == AUTO:
        built = _built_dtype(source)
        if built is None:
            own = _own_dtype(source)
            fast = capabilities.fast_dtypes[device]
            return own if own is not None and own in fast else fast[0]
        requested = built
    dtype = _ALIASES.get(requested, requested).removeprefix("torch.")
    if dtype not in capabilities.dtypes:
        raise ConfigError(
            f"dtype={requested!r}: executor {capabilities.name!r} computes in "
            f"{', '.join(capabilities.dtypes)} (or {AUTO!r})"
        )
    return dtype


def _built_dtype(source: ModelSource) -> str | None:
    """Read what ``trtllm-build`` wrote beside an engine."""
    if source.format is not CheckpointFormat.COMPILED:
        return None
    config = read_json_object(source.path / "config.json") or {}
    model = config.get("pretrained_config")
    dtype = model.get("dtype") if isinstance(model, dict) else None
    return dtype if isinstance(dtype, str) else None


def _own_dtype(source: ModelSource) -> str | None:
    if source.format is CheckpointFormat.GGUF:
        return None
    config = read_json_object(source.path / "config.json") or {}
    # Models of text and images keep the language model's settings one level down.
    for level in (config, config.get("text_config")):
        if isinstance(level, dict):
            dtype = level.get("dtype") or level.get("torch_dtype")
            if isinstance(dtype, str):
                return dtype.removeprefix("torch.")
    return None
