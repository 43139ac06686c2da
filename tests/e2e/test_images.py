"""Tasks in containers, with a real Podman, a real registry and images made here."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import image_parts
from tests.support.image_parts import RegistryHere, image
from tests.support.lent import lent_home
from tests.support.package_index import package_index
from tests.support.processes import environment, pids, words
from tests.support.project import Project, until
from tests.support.sshd import sshd_nodes
from tests.support.wheels import wheel

pytestmark = [
    pytest.mark.skipif(bool(image_parts.unavailable()), reason=str(image_parts.unavailable())),
    pytest.mark.xdist_group("images"),
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryHere]:
    with image_parts.registry(tmp_path_factory.mktemp("registry") / "it") as one:
        one.push("train/plain:1", image())
        yield one


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache whose nodes have the image after the first test."""
    folder = tmp_path_factory.mktemp("cache")
    yield folder
    image_parts.remove_stores(folder)


@pytest.fixture
def programs(project: Project, cache: Path) -> Path:
    """The folder of the Podman that this project's nodes find, which notes what it is asked."""
    folder = project.folder / "programs"
    project.environment |= image_parts.podman(folder)
    project.environment["CLOUDTRAIN_CACHE"] = str(cache)
    return folder


def contained(project: Project, registry: RegistryHere, line: str, **sections: Any) -> Path:
    setup = {"image": f"docker://{registry.host}/train/plain:1", "prove": "off"}
    setup |= sections.pop("setup", {})
    train = {"command": line, **sections.pop("train", {})}
    one: dict[str, Any] = {"nodes": {"chief": {}}, "strategy": "one_device"}
    return project.config(**{**one, "setup": setup, "train": train, **sections})


def asked(programs: Path, verb: str) -> list[str]:
    path = programs / "asked"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if f" {verb} " in line]


def in_containers(project: Project) -> list[int]:
    """Processes of this project's tasks in containers."""
    tag = f"CLOUDTRAIN_TASK={project.name}/".encode()
    own = Path("/proc/self/ns/pid").readlink()
    tagged = [pid for pid in pids() if any(one.startswith(tag) for one in environment(pid))]
    return [pid for pid in tagged if Path(f"/proc/{pid}/ns/pid").readlink() != own]


def log_of(project: Project) -> str:
    (found,) = project.store.glob("*/logs/chief0.attempt-1.log")
    return found.read_text()


def attempt_exits(project: Project) -> Any:
    (run,) = project.runs()
    return run["attempts"][-1]["exits"]


def test_a_cluster_trains_in_its_image_which_is_pinned_and_pulled_once(
    project: Project, registry: RegistryHere, programs: Path, cache: Path
) -> None:
    project.environment["TOKEN_OF_MINE"] = "s3cret-in-no-file"
    (project.code / "all.sh").write_text(
        'python3 rank.py --output "$1" && test "$TOKEN" = s3cret-in-no-file &&\n'
        'test "$IN_IMAGE" = yes && echo kept >~/at-home.txt &&\n'
        "! ls ~/../.ssh && ! touch ~/../.cloudtrain/*/runs/*/*/attempt-1/end-container\n"
    )
    config = contained(
        project,
        registry,
        "sh all.sh {output}",
        strategy="multi_worker_mirrored",
        nodes={"chief": {}, "worker": {"count": 1}},
        secrets={"TOKEN": "${TOKEN_OF_MINE}"},
    )
    done = project.cloudtrain("up", config, "--trust", "--yes")
    assert done.returncode == 0, done.stderr
    done = project.cloudtrain("train", config, "--trust")
    assert done.returncode == 0, done.stderr
    assert "worker0 done" in done.stdout
    (run,) = project.runs()
    assert re.fullmatch(rf"{registry.host}/train/plain:1@sha256:[0-9a-f]{{64}}", run["image"])
    assert run["environments"][0]["packages"] == ["tensorflow==2.17.0"]
    assert project.landed("worker0", "output/worker0.txt").startswith("done")
    assert project.landed("chief0", "_home/home/at-home.txt") == "kept\n"
    assert len(asked(programs, "pull")) == 1, "the nodes share one store here"
    pulled = registry.log.count("GET /v2/train/plain/blobs")
    registry_digest = run["image"].rpartition("@")[2]
    registry.push("train/plain:1", image(NEWER="yes"))
    done = project.cloudtrain("train", config, "--trust")
    assert done.returncode == 0, done.stderr
    assert project.runs()[-1]["image"].rpartition("@")[2] != registry_digest
    registry.push("train/plain:1", image())
    pulls = len(asked(programs, "pull"))
    done = project.cloudtrain("train", config, "--trust")
    assert done.returncode == 0, done.stderr
    assert project.runs()[-1]["image"].rpartition("@")[2] == registry_digest
    assert len(asked(programs, "pull")) == pulls, "the nodes have it"
    assert pulled == registry.log.count("GET /v2/train/plain/blobs") - 1, "the config of the newer"
    holding = [
        path
        for path in (cache / "own").rglob("*")
        if path.is_file() and "overlay" in str(path) and b"s3cret-in-no-file" in path.read_bytes()
    ]
    assert not holding
    assert in_containers(project) == []


