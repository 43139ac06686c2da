"""Plans a cluster from its config: nodes, tasks and ports, on spot machines or on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count, repeat

from cloudtrain import catalog
from cloudtrain.catalog import cuda, gpus, tpus
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.model import DEFAULT_PORT, ON_DEMAND, ClusterConfig, Node, NodePlan, Plan
from cloudtrain.core.network import is_loopback
from cloudtrain.core.paths import some
from cloudtrain.core.protocols import Console
from cloudtrain.core.run_record import Task
from cloudtrain.core.task_id import TaskId, role_rank
from cloudtrain.money.estimate import estimate
from cloudtrain.money.prices import per_hour
from cloudtrain.training.strategies import not_launched, strategy_of

IMAGES = frozenset({"auto", "deeplearning", "ubuntu-22.04", "ubuntu-24.04", "ubuntu"})
"""Images that every cloud has; any other is the user's own."""

CHOOSES = "an `accelerator: KIND:COUNT` without `machine` chooses the cheapest machine that has it"


def make_plan(config: ClusterConfig) -> Plan:
    """Plan all nodes in TF_CONFIG's order, on a cloud with their machine and accelerator. Raises
    UsageError for what cannot run. Unavailable machines are reported by `plan_errors`, so that an
    existing cluster can be deleted whatever today's table says."""
    if not strategy_of(config).launched:
        raise not_launched(config.strategy)
    nodes: list[NodePlan] = []
    ports = task_ports(config)
    for role in sorted(config.nodes, key=role_rank):
        group = catalog.resolve_group(config.provider, config.nodes[role], regions(config))
        for index in range(group.count):
            nodes.append(
                NodePlan(
                    name=TaskId(role=role, index=index).node_name(config.name),
                    role=role,
                    index=index,
                    port=next(ports),
                    machine=group.machine,
                    accelerator=group.accelerator,
                    disk_gb=group.disk_gb,
                    provisioning=group.provisioning,
                )
            )
    return Plan(config=config, nodes=tuple(nodes))


def task_ports(config: ClusterConfig) -> Iterator[int]:
    """Ports of the nodes' TensorFlow servers, in the plan's order. TensorFlow binds `*:port`
    whatever address TF_CONFIG gives: tasks on one machine need a port each, also where each has a
    loopback address of its own."""
    first = config.train.port
    facts = facts_of(config.provider)
    if facts.on_this_machine:
        yield from count(first)
    if not facts.takes_hosts:
        yield from repeat(first)
    taken: Counter[str] = Counter()
    for host in sorted(config.hosts, key=lambda host: role_rank(host.role)):
        machine = "loopback" if is_loopback(host.address) else host.address.lower()
        yield first + taken[machine]
        taken[machine] += 1
    yield from repeat(first)


def plan_errors(plan: Plan) -> tuple[str, ...]:
    """Errors for nodes that the cloud does not sell, such as retired machine types; each once."""
    provider, own = plan.config.provider, plan.config.image not in IMAGES
    found = {
        node.role: catalog.unavailable_reason(provider, node, own_image=own) for node in plan.nodes
    }
    return tuple(f"nodes.{role}: {text}" for role, text in found.items() if text)


def without_code(plan: Plan) -> tuple[str, ...]:
    """Return the GPUs for which the TensorFlow of `setup` has no code; each role once."""
    found: dict[str, None] = {}
    for node, kind, version in _with_gpus(plan):
        row = gpus.gpu(kind)
        if row is not None and gpus.fit(kind, version) == "none":
            number = ".".join(map(str, row.capability))
            why = f"TensorFlow {version} has no code for {row.kind} (compute capability {number})"
            code = cuda.code(version, kind)
            fails = "operations on it fail"
            if code and not code.absent:
                fails = (
                    "a driver compiles its operations, but XLA, which Keras 3 uses by default, "
                    "cannot compile for it"
                )
            found[f"nodes.{node.role}: {why}: {fails}"] = None
    return tuple(found)


