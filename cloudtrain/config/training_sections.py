"""Sections on the training: its software, code, command, input data and artifacts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from cloudtrain.config import fields as kinds
from cloudtrain.config.fields import (
    BOOLEANS,
    TEXT,
    InvalidValue,
    Reads,
    choice,
    inside,
    line,
    matching,
    nearest,
    text,
)
from cloudtrain.config.section import NEXT_RUN, Effect, Section, optional
from cloudtrain.config.yaml_source import Block, Path, Scalar
from cloudtrain.core import model
from cloudtrain.core.image_name import image_name
from cloudtrain.core.network import host_of, is_loopback, split_user
from cloudtrain.core.store_kinds import KINDS, kind_of

# ── readers of single fields ─────────────────────────────────────────────────

version = matching(
    r"[0-9]+(\.[0-9]+){0,3}((a|b|rc|\.post|\.dev)[0-9]+)?",
    'must be a version such as "2.21" or "2.21.0"',
)
python = matching(
    r"auto|3\.[0-9]{1,2}(\.[0-9]{1,2})?|[~/].*",
    'must be auto, a version such as "3.11", or an absolute path on the node',
)


def requirements(node: Any) -> str:
    value = line(node)
    if value.startswith("code:"):
        inside(replace(node, source=value.removeprefix("code:"), environ={}))
    return value


def folder_inside(node: Any) -> str:
    value = inside(node)
    if not value.replace("./", "").strip("/."):
        raise InvalidValue("must name a folder of its own, such as ckpt")
    return value


def shared_name(node: Any) -> str:
    """In one form: after a slash at its end a link would be made inside of it."""
    return posixpath.normpath(folder_inside(node))


def folder_on_nodes(node: Any) -> str:
    value = line(node)
    if not value.startswith("/") or not value.strip("/.") or ".." in value.split("/"):
        raise InvalidValue("must be an absolute path on the nodes, such as /mnt/nfs/team")
    return value.rstrip("/")


def package(node: Any) -> str:
    value = text(node)
    if value.lstrip().startswith("-"):
        raise InvalidValue("must be a package such as scikit-learn", "pip options are not accepted")
    return line(node)


def git(node: Any) -> str:
    value = line(node)
    if re.match(r"[A-Za-z0-9+.-]+::", value):
        raise InvalidValue(
            "must be a git URL or a repository's folder", "remote helpers (::) are not accepted"
        )
    if re.match(r"[A-Za-z0-9+.-]+://[^/@]*:[^/]*@", value):
        raise InvalidValue("contains a password in the URL: use `code.token` instead")
    return value


def package_index(node: Any) -> str:
    value = line(node)
    user, url = split_user(value)
    if ":" in user:
        raise InvalidValue("contains a password in the URL: use `setup.index_password` instead")
    try:
        host = host_of(url)
    except ValueError as error:
        raise InvalidValue(f"the URL {error}") from None
    if host.scheme != "https" and not is_loopback(host.name):
        raise InvalidValue("must be an https:// URL, such as https://pypi.example.org/simple")
    return value


def image(node: Any) -> str:
    value = line(node)
    try:
        image_name(value)
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    return value


def secret_name(node: Any) -> str:
    """Name of a secret. An invalid value is never shown: it may be the secret itself."""
    name = node.source if isinstance(node, Scalar) else ""
    if not (name.isascii() and name.isidentifier()):
        raise InvalidValue(
            "takes the name of an entry under `secrets`, such as MY_TOKEN, not its value"
        )
    return name


def tf_config(node: Any) -> Any:
    value = text(node)
    found = value if value in ("auto", "estimator") else BOOLEANS.get(value.lower())
    if found is None:
        raise InvalidValue("must be auto, estimator, true or false")
    return found


Version = Annotated[str, Reads(version, "version", "string", "number")]
Python = Annotated[str, Reads(python, "auto | version | path", "string", "number")]
Requirements = Annotated[str, Reads(requirements, "path or code:path", *TEXT)]
FolderInside = Annotated[str, Reads(folder_inside, "relative path", *TEXT)]
SharedName = Annotated[str, Reads(shared_name, "relative path", *TEXT)]
FolderOnNodes = Annotated[str, Reads(folder_on_nodes, "absolute path on the nodes", *TEXT)]
Package = Annotated[str, Reads(package, "package", "string")]
Index = Annotated[str, Reads(package_index, "https URL", "string")]
Git = Annotated[str, Reads(git, "git URL", "string")]
SecretName = Annotated[str, Reads(secret_name, "name of a secret", "string")]
Image = Annotated[str, Reads(image, "name of an image", "string")]
KerasChoice = Annotated[Literal["auto", "3", "legacy"], choice("auto", "3", "legacy")]
SuccessChoice = Annotated[
    Literal["chief", "all_workers", "all"], choice("chief", "all_workers", "all")
]
RestChoice = Annotated[Literal["refuse", "drop"], choice("refuse", "drop")]
TfConfigChoice = Annotated[
    Any,
    Reads(
        tf_config, "auto | estimator | true | false", {"enum": ["auto", "estimator", True, False]}
    ),
]


# ── sections ─────────────────────────────────────────────────────────────────


class SetupSection(Section):
    """Software installed on each node. Without `tensorflow`, TensorFlow is not installed."""

    of = model.Setup
    change = Effect(
        "live", "the next `train` applies it too; what is no longer listed stays installed"
    )
    image: Image | None
    """A container image, such as `docker://tensorflow/tensorflow:2.17.0-gpu`, in which the tasks
    run, with `packages` over it; instead of all else that `setup:` installs
    ([images.md](images.md))."""
    registry_user: kinds.Line | None = optional(NEXT_RUN)
    """User at the registry of `image`."""
    registry_password: SecretName | None = optional(NEXT_RUN)
    """Name, under `secrets`, of that user's password. It stays in the memory of what pulls the
    image, and no task gets it."""
    tensorflow: Version | None
    """TensorFlow version; the node's accelerator decides between the CPU and the CUDA build."""
    python: Python | None
    """`auto` (on `local` first the Python that runs cloudtrain), a version such as `"3.11"`, or the
    absolute path of an interpreter on the node."""
    keras: KerasChoice | None
    """`auto` is `legacy` (tf_keras) if the strategy needs it with TensorFlow 2.16 or later."""
    packages: tuple[Package, ...] | None
    """Packages for pip, optionally with versions."""
    requirements: Requirements | None
    """A local requirements file, pyproject.toml, uv.lock, or a run's run.json for the packages that
    it had; relative paths start in this file's folder. `code:FILE` is a requirements file in the
    delivered code."""
    index: Index | None
    """A package index of your own. What it has comes from it alone, everything else from the node's
    own index."""
    index_password: SecretName | None
    """Name, under `secrets`, of the password for `index`, whose user is the one in the URL, or
    `__token__`. It stays in the memory of what installs, and no task gets it."""
    install: kinds.Folders | None
    """Folders of the delivered code that pip installs, such as `.`, with a `pyproject.toml` or
    `setup.py`; for its runs alone."""
    run: tuple[kinds.ShellLine, ...] | None
    """Shell lines to run in order on every node."""
    timeout: kinds.Duration | None = optional(NEXT_RUN)
    """Time for each line of `run`; then it is ended."""
    cache: kinds.AutoOrOff | None = optional(NEXT_RUN, default="any")
    """`auto`: one node creates the environment, the other nodes and later clusters get it from
    there or from `artifacts.store`. `off`: each node creates its own."""
    prove: kinds.AutoOrOff | None = optional(NEXT_RUN, default="any")
    """`auto`: the [compute check](failures.md#compute-check) before a run. A node that fails it
    ends the run before it starts, a slow one is named. `off` skips it."""