def test_a_restart_runs_the_same_image_whatever_its_tag_has_become(
    project: Project, registry: RegistryHere, programs: Path
) -> None:
    registry.push("train/moving:1", image(WHICH="first"))
    line = 'echo "ran $WHICH"; [ -e ~/again ] || { touch ~/again; sleep 1; exit 42; }'
    setup = {"image": f"{registry.host}/train/moving:1"}
    config = contained(project, registry, line, setup=setup, train={"max_restarts": 1})
    assert project.cloudtrain("up", config, "--trust", "--yes").returncode == 0
    following = project.start("train", config, "--trust")
    until(lambda: "ran first" in project.stdout, within=60)
    registry.push("train/moving:1", image(WHICH="second"))
    assert following.wait(90) == 0
    assert project.stdout.count("ran first") == 2
    assert "ran second" not in project.stdout


def test_the_compute_check_computes_with_the_images_python(
    project: Project, registry: RegistryHere, programs: Path
) -> None:
    """The image says that it has a TensorFlow, but nothing can import it."""
    done = project.cloudtrain(
        "run", contained(project, registry, "true", setup={"prove": "auto"}), "--trust"
    )
    assert done.returncode == 1
    assert "importing TensorFlow failed: ModuleNotFoundError: No module named 'tensorflow'" in (
        done.stderr
    )
    assert in_containers(project) == []


def test_packages_are_a_layer_over_the_image_for_its_tasks(
    project: Project, registry: RegistryHere, programs: Path, tmp_path: Path
) -> None:
    wheels = wheel(tmp_path / "wheels", "extra", "2.0", "tensorflow>=2").parent
    with package_index(wheels, tmp_path / "asked") as index:
        project.environment |= {"PIP_INDEX_URL": index.url("here")}
        project.environment.pop("PIP_CONFIG_FILE", None)
        line = (
            "python -c 'import extra; print(\"has\", extra.VERSION)' && extra &&"
            " touch $VIRTUAL_ENV/mine || echo cannot change it"
        )
        config = contained(project, registry, line, setup={"packages": ["extra"]})
        done = project.cloudtrain("run", config, "--trust")
        assert done.returncode == 0, done.stderr
        assert "has 2.0" in log_of(project)
        assert "cannot change it" in log_of(project)
        (run,) = project.runs()
        assert {"extra==2.0", "tensorflow==2.17.0"} <= set(run["environments"][0]["packages"])
        assert [each.package for each in index.requests() if each.kind == "file"] == ["extra"]
        assert index.url("here") not in (programs / "asked").read_text(), "it may have a password"
        config = contained(project, registry, line, setup={"packages": ["no-such-one"]})
        done = project.cloudtrain("run", config, "--trust")
        assert done.returncode == 1
        assert "No matching distribution found for no-such-one" in done.stderr
        assert "build an image that has the packages" in done.stderr


def test_an_image_for_other_machines_is_refused_before_a_node_exists(
    project: Project, registry: RegistryHere, programs: Path
) -> None:
    other = "arm64" if image_parts.architecture() == "amd64" else "amd64"
    registry.push("train/other:1", image(architecture_=other))
    setup = {"image": f"{registry.host}/train/other:1"}
    config = contained(project, registry, "true", setup=setup)
    done = project.cloudtrain("check", config, "--trust")
    assert done.returncode == 2
    assert f"is for {other}, but the nodes are {image_parts.architecture()}" in done.stdout
    done = project.cloudtrain("up", config, "--trust", "--yes")
    assert done.returncode == 2
    assert f"is for {other}, but the nodes are {image_parts.architecture()}" in done.stderr