# XLA on Blackwell: https://github.com/tensorflow/tensorflow/issues/111958 (read 2026-11-27).
OTHER_GPUS = (
    "use other GPUs, or NVIDIA's own build of TensorFlow (its container image, without "
    "setup.tensorflow); pass `--ignore gpus` to try it anyway: on Blackwell with TensorFlow 2.21, "
    "and with `jit_compile=False` in the script's `compile`"
)


def _with_gpus(plan: Plan) -> Iterator[tuple[NodePlan, str, str]]:
    """Yield the rented nodes with GPUs, their kind, and the TensorFlow version installed there."""
    version = plan.config.setup.tensorflow
    if version is None or not is_cloud(plan.config.provider):
        return
    for node in plan.nodes:
        if node.accelerator is not None:
            yield node, node.accelerator.kind, version


def plan_notes(plan: Plan) -> tuple[str, ...]:
    """Notes on defaults that were chosen and on machines that will be retired, one line each."""
    found: dict[str, None] = {}
    for node in plan.nodes:
        group = plan.config.nodes[node.role]
        if group.machine is None and node.machine is not None:
            why = f"the cheapest with {node.accelerator}" if node.accelerator else "the default"
            found[f"nodes.{node.role}: no machine is set: using {node.machine}, {why}"] = None
        if end := catalog.note(plan.config.provider, node):
            found[f"nodes.{node.role}: {end}"] = None
        found.update((f"nodes.{node.role}{text}", None) for text in _with_care(plan, node))
        found.update((f"nodes.{node.role}: {text}", None) for text in _of_tpu(plan, node))
    found.update(dict.fromkeys(_billed_anyway(plan)))
    found.update(dict.fromkeys(_first_steps(plan)))
    return tuple(found)


def _billed_anyway(plan: Plan) -> Iterator[str]:
    """Notes on reservations, which are the user's own: their nodes cost no more than they do."""
    for bought in dict.fromkeys(node.provisioning for node in plan.nodes):
        if bought.market == "reservation":
            yield (
                f"{bought}: the cloud bills it with or without nodes, until it is deleted or ends; "
                "`down` does not delete it"
            )
        elif bought.market in catalog.PREPAID:
            yield (
                f"{bought} is paid in advance, whatever is used of it: its machines count as "
                "0 $/hour here"
            )


def _of_tpu(plan: Plan, node: NodePlan) -> Iterator[str]:
    """Notes on a TPU, and on zones that are not known to have it."""
    provider, machine = plan.config.provider, node.machine
    if not strategy_of(plan.config).tpus or machine is None:
        return
    yield from tpus.notes(provider, machine, node.spot)
    yield from filter(None, (tpus.wrong_zone(provider, machine, p) for p in plan.config.placement))


ROOMY_GB = 80
"""Disk size in GB that is enough: images of `auto` have up to 65 GB, and CUDA takes 15."""


def _with_care(plan: Plan, node: NodePlan) -> Iterator[str]:
    """Notes on rented nodes with GPUs that may not work as configured."""
    config, version = plan.config, plan.config.setup.tensorflow
    if node.accelerator is None or not is_cloud(config.provider):
        return
    if config.image not in IMAGES:
        yield (
            f": image {config.image} is your own: it must have NVIDIA's driver, or be an Ubuntu on "
            "which cloudtrain can install it"
        )
    if node.disk_gb is not None and node.disk_gb < ROOMY_GB:
        yield (
            f".disk_gb: {node.disk_gb} GB may be too little for an image with NVIDIA's driver, and "
            f"15 GB for TensorFlow with CUDA: {ROOMY_GB} is enough, and so is the default"
        )
    if version and (caution := cuda.caution(version, node.accelerator.kind)):
        yield f": {caution}"


