"""The code playbook on real folders: what is delivered, byte for byte, and what is refused."""

import os
import random
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from cloudtrain.core.errors import CloudtrainError, ConfigError, StepFailed
from cloudtrain.playbooks import code, folder
from cloudtrain.playbooks.apply import apply
from tests.support.code_parts import config, delivered, git, names, write
from tests.support.nodes_here import HereTransport, Remembered, node
from tests.support.project import ROOT

# ── a folder ─────────────────────────────────────────────────────────────────


def test_a_folder_arrives_as_it_is(tmp_path: Path) -> None:
    src = write(tmp_path / "src", {"a b.py": "1", "deep/er/c.py": "2", "x'$(id).py": "3"})
    odd = os.fsencode(src) + b"/new\nline \xff.py"
    Path(os.fsdecode(odd)).write_bytes(b"\0\xff")
    long = "l" * 120 + "/" + "m" * 120
    write(src, {long: "long", "run.sh": "#!/bin/sh\n"})
    (src / "run.sh").chmod(0o700)
    (src / "deep" / "link.py").symlink_to("../a b.py")
    (src / "broken").symlink_to("not-there")
    (src / "loop").symlink_to("loop")
    (src / "folder").symlink_to("deep")
    there = delivered(code.steps(code.resolve(config(tmp_path, path="src")), "mnist"), tmp_path)
    assert subprocess.run(["diff", "-r", "--no-dereference", src, there]).returncode == 0
    assert (there / os.fsdecode(b"new\nline \xff.py")).read_bytes() == b"\0\xff"
    assert os.access(there / "run.sh", os.X_OK)
    assert not os.access(there / "a b.py", os.X_OK)
    assert (there / "run.sh").stat().st_mtime == int((src / "run.sh").stat().st_mtime)


PATTERNS = [
    *("a", "b/", "/a", "*.py", "!a", "!*.py", "a/b", "**/c", "c/**", "!/b/", "b/*", "!b/c"),
    *(
        "a/**/b",
        "[ab]",
        "[!a].py",
        "?",
        "a*",
        "**",
        "!c/",
        "#a",
        "\\a",
        "a ",
        "[",
        "[]a]",
        "*/*.py",
    ),
    *("!*/", "[a-b]/", "a\r", "[[:alpha:]].py", "a**b", "\\", "!", "/", "//", "a//b", "***/a"),
]


@pytest.mark.parametrize("seed", range(16))
def test_what_is_delivered_is_what_git_would_add(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    src = tmp_path / "src"
    for _ in range(25):
        depth = dice.randint(1, 4)
        parts = [dice.choice("abc") for _ in range(depth)]
        parts[-1] += dice.choice(["", ".py"])
        place = src.joinpath(*parts)
        if not any(p.is_file() for p in (place, *place.parents)) and not place.is_dir():
            write(src, {str(place.relative_to(src)): "x"})
    for parent in [src, *(p for p in src.rglob("*") if p.is_dir())]:
        if parent == src or dice.random() < 0.4:
            write(parent, {".gitignore": "\n".join(dice.choices(PATTERNS, k=4)) + "\n"})
    subprocess.run(["git", "init", "-q", src], check=True)
    listing = ["git", "-C", src, "ls-files", "-co", "--exclude-standard", "-z"]
    by_git = subprocess.run(listing, capture_output=True, check=True, text=True).stdout
    assert names(tmp_path) == sorted(filter(None, by_git.split("\0")))


def test_everything_that_cannot_be_delivered_is_named_at_once(tmp_path: Path) -> None:
    src = write(tmp_path / "src", {"a.py": ""})
    (src / "data").symlink_to("/mnt/data")
    (src / "up").symlink_to("../secret")
    (src / "detour").symlink_to("up/../../etc")
    with pytest.raises(ConfigError) as caught:
        code.resolve(config(tmp_path, path="src"))
    file = tmp_path / "mnist.yaml"
    assert str(caught.value).splitlines() == [
        f"{file}: code.path: {src}/data: a symlink leads out of the folder, to /mnt/data",
        f"{file}: code.path: {src}/detour: a symlink leads out of the folder, to up/../../etc",
        f"{file}: code.path: {src}/up: a symlink leads out of the folder, to ../secret",
    ]
    assert caught.value.hint == f"list what is not needed in {src}/.cloudtrainignore"
    write(src, {".cloudtrainignore": "data\nup\ndetour\n"})
    assert names(tmp_path) == [".cloudtrainignore", "a.py"]


def test_pipes_and_sockets_are_left_out_and_named(tmp_path: Path) -> None:
    src = write(tmp_path / "src", {"a.py": ""})
    os.mkfifo(src / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        here = Path.cwd()
        os.chdir(src)
        try:
            sock.bind("sock")
        finally:
            os.chdir(here)
    found = folder.listing(config(tmp_path), src)
    assert [each.path for each in found.entries] == ["a.py"]
    assert [(each.path, each.why) for each in found.left_out] == [
        ("pipe", "a named pipe"),
        ("sock", "a socket"),
    ]


def test_the_output_of_this_process_is_left_out(tmp_path: Path) -> None:
    """`cloudtrain run c.yaml > run.log` in the code folder."""
    src = write(tmp_path / "src", {"a.py": "", "run.log": ""})
    program = (
        "import pathlib, sys\n"
        "from tests.support.code_parts import names\n"
        "found = names(pathlib.Path(sys.argv[1]))\n"
        "pathlib.Path(sys.argv[2]).write_text(repr(found))\n"
    )
    with (src / "run.log").open("w") as log:
        words = [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "found")]
        subprocess.run(words, stdout=log, check=True, cwd=ROOT)
    assert (tmp_path / "found").read_text() == "['a.py']"


def test_a_log_that_grows_is_delivered_as_it_was_when_listed(tmp_path: Path) -> None:
    """`cloudtrain run c.yaml | tee run.log`: the file is another process's."""
    src = write(tmp_path / "src", {"a.py": "1", "run.log": "begun\n"})
    source = code.resolve(config(tmp_path, path="src"))
    (src / "run.log").write_text("begun\nmore\n")
    there = delivered(code.steps(source, "mnist"), tmp_path)
    assert (there / "run.log").read_text() == "begun\n"


def test_a_folder_that_changes_under_the_stream_is_noticed(tmp_path: Path) -> None:
    src = write(tmp_path / "src", {"a.py": "1", "b.py": "2"})
    for change, file in (
        (lambda: (src / "a.py").write_text("3"), "a.py"),
        (lambda: (src / "a.py").write_text(""), "a.py"),
        (lambda: (src / "b.py").unlink(), "b.py"),
    ):
        source = code.resolve(config(tmp_path, path="src"))
        change()
        with pytest.raises(CloudtrainError, match=f"changed while it was read: {file}"):
            delivered(code.steps(source, "mnist"), tmp_path)


def test_the_tar_is_made_once_for_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "src", {f"{i}.py": "x" * 99_999 for i in range(9)})
    steps = code.steps(code.resolve(config(tmp_path, path="src")), "mnist")
    made: list[int] = []
    plain = tarfile.open

    def counted(*arguments: object, **named: object) -> tarfile.TarFile:
        made.append(1)
        return plain(*arguments, **named)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(tarfile, "open", counted)
    transport = HereTransport(tmp_path / "nodes")
    nodes = [node(f"n{i}") for i in range(4)]
    apply(lambda _: steps, nodes, transport, Remembered())
    assert made == [1]
    for one in nodes:
        assert len(list(transport.home(one).glob(".cloudtrain/mnist/code/*/*.py"))) == 9


