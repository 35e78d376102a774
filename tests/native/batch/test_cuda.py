"""The kernels compile for a GPU from the pool's own headers, load, and agree with the host's about their memory.

No test runs them: there was no GPU. Without one, CUDA's runtime refuses the first call, and a test expects that.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import native
from penstock.native.batch.cuda import cuda_kernels, cuda_library
from penstock.native.batch.host import host_kernels
from penstock.native.batch.kernels import BatchArrays, BatchError
from penstock.native.compile.nvcc import find_nvcc

from .test_host import BUILT_IN

HERE = Path(__file__).parent
AMPERE, HOPPER = (8, 0), (9, 0)


def has_nvcc() -> bool:
    try:
        find_nvcc()
    except native.CompilerNotFoundError:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason="there is no nvcc; the extra `cuda` brings one")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    """Libraries are compiled into a folder of this module's own, in every run."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("PENSTOCK_CACHE_DIR", str(folder))
        yield folder


@needs_nvcc
@pytest.mark.slow
def test_every_built_in_environment_compiles_for_a_gpu(cache: Path):
    """One library has them all, with machine code for the GPU and the memory layout of the host's kernels."""
    for name in BUILT_IN:
        kernels, host = cuda_kernels(name, AMPERE), host_kernels(name)
        assert host is not None
        assert kernels.layout == host.layout
    libraries = {cuda_library(name, AMPERE) for name in BUILT_IN}
    (library,) = libraries
    assert library.parent == cache
    code = library.read_bytes()
    assert b".nv_fatbin" in code
    assert all(kernel in code for kernel in (b"step_kernel", b"step_round_kernel", b"begin_kernel", b"observe_kernel"))


@needs_nvcc
@pytest.mark.slow
def test_a_marked_header_compiles_for_a_gpu():
    """A header with PENSTOCK_HOST_DEVICE before what a step needs is compiled twice from one text."""
    own = native.load(HERE / "drift.hpp", flags=["-O0"])
    kernels, host = cuda_kernels("Drift-v0", HOPPER), host_kernels("Drift-v0")
    assert host is not None
    assert kernels.layout == host.layout
    assert cuda_library("Drift-v0", HOPPER) != own.path
    if torch.cuda.is_available():
        return
    arrays = BatchArrays(3, 0, 0, 0, 0, 0, 0)
    with pytest.raises(BatchError, match=r"(?i)cuda|device|driver"):
        kernels.observe(arrays, np.zeros(3).ctypes.data)


@needs_nvcc
@pytest.mark.slow
def test_a_function_without_the_mark_is_named(tmp_path: Path):
    """The pool compiles a header without marks; for a GPU, the error has the call and the remedy."""
    text = (HERE / "drift.hpp").read_text().replace("PENSTOCK_HOST_DEVICE void observe", "void observe")
    header = tmp_path / "unmarked.hpp"
    header.write_text(text.replace("Drift", "Plain"))
    native.load(header, flags=["-O0"])
    with pytest.raises(
        native.CompileError, match=r"env.observe\(.*: a function that the host alone has; write PENSTOCK_"
    ):
        cuda_kernels("Plain-v0", HOPPER)


def test_a_wrong_nvcc_is_named(monkeypatch: pytest.MonkeyPatch):
    """A variable that names no command is an error, not a reason to take another compiler."""
    monkeypatch.setenv("NVCC", "/nowhere/nvcc")
    with pytest.raises(native.CompilerNotFoundError, match="NVCC is '/nowhere/nvcc'"):
        cuda_library("CartPole-v1", HOPPER)


@pytest.mark.slow
def test_a_library_without_its_header_has_no_kernels_for_a_gpu(drift: native.Library, tmp_path: Path):
    """A package's compiled library has no text of which kernels could be made, and the error says so."""
    shutil.copy(drift.path, tmp_path / "drift.so")
    native.load_library(tmp_path / "drift.so")
    with pytest.raises(LookupError, match="Drift-v0 came as a compiled library"):
        cuda_library("Drift-v0", (9, 0))