class CodeSection(Section):
    """Source of the code: `git` or `path`, not both. Without either, no code is delivered."""

    of = model.Code
    change = NEXT_RUN
    git: Git | None
    """URL of a git repository. A private one is fetched by this machine, with your git or SSH
    credentials."""
    ref: kinds.Line | None
    """Branch, tag or commit of `git`. Default: the repository's default branch."""
    token: SecretName | None
    """Name, under `secrets`, of a token for `git` over https. It stays on this machine and is never
    sent to a node or task."""
    path: kinds.Line | None
    """A local folder; relative paths start in this file's folder. `.gitignore` and
    `.cloudtrainignore` are honoured."""


Environment = Annotated[
    dict[kinds.EnvironmentName, kinds.EnvironmentValue], kinds.Before(kinds.mapping)
]


def _by_role(node: Any) -> Any:
    """Lines by role; the only line of all roles has the key ""."""
    if isinstance(node, Scalar):
        kinds.shell_line(node)  # raises at `train.command`, not at a key that is not in the file
        return {"": node}
    if not isinstance(node, Block):
        raise kinds.InvalidValue("must be a shell line, or a mapping of them by role")
    return node


Command = Annotated[
    dict[str, kinds.ShellLine],
    kinds.Before(_by_role),
    kinds.Also("shell line", type=["string", "number", "boolean"]),
]


