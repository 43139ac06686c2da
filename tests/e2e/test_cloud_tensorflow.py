"""The whole path on each cloud's stand-in with a real TensorFlow, as a user types it.

Real cloud-init, sshd, playbooks, training and object stores; only the machines and the bill are
pretended. Nodes have no network: their image brings the environment that the `tensorflow` playbook
makes on this machine, so that its step is proved done, and an archive for the `base` playbook.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloudtrain import config as configs
from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import Accelerator, ClusterConfig, NodeGroup, Setup
from cloudtrain.node import layer
from cloudtrain.playbooks import gpu_check, tensorflow
from cloudtrain.playbooks.apply import apply
from cloudtrain.ssh.keys import load_identity
from cloudtrain.ssh.transport import SshTransport
from tests.standins.cloud import DESCRIPTIONS, running
from tests.standins.image import with_archive
from tests.standins.nodes import Nodes, unavailable
from tests.standins.stores import KINDS, Store
from tests.support import cloud_user
from tests.support.cloud_user import MACHINES, READY, Account
from tests.support.nodes_here import Remembered, node
from tests.support.one_machine import Machine
from tests.support.project import ROOT, Project, until

pytestmark = [pytest.mark.tensorflow, pytest.mark.xdist_group("tensorflow")]

SETUP = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text(encoding="utf-8"))["setup"]
LAST = "/manifest.json"
MODEL = "chief0/output/model/saved_model.pb"
EPOCHS = re.compile(r"chief0 │ Epoch (\d+/\d+)")


@pytest.fixture(scope="module")
def loss_of_one_process(tmp_path_factory: pytest.TempPathFactory, tensorflow_python: Path) -> str:
    """The final loss of the example in a process of its own, without us."""
    done = subprocess.run(
        [tensorflow_python, ROOT / "examples" / "multi_worker_mirrored.py"],
        cwd=tmp_path_factory.mktemp("alone"),
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=cloud_user.LIMIT,
        check=True,
    )
    (loss,) = re.findall(r"final loss (\d+\.\d{6})", done.stdout)
    return str(loss)


@pytest.fixture
def account(
    request: pytest.FixtureRequest, tmp_path: Path, tensorflow_python: Path
) -> Iterator[tuple[Account, Store]]:
    with booting(request.param, Project(tmp_path / "user's project"), tensorflow_python) as found:
        yield found


@contextmanager
def booting(name: str, project: Project, python: Path) -> Iterator[tuple[Account, Store]]:
    """The user's account on this cloud, whose nodes bring the environment of `python`."""
    if reason := unavailable():
        pytest.skip(reason)
    environment = python.parent.parent
    binds, image = environments(python), project.folder.parent / f"image of {name}"
    with (
        Nodes(binds=binds, files=image) as nodes,
        running(name, nodes=nodes) as cloud,
        KINDS[DESCRIPTIONS[name].store]() as store,
    ):
        project.environment.update({**store.environment, **cloud.environment})
        user = Account(project, cloud, nodes)
        bring(image, environment, configs.load(user.config(machine=MACHINES[name], setup=SETUP)))
        with_archive(image)
        yield user, store


def base(python: Path) -> list[Path]:
    """Where the environment's Python has its library; Debian's own is on the nodes too."""
    asked = [python, "-c", "import sys; print(sys.base_prefix)"]
    prefix = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return [] if prefix == "/usr" else [Path(prefix)]


def environments(python: Path) -> list[Path]:
    """The folders of the layer and of what is below it, and of their Python."""
    return [*map(Path, layer.chain(str(python.parent.parent))), *base(python)]


def bring(image: Path, environment: Path, config: ClusterConfig) -> None:
    """They are where the playbook would make them, in the home that the first boot makes."""
    own, below = layer.chain(str(environment))
    for asked, made in ((tensorflow.base_folder, below), (tensorflow.environment_folder, own)):
        folder = asked(config, node())
        assert folder is not None
        place = image / "etc" / "skel" / folder
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(made)


@pytest.mark.sweep(0)
@pytest.mark.parametrize("account", READY, indirect=True)
def test_check_up_train_status_fetch_down_with_tensorflow_on_three_nodes(
    account: tuple[Account, Store], loss_of_one_process: str
) -> None:
    user, store = account
    config = example(user, store, "multi_worker_mirrored.py", {"chief": 1, "worker": 2})
    user.do("check", config)
    assert user.cloud.holdings() == []

    user.do("up", config, "--yes")
    tasks = ["chief0", "worker0", "worker1"]
    assert [node["name"] for node in user.status()] == [f"{user.project.name}-{t}" for t in tasks]
    trained = user.do("train", user.project.name).stdout
    losses = re.findall(r"(\w+) │ final loss (\d+\.\d{6})", trained)
    assert sorted(losses) == [(task, loss_of_one_process) for task in tasks]

    landed = run_in_the_store(user, store)
    tensorflow_spanned(user, landed, tasks)
    user.do("fetch", user.project.name, "results")
    fetched = user.project.folder / "results" / MODEL
    assert fetched.read_bytes() == landed[MODEL]

    user.do("down", user.project.name, "--yes")
    assert user.cloud.holdings() == []
    assert user.nodes.running() == []
    assert run_in_the_store(user, store) == landed


