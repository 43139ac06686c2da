"""Private repositories over real HTTP and SSH: the token opens them and no node sees it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.core.errors import CloudtrainError, ConfigError
from cloudtrain.core.model import Network
from cloudtrain.playbooks import code
from cloudtrain.playbooks.apply import apply
from tests.support.code_parts import config, delivered, git, write
from tests.support.git_private_parts import TOKEN, private, user
from tests.support.git_server import GitServer, git_server
from tests.support.nodes_here import HereTransport, Remembered, node
from tests.support.project import Project
from tests.support.scanning import sampling
from tests.support.sshd import SshdNode, sshd_node

__all__ = ["user"]


def bare(served: Path, name: str, files: dict[str, str]) -> str:
    """A bare repository with one commit; the commit."""
    work = write(served / f"{name}.work", files)
    git(work, "init", "-q")
    return commit(work)


def commit(work: Path) -> str:
    git(work, "add", "-A")
    git(work, "commit", "-qm", "a change")
    git(work, "clone", "-q", "--bare", str(work), str(work.with_suffix("")))
    return git(work, "rev-parse", "HEAD")


def holding(root: Path, text: str) -> list[Path]:
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if text.encode() in path.read_bytes()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path / "served", token=TOKEN) as server:
        yield server


# ── a token ──────────────────────────────────────────────────────────────────


def test_the_token_opens_the_repository_and_no_node_sees_it(
    tmp_path: Path, server: GitServer
) -> None:
    whole = bare(server.root, "x.git", {"train.py": "one\n", "run.sh": "", ".gitignore": "*.py\n"})
    for ref in ("master", whole, whole[:9]):
        source = code.resolve(private(tmp_path, git=server.url("x.git"), ref=ref))
        assert source.digest == whole, ref
    there = delivered(code.steps(source, "mnist"), tmp_path)
    assert (there / "train.py").exists() is False  # ignored, so it was not committed
    assert git(there, "rev-parse", "HEAD") == whole
    assert git(there, "status", "--porcelain") == ""
    assert holding(tmp_path / "nodes", TOKEN) == []
    assert server.credentials <= {"", f"x-access-token:{TOKEN}"}


def test_what_the_repository_holds_arrives_as_it_is(tmp_path: Path, server: GitServer) -> None:
    files = {"a b.py": "1", "deep/x'$(id).py": "2", "data.bin": "\0\n" * 9}
    work = write(server.root / "x.git.work", files)
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "link").symlink_to("deep/x'$(id).py")
    (work / "outside").symlink_to("/etc/hostname")
    git(work, "init", "-q")
    commit(work)
    source = code.resolve(private(tmp_path, git=server.url("x.git")))
    there = delivered(code.steps(source, "mnist"), tmp_path)
    same = ["diff", "-r", "--no-dereference", "--exclude=.git", str(work), str(there)]
    assert subprocess.run(same, check=False).returncode == 0
    assert os.access(there / "run.sh", os.X_OK)


def test_a_warm_node_costs_no_fetch_and_all_nodes_cost_one(
    tmp_path: Path, server: GitServer
) -> None:
    bare(server.root, "x.git", {"train.py": "one\n"})
    transport = HereTransport(tmp_path / "nodes")
    nodes = [node(f"n{i}") for i in range(4)]

    def up() -> list[str]:
        server.reset()
        steps = code.steps(code.resolve(private(tmp_path, git=server.url("x.git"))), "mnist")
        apply(lambda _: steps, nodes, transport, Remembered())
        return [path for path, given in server.asked if path.endswith("git-upload-pack") and given]

    asking, fetching = 1, 1
    assert len(up()) == asking + fetching
    assert len(up()) == asking
    for one in nodes:
        assert len(list(transport.home(one).glob(".cloudtrain/mnist/code/*/train.py"))) == 1


def test_a_user_in_the_url_is_the_tokens_user(tmp_path: Path, server: GitServer) -> None:
    bare(server.root, "x.git", {"train.py": "one\n"})
    url = server.url("x.git").replace("//", "//deploy@")
    delivered(code.steps(code.resolve(private(tmp_path, git=url)), "mnist"), tmp_path)
    assert server.credentials <= {"", "deploy:", f"deploy:{TOKEN}"}


def test_a_refused_token_is_not_in_the_error(
    tmp_path: Path, server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the server says it back, and the user has git's traces on."""
    bare(server.root, "x.git", {"train.py": "one\n"})
    server.says = "no repository is open to GIVEN"
    monkeypatch.setenv("MY_TOKEN", "wr0ng-token")
    monkeypatch.setenv("GIT_TRACE_CURL", "1")
    monkeypatch.setenv("GIT_TRACE_REDACT", "0")
    with pytest.raises(ConfigError) as caught:
        code.resolve(private(tmp_path, git=server.url("x.git")))
    assert "wr0ng" not in f"{caught.value!r} {caught.value} {caught.value.hint}"
    assert str(caught.value).endswith("cannot be read: remote: no repository is open to ***")
    assert caught.value.hint == "check that the token in MY_TOKEN can read it"