class TrainSection(Section):
    """The command that runs on every node, and how its run is supervised."""

    of = model.Train
    change = NEXT_RUN
    command: Command | None
    """Shell line to run for every task, or a mapping of such lines by role, with `default` for the
    other roles. `{output}`, `{role}`, `{index}`, `{chief.ip}`, `{ROLE.hosts}`
    (`host:port,host:port` of a role's tasks), `{data.NAME}`, `{tpu}` and `{run}` are filled in;
    other braces stay. Required in a `train:` section."""
    dir: kinds.Inside | None
    """Folder inside the code in which the command starts."""
    env: Environment | None
    """Environment variables of the tasks; the same braces are filled in as in `command`."""
    port: kinds.TaskPort | None
    """Port of the TensorFlow servers; with `provider: local`, that of the first one. If not set,
    `local` nodes take free ports."""
    max_restarts: kinds.Restarts | None
    """How often a run restarts after a failure that can be retried. With `parameter_server` also
    how often each worker is restarted alone, while the others run on; if 0, the run continues
    without it."""
    spot_retries: kinds.Restarts | None
    """After this many refused requests for a spot node (of a restarted run, or of `up --wait`),
    request it on demand, within `limits.max_price`. If not set, never."""
    retry_exit_codes: tuple[kinds.ExitCode, ...] | None
    """Exit codes to retry, besides 42 and 143; a lost node or a signal is always retried."""
    success: SuccessChoice | None
    """Which tasks must exit with 0 for the run to succeed. Default: by strategy."""
    tf_config: TfConfigChoice | None
    """Whether tasks get TF_CONFIG; `auto` decides by strategy. `estimator`: an evaluator gets the
    others' cluster, as `tf.estimator` requires; `auto` does so with TensorFlow 1."""
    checkpoints: FolderInside | None
    """Checkpoint folder in a task's work folder: the chief's copy is landed, and copied to every
    task's node before each attempt. If not set, a restarted multi_worker_mirrored run starts from
    the beginning."""
    start_timeout: kinds.Duration | None
    """Time for a task to open its port."""
    stall_timeout: kinds.DurationOrOff | None
    """End the attempt after this time without log output from any task."""
    deadline: kinds.DurationOrOff | None
    """Maximum duration of a run, all attempts together."""
    grace: kinds.Duration | None
    """Time between TERM and KILL when a task is ended, and for what one that has ended by itself
    left in the background."""
    evaluator_grace: kinds.Duration | None
    """Longest time for the evaluator to score the last checkpoint after success; it is ended as
    soon as it has. On a cloud without `checkpoints` there is no wait, as it gets none."""

    def to_model(self, **changes: Any) -> Any:
        lines = dict(self.command or {})
        every = lines.pop("", None) or lines.pop("default", "")
        return super().to_model(command=every, commands=lines, **changes)

    def texts(self) -> dict[Path, str]:
        """All texts with placeholders, by their path in the section."""
        lines: dict[Path, str] = {
            ("command", role) if role else ("command",): line
            for role, line in (self.command or {}).items()
        }
        return lines | {("env", name): value for name, value in (self.env or {}).items()}