def test_a_stream_cut_anywhere_is_not_taken_for_the_code(tmp_path: Path) -> None:
    write(tmp_path / "src", {"a.py": "1" * 600, "b.py": "2"})
    (step,) = code.steps(code.resolve(config(tmp_path, path="src")), "mnist")
    assert step.stdin
    assert step.unless
    whole = b"".join(step.stdin())
    transport = HereTransport(tmp_path / "nodes")
    ends = whole.rindex(b"complete")
    for length in range(0, ends, 256):
        done = transport.run(node(), step.run, stdin=whole[:length])
        assert done.exit_code != 0, length
        assert transport.run(node(), step.unless).exit_code != 0
    assert transport.run(node(), step.run, stdin=whole).exit_code == 0
    assert transport.run(node(), step.unless).exit_code == 0


def test_a_run_goes_on_with_the_folder_that_it_began_with_or_not_at_all(tmp_path: Path) -> None:
    src = write(tmp_path / "src", {"a.py": "1"})
    settings = config(tmp_path, path="src")
    began = code.resolve(settings)
    transport = HereTransport(tmp_path / "nodes")
    apply(lambda _: code.steps(began, "mnist"), [node("old")], transport, Remembered())
    write(src, {"a.py": "2"})
    again = code.resolve(settings, began.digest)
    assert again.digest == began.digest
    apply(lambda _: code.steps(again, "mnist"), [node("old")], transport, Remembered())
    with pytest.raises(CloudtrainError, match="has changed since the run began"):
        apply(lambda _: code.steps(again, "mnist"), [node("new")], transport, Remembered())


# ── git ──────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes here are folders of this machine: a path stands for a URL that anybody can read."""
    monkeypatch.setattr("cloudtrain.playbooks.git.is_local", lambda url: False)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """master has two commits; tags v1 (light) and v2 (annotated) are on the first."""
    repository = write(tmp_path / "repo", {"train.py": "one\n"})
    git(repository, "init", "-q")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "one")
    git(repository, "tag", "v1")
    git(repository, "tag", "-a", "v2", "-m", "two")
    git(repository, "branch", "feature/master")
    write(repository, {"train.py": "two\n", "odd name's.py": ""})
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "two")
    return repository


