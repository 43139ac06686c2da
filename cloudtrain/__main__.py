"""`cloudtrain`, also as `python -m cloudtrain`."""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False  # typing itself is not imported before the current folder is forgotten
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    try:
        if __name__ == "__main__":  # `python -m`: else sys.path begins with the script's folder
            from cloudtrain.core.own_python import forget_current_folder

            forget_current_folder()
        from cloudtrain.cli.app import run
        from cloudtrain.cli.process import prepare

        prepare()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # during the imports, or a second Ctrl-C during the exit
        code = 130
    gc.freeze()  # else the exit searches all modules for garbage: a fifth of the time of `plan`
    sys.exit(code)


if __name__ == "__main__":
    main()
