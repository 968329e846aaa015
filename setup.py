"""The one part of the build that pyproject.toml cannot say: the kernels of ``cpu``.

ctypes opens what this builds (hybrid/backends/cpu/native_library.py), so it is a plain
shared library: no Python.h, no ``PyInit``.
"""

from pathlib import Path

from setuptools import Extension, setup

_NATIVE = Path("hybrid/backends/cpu/native")

setup(
    ext_modules=[
        Extension(
            "hybrid.backends.cpu._kernels",
            sources=sorted(map(str, _NATIVE.glob("*.cpp"))),
            depends=sorted(map(str, _NATIVE.glob("*.h"))),
            # No -march: each file asks for what its variant needs, and which one runs
            # is decided where it runs. No -ffast-math, no contraction: what a row gives
            # must not depend on the loop that computed it.
            extra_compile_args=[
                "-O3",
                "-g0",
                "-std=c++20",
                "-ffp-contract=off",
                "-fvisibility=hidden",
                "-pthread",
                # GCC 12 finds some in its own headers of AVX-512.
                "-Wno-uninitialized",
                "-Wno-maybe-uninitialized",
            ],
            extra_link_args=["-pthread"],
            optional=True,  # without a compiler the executor falls back, and says so
        )
    ]
)
