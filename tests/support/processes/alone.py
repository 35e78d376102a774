"""Programs in interpreters of their own."""

import subprocess
import sys
from pathlib import Path

from penstock import native


def run_alone(program: str) -> str:
    """Output of a program in an interpreter of its own."""
    root = Path(native.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{program}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
