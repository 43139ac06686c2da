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
    except KeyboardInterrupt:  # while it was loaded, or a second one while it ended
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