def _first_steps(plan: Plan) -> Iterator[str]:
    """Notes on GPUs newer than the TensorFlow release, with its estimate of the duration."""
    for node, kind, version in _with_gpus(plan):
        fits, own = gpus.fit(kind, version), gpus.first_release(kind, "own")
        later = f"; {own} and later have it" if own else ""
        several = node.accelerator is not None and node.accelerator.count > 1
        if several and fits == "ptx" and (code := cuda.code(version, kind)) and code.absent:
            # In the wheels of 2.12.1 and 2.15.1 that is NCCL (2026-11-27).
            later = f". NCCL cannot be compiled: its GPUs cannot work together{later}"
        if fits == "ptx":
            yield (
                f"nodes.{node.role}: TensorFlow {version} has no code built for {kind}: all of it "
                f"is compiled at the first step, which could take 30 minutes or longer{later}"
            )
        elif fits == "older":
            yield (
                f"nodes.{node.role}: TensorFlow {version} has no code built for {kind}: it runs "
                f"that of an earlier generation; what has to be compiled takes long at first{later}"
            )
        elif (code := cuda.code(version, kind)) and code.compiled:
            yield (
                f"nodes.{node.role}: the driver compiles {code.compiled:,} of {code.kernels:,} "
                f"parts of TensorFlow {version} for {kind} at first use, and must be "
                f"{cuda.oldest_driver(version, kind)} or newer"
            )


def regions(config: ClusterConfig) -> tuple[str, ...]:
    """Regions of the placement, in its order."""
    return tuple(catalog.region_of(config.provider, place) for place in config.placement)


def tasks(plan: Plan, nodes: Sequence[Node] = ()) -> tuple[Task, ...]:
    """One task on each node, in the plan's order. A node with reserved ports uses the first of
    them. Nodes of a cloud at loopback addresses belong to an emulator and share this machine: their
    tasks get a port each."""
    own = {node.name: node.task_ports[0] for node in nodes if node.task_ports}
    if not takes_other_ports(plan.config):
        own = {}
    loopback = [node for node in nodes if node.internal.startswith("127.")]
    apart = len(loopback) > 1 and is_cloud(plan.config.provider)
    return tuple(
        Task(
            role=node.role,
            index=node.index,
            node=node.name,
            port=own.get(node.name, node.port + (number if apart else 0)),
        )
        for number, node in enumerate(plan.nodes)
    )


def takes_other_ports(config: ClusterConfig) -> bool:
    """True if a task may use a different port from the plan's: the user chose none, and clusters on
    this machine share its ports."""
    return facts_of(config.provider).on_this_machine and config.train.port == DEFAULT_PORT


def deciding_tasks(tasks: tuple[Task, ...], config: ClusterConfig) -> frozenset[str]:
    """Names of the tasks that must all exit 0 for the run to succeed."""
    success = config.train.success
    roles = {task.role for task in tasks}
    if success is None:
        success = "chief" if "chief" in roles else strategy_of(config).deciders
    if success == "all":
        return frozenset(task.name for task in tasks if task.role not in ("ps", "evaluator"))
    if success == "all_workers":
        return frozenset(task.name for task in tasks if task.role in ("chief", "worker"))
    return frozenset({first_task(tasks).name})


def serving_tasks(tasks: tuple[Task, ...], config: ClusterConfig) -> frozenset[str]:
    """Names of the tasks whose port TensorFlow opens; none without a TF_CONFIG."""
    if config.train.tf_config is False:
        return frozenset()
    roles = strategy_of(config).serves
    names = [task.name for task in tasks if task.role in roles]
    return frozenset(names if len(names) > 1 else ())


def first_task(tasks: tuple[Task, ...]) -> Task:
    """The chief, or the task that TensorFlow treats as one: worker 0, or the only task."""
    return min(tasks, key=lambda task: task.rank)


