"""What uv is told of the settings of a node's pip, and what it cannot be told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.core import ship
from cloudtrain.node import pip_settings

LISTED = """\
:env:.extra-index-url='https://two/simple'
:env:.timeout='7'
global.index-url='https://me:pa ss@company/simple'
global.extra-index-url='https://one/simple'
global.find-links='/a\\nhttps://b'
global.constraint='/etc/c.txt /etc/d.txt'
global.disable-pip-version-check='1'
install.no-binary='six,numpy'
install.pre='yes'
install.no-index='0'
global.cert=''
freeze.timeout='9'
"""


def test_a_variable_counts_before_a_file_and_each_setting_has_its_place() -> None:
    variables, options = pip_settings.translated(pip_settings.read(LISTED))
    assert variables == {
        "UV_DEFAULT_INDEX": "https://me:pa ss@company/simple",
        "UV_INDEX": "https://two/simple",
        "UV_FIND_LINKS": "/a,https://b",
        "UV_HTTP_TIMEOUT": "7",
    }
    assert options == [
        *("-c", "/etc/c.txt", "-c", "/etc/d.txt"),
        *("--no-binary", "six", "--no-binary", "numpy", "--prerelease=allow"),
    ]


@pytest.mark.parametrize("setting", ["global.target='/x'", "install.require-hashes='1'"])
def test_what_uv_has_nothing_for_is_left_to_pip(setting: str) -> None:
    with pytest.raises(pip_settings.Unknown):
        pip_settings.translated(pip_settings.read(setting))


def shell(listed: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """What the script reads of it, by a shell that then prints its arguments and variables."""
    asked = [sys.executable, "-I", "-c", ship.text("pip_settings.py")]
    told = subprocess.run(asked, input=listed, capture_output=True, text=True, env=environ)
    assert told.returncode == 0, told.stderr
    text = f"set -- own\n{told.stdout}\nprintf '%s\\n' \"$@\"; env | grep ^UV_ | sort"
    path = {"PATH": "/usr/bin:/bin", **environ}
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, env=path, check=True)


def test_a_shell_takes_them_as_they_are_and_keeps_its_own(tmp_path: Path) -> None:
    listed = f"global.cert='{tmp_path}/it''s'\nglobal.find-links='$(touch {tmp_path}/hit) `x`'\n"
    lines = shell(f"{LISTED}{listed}", UV_HTTP_TIMEOUT="99").stdout.splitlines()
    assert lines[:2] == ["own", "-c"]
    assert "UV_HTTP_TIMEOUT=99" in lines, "uv's own setting of the node"
    assert f"UV_FIND_LINKS=$(touch,{tmp_path}/hit),`x`" in lines
    assert {"UV_INDEX_STRATEGY=unsafe-best-match", "UV_SYSTEM_CERTS=1"} <= set(lines), "as pip"
    assert not (tmp_path / "hit").exists()
