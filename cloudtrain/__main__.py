"""`cloudtrain`, also as `python -m cloudtrain`."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    try:
        from cloudtrain.cli.app import run
        from cloudtrain.cli.process import prepare

        prepare()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # during the imports, or a second Ctrl-C during the exit
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
