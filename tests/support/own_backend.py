"""A package that pip builds without a network: its build backend is in its own folder."""

from __future__ import annotations

from pathlib import Path

BACKEND = """
import os, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "trainer-1.0-py3-none-any.whl"
    files = {
        "trainer/__init__.py": open("trainer/__init__.py").read(),
        "trainer-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: trainer\\nVersion: 1.0\\n"
        + "".join("Requires-Dist: %s\\n" % line for line in REQUIRES),
        "trainer-1.0.dist-info/WHEEL":
            "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "trainer-1.0.dist-info/entry_points.txt":
            "[console_scripts]\\ntrain = trainer:main\\n",
    }
    files["trainer-1.0.dist-info/RECORD"] = "".join("%s,,\\n" % path for path in files)
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as packed:
        for path, text in files.items():
            packed.writestr(path, text)
    open("built", "w").close()  # builds leave files where they work
    return name
"""


def package(folder: Path, *requires: str) -> None:
    """A folder with pyproject.toml, a module `trainer` and its command `train`."""
    (folder / "trainer").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(f"REQUIRES = {list(requires)!r}\n{BACKEND}")
    (folder / "trainer" / "__init__.py").write_text(
        "import sys\n\ndef main():\n    print('trains in', sys.prefix)\n"
    )
