"""Findings of `check` on this machine, the data and the store; the clouds' are in their checks.py.

What is true of all findings of one name is in core/finding_kinds.py."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from cloudtrain.checks.commands import command_problems, launched, too_long, unfilled
from cloudtrain.checks.node_notes import without_end
from cloudtrain.checks.path_notes import unusable
from cloudtrain.checks.setup import setup
from cloudtrain.cluster.drift import lifetime_note, on_record, recorded_drift, refuse_drift
from cloudtrain.cluster.plan import CHOOSES, plan_errors, plan_notes
from cloudtrain.cluster.session import Handle
from cloudtrain.config import read_secrets
from cloudtrain.config.location import placed
from cloudtrain.core import errors
from cloudtrain.core.cloud import SshService, cloud_of, facts_of, is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import ClusterConfig, Plan, Problem
from cloudtrain.core.own_python import NEUTRAL
from cloudtrain.core.partial_list import evidence_text
from cloudtrain.core.paths import size_text
from cloudtrain.core.protocols import Finding, RentsMachines
from cloudtrain.core.retry import CLOCK
from cloudtrain.datasets.dataset import DataFile, Dataset, parts
from cloudtrain.datasets.estimates import landing_rate, too_small, transfer_cost
from cloudtrain.datasets.listing import DataSigner, list_dataset, open_source
from cloudtrain.playbooks import code as code_playbook
from cloudtrain.playbooks import git
from cloudtrain.ssh.sockets import connect, is_installed
from cloudtrain.ssh.ssh_proxy import ProxyFailed, jump_command, own_command, where_to_get


def found_ahead(config: ClusterConfig) -> tuple[Finding, ...]:
    """Every finding, good ones included: on `setup:`, with the requirements read; the code, read as
    far as delivery does; command lines, values to fill in, secrets. What playbooks would refuse on
    the nodes is refused here, before they cost anything; a test compares them."""
    return (
        *_of("setup", setup, config),
        *_of("code", code, config),
        *_refused("command", config, command_problems(config)),
        *_refused("fill in", config, unfilled(config)),
        *_of("secrets", secrets, config),
    )


def secrets(config: ClusterConfig) -> str:
    """Names of the secrets. Raises CloudtrainError if one is not set."""
    read_secrets(config)
    return ", ".join(config.secrets) or "none"


def _of(what: str, ask: Callable[[ClusterConfig], str], config: ClusterConfig) -> Sequence[Finding]:
    try:
        return (Finding(what=what, ok=True, text=ask(config)),)
    except errors.ConfigError as error:
        return _refused(what, config, error.problems, error.hint)
    except errors.CloudtrainError as error:
        return (Finding.of(what, error),)


def _refused(
    what: str, config: ClusterConfig, problems: Iterable[Problem], hint: str | None = None
) -> tuple[Finding, ...]:
    return refusal(what, [str(placed(config, problem)) for problem in problems], hint)


def refusal(
    what: str,
    wrong: Collection[str],
    hint: str | None = None,
    kind: type[errors.CloudtrainError] = errors.UsageError,
) -> tuple[Finding, ...]:
    """One bad finding with all these texts; none without any."""
    return (Finding.of(what, kind("\n".join(wrong), hint=hint)),) if wrong else ()


# ── the code ───────────────────────────────────────────────────────────────────
# Read as delivery does: a folder to its last byte, a private repository with its submodules and
# files in Git LFS.


def code(config: ClusterConfig) -> str:
    """Text on the code that is delivered. Raises CloudtrainError for code that cannot be."""
    source = code_playbook.resolve(config)
    if isinstance(source, code_playbook.FolderCode):
        return str(source.root)
    if isinstance(source, code_playbook.PrivateCode):
        source.archive.make()
        return f"{config.code.git} at {source.digest[:10]}, fetched by this machine"
    if isinstance(source, code_playbook.GitCode):
        git.refuse_unreadable(config, source.url, source.digest)
        return f"{config.code.git} at {source.digest[:10]}, fetched by each node"
    return "none"


# ── spot capacity: evidence, which stops nothing ───────────────────────────────


def spot_finding(handle: Handle, others: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return where the cloud expects spot machines to be had; none without spot nodes, if the cloud
    says nothing, or if `others`, the findings on the same place, would stop `up`."""
    if not any(node.spot for node in handle.plan.nodes) or not all(each.ok for each in others):
        return ()
    provider = handle.provider
    if not isinstance(provider, RentsMachines):
        return ()

    def ask() -> tuple[Finding, ...]:
        found = provider.spot_evidence(handle.plan)
        text = f"{evidence_text(found)}; `up` tries the zones of a region in this order"
        return (Finding(what="spot", ok=True, text=text),) if found else ()

    return errors.if_told(
        ask,
        lambda error: (
            Finding(what="spot", ok=True, text=f"not known: {error.message}", told=False),
        ),
    )


