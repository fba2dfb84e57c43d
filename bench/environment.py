"""A virtual environment with packages from PyPI, created when it is first needed, for scripts that
compare libattn with other libraries. To get PyTorch without CUDA, set PIP_EXTRA_INDEX_URL to the
address of PyTorch's own packages for CPUs."""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def enter(folder, packages):
    """Restarts this script with the Python of the environment in `folder`, which has the packages.
    Returns if the script already runs there."""
    python = folder / "bin" / "python"
    if Path(sys.prefix).resolve() == folder.resolve():
        return
    ready, wanted = folder / "ready", "\n".join(packages)
    if not ready.exists() or ready.read_text() != wanted:
        where = folder.relative_to(ROOT)
        print("installing", *packages, "into", where, file=sys.stderr, flush=True)
        try:
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        except (OSError, subprocess.CalledProcessError):
            sys.exit(
                f"{Path(sys.argv[0]).name}: the environment could not be made; it needs Python's"
                " venv with pip (on Debian: tools/install-deps.sh bench) and PyPI"
            )
        ready.write_text(wanted)
    os.execv(python, [str(python), *sys.argv])