# ── stores and datasets ──────────────────────────────────────────────────────


def _or(words: Iterable[str]) -> str:
    *some, last = words
    return f"{', '.join(some)} or {last}"


_DATA = [kind for kind in KINDS if kind.holds_data]
SCHEMES = (*(kind.scheme for kind in _DATA), "https")
_PAID = " and ".join(f"`{kind.scheme}://`" for kind in KINDS if kind.bills_readers)
FORMS = _or((*(kind.form for kind in _DATA), "https://HOST/file"))


def store(node: Any) -> str:
    value = line(node)
    scheme, _, rest = value.partition("://")
    kind = kind_of(value)
    if kind is None or kind.scheme != scheme:
        raise InvalidValue(f"must begin with {_or(each.top for each in KINDS)}")
    if not re.match(kind.pattern, rest):
        pattern, *texts = kind.wrong
        form = f"must be {kind.top}, optionally with a prefix"
        raise InvalidValue(*(texts if re.match(pattern, rest) else [form]))
    if ".." in rest.split("/"):
        raise InvalidValue("must not contain ..")
    return value


def encryption(node: Any) -> str | None:
    value = line(node)
    if value == "none":
        return None
    if not re.fullmatch(r"AES256|aws:kms(:[\w:/-]+)?", value):
        raise InvalidValue("must be none, AES256, aws:kms or aws:kms:KEY")
    return value


_GRANTS = re.compile(
    r"(?i)x-(amz|goog)-(signature|credential|security-token)|sig|signature|(access_?)?token|key|"
    "api_?key|awsaccesskeyid|googleaccessid|password"
)
"""Parameters of a URL that grant access by themselves."""


def data_name(value: Any) -> Any:
    """Key of a dataset: part of a variable's name and of a placeholder."""
    if not (isinstance(value, str) and re.fullmatch(r"[a-z][a-z0-9_]{0,62}", value)):
        raise InvalidValue(
            "a dataset's name is a lower-case letter, followed by up to 62 lower-case letters, "
            "digits or _"
        )
    return value


def data_uri(node: Any) -> str:
    """URI of a dataset."""
    value = line(node)
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in SCHEMES:
        meant = nearest(scheme, SCHEMES) if separator else None
        hints = [f"did you mean {meant}://?"] if meant else []
        hints += [] if separator else ["a local folder is file:///absolute/path"]
        raise InvalidValue(f"must be {FORMS}", *hints)
    if scheme == "https":
        return _https(value)
    if "?" in rest or "#" in rest:
        raise InvalidValue("must not contain ? or #: objects are named by bucket and prefix alone")
    if "//" in rest.lstrip("/") or "." in rest.split("/"):
        raise InvalidValue("must not contain // or /./ in its path")
    return store(node)


