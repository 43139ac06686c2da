"""What is checked before local nodes are created: addresses, folders, disk space."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudtrain.core.errors import PermissionsError, UsageError
from cloudtrain.providers.local import environment, processes


def test_addresses_are_different_usable_and_always_the_same() -> None:
    first = [processes.addresses("seed/mnist", number)[0] for number in range(300)]
    assert len(set(first)) == 300
    assert first == [processes.addresses("seed/mnist", number)[0] for number in range(300)]
    for address, port in first:
        a, b, c, d = map(int, address.split("."))
        assert a == 127
        assert 1 <= b <= 254
        assert 0 <= c <= 255
        assert 1 <= d <= 254
        assert port == 2222


@pytest.mark.parametrize(
    ("number", "address"),
    [
        (0, "127.1.0.1"),
        (253, "127.1.0.254"),
        (254, "127.1.1.1"),
        (processes.ALL - 1, "127.254.255.254"),
        (processes.ALL, "127.1.0.1"),
    ],
)
def test_every_number_is_an_address(number: int, address: str) -> None:
    assert processes.loopback_address(number) == address


def test_a_folder_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = environment.check_writable(tmp_path / "file" / "state")
    assert (finding.ok, finding.error) == (False, PermissionsError)
    assert environment.check_writable(tmp_path / "not" / "yet").ok
    assert not (tmp_path / "not").exists()


def test_a_full_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LEAST_DISK", 1 << 62)
    finding = environment.check_disk(tmp_path)
    assert (finding.ok, finding.error) == (False, UsageError)


def test_little_memory_is_a_hint_and_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_available_memory", lambda: environment.GB)
    finding = environment.check_memory(8)
    assert finding.ok
    assert finding.text == "1.0 GB of memory free, 8 TensorFlow tasks take about 3.1"
    assert finding.hint
    assert environment.check_memory(2).hint is None


@pytest.fixture
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This program in a virtual environment, above a Python elsewhere."""
    (tmp_path / "python" / "bin").mkdir(parents=True)
    (tmp_path / "python" / "bin" / "python3").touch()
    (tmp_path / "tool" / "bin").mkdir(parents=True)
    (tmp_path / "tool" / "bin" / "python").symlink_to(tmp_path / "python" / "bin" / "python3")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "tool"))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "tool" / "bin" / "python"))
    return tmp_path


def test_a_node_finds_a_python_and_not_this_program_s_environment(own_environment: Path) -> None:
    own, base = own_environment / "tool" / "bin", own_environment / "python" / "bin"
    given = f"{own}:/usr/bin:.:relative::/bin"
    assert environment.path({"PATH": given}) == f"/usr/bin:/bin:{base}"
    assert environment.path({"PATH": f"{base}:/bin"}) == f"{base}:/bin"


def test_the_packagers_config_is_named_where_the_home_is_another(tmp_path: Path) -> None:
    config = tmp_path / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True)
    config.touch()
    passed = environment.passed_on({"HOME": str(tmp_path), "PATH": "/bin"})
    assert passed["PIP_CONFIG_FILE"] == str(config)
    assert "UV_CONFIG_FILE" not in passed
    own = environment.passed_on({"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/mine"})
    assert own["PIP_CONFIG_FILE"] == "/mine"


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET"),
        *("SSH_AUTH_SOCK", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV", "TF_CONFIG"),
        *("HOME", "XPIP_X", "MY_LANG"),
    ],
)
def test_nothing_else_is_passed_on(name: str) -> None:
    assert name not in environment.passed_on({name: "/planted"})


@pytest.mark.parametrize(
    "name", ["PIP_INDEX_URL", "UV_INDEX", "HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "LC_ALL"]
)
def test_what_installing_needs_is_passed_on(name: str) -> None:
    assert environment.passed_on({name: "value"})[name] == "value"
