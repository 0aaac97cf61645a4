"""Loading the extension: one OpenMP runtime, the instruction set, what is said when it fails."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fullgraph import kernels


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {
        k: v for k, v in os.environ.items() if k not in ("FULLGRAPH_ISA", "OMP_NUM_THREADS")
    }
    return subprocess.run(
        [sys.executable, "-c", code], env={**inherited, **environment}, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_torch_and_kernels_share_one_openmp_runtime() -> None:
    result = run(
        "from fullgraph import kernels\n"
        "import re, torch\n"
        "torch.ones(1000, 1000).sum(); kernels.max_threads()\n"
        "paths = {line.split()[-1] for line in open('/proc/self/maps') if '/' in line}\n"
        r"print(sum(bool(re.search(r'/lib(gomp|omp|iomp5)\b[^/]*$', p)) for p in paths))"
    )
    assert result.stdout.strip() == "1", result.stderr


def test_torch_set_num_threads_governs_kernels() -> None:
    result = run(
        "from fullgraph import kernels\n"
        "import torch\n"
        "for n in (1, 2, 1):\n"
        "    torch.set_num_threads(n); print(kernels.max_threads())"
    )
    assert result.stdout.split() == ["1", "2", "1"], result.stderr


@pytest.mark.parametrize("isa", kernels.available_isas())
def test_the_environment_chooses_the_instruction_set(isa: str) -> None:
    code = "from fullgraph import kernels; print(kernels.isa())"
    assert run(code, FULLGRAPH_ISA=isa).stdout.strip() == isa


def test_the_best_instruction_set_is_taken_otherwise() -> None:
    code = "from fullgraph import kernels; print(kernels.isa())"
    assert run(code).stdout.strip() == kernels.available_isas()[-1]


def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    result = run("import fullgraph.kernels", FULLGRAPH_ISA="sse9")
    assert result.returncode != 0
    assert "ImportError: FULLGRAPH_ISA='sse9' is not available" in result.stderr
    assert f"choose one of: {', '.join(kernels.available_isas())}" in result.stderr


def test_without_the_extension_importing_says_how_to_build_it() -> None:
    result = run(
        "import sys\nsys.modules['fullgraph.kernels._native'] = None\nimport fullgraph.kernels"
    )
    assert result.returncode != 0
    assert "native kernels are not built" in result.stderr
    assert "`pip install .`" in result.stderr
    assert "`make setup`" in result.stderr


def test_without_an_openmp_runtime_importing_says_so() -> None:
    result = run(
        "import re, torch\n"
        "compiled = re.compile\n"
        "re.compile = lambda p, *a: compiled('(?!)' if 'gomp' in str(p) else p, *a)\n"
        "import fullgraph.kernels"
    )
    assert result.returncode != 0
    assert "ImportError: torch has loaded no OpenMP runtime" in result.stderr
