"""Starts the Python that runs this program, so that no file of the current folder is imported.

`python -m` and `python -c` put the current folder before the standard library: a `queue.py` there
would be run. `-I` would also leave out PYTHONPATH and what is installed for the user alone.
https://docs.python.org/3/using/cmdline.html#cmdoption-P (since 3.11)

Imports what Python has already imported, and nothing else: not pathlib."""

# ruff: noqa: PTH100

import os
import sys

_WITHOUT_FOLDER = """\
import sys
if sys.path[0] == "":
    del sys.path[0]
import runpy
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""For Python 3.10: nothing is imported before the folder is gone from the path."""

NEUTRAL = "/"
"""The folder in which such a process starts: some programs read settings from the current one."""


def module(name: str, *arguments: str, safe_path: bool = sys.version_info >= (3, 11)) -> list[str]:
    """Command that runs a module as `python -m` does."""
    way = ["-P", "-m"] if safe_path else ["-c", _WITHOUT_FOLDER]
    return [sys.executable, *way, name, *arguments]


def program(path: str, *arguments: str) -> list[str]:
    """Command that runs a file which imports the standard library alone."""
    return [sys.executable, "-I", path, *arguments]


def code(text: str, *arguments: str) -> list[str]:
    """Command that runs a text, which sets its own path for imports: see `import_path`."""
    return [sys.executable, "-I", "-c", text, *arguments]


def import_path() -> list[str]:
    """Folders from which this process imports, absolute."""
    return [os.path.abspath(folder) for folder in sys.path if folder]
