"""The compiled kernels as a library: found beside this module, opened by ctypes.

Knows the exports of ``native/abi.h`` and what their statuses mean; knows no model, no
step and no array. ctypes releases the GIL in every call.
"""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int32, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final, NewType

from hybrid.scheduler.errors import ConfigError, ExecutorFailed, UnsupportedFeature

from .abi import ABI_VERSION, KvPool, ModelConfig, Status, Step

VARIANT_VARIABLE: Final = "HYBRID_CPU_ISA"
"""Environment variable that names the variant to run; for tests and support."""

ModelHandle = NewType("ModelHandle", int)
"""A model that the library made: an address, 0 never."""

_REINSTALL: Final = (
    "reinstall hybrid-llm-engine where a C++20 compiler (g++ 11 or newer) is found"
)
_SIGNATURES: Final = {
    "hybrid_cpu_abi_version": (c_int32, ()),
    "hybrid_cpu_num_variants": (c_int32, ()),
    "hybrid_cpu_variant_name": (c_char_p, (c_int32,)),
    "hybrid_cpu_variant_runs_here": (c_int32, (c_int32,)),
    "hybrid_cpu_create": (c_int32, (POINTER(ModelConfig), POINTER(c_void_p))),
    "hybrid_cpu_bind_kv": (c_int32, (c_void_p, POINTER(KvPool))),
    "hybrid_cpu_forward": (c_int32, (c_void_p, POINTER(Step))),
    "hybrid_cpu_arena": (c_void_p, (c_void_p,)),
    "hybrid_cpu_destroy": (None, (c_void_p,)),
}


class NativeUnavailable(UnsupportedFeature):
    """The compiled kernels cannot be used here; the message says why and what helps."""


class NativeLibrary:
    """The exports of one library of kernels, typed; bad statuses raise.

    Handles are the caller's: each that `create` gives is destroyed once, after the last
    call that takes it.
    """

    def __init__(self, path: Path) -> None:
        """Open the library.

        Args:
            path: a shared library with the exports of ``native/abi.h``.

        Raises:
            NativeUnavailable: it cannot be opened, or agrees on other structs.
        """
        self.path: Final = path
        try:
            self._library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self._library, name)
                function.restype = result
                function.argtypes = arguments
        except (OSError, AttributeError) as error:
            raise NativeUnavailable(
                f"the CPU kernels {path.name} cannot be opened: {error}; {_REINSTALL}"
            ) from error
        version = self._library.hybrid_cpu_abi_version()
        if version != ABI_VERSION:
            raise NativeUnavailable(
                f"the CPU kernels {path.name} are of ABI version {version}, this "
                f"package of {ABI_VERSION}; {_REINSTALL}"
            )
        # Once a step: no look-up by name there.
        self._forward = self._library.hybrid_cpu_forward

    def variants(self) -> tuple[str, ...]:
        """Name the instruction sets that run on this machine, the best last."""
        runs_here = self._library.hybrid_cpu_variant_runs_here
        return tuple(n for index, n in enumerate(self._names()) if runs_here(index))

    def choose_variant(self) -> str:
        """Name the best variant, or the one that ``HYBRID_CPU_ISA`` asks for.

        Raises:
            ConfigError: the variable names none that runs here.
        """
        names = self.variants()
        wanted = os.environ.get(VARIANT_VARIABLE) or names[-1]
        if wanted not in names:
            raise ConfigError(
                f"{VARIANT_VARIABLE}={wanted}: no CPU kernels of that name run here; "
                f"those that do: {', '.join(names)}"
            )
        return wanted

    def variant_index(self, name: str) -> int:
        """Look up what `ModelConfig.variant` is for one of `variants`.

        Raises:
            ValueError: the library has no variant of that name.
        """
        return self._names().index(name)

    def create(self, config: ModelConfig) -> ModelHandle:
        """Make a model: its arena and its threads.

        Weights and vectors that the config points to must outlive the handle; the
        config itself, its ops and its lists of pointers are copied.

        Raises:
            NativeUnavailable: ``config.abi_version`` is not the library's.
            ExecutorFailed: a value of the config or of an op is out of range, or there
                is no memory for the arena, or no more threads.
        """
        handle = c_void_p()
        status = self._library.hybrid_cpu_create(byref(config), byref(handle))
        if status == Status.BAD_ABI:
            raise NativeUnavailable(
                f"the CPU kernels {self.path.name} refuse abi_version "
                f"{config.abi_version}; {_REINSTALL}"
            )
        if status == Status.NO_MEMORY:
            raise ExecutorFailed(
                f"no memory for a model's activations and threads: arena_bytes="
                f"{config.arena_bytes}, num_threads={config.num_threads}"
            )
        _check(status, "a model's plan or sizes")
        assert handle.value, "created, but no handle given"
        return ModelHandle(handle.value)

    def bind_kv(self, handle: ModelHandle, pool: KvPool) -> None:
        """Tell a model where the cache lies; the memory must outlive its last step.

        Raises:
            ExecutorFailed: a stride, a size or the format does not fit the model.
        """
        _check(self._library.hybrid_cpu_bind_kv(handle, byref(pool)), "the KV pool")

    def forward(self, handle: ModelHandle, step: Step) -> None:
        """Run the plan over a step's tokens; ends when the logits are written.

        Raises:
            ExecutorFailed: an id, a row or a block is out of range, and nothing was
                run; or memory ran out.
        """
        status = self._forward(handle, byref(step))
        if status == Status.NO_MEMORY:
            raise ExecutorFailed(
                f"no memory for a step: num_tokens={step.num_tokens}, num_seqs="
                f"{step.num_seqs}"
            )
        if status:
            _check(status, "a step: an id, a row or a block is out of range")

    def arena(self, handle: ModelHandle) -> int:
        """Return the address of a model's activations, 64-byte aligned."""
        address: int = self._library.hybrid_cpu_arena(handle)
        return address

    def destroy(self, handle: ModelHandle) -> None:
        """End a model's threads and free its arena."""
        self._library.hybrid_cpu_destroy(handle)

    def _names(self) -> list[str]:
        num_variants = self._library.hybrid_cpu_num_variants()
        name_of = self._library.hybrid_cpu_variant_name
        return [name_of(index).decode("ascii") for index in range(num_variants)]


def load_library() -> NativeLibrary:
    """Open the library that was built with this package, for this interpreter.

    Raises:
        NativeUnavailable: none was built, or it does not fit this package.
    """
    folder = Path(__file__).parent
    built = [folder / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES]
    found = next((path for path in built if path.exists()), None)
    if found is None:
        raise NativeUnavailable(
            f"the CPU kernels were not built when this package was installed; "
            f"{_REINSTALL}"
        )
    return NativeLibrary(found)


def _check(status: int, what: str) -> None:
    if status != Status.OK:
        raise ExecutorFailed(
            f"the CPU kernels refused {what} (status {Status(status).name})"
        )