# ── how SSH reaches the nodes (`network.ssh_proxy`) ────────────────────────────


VERSION_SECONDS = 30.0


def access_findings(config: ClusterConfig) -> tuple[Finding, ...]:
    """Findings on the programs of `ssh_proxy`, and on the login to a jump host; none without it."""
    proxy = config.network.ssh_proxy
    if proxy is None:
        return ()
    if proxy.jump:
        return _not_installed("ssh") or (_jump_host(proxy.jump),)
    if proxy.command:
        program = own_command(proxy.command, {})[0]
        return _not_installed(program) or (Finding(what="ssh", ok=True, text=proxy.command),)
    cloud = cloud_of(config.provider)
    service = cloud.ssh_proxy if cloud is not None else None
    if service is None:
        return ()
    missing = tuple(finding for name in service.programs for finding in _not_installed(name))
    return missing or (_installed(service),)


def _not_installed(program: str) -> tuple[Finding, ...]:
    if is_installed(program) or Path(program).is_file():
        return ()
    return refusal("ssh", [f"{program} is not installed"], where_to_get(program))


def _installed(service: SshService) -> Finding:
    """Ask for a version; a program that cannot tell it may lack a part of itself."""
    try:
        done = subprocess.run(
            service.versions,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=NEUTRAL,
            timeout=VERSION_SECONDS,
            check=False,
        )
        text, told = (done.stdout or done.stderr), done.returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        text, told = str(error), False
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    words = f"{service.field} by {' '.join(service.programs)}: {first}"
    return Finding(what="ssh", ok=True, text=words, told=told)


def _jump_host(jump: str) -> Finding:
    """Log in to the jump host as connections to nodes do, and ask it for its own SSH port. That it
    refuses this port proves the login, too."""
    try:
        connect(jump_command(jump, "localhost", 22)).close()
    except ProxyFailed as error:
        if "open failed" not in error.text and "stdio forwarding failed" not in error.text:
            kind = errors.CredentialsError if error.lasting else errors.UsageError
            return Finding.of("ssh", kind(error.text, hint=error.hint))
        if "administratively prohibited" in error.text:
            text = f"{jump} lets you in; it allows no forwarding to itself, perhaps to the nodes"
            return Finding(what="ssh", ok=True, text=text, told=False)
    return Finding(what="ssh", ok=True, text=f"{jump} lets you in")


# ── `data:`: what is there, how large, what its transfer costs ─────────────────


AT_ONCE = 8
"""Datasets that are listed in parallel."""

RELAYED = "nodes cannot read it themselves: it goes through this machine"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Data of one dataset that all nodes together read."""

    name: str
    uri: str
    location: str
    """Region of its store; "" if not known."""
    size: int
    """Bytes."""


@dataclass(frozen=True, kw_only=True)
class CheckedData:
    """Findings on all datasets, and what is read of those that could be listed."""

    findings: tuple[Finding, ...] = ()
    traffic: tuple[Traffic, ...] = ()


def egress_finding(config: ClusterConfig, traffic: Sequence[Traffic]) -> tuple[Finding, ...]:
    """Finding on the cost, in one candidate's place, of reading this data and landing artifacts."""
    texts = [
        f"data.{each.name}: {cost}"
        for each in traffic
        if (cost := transfer_cost(config, each.uri, each.location, each.size))
    ]
    rate = landing_rate(config)
    if rate is not None:
        texts.append(f"artifacts: {rate} (estimate)")
    return (Finding(what="egress", ok=True, text="; ".join(texts)),) if texts else ()


def checked_data(plan: Plan, *, priced: bool = True) -> CheckedData:
    """A finding for each dataset, listed and read with this machine's credentials, one on the disks
    if they are too small, and what is read; nothing without `data:`.

    `priced`: with the cost of its transfer to the plan's place, in the dataset's finding; for
    several places there is `egress_finding`."""
    names = tuple(plan.config.data)
    if not names:
        return CheckedData()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        checked = list(pool.map(lambda name: _checked(plan, name, priced), names))
    splits = {name: split for name, (_, _, split) in zip(names, checked, strict=True) if split}
    hint = "set disk_gb, use `shard: true`, or pass `--ignore disk`"
    return CheckedData(
        findings=(
            *(finding for finding, _, _ in checked),
            *refusal("disk", too_small(plan, splits), hint),
        ),
        traffic=tuple(traffic for _, traffic, _ in checked if traffic is not None),
    )


