"""Rules for a private repository's token: where it may stand, and that tasks never get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.config import load
from cloudtrain.core.errors import ConfigError
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
