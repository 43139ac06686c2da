"""`run --away` in a stand-in's account: desks get credentials of their identity."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloudtrain import config as configs
from cloudtrain.away.desk_cluster import desk_config, desk_extras, write_program
from cloudtrain.away.published import AwayState, Published
from cloudtrain.core.errors import StoreError
from cloudtrain.core.protocols import ArtifactStore
from cloudtrain.playbooks import tensorflow
from cloudtrain.stores import open_store
from tests.standins import azure_auth
from tests.standins.cloud import DESCRIPTIONS, Cloud, running
from tests.standins.image import with_archive
from tests.standins.nodes import Nodes, unavailable
from tests.standins.stores import KINDS, Store
from tests.support.cloud_user import MACHINES, Account
from tests.support.nodes_here import node
from tests.support.processes import words
from tests.support.project import Project

IDENTITY = {"gcp": "desk@test-project.iam.gserviceaccount.com", "aws": "desk", "azure": "ids/desk"}
PLACE = {"gcp": "us-central1-a", "aws": "us-east-1a", "azure": "eastus"}
SECRET = "only-in-memory-4711"


@dataclass
class Away:
    """A user's account, whose machines named as desks get credentials of their identity."""

    user: Account
    store: Store
    environment: dict[str, str]
    """What a desk's machine knows of its cloud: /etc/environment, which PAM reads."""
    certificate: str = ""
    opened: dict[str, ArtifactStore] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.user.project.name

    @property
    def desk(self) -> str:
        """Name of its machine."""
        return f"{self.name}-desk-desk0"

    def config(self, steps: int = 5, **more: Any) -> Path:
        cloud = self.user.cloud.name
        digest = hashlib.sha256(SECRET.encode()).hexdigest()
        test = f'test "$(printf %s "$TOKEN" | sha256sum)" = "{digest}  -"'
        return self.user.config(
            machine=MACHINES[cloud],
            placement=[PLACE[cloud]],
            away={"identity": IDENTITY[cloud]},
            artifacts={"store": self.store.uri},
            train={
                "command": f"{test} && python3 rank.py --output {{output}} --steps {steps} "
                "--pause 0.5"
            },
            secrets={"TOKEN": "${A_TOKEN}"},
            **more,
        )

    def files(self, name: str) -> dict[str, str]:
        """Only the desk knows where to ask for credentials."""
        if name != self.desk:
            return {}
        lines = [f'{name}="{value}"\n' for name, value in self.environment.items()]
        return {"etc/environment": "".join(lines), "etc/standin.crt": self.certificate}

    def artifacts(self) -> ArtifactStore:
        """Its first request reads the credentials from the environment, which is the user's for no
        longer: nodes that are started here inherit it.
        """
        if self.store.uri not in self.opened:
            with pytest.MonkeyPatch.context() as patch:
                user = {**self.store.environment, **self.user.cloud.environment}
                for name, value in user.items():
                    patch.setenv(name, value)
                store = open_store(self.store.uri)
                list(store.list(".leases/"))
            self.opened[self.store.uri] = store
        return self.opened[self.store.uri]

    def state(self) -> AwayState | None:
        return Published(self.artifacts(), self.name).state()

    def phase(self) -> str:
        """ "" where the emulator was read in the middle of a write, which a real store prevents."""
        try:
            state = self.state()
        except StoreError:
            return ""
        return state.phase if state is not None else ""

    def kinds_held(self) -> list[str]:
        """Kinds of everything that the account has."""
        return [line.partition(" cloudtrain-")[0] for line in self.user.cloud.holdings()]

    def processes(self) -> list[int]:
        """Of this program on the desk."""
        there = self.user.nodes.pids(self.desk)
        return [pid for pid in there if words(pid)[1:4] == ["-m", "cloudtrain", "desk"]]


@contextlib.contextmanager
def away(cloud_name: str, folder: Path) -> Iterator[Away]:
    if reason := unavailable():
        pytest.skip(reason)
    project = Project(folder / "user's project")
    environment, image = folder / "desk environment", folder / "image"
    library = Path(sysconfig.get_path("purelib"))
    make_environment(environment, library)
    binds = [environment, library, *base()]
    found: list[Away] = []
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(
            Nodes(binds=binds, files=image, own_files=lambda name: found[0].files(name))
        )
        cloud = stack.enter_context(running(cloud_name, nodes=nodes))
        store = stack.enter_context(KINDS[DESCRIPTIONS[cloud_name].store]())
        project.environment.update({**store.environment, **cloud.environment, "A_TOKEN": SECRET})
        made = Away(Account(project, cloud, nodes), store, identified(cloud, store))
        if trusted := cloud.environment.get("REQUESTS_CA_BUNDLE"):
            made.certificate = Path(trusted).read_text()
        found.append(made)
        bring(image, environment, configs.load(made.config()))
        with_archive(image)
        yield made


def identified(cloud: Cloud, store: Store) -> dict[str, str]:
    """Has the cloud's stand-in know the desk's identity, and says where a machine asks for it."""
    app, here = cloud.app, cloud.url
    if cloud.name == "gcp":
        app.service_accounts[IDENTITY["gcp"]] = {}
        host = here.removeprefix("http://")
        return {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host}
    if cloud.name == "aws":
        instance_profile(here, cloud.environment)
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": here}
    app.identities = (*app.identities, IDENTITY["azure"])
    return {
        "IDENTITY_ENDPOINT": f"{here}{azure_auth.IDENTITY_PATH}",
        "IDENTITY_HEADER": azure_auth.IDENTITY_HEADER,
        "REQUESTS_CA_BUNDLE": "/etc/standin.crt",
        **store.environment,  # Azurite without TLS takes no tokens
    }


def instance_profile(url: str, environment: dict[str, str]) -> None:
    import boto3

    iam = boto3.client(
        "iam",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "ec2.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    iam.create_role(RoleName="desk", AssumeRolePolicyDocument=json.dumps(trust))
    iam.create_instance_profile(InstanceProfileName="desk")
    iam.add_role_to_instance_profile(InstanceProfileName="desk", RoleName="desk")


def make_environment(folder: Path, library: Path) -> None:
    """What pip would install for the desk, from what these tests run with."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "tests.pth").write_text(f"{library}\n")
    for name in (".sealed", ".complete"):
        (folder / name).touch()
    (folder / "below").write_text("4294967295 0\n")  # the sum of no package, scripts.BELOW


def base() -> list[Path]:
    """Where this Python has its library; Debian's own is on the nodes too."""
    return [] if sys.base_prefix == "/usr" else [Path(sys.base_prefix)]


def bring(image: Path, environment: Path, config: Any) -> None:
    """It is where the playbook would make it, in the home that the first boot makes."""
    program = image.with_name("program")
    write_program(program, desk_extras(config))
    for asked in (tensorflow.base_folder, tensorflow.environment_folder):
        folder = asked(desk_config(config, program), node())
        assert folder is not None
        place = image / "etc" / "skel" / folder
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(environment)