def test_data_is_in_the_container_at_the_path_that_its_variable_has(
    project: Project, registry: RegistryHere, programs: Path
) -> None:
    source = project.folder / "digits of mine"
    source.mkdir()
    (source / "one.txt").write_text("0 1 2")
    line = 'mkdir -p {output}; cat {data.digits}/one.txt "$CLOUDTRAIN_DATA_DIGITS"/one.txt'
    line += " >{output}/both"
    config = contained(project, registry, line, data={"digits": source.as_uri()})
    done = project.cloudtrain("run", config, "--trust")
    assert done.returncode == 0, done.stderr
    assert project.landed("chief0", "output/both") == "0 1 20 1 2"


def test_a_stopped_task_gets_term_once_and_its_grace(
    project: Project, registry: RegistryHere, programs: Path
) -> None:
    (project.code / "slow.py").write_text(
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    print('saving', flush=True)\n"
        "    time.sleep(0.5)\n"
        "    open(sys.argv[1] + '/saved', 'w').write('all')\n"
        "    sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)\n"
    )
    line = "mkdir -p {output} && exec python3 slow.py {output}"
    config = contained(project, registry, line, train={"grace": "20s"})
    assert project.cloudtrain("up", config, "--trust", "--yes").returncode == 0
    following = project.start("train", config, "--trust")
    until(lambda: "ready" in project.stdout, within=60)
    done = project.cloudtrain("stop-run", project.name)
    assert done.returncode == 0, done.stderr
    following.wait(60)
    assert project.landed("chief0", "output/saved") == "all"
    assert log_of(project).count("saving") == 1
    assert attempt_exits(project)["chief0"] == 3
    assert in_containers(project) == []


def test_a_task_goes_on_without_the_client_that_started_it_and_ends_with_its_run(
    project: Project, registry: RegistryHere, programs: Path
) -> None:
    config = contained(project, registry, "echo ready; exec sleep 300")
    assert project.cloudtrain("up", config, "--trust", "--yes").returncode == 0
    project.start("train", config, "--trust")
    until(lambda: "ready" in project.stdout, within=60)
    assert len(in_containers(project)) == 2, "the first process and the task"
    for pid in pids():
        if " run --" in f" {' '.join(words(pid))}" and project.name in " ".join(words(pid)):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not in_containers(project), within=60, what="the container is ended")
    log = until(lambda: log_of(project), within=60)
    assert "[cloudtrain: ended" in log


def test_what_a_task_leaves_behind_is_ended_and_named_and_its_code_is_the_tasks(
    project: Project, registry: RegistryHere, programs: Path
) -> None:
    config = contained(project, registry, "sleep 299 & echo ready; exit 7")
    done = project.cloudtrain("run", config, "--trust")
    assert done.returncode == 1, done.stderr
    assert attempt_exits(project)["chief0"] == 7
    log = log_of(project)
    assert "[cloudtrain: ended processes that chief0 left behind: sleep (pid " in log
    assert in_containers(project) == []


def test_a_private_registry_gives_its_image_by_a_password_that_no_task_gets(
    project: Project, programs: Path, cache: Path, tmp_path: Path
) -> None:
    with image_parts.registry(tmp_path / "private", ("robot", "pa55-in-no-file")) as private:
        private.push("train/private:1", image(ONLY="here"))
        setup = {"image": f"{private.host}/train/private:1"}
        line = "env; cat /proc/*/environ | cat; exit 0"
        config = contained(project, private, line, setup=setup)
        done = project.cloudtrain("check", config, "--trust")
        assert done.returncode == 4
        assert "gives 127" in done.stdout + done.stderr
        assert "without a login" in done.stdout + done.stderr
        project.environment["PASSWORD_OF_MINE"] = "pa55-in-no-file"
        setup |= {"registry_user": "robot", "registry_password": "PASSWORD"}
        secrets = {"PASSWORD": "${PASSWORD_OF_MINE}"}
        config = contained(project, private, line, setup=setup, secrets=secrets)
        done = project.cloudtrain("check", config, "--trust")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{private.host}/train/private@sha256:" in done.stdout
        done = project.cloudtrain("run", config, "--trust")
        assert done.returncode == 0, done.stderr
    log = log_of(project)
    assert "ONLY=here" in log
    assert "pa55-in-no-file" not in log
    assert "cm9ib3Q6cGE1NS1pbi1uby1maWxl" not in log, "as the header has it"
    logins = [path.read_text() for path in Path("/dev/shm").glob("cloudtrain-*/config.json")]
    assert not any(private.host in text for text in logins)
    assert not any("pa55-in-no-file" in line for line in (programs / "asked").read_text())


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("name", "made", "words_"),
    [
        ("no-python", {"python": False}, "the image has no python3 in its PATH"),
        ("no-shell", {"shell": False}, "the image has no /bin/sh"),
    ],
)
def test_an_image_in_which_no_task_can_run_is_named_before_training(
    project: Project,
    registry: RegistryHere,
    programs: Path,
    name: str,
    made: dict[str, bool],
    words_: str,
) -> None:
    registry.push(f"train/{name}:1", image(**made))  # type: ignore[arg-type]
    setup = {"image": f"{registry.host}/train/{name}:1"}
    done = project.cloudtrain("run", contained(project, registry, "true", setup=setup), "--trust")
    assert done.returncode == 1
    assert words_ in done.stderr
    assert not project.runs()


