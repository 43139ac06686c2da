"""What tests need that takes a minute to make, once on each machine.

`make prepared` makes all of it; `make test` does so while the unit tests run, so that no test waits
for another that makes it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import platformdirs

from cloudtrain import config
from cloudtrain.playbooks import tensorflow
from cloudtrain.playbooks.apply import apply
from tests.support.nodes_here import HereTransport, Remembered, node

ROOT = Path(__file__).parents[2]


def tensorflow_python(home: Path) -> Path:
    """The interpreter that the playbook makes for configs/local.yaml, with TensorFlow, tf_keras,
    TensorBoard and scikit-learn; the same that `make demo` uses. `home`: an empty folder."""
    cache = os.environ.get("CLOUDTRAIN_CACHE") or platformdirs.user_cache_dir("cloudtrain")
    wanted = config.load(ROOT / "configs" / "local.yaml")
    here = replace(node(host="localhost"), cache=cache)
    environ = {"PIP_CONFIG_FILE": pip_config} if (pip_config := users_pip_config()) else {}
    transport = HereTransport(home, environ)
    apply(lambda one: tensorflow.steps(wanted, one), [here], transport, Remembered())
    folder = tensorflow.bin_folder(wanted, here)
    assert folder is not None
    return Path(folder) / "python"


def users_pip_config() -> str | None:
    """The node's home is another: pip would not find the settings of this user's."""
    for path in ("~/.config/pip/pip.conf", "~/.pip/pip.conf"):
        if Path(path).expanduser().exists():
            return str(Path(path).expanduser())
    return os.environ.get("PIP_CONFIG_FILE")


def main() -> None:
    from tests.standins import nodes, stores

    home = Path(tempfile.mkdtemp())
    wanted: dict[str, Callable[[], object]] = {
        "an environment with TensorFlow": lambda: tensorflow_python(home),
        "Azurite": stores.azurite,
        "ministack": stores.ministack,
    }
    if nodes.unavailable() is None:
        wanted["a Debian for nodes"] = nodes.tree
    try:
        with ThreadPoolExecutor(len(wanted)) as pool:
            made = {name: pool.submit(make) for name, make in wanted.items()}
            errors = {name: one.exception() for name, one in made.items()}
    finally:
        shutil.rmtree(home)
    failed = [f"{name}: {error}" for name, error in errors.items() if error is not None]
    sys.exit("\n".join(["cannot be made:", *failed]) if failed else 0)


if __name__ == "__main__":
    main()