def _checked(
    plan: Plan, name: str, priced: bool
) -> tuple[Finding, Traffic | None, tuple[tuple[DataFile, ...], ...]]:
    """A dataset's finding, what is read of it, and the files of each node; none of this if it could
    not be listed."""
    config = plan.config
    try:
        store = open_source(config, name)
        dataset = list_dataset(config, name, store)
        split = parts(dataset, [node.role for node in plan.nodes])
        signer = DataSigner(dataset, store)
        # From the smallest file, as a right to list is no right to read.
        if filled := [file for file in dataset.files if file.size]:
            next(signer.read(min(filled, key=lambda file: file.size)), b"")
        shared = facts_of(config.provider).on_this_machine
        total = sum(file.size for part in split for file in part)
        total = dataset.size if shared else total
        relayed = not shared and signer.sign(dataset.files[0], expires_in=60) is None
        read = Traffic(name=name, uri=dataset.source.source, location=signer.location(), size=total)
        cost = transfer_cost(config, read.uri, read.location, total)
    except errors.CloudtrainError as error:
        what = f"data.{name}"
        return replace(Finding.of(what, error), text=errors.text_of(what, error)), None, ()
    texts = (_described(dataset, split, shared=shared), RELAYED if relayed else "")
    text = "; ".join(filter(None, (*texts, cost if priced else "")))
    return Finding(what=f"data.{name}", ok=True, text=text), read, split


def _described(dataset: Dataset, split: Sequence[Sequence[DataFile]], *, shared: bool) -> str:
    """Files and sizes; `shared`: all nodes use one copy."""
    sizes = [sum(file.size for file in part) for part in split if part]
    count = len(dataset.files)
    text = f"{count:,} file{'s' if count > 1 else ''}, {size_text(dataset.size)}"
    if not sizes:
        return f"{text}; no node gets it"
    each = size_text(max(sizes))
    if dataset.source.shard:
        return f"{text}: at most {each} on each of {len(sizes)} nodes"
    if shared and len(sizes) > 1:
        return f"{text}, one copy for {len(sizes)} nodes of this machine"
    total = f", {size_text(sum(sizes))} in all" if len(sizes) > 1 else ""
    return f"{text} on each of {len(sizes)} node{'s' if len(sizes) > 1 else ''}{total}"


# ── the record here, the machines, the command and the store ───────────────────


def drift_finding(plan: Plan) -> tuple[Finding, ...]:
    """Finding on what `up` would refuse of a changed file, by the record here; none if no node is
    on record."""
    if not on_record(plan):
        return ()
    try:
        refuse_drift(recorded_drift(plan), plan.config)
    except errors.UsageError as error:
        return (Finding.of("cluster", error),)
    text = "; ".join(lifetime_note(plan)) or "its nodes match the file"
    return (Finding(what="cluster", ok=True, text=text),)


def end_findings(handle: Handle) -> tuple[Finding, ...]:
    """Finding on the ends of existing nodes, by the cloud; none if no node is on record, or if the
    cloud does not answer, which other findings say."""
    provider = handle.provider if on_record(handle.plan) else None
    if not isinstance(provider, RentsMachines):
        return ()
    nodes = errors.if_told(lambda: tuple(provider.nodes_and_ends(handle.config.name)), ())
    lacking = without_end(nodes, CLOCK.now())
    if lacking:
        text = "; ".join(f"{node.name}: NO END: {node.no_end}" for node in lacking)
        hint = "`cloudtrain up` gives them one where the cloud can, `cloudtrain down` deletes them"
        return refusal("end", [text], hint, errors.LeftoverError)
    if not any(node.expires and node.state == "running" for node in nodes):
        return ()
    return (Finding(what="end", ok=True, text="the cloud will end its running nodes"),)


def machines(plan: Plan) -> tuple[Finding, ...]:
    """Finding on machine types, before any cloud is queried; none if no machine is rented."""
    if not is_cloud(plan.config.provider):
        return ()
    chosen = dict.fromkeys(f"{node.machine}" for node in plan.nodes)
    text = "; ".join(plan_notes(plan)) or ", ".join(chosen)
    wrong = refusal("machines", plan_errors(plan), CHOOSES)
    return wrong or (Finding(what="machines", ok=True, text=text),)


def command(plan: Plan) -> tuple[Finding, ...]:
    """Return a finding if the command cannot be started, otherwise none."""
    return refusal("command", [str(each) for each in too_long(plan.config, launched(plan))])


def buckets(config: ClusterConfig) -> tuple[Finding, ...]:
    """Finding on URIs that no program on the nodes can open."""
    return refusal("buckets", unusable(config))


def store(handle: Handle) -> Finding:
    """Finding on the store, tested by writing, reading and deleting a file."""
    config = handle.config
    if config.artifacts.store is None:
        return Finding(what="store", ok=True, text="artifacts are downloaded to this machine")
    try:
        handle.store.check()
    except errors.CloudtrainError as error:
        if isinstance(error, errors.NoBucketError) and config.artifacts.create:
            text = f"{config.artifacts.store}: does not exist yet: `up` creates it"
            return Finding(what="store", ok=True, text=text)
        return Finding.of("store", error)
    return Finding(what="store", ok=True, text=config.artifacts.store)
