"""The `containers` playbook: an engine for containers, the image of `setup.image`, and the command
lines of what runs in it (node/container.sh)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from math import ceil

from cloudtrain.config import read_secrets
from cloudtrain.core import paths, ship
from cloudtrain.core.cloud import cloud_of, facts_of, is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.image_name import ImageName, RegistryLogin, image_name
from cloudtrain.core.model import ClusterConfig, Node
from cloudtrain.core.run_record import Run, Task
from cloudtrain.core.shell import Command, Secret, Step, exports, script
from cloudtrain.playbooks import scripts

Credentials = Callable[[], Iterable[bytes]]
"""What `docker login` would write, for one pull; nothing without."""


def steps(
    config: ClusterConfig,
    node: Node,
    image: ImageName | None,
    credentials: Credentials | None = None,
) -> tuple[Step, ...]:
    """Find an engine, or on rented machines install one; pull the image, named by its digest, and
    start a container of it once."""
    if image is None:
        return ()
    name, plain = str(image), "plain" if image.is_here else ""
    return (
        *(_engine(node) if is_cloud(config.provider) else ()),
        Step(
            name="container engine",
            run=_verb("choose", node),
            unless=_verb("known", node),
            once_per_host=True,
        ),
        Step(
            name=f"image {image.repository}",
            run=_verb("pull", node, name, plain),
            unless=_verb("there", node, name),
            stdin=credentials,
            once_per_host=True,
            timeout=PULL_SECONDS,
        ),
        Step(
            name="a container of the image",
            run=_verb("probe", node, name),
            unless=_verb("probed", node, name),
            once_per_host=True,
            timeout=PULL_SECONDS,
        ),
        *_packages(config, node, name),
    )


def _packages(config: ClusterConfig, node: Node, image: str) -> tuple[Step, ...]:
    """Install `setup.packages` over the image's Python, with the image's pip: an environment that
    has the image's packages below it (docs.python.org/3/library/venv.html)."""
    if not config.setup.packages:
        return ()
    layer = layer_of(config, image)
    return (
        Step(
            name="packages over the image",
            run=_verb("install", node, image, layer, *config.setup.packages),
            unless=_verb("installed", node, layer),
            once_per_host=True,
        ),
    )


def layer_of(config: ClusterConfig, image: str) -> str:
    """Name of the environment over an image; "" for none."""
    if not config.setup.packages:
        return ""
    import hashlib  # OpenSSL, which a plan need not load

    text = json.dumps([image, config.setup.packages])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _engine(node: Node) -> tuple[Step, ...]:
    """Install Podman, where the distribution's is new enough, or else Docker, whose group the user
    enters by a new login, for which the machine is restarted; for GPUs NVIDIA's toolkit."""
    return (
        Step(
            name="packages for containers",
            run=script(scripts.DEBIAN + _INSTALL, ROOT),
            unless=_verb("choose", node),
            reboots=True,
        ),
    )


ROOT = ""
"""Prefix of every absolute path that is read on the node."""

# Neither Debian 12 nor Ubuntu 22.04 and 24.04 has NVIDIA's Container Toolkit, so it comes from
# NVIDIA's own repository, by the key that this has had since 2017 (cudatools@nvidia.com).
# https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
# Rootless Podman needs a range of user ids for the user: subuid(5).
_INSTALL = """\
set -eu
root=$1
apt_update || true
candidate=$(apt-cache policy podman 2>/dev/null | sed -n 's/^ *Candidate: *//p')
if command -v docker >/dev/null 2>&1; then
    engine=docker
elif dpkg --compare-versions "${candidate#(none)}" ge 4.1; then
    engine=podman
    debian_install podman crun uidmap fuse-overlayfs || { engine=; }
    me=$(id -un)
    for kind in uid gid; do
        grep -qs "^$me:" "$root/etc/sub$kind" ||
            as_root usermod "--add-sub${kind}s" 100000-165535 "$me"
    done
else
    engine=docker
    debian_install docker.io || { engine=; }
fi
[ -n "$engine" ] || {
    echo "neither Podman nor Docker could be installed" >&2
    echo "hint: use an image of Ubuntu or Debian that can reach its package mirror" >&2
    exit 1
}
[ "$engine" != docker ] || id -nG | grep -qw docker || as_root usermod -aG docker "$(id -un)"
[ -e "$root/dev/nvidiactl" ] || exit 0
if ! command -v nvidia-ctk >/dev/null 2>&1; then
    debian_install curl gnupg ca-certificates || true
    from=https://nvidia.github.io/libnvidia-container key=$(mktemp)
    trap 'rm -f "$key"' EXIT
    curl -fsSL --retry 3 "$from/gpgkey" -o "$key" || {
        echo "NVIDIA's repository for its Container Toolkit does not answer" >&2
        echo "hint: the node needs https://nvidia.github.io, or an image that has the toolkit" >&2
        exit 1
    }
    found=$(gpg --show-keys --with-colons "$key" 2>/dev/null |
        sed -n 's/^fpr:*\\([0-9A-F]*\\):$/\\1/p')
    case $found in C95B321B61E88C1809C4F759DDCAE044F796ECB0*) ;; *)
        echo "NVIDIA's repository has another key than before: $(echo $found)" >&2
        exit 1
        ;;
    esac
    ring=/usr/share/keyrings/nvidia-container-toolkit.asc
    as_root install -m 644 "$key" "$root$ring"
    echo "deb [signed-by=$ring] $from/stable/deb/$(dpkg --print-architecture) /" |
        as_root tee "$root/etc/apt/sources.list.d/nvidia-container-toolkit.list" >/dev/null
    debian_install nvidia-container-toolkit
fi
if [ "$engine" = docker ]; then
    as_root nvidia-ctk runtime configure --runtime=docker
    as_root systemctl restart docker
else
    as_root mkdir -p "$root/etc/cdi"
    as_root nvidia-ctk cdi generate --output="$root/etc/cdi/nvidia.yaml"
    as_root chmod 644 "$root/etc/cdi/nvidia.yaml"
fi
"""