@pytest.mark.parametrize("value", ["", " ", "two\nlines"])
def test_a_token_that_is_none_is_named_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("MY_TOKEN", value)
    with pytest.raises(ConfigError, match=r"code\.token: .*MY_TOKEN") as caught:
        code.resolve(private(tmp_path, git="https://example.invalid/x.git"))
    assert "two" not in str(caught.value)


def test_a_token_goes_to_its_own_server_alone(tmp_path: Path, server: GitServer) -> None:
    """A submodule beside the repository is opened by it; one elsewhere is not shown it."""
    bare(server.root, "lib.git", {"lib.py": ""})
    with git_server(tmp_path / "elsewhere", address="127.0.0.2") as elsewhere:
        bare(elsewhere.root, "far.git", {"far.py": ""})
        work = write(server.root / "x.git.work", {"train.py": "one\n"})
        git(work, "init", "-q")
        write(
            work,
            {
                ".gitmodules": '[submodule "lib"]\n\tpath = lib\n\turl = ../lib.git\n'
                f'[submodule "far"]\n\tpath = far\n\turl = {elsewhere.url("far.git")}\n'
            },
        )
        for name, at in (("lib", server.root), ("far", elsewhere.root)):
            pinned = git(at / f"{name}.git", "rev-parse", "HEAD")
            git(work, "update-index", "--add", "--cacheinfo", f"160000,{pinned},{name}")
        git(work, "add", ".gitmodules", "train.py")
        git(work, "commit", "-qm", "with submodules")
        git(work, "clone", "-q", "--bare", ".", str(server.root / "x.git"))
        source = code.resolve(private(tmp_path, git=server.url("x.git")))
        there = delivered(code.steps(source, "mnist"), tmp_path)
        assert (there / "lib" / "lib.py").exists()
        assert (there / "far" / "far.py").exists()
        assert elsewhere.credentials == {""}
        assert git(there, "submodule", "status").count("-") == 0
    assert holding(tmp_path / "nodes", TOKEN) == []


def test_a_server_that_sends_us_elsewhere_does_not_take_the_token_along(
    tmp_path: Path, server: GitServer
) -> None:
    with git_server(tmp_path / "elsewhere", address="127.0.0.2", token=TOKEN) as elsewhere:
        bare(elsewhere.root, "x.git", {"train.py": "one\n"})
        server.moved_to = elsewhere.url("").rstrip("/")
        with pytest.raises(ConfigError, match="cannot be read"):
            code.resolve(private(tmp_path, git=server.url("x.git")))
        assert elsewhere.credentials == {""}


