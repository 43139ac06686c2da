"""`cloudtrain`, also as `python -m cloudtrain`."""

# ruff: noqa: PTH100, PTH109

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False  # typing itself is not imported before the current folder is forgotten
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    try:
        if __name__ == "__main__":  # `python -m`: else sys.path begins with the script's folder
            forget_current_folder()
        from cloudtrain.cli.app import run
        from cloudtrain.cli.process import prepare

        prepare()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # during the imports, or a second Ctrl-C during the exit
        code = 130
    gc.freeze()  # else the exit searches all modules for garbage: a fifth of the time of `plan`
    sys.exit(code)


def forget_current_folder() -> None:
    """Import nothing from the current folder any more, where `python -m` has put it first. A
    checkout from which this program itself is run comes last. Eight modules are too early for it:
    `runpy` imports them (`types`, `warnings`, …)."""
    here, own = os.getcwd(), os.path.abspath(f"{__file__}/../..")
    if sys.path and sys.path[0] in ("", here):
        del sys.path[0]
        if own == here and here not in sys.path:
            sys.path.append(here)


if __name__ == "__main__":
    main()