@pytest.mark.sweep(0)
@pytest.mark.parametrize("account", ["gcp"], indirect=True)
def test_parameter_servers_train_and_are_ended_with_the_chief(
    account: tuple[Account, Store],
) -> None:
    user, store = account
    roles = {"chief": 1, "worker": 2, "ps": 1}
    config = example(
        user, store, "parameter_server.py", roles, strategy="parameter_server", epochs=2
    )
    user.do("up", config, "--yes")
    trained = user.do("train", user.project.name).stdout
    assert re.search(r"chief0 │ final loss \d", trained)
    landed = run_in_the_store(user, store)
    tensorflow_spanned(user, landed, ["chief0", "worker0", "worker1", "ps0"])
    asked = ["sh", "-c", "pgrep -fc '[p]arameter_server.py' || true"]
    left = user.do("exec", user.project.name, "--", *asked)
    assert {line.split()[-1] for line in left.stdout.splitlines()} == {"0"}
    user.do("down", user.project.name, "--yes")
    assert user.cloud.holdings() == []
    assert user.nodes.running() == []


@pytest.mark.sweep(0)
@pytest.mark.parametrize("account", ["aws"], indirect=True)
def test_tensorflow_takes_a_worker_back_whose_node_was_deleted_and_recreated(
    account: tuple[Account, Store],
) -> None:
    """It connects again to the new node, which has the old one's address."""
    user, store = account
    roles = {"chief": 1, "worker": 2, "ps": 1}
    config = example(
        user, store, "parameter_server.py", roles, strategy="parameter_server", epochs=40
    )
    values = yaml.safe_load(config.read_text())
    values["nodes"]["worker"]["spot"] = True
    values["train"]["max_restarts"] = 1
    config.write_text(yaml.safe_dump(values))
    run = user.project.start("run", config, "--yes")
    try:
        until(lambda: "Epoch 2/" in user.project.stdout, cloud_user.LIMIT, user.project.stderr)
        user.cloud.tell("interrupt", name=f"{user.project.name}-worker1")
        again = r"worker1 serves again, ([\d.]+) s after it failed"
        until(lambda: re.search(again, user.project.stderr), cloud_user.LIMIT, again)
        print(re.findall(again, user.project.stderr))
        assert run.wait(cloud_user.LIMIT) == 0, user.project.stderr
    finally:
        run.kill()
    landed = run_in_the_store(user, store)
    record = json.loads(landed["run.json"])
    assert [task["attempt"] for task in record["tasks"]] == [1, 1, 2, 1]
    assert len(record["attempts"]) == 1
    said = [landed[f"logs/worker1.attempt-{number}.log"].decode() for number in (1, 2)]
    (first, second) = (re.findall(r"Started server with target: (\S+)", text) for text in said)
    assert first == second != []
    assert user.cloud.holdings() == []


@pytest.mark.sweep(0)
@pytest.mark.parametrize("account", ["gcp"], indirect=True)
def test_parameter_servers_resume_on_another_cloud(
    account: tuple[Account, Store], tensorflow_python: Path
) -> None:
    """On each cloud the checkpoint of the variables on the ps lands in the cloud's own store."""
    user, store = account
    roles = {"chief": 1, "worker": 2, "ps": 1}
    options: Any = {"script": "parameter_server.py", "strategy": "parameter_server"}
    config = example(user, store, roles=roles, epochs=2, **options)
    first = user.do("run", config, "--yes").stdout
    assert EPOCHS.findall(first) == ["1/2", "2/2"]
    assert user.cloud.holdings() == []

    with booting("aws", user.project, tensorflow_python) as (second, other):
        roles["worker"] = 1
        config = example(second, other, roles=roles, epochs=4, **options)
        done = second.do("run", config, "--resume", store.uri, "--yes")
        assert "the run begins with ckpt/ckpt-2 of run" in done.stderr
        assert EPOCHS.findall(done.stdout) == ["3/4", "4/4"]
        landed = run_in_the_store(second, other)
        assert json.loads(landed["run.json"])["resumed_from"]["store"] == store.uri
        assert "chief0/ckpt/ckpt-4.index" in landed
        assert second.cloud.holdings() == []
        assert second.nodes.running() == []