def test_the_users_own_stored_password_is_neither_used_nor_forgotten(
    tmp_path: Path, server: GitServer, user: Path
) -> None:
    bare(server.root, "x.git", {"train.py": "one\n"})
    stored = user / ".git-credentials"
    stored.write_text(server.url("").replace("//", "//me:0ld@"))
    (user / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    before = stored.read_text()
    code.resolve(private(tmp_path, git=server.url("x.git")))
    assert stored.read_text() == before
    assert server.credentials <= {"", f"x-access-token:{TOKEN}"}


# ── what this machine's own git can read ─────────────────────────────────────


def test_without_a_token_the_users_credential_helper_is_asked(
    tmp_path: Path, server: GitServer, user: Path
) -> None:
    bare(server.root, "x.git", {"train.py": "one\n"})
    (user / ".git-credentials").write_text(server.url("").replace("//", f"//me:{TOKEN}@"))
    (user / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    source = code.resolve(config(tmp_path, git=server.url("x.git")))
    assert isinstance(source, code.PrivateCode)
    there = delivered(code.steps(source, "mnist"), tmp_path)
    assert (there / "train.py").read_text() == "one\n"
    assert holding(tmp_path / "nodes", TOKEN) == []


def test_a_url_that_the_users_git_rewrites_with_a_token_leaves_none_behind(
    tmp_path: Path, server: GitServer, user: Path
) -> None:
    bare(server.root, "x.git", {"train.py": "one\n"})
    opened = server.url("").replace("//", f"//me:{TOKEN}@")
    (user / ".gitconfig").write_text(f'[url "{opened}"]\n\tinsteadOf = {server.url("")}\n')
    source = code.resolve(config(tmp_path, git=server.url("x.git")))
    delivered(code.steps(source, "mnist"), tmp_path)
    assert holding(tmp_path / "nodes", TOKEN) == []
    server.token = "another"
    with pytest.raises(ConfigError) as caught:
        code.resolve(config(tmp_path, git=server.url("x.git")))
    assert TOKEN not in str(caught.value)


def test_what_only_a_netrc_opens_is_not_taken_for_public(
    tmp_path: Path, server: GitServer, user: Path
) -> None:
    bare(server.root, "x.git", {"train.py": "one\n"})
    (user / ".netrc").write_text(f"machine 127.0.0.1 login me password {TOKEN}\n")
    source = code.resolve(config(tmp_path, git=server.url("x.git")))
    assert isinstance(source, code.PrivateCode)


def test_what_anybody_can_read_each_node_fetches(tmp_path: Path, server: GitServer) -> None:
    server.token = None
    whole = bare(server.root, "x.git", {"train.py": "one\n"})
    source = code.resolve(config(tmp_path, git=server.url("x.git")))
    assert source == code.GitCode(url=server.url("x.git"), digest=whole)
    there = delivered(code.steps(source, "mnist"), tmp_path)
    assert (there / "train.py").read_text() == "one\n"


def test_nodes_without_a_way_out_and_folders_of_this_machine_are_delivered_from_here(
    tmp_path: Path, server: GitServer
) -> None:
    server.token = None
    bare(server.root, "x.git", {"train.py": "one\n"})
    hidden = replace(config(tmp_path, git=server.url("x.git")), network=Network(private=True))
    folder = replace(config(tmp_path, git=str(server.root / "x.git")), provider="hosts")
    for wanted in (hidden, folder):
        assert isinstance(code.resolve(wanted), code.PrivateCode)


def test_nobodys_repository_is_refused_with_what_to_write(
    tmp_path: Path, server: GitServer
) -> None:
    bare(server.root, "x.git", {"train.py": "one\n"})
    with pytest.raises(ConfigError, match=r"code\.git: .* cannot be read: ") as caught:
        code.resolve(config(tmp_path, git=server.url("x.git")))
    assert caught.value.hint
    assert 'secrets: {GIT_TOKEN: "${GIT_TOKEN}"}' in caught.value.hint


def test_a_repository_cannot_have_folders_of_this_machine_sent_to_nodes(
    tmp_path: Path, server: GitServer
) -> None:
    """A submodule of a `file` URL would read what only this user can."""
    own = tmp_path / "own"
    bare(own, "diary.git", {"diary.txt": "dear diary"})
    work = write(server.root / "x.git.work", {"train.py": "one\n"})
    git(work, "init", "-q")
    git(work, "submodule", "--quiet", "add", str(own / "diary.git"), "lib")
    commit(work)
    steps = code.steps(code.resolve(private(tmp_path, git=server.url("x.git"))), "mnist")
    with pytest.raises(CloudtrainError, match="transport 'file' not allowed"):
        delivered(steps, tmp_path)
    assert holding(tmp_path / "nodes", "dear diary") == []


def test_a_fetch_that_fails_is_tried_once_and_leaves_nothing_here(
    tmp_path: Path, server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    bare(server.root, "x.git", {"train.py": "one\n"})
    absent = private(tmp_path, git=server.url("x.git"), ref="0" * 40)
    steps = code.steps(code.resolve(absent), "mnist")
    server.reset()
    nodes = [node(f"n{i}") for i in range(3)]
    with pytest.raises(CloudtrainError) as caught:
        apply(lambda _: steps, nodes, HereTransport(tmp_path / "nodes"), Remembered())
    assert f"cannot fetch {server.url('x.git')} on this machine:\n" in str(caught.value)
    assert caught.value.hint == f"is the commit pushed to {server.url('x.git')}?"
    assert len([path for path, _ in server.asked if path.endswith("info/refs")]) <= 4
    assert list((tmp_path / "tmp").iterdir()) == []


# ── Git LFS ──────────────────────────────────────────────────────────────────

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\nsize 3\n"
)


@pytest.mark.parametrize("who", ["this machine", "each node"])
def test_what_is_kept_in_lfs_is_never_delivered_as_pointers_unasked(
    tmp_path: Path, server: GitServer, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    lacking = write(tmp_path / "bin", {"git-lfs": "#!/bin/sh\nexit 127\n"}) / "git-lfs"
    lacking.chmod(0o755)
    monkeypatch.setenv("PATH", f"{lacking.parent}:{os.environ['PATH']}")
    bare(server.root, "x.git", {"a.bin": POINTER, ".gitattributes": "*.bin filter=lfs\n"})
    wanted = private(tmp_path, git=server.url("x.git"))
    if who == "each node":
        server.token = None
        wanted = config(tmp_path, git=server.url("x.git"))
    with pytest.raises(CloudtrainError, match="are in Git LFS") as caught:
        delivered(code.steps(code.resolve(wanted), "mnist"), tmp_path)
    assert caught.value.hint
    assert "GIT_LFS_SKIP_SMUDGE=1" in caught.value.hint
    monkeypatch.setenv("GIT_LFS_SKIP_SMUDGE", "1")
    there = delivered(code.steps(code.resolve(wanted), "mnist"), tmp_path)
    assert (there / "a.bin").read_text() == POINTER


# ── over SSH ─────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def agent(key: Path) -> Iterator[str]:
    """An agent that holds one key; its socket."""
    said = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    told = dict(part.split("=", 1) for part in said.split(";") if "=" in part)
    told = {name.strip(): value for name, value in told.items()}
    environment = {**os.environ, **told}
    subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True)
    try:
        yield told["SSH_AUTH_SOCK"]
    finally:
        subprocess.run(["ssh-agent", "-k"], env=environment, check=True, capture_output=True)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SshdNode]:
    with sshd_node(tmp_path / "host") as host:
        yield host


def ssh_url(host: SshdNode) -> str:
    address, port = host.place
    return f"ssh://{host.node.user}@{address}:{port}{host.home}/x.git"


def ssh_line(known: Path) -> str:
    """The user's own SSH, with none of this machine's settings."""
    return f"ssh -F /dev/null -o BatchMode=yes -o UserKnownHostsFile='{known}'"


def test_over_ssh_the_users_agent_opens_it_here_and_is_never_forwarded(
    tmp_path: Path, host: SshdNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bare(host.home, "x.git", {"train.py": "one\n"})
    monkeypatch.setenv("GIT_SSH_COMMAND", ssh_line(host.identity.known_hosts))
    wanted = config(tmp_path, git=ssh_url(host))
    with pytest.raises(ConfigError, match=r"cannot be read: .*Permission denied"):
        code.resolve(wanted)
    with agent(host.identity.private_key) as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        source = code.resolve(wanted)
        steps = code.steps(source, "mnist")
        monkeypatch.delenv("SSH_AUTH_SOCK")  # all that a node's own session would have
        there = delivered(steps, tmp_path)
    assert source.digest == git(there, "rev-parse", "HEAD") == whole
    assert holding(tmp_path / "nodes", socket) == []


def test_a_git_host_that_the_user_does_not_know_is_refused(
    tmp_path: Path, host: SshdNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare(host.home, "x.git", {"train.py": "one\n"})
    with agent(host.identity.private_key) as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        monkeypatch.setenv("GIT_SSH_COMMAND", ssh_line(tmp_path / "knows nobody"))
        with pytest.raises(ConfigError, match="Host key verification failed") as caught:
            code.resolve(config(tmp_path, git=ssh_url(host)))
    assert caught.value.hint
    assert "known_hosts" in caught.value.hint


# ── the whole path ───────────────────────────────────────────────────────────


def test_up_and_train_from_a_private_repository(project: Project, tmp_path: Path) -> None:
    rank = (Path(__file__).parents[1] / "data" / "rank.py").read_text()
    token = f"{TOKEN}{os.getpid()}"  # in no command of the tests that run beside this one
    with git_server(tmp_path / "served", token=token) as server:
        whole = bare(server.root, "x.git", {"rank.py": rank})
        project.environment["MY_TOKEN"] = token
        path = project.config(
            code={"path": None, "git": server.url("x.git"), "token": "GIT_TOKEN"},
            secrets={"GIT_TOKEN": "${MY_TOKEN}"},
        )
        with sampling(pause=0.02) as seen:
            run = project.cloudtrain("run", path)
        assert run.returncode == 0, run.stderr
        assert project.runs()[0]["code"] == whole
        project.environment["MY_TOKEN"] = "wr0ng"
        wrong = project.cloudtrain("--debug", "up", path)
        assert wrong.returncode == 2
    said = run.stdout + run.stderr + wrong.stdout + wrong.stderr
    assert token not in said
    assert "wr0ng" not in said
    assert holding(tmp_path, token) == []
    assert [line for line in seen.commands if token.encode() in line] == []
    assert any(b"upload-pack" in line or b"ls-remote" in line for line in seen.commands)
