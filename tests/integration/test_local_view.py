"""What a local node sees of this machine: as little as a machine of a cloud would."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.core.events import Event, NodesShareFiles
from cloudtrain.core.model import DataSource, Node
from cloudtrain.providers.local import environment, processes
from tests.support.fakes import eventually, know_hosts
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.project import Project

ROOT = Path(__file__).parents[2]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user, who has data and a key in it."""
    home = tmp_path / "user"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("a key")
    (home / "data.csv").write_text("1,2\n")
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def cluster(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    cluster = local_cluster(tmp_path, monkeypatch, workers=1)
    yield cluster
    cluster.destroy()


def create(cluster: LocalCluster) -> tuple[Node, ...]:
    """The nodes; skips the test where this machine allows them no view of their own."""
    events: list[Event] = []
    cluster.nodes = cluster.provider.create(cluster.plan, cluster.identity, events.append)
    know_hosts(cluster.identity, cluster.nodes)
    refusals = [event.why for event in events if isinstance(event, NodesShareFiles)]
    if refusals:
        pytest.skip(f"no mount namespaces on this machine: {refusals[0]}")
    return cluster.nodes


def run(cluster: LocalCluster, node: Node, command: str) -> tuple[int, str]:
    with cluster.connect(node) as client:
        out = client.exec_command(f"{{ {command}\n}} 2>&1")[1]
        return out.channel.recv_exit_status(), out.read().decode()


@pytest.mark.parametrize("folder", ["/tmp", "/var/tmp", "/dev/shm"])
def test_a_temporary_file_of_one_node_is_not_on_another(cluster: LocalCluster, folder: str) -> None:
    chief, worker = create(cluster)
    name = f"{folder}/cloudtrain-{cluster.provider._digest}"
    assert run(cluster, chief, f"echo mine > {name} && cat {name}") == (0, "mine\n")
    assert run(cluster, worker, f"test -e {name}")[0] == 1
    assert not Path(name).exists()


def test_a_node_sees_its_own_home_and_no_other_folder_of_the_client(
    cluster: LocalCluster, user: Path
) -> None:
    chief, worker = create(cluster)
    own, other = (cluster.folder(node) for node in (chief, worker))
    code, out = run(cluster, chief, 'pwd; echo here > file; cat "$HOME/file"')
    assert (code, out) == (0, f"{own}/home\nhere\n")
    assert (own / "home" / "file").read_text() == "here\n"
    for hidden in (other, own / "node.json", user / "data.csv", user / ".ssh", ROOT / "tests"):
        assert hidden.exists()
        assert run(cluster, chief, f"test -e {shlex.quote(str(hidden))}")[0] == 1, hidden
    listed = run(cluster, chief, f"ls -A {shlex.quote(str(cluster.home / 'local' / 'mnist'))}")
    assert listed == (0, f"{chief.name}\n")


def test_sftp_sees_the_same_as_commands(cluster: LocalCluster, user: Path) -> None:
    chief, _ = create(cluster)
    with cluster.connect(chief) as client, client.open_sftp() as sftp:
        with pytest.raises(FileNotFoundError):
            sftp.stat(str(user / "data.csv"))
        with sftp.open("/tmp/by-sftp", "w") as file:
            file.write("x")
    assert run(cluster, chief, "cat /tmp/by-sftp") == (0, "x")


def test_nodes_write_to_the_cache_that_they_share(cluster: LocalCluster) -> None:
    chief, worker = create(cluster)
    assert run(cluster, chief, f"echo made > {chief.cache}/made")[0] == 0
    assert run(cluster, worker, f"cat {worker.cache}/made") == (0, "made\n")


def test_what_creates_an_environment_reaches_no_other_one(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """It runs code of packages; what a task has left in its node's home is not there either."""
    venvs = tmp_path / "cache" / "venvs"
    (venvs / "other").mkdir(parents=True)
    (venvs / "other" / "pyvenv.cfg").write_text("theirs")
    chief, _ = create(cluster)
    assert run(cluster, chief, "echo evil > left")[0] == 0
    made = venvs / "python-0"
    build = (
        f"ls -A {venvs}; ls -A; mkdir -p {made} {venvs}/other; echo mine > {venvs}/other/pyvenv.cfg"
        f"; touch {made}/.complete; touch {chief.cache}/x"
    )
    for content in ("first", "second"):
        with cluster.provider.builder(
            cluster.plan, cluster.identity, chief, str(made), None
        ) as builder:
            assert builder is not None
            know_hosts(cluster.identity, [builder, *cluster.nodes[1:]])
            code, out = run(cluster, builder, f"{build}; echo {content} > {made}/content")
            assert (code, out.count("\n")) == (0, 1), out
            assert "Read-only file system" in out or "No such file" in out
        assert (made / "content").read_text() == f"{content}\n"
    assert (venvs / "other" / "pyvenv.cfg").read_text() == "theirs"
    assert sorted(path.name for path in venvs.iterdir()) == ["other", "python-0", "python-0.lock"]
    know_hosts(cluster.identity, cluster.nodes)
    code, out = run(cluster, chief, f"cat {made}/content; echo x > {made}/content")
    assert code != 0
    assert out.startswith("second\n")
    assert "Read-only file system" in out
    assert {node.name for node in cluster.provider.nodes(cluster.name)} == {
        node.name for node in cluster.nodes
    }
    assert not (cluster.home / "local" / cluster.name / ".builder").exists()


def test_what_creates_a_layer_reads_the_environment_below_and_writes_to_none(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Packages of one config run their code there; the environment below is every config's."""
    venvs = tmp_path / "cache" / "venvs"
    for name in ("below", "other"):
        (venvs / name).mkdir(parents=True)
        (venvs / name / "module.py").write_text("theirs")
    chief, _ = create(cluster)
    made, below = venvs / "layer", venvs / "below"
    given = cluster.plan, cluster.identity, chief, str(made), str(below)
    with cluster.provider.builder(*given) as builder:
        assert builder is not None
        know_hosts(cluster.identity, [builder])
        code, out = run(cluster, builder, f"ls {venvs}; cat {below}/module.py; mkdir {made}")
        assert (code, out) == (0, "below\ntheirs")
        for change in (f"echo x >{below}/module.py", f"rm {below}/module.py", f"mv {below} {made}"):
            code, out = run(cluster, builder, change)
            assert code != 0, change
    assert (below / "module.py").read_text() == "theirs"
    assert sorted(path.name for path in venvs.glob("*/")) == ["below", "layer", "other"]


def test_programs_are_seen_and_what_is_not_the_nodes_is_read_only(
    cluster: LocalCluster, user: Path, tmp_path: Path
) -> None:
    """As where an interpreter is in the home, in an environment of the user's."""
    own = user / "my env"
    venv.create(own, symlinks=True, with_pip=False)
    setup = replace(cluster.plan.config.setup, python=str(own / "bin" / "python"))
    cluster.plan = replace(cluster.plan, config=replace(cluster.plan.config, setup=setup))
    chief, _ = create(cluster)
    program = shlex.quote(setup.python)
    assert run(cluster, chief, f"{program} -c 'import ssl, sys; print(sys.prefix)'") == (
        0,
        f"{own}\n",
    )
    code, out = run(cluster, chief, f"touch {shlex.quote(str(own / 'new'))}")
    assert code != 0
    assert "Read-only file system" in out
    assert run(cluster, chief, "python3 -c 'import ssl; print(1)'") == (0, "1\n")


def test_input_data_of_this_machine_is_seen_where_the_file_names_it(
    cluster: LocalCluster, user: Path
) -> None:
    data = {"d": DataSource(source=(user / "data.csv").as_uri())}
    cluster.plan = replace(cluster.plan, config=replace(cluster.plan.config, data=data))
    chief, _ = create(cluster)
    assert run(cluster, chief, f"cat {user}/data.csv; ls -A {user}") == (0, "1,2\ndata.csv\n")


def test_a_shared_folder_is_seen_as_it_is(
    cluster: LocalCluster, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = user / "shared"
    shared.mkdir()
    monkeypatch.setenv(environment.SHARED, f"{shared}:/not/there")
    chief, _ = create(cluster)
    assert run(cluster, chief, f"echo new > {shared}/new; ls -A {user}") == (0, "shared\n")
    assert (shared / "new").read_text() == "new\n"


def test_with_all_shared_a_node_sees_this_machine(
    cluster: LocalCluster, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.SHARED, "/")
    chief, worker = create(cluster)
    assert run(cluster, chief, f"cat {user}/data.csv") == (0, "1,2\n")
    assert run(cluster, chief, f"ls -d '{cluster.folder(worker)}'")[0] == 0


def test_a_link_leads_to_where_it_led(cluster: LocalCluster, user: Path, tmp_path: Path) -> None:
    """Data sets that are on another disk, in a home that is a link."""
    (tmp_path / "disk" / "datasets").mkdir(parents=True)
    (tmp_path / "disk" / "datasets" / "mnist.npz").write_text("downloaded")
    (user / ".keras").symlink_to(tmp_path / "disk")
    chief, _ = create(cluster)
    assert run(cluster, chief, "cat ~/.keras/datasets/mnist.npz") == (0, "downloaded")


def test_destroy_leaves_no_mount_and_deletes_the_temporary_files(cluster: LocalCluster) -> None:
    before = Path("/proc/self/mounts").read_text()
    for node in create(cluster):
        assert run(cluster, node, "mkdir -p /tmp/a/b && touch /tmp/a/b/c")[0] == 0
    assert Path("/proc/self/mounts").read_text() == before
    cluster.destroy()
    assert Path("/proc/self/mounts").read_text() == before
    assert not (cluster.home / "local" / cluster.name).exists()


def test_a_killed_node_comes_back_with_its_temporary_files_and_its_view(
    cluster: LocalCluster, user: Path
) -> None:
    chief, _ = create(cluster)
    assert run(cluster, chief, "echo kept > /tmp/kept")[0] == 0
    for pid in processes.tags(lambda tag: tag == cluster.tag(chief.name)):
        os.kill(pid, 9)
    eventually(lambda: cluster.provider.nodes(cluster.name)[0].state == "stopped")
    create(cluster)
    assert run(cluster, chief, f"cat /tmp/kept; test -e {user}/data.csv") == (1, "kept\n")


def test_what_a_view_needs_and_cannot_be_shown_is_said(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is shared, as before: half a view would fail where no cloud does."""
    real = environment.view_of_nodes

    def odd(*given: object, **named: object) -> object:
        view = real(*given, **named)  # type: ignore[arg-type]
        assert view
        return replace(view, read_only=(*view.read_only, "/proc/self/ns/mnt"))

    monkeypatch.setattr(environment, "view_of_nodes", odd)
    events: list[Event] = []
    cluster.nodes = cluster.provider.create(cluster.plan, cluster.identity, events.append)
    know_hosts(cluster.identity, cluster.nodes)
    assert [event.why for event in events if isinstance(event, NodesShareFiles)] != []
    assert run(cluster, cluster.nodes[0], "echo here") == (0, "here\n")


needs_root = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv"
)

ENTER = """
import os, sys
from pathlib import Path
from cloudtrain.providers.local.private_view import View, enter
folder = Path(sys.argv[1])
(folder / "home").mkdir()
enter(View(hidden=["/mnt", "/root"], writable=[str(folder / "home")], read_only=["/opt"]), folder)
print(os.getpid(), os.getuid(), os.listdir("/tmp"), os.listdir("/root"), flush=True)
(folder / "home" / "made").touch()
for path in ("/mnt", "/opt"):
    try:
        (Path(path) / "x").touch()
    except OSError as error:
        print(path, error.strerror, flush=True)
os.execv("/bin/sh", ["sh", "-c", "umount /root; echo 0 > /tmp/by-command; ls /tmp; id -u"])
"""


@needs_root
def test_an_ordinary_user_has_a_view_by_a_user_namespace() -> None:
    folder = Path(tempfile.mkdtemp(prefix="cloudtrain-user-"))
    try:
        os.chown(folder, 65534, 65534)
        done = subprocess.run(
            [
                *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
                *("/usr/bin/python3", "-B", "-c", ENTER, str(folder)),
            ],
            env={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        made = (folder / "home" / "made").exists()
    finally:
        shutil.rmtree(folder)
    if "unshare" in done.stderr:
        pytest.skip(f"no user namespaces on this machine: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"1 65534 ['{folder.name}'] []",
        "/mnt Read-only file system",
        "/opt Read-only file system",
        "by-command",
        folder.name,
        "65534",
    ]
    assert made


@needs_root
def test_where_mounts_are_refused_nodes_share_this_machine_and_up_says_so(
    project: Project,
) -> None:
    """As root in a container, which has no CAP_SYS_ADMIN."""
    config = project.config(strategy="custom", nodes={"chief": {}}, train={"command": "true"})
    done = subprocess.run(
        [
            *("setpriv", "--inh-caps=-sys_admin", "--bounding-set=-sys_admin"),
            *(sys.executable, "-m", "cloudtrain", "up", str(config)),
        ],
        env=project.environment,
        cwd=project.folder,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "local nodes are no sandbox here: unshare: Operation not permitted" in done.stderr
    seen = project.cloudtrain("exec", project.name, "--", "cat", str(config))
    assert seen.returncode == 0, seen.stderr


def test_a_file_that_only_this_machine_has_fails_a_run_and_the_hint_says_how_to_deliver_it(
    project: Project,
) -> None:
    (project.folder / "data.csv").write_text("1,2\n")
    (project.code / "read.py").write_text("import sys\nprint(open(sys.argv[1]).read())\n")
    config = project.config(
        strategy="custom",
        nodes={"chief": {}},
        train={"command": shlex.join(["python3", "read.py", f"{project.folder}/data.csv"])},
    )
    done = project.cloudtrain("run", config)
    if "local nodes are no sandbox" in done.stderr:
        pytest.skip("no mount namespaces on this machine")
    assert done.returncode == 1, done.stderr
    assert f"`{project.folder}/data.csv` is not on the node" in done.stderr
    assert "deliver it by `code.path` or `data:`" in done.stderr


def test_a_node_with_a_disk_of_its_own_is_filled_and_freed_alone(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.DISK, "64m")
    one, other = create(cluster)
    assert run(cluster, one, "echo before >early; stat -f -c %T .") == (0, "tmpfs\n")
    size = cluster.provider.fill_disk(cluster.name, one.name)
    assert size == 64 << 20
    assert "No space left on device" in run(cluster, one, "head -c 1 /dev/zero >late")[1]
    assert run(cluster, one, "cat early") == (0, "before\n")
    assert run(cluster, other, "echo x >late") == (0, "")
    cluster.provider.free_disk(cluster.name, one.name, size)
    assert run(cluster, one, "echo x >late && cat late") == (0, "x\n")


def test_a_node_without_a_disk_of_its_own_is_not_filled(cluster: LocalCluster) -> None:
    one, _ = create(cluster)
    assert cluster.provider.fill_disk(cluster.name, one.name) is None
    assert run(cluster, one, "echo x >late && cat late") == (0, "x\n")