def test_a_node_whose_tensorflow_sees_no_gpu_is_not_ready(
    tmp_path: Path, tensorflow_python: Path
) -> None:
    if reason := unavailable():
        pytest.skip(reason)
    config = ClusterConfig(
        name="mnist",
        provider="gcp",
        strategy="multi_worker_mirrored",
        nodes={"chief": NodeGroup(accelerator=Accelerator(kind="T4"))},
        setup=Setup(tensorflow="2.21"),
        source=str(tmp_path / "mnist.yaml"),
    )
    environment = tensorflow_python.parent.parent
    bring(tmp_path / "image", environment, config)
    binds = environments(tensorflow_python)
    machine = Machine(tmp_path / "keys", binds=binds, files=tmp_path / "image")
    with machine.nodes:
        machine.start()
        machine.enter()
        steps = gpu_check.steps(config, machine.node)
        with (
            SshTransport(load_identity(machine.folder)) as transport,
            pytest.raises(StepFailed, match=r"TensorFlow 2\.21\.\d+ sees 0 of 1 GPUs") as refused,
        ):
            apply(lambda _: steps, [machine.node], transport, Remembered())
        assert refused.value.hint == "`nvidia-smi` on the node shows what the driver sees"


def example(
    user: Account,
    store: Store,
    script: str,
    roles: dict[str, int],
    *,
    strategy: str = "multi_worker_mirrored",
    epochs: int = 5,
) -> Path:
    shutil.copytree(ROOT / "examples", user.project.code, dirs_exist_ok=True)
    # The proof is one program on all clouds, and starts two more TensorFlows for each node.
    prove = "auto" if user.cloud.name == "gcp" else "off"
    command = f"hostname; printenv TF_CONFIG; python {script} --epochs {epochs} --output {{output}}"
    return user.config(
        machine=MACHINES[user.cloud.name],
        roles=roles,
        strategy=strategy,
        setup={**SETUP, "prove": prove},
        train={"command": command, "checkpoints": "ckpt"},
        artifacts={"store": store.uri, "require": ["output/model/saved_model.pb"]},
    )


def run_in_the_store(user: Account, store: Store) -> dict[str, bytes]:
    """What the one run landed, as the store's own SDK reads it; its manifest agrees."""
    found = READ[store.uri.partition(":")[0]](user.project.environment)
    (folder,) = (key.removesuffix("manifest.json") for key in found if key.endswith(LAST))
    inside = [key for key in found if key.startswith(folder)]
    files = {key.removeprefix(folder): found[key] for key in inside}
    manifest = json.loads(files["manifest.json"])
    assert manifest["complete"]
    told = {file["path"]: file["sha256"] for file in manifest["files"]}
    assert {path: hashlib.sha256(files[path]).hexdigest() for path in told} == told
    assert MODEL in told
    return files


def tensorflow_spanned(user: Account, landed: dict[str, bytes], tasks: list[str]) -> None:
    """Each task was on the node of its name and served at the address that all were told."""
    clusters, hosts = [], set()
    for task in tasks:
        name, told, *said = landed[f"logs/{task}.attempt-1.log"].decode().splitlines()
        assert name == f"{user.project.name}-{task}"
        config = json.loads(told)
        clusters.append(config["cluster"])
        role, index = config["task"]["type"], config["task"]["index"]
        assert task == f"{role}{index}"
        address = config["cluster"][role][index]
        hosts.add(address.partition(":")[0])
        assert any(f"Started server with target: grpc://{address}" in line for line in said)
    assert all(cluster == clusters[0] for cluster in clusters)
    assert len(hosts) == sum(map(len, clusters[0].values())) == len(tasks)


# ── The stores, each read with its owner's SDK ───────────────────────────────


def _s3(environment: dict[str, str]) -> dict[str, bytes]:
    import boto3

    s3 = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL_S3"],
        region_name="us-east-1",
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )
    keys = [found["Key"] for found in s3.list_objects_v2(Bucket="bucket").get("Contents", ())]
    return {key: s3.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}


def _gs(environment: dict[str, str]) -> dict[str, bytes]:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    client = Client(
        project=environment["GOOGLE_CLOUD_PROJECT"],
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": environment["STORAGE_EMULATOR_HOST"]},
    )
    return {blob.name: blob.download_as_bytes() for blob in client.list_blobs("bucket")}


def _az(environment: dict[str, str]) -> dict[str, bytes]:
    from azure.storage.blob import ContainerClient

    container = ContainerClient.from_connection_string(
        environment["AZURE_STORAGE_CONNECTION_STRING"], "container"
    )
    names = list(container.list_blob_names())
    return {name: container.download_blob(name).readall() for name in names}


READ: dict[str, Callable[[dict[str, str]], dict[str, bytes]]] = {"s3": _s3, "gs": _gs, "az": _az}
