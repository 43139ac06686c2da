"""`cloudtrain`, also as `python -m cloudtrain`."""

from __future__ import annotations

import sys
from typing import NoReturn

from cloudtrain.cli.app import run
from cloudtrain.cli.ending import prepare


def main() -> NoReturn:
    prepare()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
