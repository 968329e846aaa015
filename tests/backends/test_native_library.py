"""The kernels' library: found, checked, and refused with a reason."""

import shutil
import subprocess
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from hybrid.backends.cpu import native_library
from hybrid.backends.cpu.abi import ABI_VERSION, ModelConfig, Status, Step
from hybrid.backends.cpu.native_library import (
    VARIANT_VARIABLE,
    ModelHandle,
    NativeLibrary,
    NativeUnavailable,
    load_library,
)
from hybrid.scheduler.errors import ConfigError, ExecutorFailed
from tests.backends.kernel_stand import VARIANTS, open_library
from tests.compiler import find_compiler

needs_library = pytest.mark.skipif(not VARIANTS, reason="the CPU kernels are not built")


def test_where_a_compiler_is_the_kernels_are_built() -> None:
    """The extension is optional, so a broken build would go unseen without this."""
    if find_compiler() is None:
        pytest.skip("no C++ compiler")
    assert load_library().variants()[0] == "portable"


@needs_library
def test_the_portable_variant_comes_first() -> None:
    """It runs anywhere; the best comes last and is chosen."""
    library = open_library()
    names = library.variants()
    assert names[0] == "portable"
    assert len(set(names)) == len(names)
    indices = [library.variant_index(name) for name in names]
    assert indices == sorted(indices)


@needs_library
def test_the_variable_chooses_the_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset or empty: the best; a name: that one."""
    library = open_library()
    monkeypatch.delenv(VARIANT_VARIABLE, raising=False)
    assert library.choose_variant() == library.variants()[-1]
    monkeypatch.setenv(VARIANT_VARIABLE, "")
    assert library.choose_variant() == library.variants()[-1]
    monkeypatch.setenv(VARIANT_VARIABLE, "portable")
    assert library.choose_variant() == "portable"


@needs_library
def test_a_variant_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names variable, value and what there is."""
    monkeypatch.setenv(VARIANT_VARIABLE, "avx9")
    with pytest.raises(ConfigError, match=r"HYBRID_CPU_ISA=avx9.*portable"):
        open_library().choose_variant()
    with pytest.raises(ValueError, match="avx9"):
        open_library().variant_index("avx9")


@needs_library
def test_a_config_of_another_version_is_refused() -> None:
    """By the library itself: whatever follows the version may mean something else."""
    with pytest.raises(NativeUnavailable, match=f"abi_version {ABI_VERSION + 1}"):
        open_library().create(ModelConfig(abi_version=ABI_VERSION + 1))


def _use_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Let the module lie elsewhere; returns where its library would be."""
    monkeypatch.setattr(native_library, "__file__", str(folder / "native_library.py"))
    return folder / f"_kernels{EXTENSION_SUFFIXES[0]}"


def test_without_a_library_the_reason_says_what_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after an installation without a compiler."""
    _use_folder(monkeypatch, tmp_path)
    with pytest.raises(NativeUnavailable, match=r"not built.*reinstall.*compiler"):
        load_library()


def test_a_broken_library_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file that is no library ends in the same reason, not in an OSError."""
    _use_folder(monkeypatch, tmp_path).write_bytes(b"not a library")
    with pytest.raises(NativeUnavailable, match=r"cannot be opened.*reinstall"):
        load_library()


@needs_library
def test_the_library_is_found_beside_the_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under the suffix of the interpreter that runs."""
    built = open_library().path  # before the module is moved
    place = _use_folder(monkeypatch, tmp_path)
    shutil.copy(built, place)
    assert load_library().path == place


_OTHER_VERSION = """
extern "C" {{
int hybrid_cpu_abi_version() {{ return {version}; }}
{exports}
}}
"""


def _compile(code: str, target: Path) -> Path:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = target.with_suffix(".cpp")
    source.write_text(code, "utf-8")
    command = [compiler, "-shared", "-fPIC", str(source), "-o", str(target)]
    subprocess.run(command, check=True)  # noqa: S603 - found above
    return target


def test_a_library_of_another_version_is_refused(tmp_path: Path) -> None:
    """Left over in a checkout, say; its structs may have other fields."""
    names = set(native_library._SIGNATURES) - {"hybrid_cpu_abi_version"}
    code = _OTHER_VERSION.format(
        version=ABI_VERSION + 1,
        exports="\n".join(f"void {name}() {{}}" for name in sorted(names)),
    )
    library = _compile(code, tmp_path / "other.so")
    with pytest.raises(NativeUnavailable, match=rf"version {ABI_VERSION + 1}.*reinst"):
        NativeLibrary(library)


def test_a_library_that_lacks_exports_is_refused(tmp_path: Path) -> None:
    """The message names what is missing."""
    code = _OTHER_VERSION.format(version=ABI_VERSION, exports="")
    library = _compile(code, tmp_path / "bare.so")
    with pytest.raises(NativeUnavailable, match="hybrid_cpu_num_variants"):
        NativeLibrary(library)


def test_a_lack_of_memory_is_told_as_one(tmp_path: Path) -> None:
    """Neither a plan nor a step is at fault: the message has the sizes instead."""
    out_of_memory = {"hybrid_cpu_create", "hybrid_cpu_forward"}
    names = sorted(set(native_library._SIGNATURES) - {"hybrid_cpu_abi_version"})
    status = int(Status.NO_MEMORY)
    code = _OTHER_VERSION.format(
        version=ABI_VERSION,
        exports="\n".join(
            f"int {name}() {{ return {status if name in out_of_memory else 0}; }}"
            for name in names
        ),
    )
    library = NativeLibrary(_compile(code, tmp_path / "full.so"))
    with pytest.raises(ExecutorFailed, match="arena_bytes=640, num_threads=9"):
        library.create(ModelConfig(arena_bytes=640, num_threads=9))
    with pytest.raises(ExecutorFailed, match=r"no memory.*num_tokens=7, num_seqs=3"):
        library.forward(ModelHandle(1), Step(num_tokens=7, num_seqs=3))
