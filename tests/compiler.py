"""The C++ compiler that the package's build finds, where there is one."""

import os
import shutil


def find_compiler() -> str | None:
    """Return the path of the compiler that setuptools would call, if it is there."""
    command = os.environ.get("CXX", "g++").split()
    return shutil.which(command[0])