def test_a_ref_is_resolved_to_its_commit(tmp_path: Path, repository: Path) -> None:
    first, second = git(repository, "rev-parse", "v1"), git(repository, "rev-parse", "HEAD")
    wanted = {
        None: second,
        "master": second,
        "refs/heads/master": second,
        "feature/master": first,
        "v1": first,
        "v2": first,
        first: first,
        first[:9]: first,
    }
    for ref, commit in wanted.items():
        section = {"git": str(repository)} | ({"ref": ref} if ref else {})
        assert code.resolve(config(tmp_path, **section)).digest == commit, ref


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"git": "/nowhere/x.git"}, r"code\.git: /nowhere/x\.git cannot be read: .*"),
        ({"git": "ext::sh -c 'touch pwned'"}, r"code\.git: .* is not a repository URL"),
        ({"git": "--upload-pack=touch pwned"}, r"code\.git: .* is not a repository URL"),
        (
            {"git": "https://u:secret@example.org/x"},
            r"code\.git: the URL has a password, which would be",
        ),
        ({"git": "REPO", "ref": "no-such"}, r"code\.ref: .* has no branch, tag or commit no-such"),
        ({"git": "REPO", "ref": "abcdef0"}, r"code\.ref: .* has no branch, tag or commit abcdef0"),
        ({"git": "REPO", "ref": "--exec=x"}, r"code\.ref: '--exec=x' is not a valid branch"),
    ],
)
def test_what_git_cannot_have_is_a_clear_config_error(
    tmp_path: Path, repository: Path, section: dict[str, str], text: str
) -> None:
    section = {key: value.replace("REPO", str(repository)) for key, value in section.items()}
    with pytest.raises(ConfigError, match=text) as caught:
        code.resolve(config(tmp_path, **section))
    assert "secret" not in str(caught.value)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("ref", ["master", "v2"])
def test_a_node_gets_the_commit(tmp_path: Path, repository: Path, ref: str) -> None:
    source = code.resolve(config(tmp_path, git="./repo", ref=ref))
    there = delivered(code.steps(source, "mnist"), tmp_path)
    assert git(there, "rev-parse", "HEAD") == source.digest
    assert (there / "train.py").read_text() == {"master": "two\n", "v2": "one\n"}[ref]


def test_a_run_goes_on_with_its_commit_where_the_branch_has_moved(
    tmp_path: Path, repository: Path
) -> None:
    settings = config(tmp_path, git="./repo", ref="master")
    began = code.resolve(settings)
    write(repository, {"train.py": "three\n"})
    git(repository, "commit", "-qam", "three")
    assert code.resolve(settings).digest != began.digest
    assert code.resolve(settings, began.digest).digest == began.digest


def test_a_server_that_gives_no_single_commits_is_fetched_from_whole(
    tmp_path: Path, repository: Path
) -> None:
    first = git(repository, "rev-parse", "v1")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "false")
    bare_url = f"file://{repository}"
    git(repository, "tag", "-d", "v1")
    git(repository, "tag", "-d", "v2")
    git(repository, "branch", "-D", "feature/master")
    source = code.resolve(config(tmp_path, git=bare_url, ref=first))
    there = delivered(code.steps(source, "mnist"), tmp_path)
    assert (there / "train.py").read_text() == "one\n"


def test_submodules_come_along(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = write(tmp_path / "outer", {"main.py": ""})
    git(outer, "init", "-q")
    git(outer, "submodule", "--quiet", "add", str(repository), "lib")
    git(outer, "add", ".")
    git(outer, "commit", "-qm", "outer")
    # As on a node: git itself refuses submodules from folders unless told otherwise.
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    source = code.resolve(config(tmp_path, git=str(outer)))
    there = delivered(code.steps(source, "mnist"), tmp_path)
    assert (there / "lib" / "train.py").read_text() == "two\n"


def test_a_commit_that_is_nowhere_fails_with_a_hint(tmp_path: Path, repository: Path) -> None:
    source = code.resolve(config(tmp_path, git=str(repository), ref="0" * 40))
    with pytest.raises(StepFailed, match="code 0000000000: exit 1") as caught:
        delivered(code.steps(source, "mnist"), tmp_path)
    assert caught.value.hint == f"is the commit pushed to {repository}?"


def test_a_node_without_git_says_so(tmp_path: Path, repository: Path) -> None:
    (step,) = code.steps(code.resolve(config(tmp_path, git=str(repository))), "mnist")
    (tmp_path / "bin").mkdir()
    transport = HereTransport(tmp_path / "nodes", {"PATH": str(tmp_path / "bin")})
    with pytest.raises(StepFailed, match="git is not installed on the node") as caught:
        apply(lambda _: [step], [node()], transport, Remembered())
    assert caught.value.hint == "install it there, or set code.path to a local checkout"


def test_a_repository_of_this_machine_is_read_here_as_no_node_sees_it(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    (step,) = code.steps(code.resolve(config(tmp_path, git=str(repository))), "mnist")
    shutil.move(repository, tmp_path / "hidden")
    with pytest.raises(CloudtrainError, match=r"cannot fetch .* on this machine"):
        delivered((step,), tmp_path)