def test_an_image_whose_annotations_tell_the_runtime_to_write_a_file_is_refused(
    project: Project, registry: RegistryHere, programs: Path, tmp_path: Path
) -> None:
    """With a hook of this machine's, as NVIDIA's toolkit has them: without one crun opens none."""
    hook = {"path": "/usr/bin/true"}
    always = {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": ["prestart"]}
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks/one.json").write_text(json.dumps(always))
    settings = programs / "containers.conf"
    hooks = f'[engine]\nhooks_dir = ["{tmp_path}/hooks"]\n'
    settings.write_text(settings.read_text().replace("[engine]\n", hooks))
    written = tmp_path / "by-the-image"
    annotations = {"run.oci.hooks.stdout": str(written), "org.opencontainers.image.title": "it"}
    registry.push("train/telling:1", replace(image(), annotations=annotations))
    setup = {"image": f"{registry.host}/train/telling:1"}
    done = project.cloudtrain("run", contained(project, registry, "true", setup=setup), "--trust")
    assert done.returncode == 1
    assert "tells its runtime what to do, by annotations: run.oci.hooks.stdout\n" in done.stderr
    assert not written.exists()


def test_a_container_on_a_lent_machine_sees_nothing_of_its_owners_home(
    project: Project, registry: RegistryHere, programs: Path, tmp_path: Path
) -> None:
    with sshd_nodes(tmp_path / "machines", ["a"]) as machines:
        (machine,) = machines
        project.environment["HOME"] = str(lent_home(tmp_path / "home", machines))
        (machine.home / ".profile").write_text("")
        (machine.home / "private").write_text("mine")
        (machine.folder / "sshd_config").write_text(
            (machine.folder / "sshd_config")
            .read_text()
            .replace("SetEnv ", f'SetEnv "PATH={programs}:{os.environ["PATH"]}" ')
        )
        machine.stop()
        machine.start()
        machine.await_start()
        node = machine.node
        host = {
            "address": node.address,
            "port": node.ssh_port,
            "user": node.user,
            "role": "chief",
            "key": str(tmp_path / "home/.ssh/id_ed25519"),
        }
        line = (
            f"ls -a ~ {machine.home} {machine.home}/.ssh; mkdir -p {{output}}; pwd >{{output}}/at"
        )
        config = contained(project, registry, line, provider="hosts", hosts=[host])
        try:
            done = project.cloudtrain("run", config, "--trust")
            assert done.returncode == 0, done.stderr
            project.cloudtrain("forget", project.name)  # its machine is about to be gone
        finally:
            image_parts.remove_stores(tmp_path)
    log = log_of(project)
    assert "private" not in log
    assert "authorized_keys" not in log
    assert project.landed("chief0", "output/at").startswith(f"{machine.home}/.cloudtrain/")
    assert json.loads(next(project.store.glob("*/run.json")).read_text())["image"]


def test_containers_share_the_folder_that_their_nodes_share(
    project: Project, registry: RegistryHere, programs: Path
) -> None:
    (project.code / "both.sh").write_text(
        'echo "$CLOUDTRAIN_ROLE" >job/$CLOUDTRAIN_ROLE &&\n'
        'until [ -s job/chief ] && [ -s "$1/worker" ]; do sleep 0.1; done; echo saw both\n'
    )
    config = contained(
        project,
        registry,
        "sh both.sh {shared}",
        strategy="custom",
        nodes={"chief": {}, "worker": {"count": 1}},
        shared="job",
        train={"checkpoints": None},
    )
    done = project.cloudtrain("run", config, "--trust")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("saw both") == 2
    assert project.landed("chief0", "job/worker") == "worker\n"