def start_order(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Sort ps, chief, workers, evaluator, others: tasks that others wait for come first."""
    first = {"ps": 0, "chief": 1, "worker": 2, "evaluator": 3}
    return tuple(sorted(tasks, key=lambda each: (first.get(each.role, 4), each.role, each.index)))


def open_ports_note(config: ClusterConfig) -> str | None:
    """Say which ports are open to whom; None on clouds, whose nodes reach only each other, and
    where TensorFlow serves nothing.

    TensorFlow binds `0.0.0.0` whatever address TF_CONFIG names, with no credentials: there is no
    option for either (`AddListeningPort(StrCat("0.0.0.0:", requested_port_),
    GetServerCredentials(server_def_), …)` in tensorflow/core/distributed_runtime/rpc/
    grpc_server_lib.cc, read 2026-11-26; its SECURITY.md says the same)."""
    facts, roles = facts_of(config.provider), strategy_of(config).serves
    if not (facts.takes_hosts or facts.on_this_machine):
        return None
    serving = [node for node in make_plan(config).nodes if node.role in roles]
    if len(serving) < 2:
        return None
    if facts.on_this_machine:
        return (
            "during a run, everyone who reaches this machine's ports of TensorFlow can run code "
            "in the nodes: it listens on every address and asks for no password "
            "(docs/local.md has a firewall line)"
        )
    of_role = {role: [host for host in config.hosts if host.role == role] for role in roles}
    hosts = [of_role[node.role][node.index] for node in serving]
    places = [f"{host.address}:{node.port}" for host, node in zip(hosts, serving, strict=True)]
    shown = places if len(places) <= 4 else [*places[:3], f"{len(places) - 3} more"]
    user = {host.user for host in hosts}
    whose = user.pop() if len(user) == 1 and None not in user else "the user there"
    return (
        f"during a run, everyone who reaches {', '.join(shown)} can run code as {whose}: "
        "TensorFlow listens on every address and asks for no password; let only these machines "
        "in (docs/hosts.md has a firewall line)"
    )


# ── spot nodes on demand ───────────────────────────────────────────────────────


@dataclass
class SpotFallback:
    """Counts the refused requests of one wait. `names`: nodes to request on demand from now on,
    although the file says spot; it is decided once, and never without `train.spot_retries`."""

    console: Console
    over_budget: Callable[[Plan], str | None] = lambda plan: None
    """Why `limits.budget` does not allow a plan; None if it does."""
    names: frozenset[str] = frozenset()
    refusals: int = 0
    _is_decided: bool = False

    def refused(self, plan: Plan, missing: Callable[[], Collection[str]]) -> None:
        """Another request was refused. `missing` lists the names of the plan's nodes that do not
        exist; it is called only when that matters."""
        self.refusals += 1
        retries = plan.config.train.spot_retries
        if self._is_decided or retries is None or self.refusals < max(1, retries):
            return
        wanted = set(missing())
        spot = [node.name for node in plan.nodes if node.spot and node.name in wanted]
        if not spot:
            return
        self._is_decided = True
        dearer, limit = on_demand(plan, spot), plan.config.limits.max_price
        bill = estimate(dearer)
        what = f"{some(spot)}: refused {self.refusals} times as spot (train.spot_retries)"
        if limit is not None and bill is not None and (bill.most is None or bill.most > limit):
            self.console.warn(
                f"{what}; on demand the cluster would cost {per_hour(bill)}, limits.max_price is "
                f"{limit:g} $/hour: requesting spot again"
            )
            return
        if (refusal := self.over_budget(dearer)) is not None:
            self.console.warn(f"{what}; on demand, {refusal}: requesting spot again")
            return
        cost = "" if bill is None else f": {per_hour(bill)} instead of {per_hour(estimate(plan))}"
        self.console.warn(f"{what}; requesting it on demand{cost}")
        self.names = frozenset(spot)


def on_demand(plan: Plan, names: Collection[str]) -> Plan:
    """The plan with these nodes on demand."""
    if not names:
        return plan
    nodes = tuple(
        replace(each, provisioning=ON_DEMAND) if each.spot and each.name in names else each
        for each in plan.nodes
    )
    return replace(plan, nodes=nodes)


def fallback_price(plan: Plan) -> str:
    """Text on what `train.spot_retries` may make the cluster cost; "" if nothing."""
    retries, spot = plan.config.train.spot_retries, [n.name for n in plan.nodes if n.spot]
    if retries is None or not spot:
        return ""
    bill, limit = estimate(on_demand(plan, spot)), plan.config.limits.max_price
    if bill is None or (limit is not None and (bill.most is None or bill.most > limit)):
        return ""
    return f"on demand, {per_hour(bill)}, after {max(1, retries)} refusals (train.spot_retries)"