PULL_SECONDS = 7200.0
"""Without output: Docker and Podman report no progress where there is no terminal. The first
container takes as long where Podman without root copies the whole image for its user's ids, on a
kernel's overlay (https://github.com/podman-container-tools/podman/issues/13805)."""


def python_of(config: ClusterConfig, node: Node, image: str) -> tuple[str, ...]:
    """Words that start the image's Python on a node; its arguments come after them."""
    name = str(image_name(image))
    return _verb("python", node, name, layer_of(config, name)).arguments


def packages_command(config: ClusterConfig, node: Node, image: str) -> Command:
    """Command that prints what a task may import in its image (node/packages.py)."""
    return Command((*python_of(config, node, image), "-c", ship.text("packages.py")))


@dataclass(frozen=True, kw_only=True)
class Contained:
    """A shell line for a node, which starts a container, and its environment there."""

    command: str
    environment: Mapping[str, str | Secret]


def contained(
    config: ClusterConfig,
    run: Run,
    task: Task,
    node: Node,
    *,
    command: str,
    environment: Mapping[str, str | Secret],
    folders: Collection[str] = (),
) -> Contained:
    """The task's line and its variables in a container of the run's image. `folders`: those that it
    sees besides its own.

    It sees nothing of the node's own home, whose files are run outside of it. Docker and Podman
    write variables that they are given to disks, so all of them go in by stdin, as a
    script (https://docs.podman.io/en/v4.3/markdown/podman-run.1.html, `--env`)."""
    attempt = paths.attempt_folder(run.cluster, run.id, task.name, task.attempt)
    tag = paths.tag(run.cluster, run.id, task.name, task.attempt)
    image = str(image_name(run.image))
    line = shlex.join(
        _verb(
            "run",
            node,
            image,
            layer_of(config, image),
            f"cloudtrain.{tag.replace('/', '.')}",
            attempt,
            attempt.rpartition("/")[0],
            "own" if facts_of(config.provider).takes_hosts else HOME,
            *folders,
        ).arguments
    )
    inside = exports(environment).decode("utf-8", "surrogateescape")
    grace, shell_line = ceil(config.train.grace), shlex.quote(command)
    text = f"{{\n{inside}set -- {shell_line} {grace} {task.name}\n{_FIRST}}}"
    return Contained(command=f"exec {line}", environment={INSIDE: Secret(text)})


HOME = "home"
"""Folder in a node's home that is the home in containers, so that it lands; not on machines whose
home is a person's."""
INSIDE = "CLOUDTRAIN_INSIDE"
"""Variable of the client with the script that a container runs."""


def image_of(config: ClusterConfig) -> ImageName | None:
    """The image that the config names, with or without a digest."""
    return image_name(config.setup.image) if config.setup.image else None


def login_of(config: ClusterConfig) -> tuple[RegistryLogin | None, str | None]:
    """The login of the config to the registry, None for none; and the profile of the nodes'
    cloud, if that has such. Raises ConfigError."""
    user, name = config.setup.registry_user, config.setup.registry_password
    cloud = cloud_of(config.provider)
    profile = config.project if cloud and cloud.store_scheme == "s3" else None
    if user is None or name is None:
        return None, profile
    return RegistryLogin(user=user, password=read_secrets(config)[name]), profile


def _verb(verb: str, node: Node, *arguments: str) -> Command:
    return script(ship.text("container.sh"), verb, f"{node.cache}/images", *arguments)


# The first process of the container. Its number is 1: it gets no signal that it does not handle,
# and all others end with it, so it gives what the line has left the time that it has elsewhere.
_FIRST = """\
if [ -n "${CLOUDTRAIN_LAYER-}" ]; then
    export VIRTUAL_ENV="$CLOUDTRAIN_LAYER" PATH="$CLOUDTRAIN_LAYER/bin:$PATH"
    unset CLOUDTRAIN_LAYER
fi
shell=$(command -v bash) || shell=/bin/sh
"$shell" -c "$1" </dev/null
code=$?
others() {
    found=
    for p in /proc/[0-9]*; do
        p=${p#/proc/}
        [ "$p" != 1 ] && read -r stat 2>/dev/null <"/proc/$p/stat" || continue
        case ${stat##*) } in Z* | X*) continue ;; esac
        stat=${stat#*(}
        found="$found, ${stat%)*} (pid $p)"
    done
    [ -n "$found" ]
}
turn=0
while others && [ $turn -lt 15 ] && sleep 0.2; do turn=$((turn + 1)); done
if others; then
    echo "[cloudtrain: ended processes that $3 left behind: ${found#, }]"
    kill -TERM -1
    turn=0
    while others && [ $turn -lt $(($2 * 5)) ] && sleep 0.2; do turn=$((turn + 1)); done
fi
exit $code
"""