def _https(value: str) -> str:
    try:
        parts = urlsplit(value)
        user, host = parts.username, parts.hostname
    except ValueError:
        user, host = None, None
    if not host:
        raise InvalidValue("must be an https:// URL")
    if user is not None:
        raise InvalidValue(
            "contains a user or password in the URL", "records would keep it: use a store instead"
        )
    if any(_GRANTS.fullmatch(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        signed = (f"{kind.scheme}://" for kind in _DATA if not kind.on_this_machine)
        raise InvalidValue(
            "contains a signature or key in the URL",
            f"records would keep it: use {_or(signed)}, and cloudtrain signs requests",
        )
    if parts.fragment:
        raise InvalidValue("must not contain #")
    if unquote(parts.path.rpartition("/")[2]) in ("", ".", ".."):
        raise InvalidValue("must name one file: https:// has no listing of folders")
    return value


Encryption = Annotated[str | None, Reads(encryption, "none | AES256 | aws:kms[:KEY]", "string")]
Store = Annotated[str, Reads(store, "store URI", "string")]
DataName = Annotated[str, Reads(data_name, "", "string")]
DataUri = Annotated[str, Reads(data_uri, "URI", "string")]


class ArtifactsSection(Section):
    """Files to land. Paths and globs are relative to each task's work folder."""

    of = model.ArtifactRules
    change = NEXT_RUN
    store: Store | None = optional(
        default="any", text=f"{_or(f'`{kind.form}`' for kind in KINDS)}."
    )
    create: kinds.Boolean | None
    """`up` and `run` create the bucket or container if it does not exist, near the first placement
    if that is in the same cloud. cloudtrain never deletes it."""
    encryption: Encryption | None
    """`s3://` only: the server-side encryption that each upload asks for, also those of nodes, for
    a bucket whose policy demands it. `AES256`, `aws:kms` (the account's key) or `aws:kms:KEY` (an
    id, ARN or alias)."""
    paths: kinds.Globs | None
    """Files to land. `auto`: all that a task made or changed in its work folder and its node's
    home, up to `limit`; or globs. `output/**` always lands."""
    limit: kinds.Size | None
    """Most of what lands by `auto` from one task. A node that holds more is kept: exit 5."""
    require: tuple[kinds.Inside, ...] | None
    """Globs that must match landed files for the run to succeed."""
    every: kinds.DurationOrOff | None = optional(default="any")
    """Interval for landing during training."""


class DataEntry(Section):
    """Input data under a name of yours; `NAME: URI` is short for `NAME: {from: URI}`."""

    of = model.DataSource
    below = ".NAME"
    change = Effect("next run", "nodes download what they lack")
    source: DataUri | None = optional(
        key="from",
        text=(
            f"{', '.join(f'`{kind.scheme}://`' for kind in _DATA)}: a prefix (folder) or one "
            "object; `https://`: one object. Required."
        ),
    )
    shard: kinds.Boolean | None
    """Give rank i of n every n-th file, in equal counts, instead of all files to every node. Ranks
    are the chief and the workers, or the nodes of `role`. The script must then not shard by itself
    (`AutoShardPolicy.OFF`)."""
    rest: RestChoice | None
    """Files beyond the largest equal count: `refuse` the dataset, or `drop` them."""
    role: kinds.Line | None
    """Only the nodes of this role get it. Default: all nodes."""
    requester_pays: kinds.Boolean | None = optional(
        text=(
            f"{_PAID}: your account pays for requests and traffic, as the bucket's owner "
            "demands; for `gs://` it is `project:`, on another cloud the project of your login."
        )
    )


class SharedSection(Section):
    """A folder that all nodes share ([shared.md](shared.md)); `shared: NAME` is short for `shared:
    {folder: NAME}`."""

    of = model.SharedFolder
    change = NEXT_RUN
    folder: SharedName | None
    """Its name in each task's work folder. `{shared}`, `CLOUDTRAIN_SHARED`: its absolute path."""
    path: FolderOnNodes | None
    """A folder that all nodes have already, such as an NFS mount: required with `provider: hosts`.
    If not set, the first node serves one to the others."""


def _shared(node: Any) -> Any:
    """Its short form: the folder alone."""
    if isinstance(node, Scalar) and not kinds.is_null(node):
        return SharedSection(folder=shared_name(node))
    return node


Shared = Annotated[SharedSection, kinds.Before(_shared), kinds.Also("relative path", type="string")]


def _dataset(node: Any) -> Any:
    """A dataset's short form: its URI alone."""
    if isinstance(node, Scalar):
        return DataEntry(source=data_uri(node))
    return node


Data = Annotated[
    dict[
        DataName,
        Annotated[DataEntry, kinds.Before(_dataset), kinds.Also("URI", type="string")],
    ],
    kinds.Before(kinds.mapping),
]
