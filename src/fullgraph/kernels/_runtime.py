"""Loading the native kernels on top of the OpenMP runtime that torch has loaded."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
from pathlib import Path
from types import ModuleType

import torch

from fullgraph.kernels._memory import return_freed_memory

_RUNTIME = re.compile(r"lib(gomp|omp|iomp5)\b[^/]*\.(so|dylib)[^/]*$")


def load_native() -> ModuleType:
    """The compiled extension, with the instruction set that `FULLGRAPH_ISA` asks for, or the best.

    Raises ImportError when it is not built, when torch has loaded no OpenMP runtime, or when
    `FULLGRAPH_ISA` names what this machine does not have.
    """
    ctypes.CDLL(str(openmp_runtime()), mode=ctypes.RTLD_GLOBAL)
    try:
        native = importlib.import_module("fullgraph.kernels._native")
    except ImportError as error:
        raise ImportError(
            "fullgraph's native kernels are not built (or not for this Python). Build them with "
            "`pip install .` in the source folder (it needs a C++17 compiler), or `make setup`. "
            f"The loader said: {error}"
        ) from error
    available = native.available_isas()
    wanted = os.environ.get("FULLGRAPH_ISA", available[-1])
    if wanted not in available:
        raise ImportError(
            f"FULLGRAPH_ISA={wanted!r} is not available on this machine; "
            f"choose one of: {', '.join(available)}"
        )
    native.use_isa(wanted)
    return_freed_memory()
    return native


def openmp_runtime() -> Path:
    """The OpenMP library that importing torch has loaded into this process.

    Another package may have loaded a copy of its own, so those that torch ships come first.
    """
    folder = Path(torch.__file__).parent
    shipped = [folder / "lib", folder.parent / "torch.libs"]
    mapped = sorted(_mapped(), key=lambda path: path.parent not in shipped)  # stable
    candidates = mapped or [path for home in shipped for path in sorted(home.glob("*"))]
    found = next((path for path in candidates if _RUNTIME.search(path.name)), None)
    if found is None:
        raise ImportError(
            "torch has loaded no OpenMP runtime (libgomp, libomp or libiomp5), which the kernels "
            "share with it; install a build of torch with OpenMP"
        )
    return found


def _mapped() -> list[Path]:
    """OpenMP libraries in this process; empty where the system does not say (not Linux)."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    names = {line.split(maxsplit=5)[-1]: None for line in maps.read_text().splitlines()}
    return [Path(name) for name in names if _RUNTIME.search(name)]
