"""Chooses who computes: our kernels, oneDNN through torch, or the torch executor."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import structlog

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import (
    ExecutorConfig,
    Implementation,
    ProgressCallback,
)
from hybrid.backends.usable_cpus import num_usable_cpus
from hybrid.scheduler.errors import ConfigError, UnsupportedFeature

from .build_check import check_built
from .build_options import AUTO
from .engine_cache import find_or_build
from .native_library import (
    VARIANT_VARIABLE,
    NativeLibrary,
    NativeUnavailable,
    load_library,
)
from .native_runner import NativeRunner
from .options import CpuOptions
from .runner import Runner
from .weight_copies import is_batch_invariant
from .weight_pages import place_weights

log = structlog.get_logger()

_INSTALL_TORCH: Final = "pip install 'hybrid-llm-engine[torch]'"
_PORTABLE: Final = "portable"
_TORCH_QUANTIZATIONS: Final = {"float32": "fp32", "bfloat16": "bf16"}
"""By dtype, what weights are in the torch executor."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be run, and how."""

    source: ModelSource
    config: ExecutorConfig
    """Without options, which are of no meaning to a stand-in, and with the number of
    threads."""
    options: CpuOptions
    progress: ProgressCallback | None = None


def choose_runner(wanted: Wanted) -> Runner:
    """Load with whoever was asked for, or with the first that can.

    oneDNN stands in where the kernels are missing or slow, torch for what neither can
    run.

    Raises:
        UnsupportedFeature: nobody can run the model, or not who was asked for.
        CheckpointError: the files are at fault.
        ConfigError: an option is at fault.
    """
    asked = wanted.options.implementation
    if asked != AUTO:
        return _MAKERS[asked](wanted)
    try:
        return _native(wanted)
    except UnsupportedFeature as error:
        if wanted.source.format is CheckpointFormat.COMPILED:
            raise
        return _stand_in(wanted, error)


def explain() -> tuple[Implementation, ...]:
    """Ask all whether they could compute on this machine."""
    return (
        _explain_native(),
        Implementation(
            name="onednn",
            description="oneDNN's int8 products, through torch; without our kernels",
            reason=_missing("torch", "transformers"),
        ),
        Implementation(
            name="torch",
            description="the torch executor, for models that neither of them runs",
            reason=_missing("torch", "transformers", "gguf"),
        ),
    )


def _stand_in(wanted: Wanted, reason: UnsupportedFeature) -> Runner:
    reasons = {"native": str(reason)}
    names = ("onednn", "torch") if isinstance(reason, NativeUnavailable) else ("torch",)
    for name in names:
        try:
            runner = _MAKERS[name](wanted)
        except UnsupportedFeature as error:
            reasons[name] = str(error)
            continue
        except ConfigError as error:
            # What was asked for would do, were it not for who cannot serve.
            raise ConfigError(f"{error} ({_said(reasons)})") from error
        log.warning("cpu.fallback", implementation=name, reasons=reasons)
        return runner
    raise UnsupportedFeature(
        f"executor cpu cannot run {wanted.source.name}: {_said(reasons)}"
    )


def _said(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in reasons.items())


def _native(wanted: Wanted) -> Runner:
    config = wanted.config
    if config.dtype == "float16":
        raise UnsupportedFeature("no kernel computes in dtype float16")
    library, source = load_library(), wanted.source
    # What was built for the kernels has no stand-in.
    if (
        wanted.options.implementation == AUTO
        and source.format is not CheckpointFormat.COMPILED
    ):
        _refuse_slow(library)
    is_rounded = source.origin is not None and config.dtype != "float32"
    engine = find_or_build(
        source,
        config,
        wanted.options.build_options(config.dtype),
        wanted.progress,
        lambda engine: check_built(
            library,
            engine,
            source.path,
            is_rounded=is_rounded,
            num_threads=config.num_threads,
        ),
    )
    engine = place_weights(engine, wanted.options.weight_pages)
    return NativeRunner(
        library,
        engine,
        config,
        batch_invariant=is_batch_invariant(
            engine, wanted.options.batch_invariant, library.choose_variant()
        ),
    )


def _refuse_slow(library: NativeLibrary) -> None:
    """Refuse kernels that a stand-in outruns a hundredfold, unless asked for."""
    if library.variants()[-1] == _PORTABLE and not os.environ.get(VARIANT_VARIABLE):
        raise NativeUnavailable(
            "only the portable kernels run here: this CPU has no instruction set that "
            f"the others are compiled for; implementation=native or {VARIANT_VARIABLE}="
            f"{_PORTABLE} runs them all the same, slowly"
        )


def _onednn(wanted: Wanted) -> Runner:
    _require("oneDNN", "torch", "transformers")
    # Imported here: it brings torch along, which takes seconds.
    from .onednn_runner import OneDNNRunner  # noqa: PLC0415

    return OneDNNRunner(wanted.source, wanted.config, wanted.options, wanted.progress)


def _torch(wanted: Wanted) -> Runner:
    _require("the torch executor", "torch", "transformers", "gguf")
    dtype, options = wanted.config.dtype, wanted.options
    for name, asked, has in (
        ("quantization", options.quantization, _TORCH_QUANTIZATIONS.get(dtype, dtype)),
        ("kv_cache_dtype", options.kv_cache_dtype, dtype),
    ):
        if asked not in (AUTO, has):
            raise ConfigError(
                f"executor cpu: {name} is {asked}, but the torch executor, which would "
                f"run {wanted.source.name} in dtype {dtype}, has {has} alone; leave "
                "the option out"
            )
    from .torch_runner import TorchRunner  # noqa: PLC0415 - as above

    return TorchRunner(wanted.source, wanted.config, wanted.progress)


_MAKERS: Final[Mapping[str, Callable[[Wanted], Runner]]] = {
    "native": _native,
    "onednn": _onednn,
    "torch": _torch,
}
"""By the option's name."""


def _explain_native() -> Implementation:
    description = "our own kernels, compiled with this package"
    reason = None
    try:
        library = load_library()
        _refuse_slow(library)
        variant = library.choose_variant()
        description += f": {variant}, {num_usable_cpus()} threads"
    except (ConfigError, UnsupportedFeature) as error:
        reason = str(error)
    return Implementation(name="native", description=description, reason=reason)


def _require(who: str, *modules: str) -> None:
    reason = _missing(*modules)
    if reason is not None:
        raise UnsupportedFeature(f"{who} cannot serve: {reason}")


def _missing(*modules: str) -> str | None:
    absent = [module for module in modules if find_spec(module) is None]
    if not absent:
        return None
    return f"not installed: {', '.join(absent)}; {_INSTALL_TORCH}"
