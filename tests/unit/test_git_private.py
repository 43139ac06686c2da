"""Rules for the token of a private repository and the password of an index: where they may stand,
and that tasks never get them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloudtrain.config import load
from cloudtrain.core.errors import ConfigError
from cloudtrain.playbooks import package_index
from cloudtrain.runs.start import secrets_of_tasks
from tests.support.git_private_parts import private, user

__all__ = ["user"]

# ── a token ──────────────────────────────────────────────────────────────────


def test_tasks_are_not_given_the_token(tmp_path: Path) -> None:
    given = secrets_of_tasks(private(tmp_path, git="https://example.invalid/x.git"))
    assert list(given) == ["OTHER"]


# ── the config ───────────────────────────────────────────────────────────────

LOCAL = "provider: local\nstrategy: mirrored\n"
SECRETS = "secrets:\n  GIT_TOKEN: ${MY_TOKEN}\n"


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        (
            "{git: https://e.org/x, token: GIT_TOKNE}",
            "names no entry under `secrets`: did you mean",
        ),
        ("{git: https://e.org/x, token: ghp_pasted}", "names no entry under `secrets`: add"),
        ('{git: https://e.org/x, token: "${MY_OTHER}"}', "takes the name of an entry under"),
        ("{git: https://e.org/x, token: ghp-pasted}", "takes the name of an entry under"),
        ("{git: http://e.org/x, token: GIT_TOKEN}", "works only with an https:// URL"),
        ("{git: 'git@e.org:x', token: GIT_TOKEN}", "works only with an https:// URL"),
        ("{path: ., token: GIT_TOKEN}", "requires `git`"),
        ("{git: https://e.org/x, tokn: GIT_TOKEN}", "did you mean 'token'?"),
    ],
)
def test_a_token_is_the_name_of_a_secret_and_goes_over_https(
    tmp_path: Path, section: str, problem: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"{LOCAL}code: {section}\n{SECRETS}")
    with pytest.raises(ConfigError) as caught:
        load(path, {"MY_OTHER": "ghp-pasted"})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}:3: code.to")
    assert problem in line
    assert "pasted" not in line


def test_a_user_in_the_url_belongs_to_a_token(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"{LOCAL}code: {{git: https://me@e.org/x}}\n")
    with pytest.raises(ConfigError, match="contains a user in the URL"):
        load(path, {})
    path.write_text(f"{LOCAL}code: {{git: https://me@e.org/x, token: GIT_TOKEN}}\n{SECRETS}")
    assert load(path, {}).code.token == "GIT_TOKEN"


INDEX = "https://me@pypi.example.org/simple"


@pytest.mark.parametrize(
    ("setup", "problem"),
    [
        ("index: https://me:pasted@e.org/s", "setup.index: contains a password in the URL"),
        ("index: http://e.org/simple", "setup.index: must be an https:// URL"),
        ("index: https://e.org/s https://f.org/s", "setup.index: the URL must be http"),
        ("index: https://e.org/s?a=b", "setup.index: the URL must be http"),
        (f"index: {INDEX}, index_password: pas-ted", "takes the name of an entry under `secrets`"),
        (f"index: {INDEX}, index_password: pasted", "names no entry under `secrets`: add `NAME:"),
        ("index_password: GIT_TOKEN", "setup.index_password: requires `index`"),
    ],
)
def test_an_index_and_its_password_are_checked_and_never_shown(
    tmp_path: Path, setup: str, problem: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"{LOCAL}setup: {{packages: [six], {setup}}}\n{SECRETS}")
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        load(path, {})
    assert "pasted" not in str(caught.value)


@pytest.mark.parametrize(
    ("index", "url", "user"),
    [
        (INDEX, "https://pypi.example.org/simple", "me"),
        ("https://e.org:444/feed@Release/simple/", "https://e.org:444/feed@Release/simple/", ""),
        ("https://a%40b@e.org/feed@Local", "https://e.org/feed@Local", "a@b"),
    ],
)
def test_the_user_of_an_index_stands_before_its_host(
    tmp_path: Path, index: str, url: str, user: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"{LOCAL}setup: {{packages: [six], index: '{index}'}}\n")
    assert package_index.arguments(load(path, {})) == (url, user)


def test_an_index_without_packages_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"{LOCAL}setup: {{index: {INDEX}}}\n")
    with pytest.raises(ConfigError, match=r"setup\.index: requires `packages`"):
        load(path, {})


def test_tasks_are_not_given_the_password_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.yaml"
    setup = f"{{packages: [six], index: {INDEX}, index_password: GIT_TOKEN}}"
    path.write_text(f"{LOCAL}setup: {setup}\n{SECRETS}  OTHER: ${{OTHER}}\n")
    for name in ("OTHER", "MY_TOKEN"):
        monkeypatch.setenv(name, "1")
    assert list(secrets_of_tasks(load(path, {}))) == ["OTHER"]
