"""The compiler that is found, and what is said where there is none."""

import shutil
from pathlib import Path

import pytest

from penstock.native.compile.compiler import CompilerNotFoundError, find_compiler


def test_compilers_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With what to do: the variable that names it, or the package that brings one."""
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(CompilerNotFoundError, match=r"CXX is 'no-such-compiler -m64', which is not a command"):
        find_compiler()
    monkeypatch.setenv("CXX", 'g++ "-m64')
    with pytest.raises(CompilerNotFoundError, match=r"CXX is 'g\+\+ \"-m64' \(No closing quotation\); unset it"):
        find_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerNotFoundError, match=r"no C\+\+ compiler.*apt-get install g\+\+"):
        find_compiler()


def test_wrapper_has_the_version_of_the_compiler_that_it_calls(monkeypatch: pytest.MonkeyPatch):
    """Another compiler behind `ccache` or `env` is another one, and Clang behind it has its own flags."""
    monkeypatch.delenv("CXX", raising=False)
    own = find_compiler()
    monkeypatch.setenv("CXX", f"env {own.command[0]}")
    assert find_compiler().version == own.version


def test_path_of_a_compiler_holds_in_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It runs in a folder for what it makes, where a relative path would name nothing."""
    monkeypatch.delenv("CXX", raising=False)
    found = shutil.which(find_compiler().command[0])
    assert found is not None
    (tmp_path / "mine").symlink_to(found)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "./mine")
    assert Path(find_compiler().command[0]).is_absolute()
