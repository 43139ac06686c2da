"""Plans a cluster from its config: nodes, their tasks and their ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, repeat

from cloudtrain import catalog
from cloudtrain.catalog import cuda, gpus, tpus
from cloudtrain.core.cloud import facts_of, is_cloud
from cloudtrain.core.model import DEFAULT_PORT, ClusterConfig, Node, NodePlan, Plan
from cloudtrain.core.run_record import Task
from cloudtrain.core.task_id import TaskId, role_rank
from cloudtrain.training.strategies import not_launched, strategy_of

IMAGES = frozenset({"auto", "deeplearning", "ubuntu-22.04", "ubuntu-24.04", "ubuntu"})
"""Images that every cloud has; any other is the user's own."""

CHOOSES = "an `accelerator: KIND:COUNT` without `machine` chooses the cheapest machine that has it"


def make_plan(config: ClusterConfig) -> Plan:
    """Plan all nodes in TF_CONFIG's order, on a cloud with their machine and accelerator.

    Raises UsageError for what cannot run. Unavailable machines are reported by `plan_errors`, so
    that an existing cluster can be deleted whatever today's table says.
    """
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
    """Ports of the nodes' TensorFlow servers, in the plan's order.

    TensorFlow binds `*:port` whatever address TF_CONFIG gives: tasks on one machine need a port
    each, also where each has a loopback address of its own.
    """
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


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address.lower() in ("localhost", "::1")


def plan_errors(plan: Plan) -> tuple[str, ...]:
    """Return errors for nodes that the cloud does not sell, such as a retired machine type or a
    missing accelerator; each once.
    """
    provider, own = plan.config.provider, plan.config.image not in IMAGES
    found = {
        node.role: catalog.unavailable_reason(provider, node, own_image=own) for node in plan.nodes
    }
    return tuple(f"nodes.{role}: {text}" for role, text in found.items() if text)


def without_code(plan: Plan) -> tuple[str, ...]:
    """Return the GPUs for which the TensorFlow of `setup` has no code; each role once."""
    found: dict[str, None] = {}
    for node, version in _with_gpus(plan):
        kind = node.accelerator.kind if node.accelerator else ""
        row = gpus.gpu(kind)
        if row is not None and gpus.fit(kind, version) == "none":
            number = ".".join(map(str, row.capability))
            why = f"TensorFlow {version} has no code for {row.kind} (compute capability {number})"
            found[f"nodes.{node.role}: {why}: operations on it fail"] = None
    return tuple(found)


OTHER_GPUS = (
    "use other GPUs, or NVIDIA's own build of TensorFlow (its container image, without "
    "setup.tensorflow); pass `--ignore gpus` to try it anyway"
)


def _with_gpus(plan: Plan) -> Iterator[tuple[NodePlan, str]]:
    """Yield the rented nodes with GPUs, and the TensorFlow version installed on each."""
    version = plan.config.setup.tensorflow
    if version is None or not is_cloud(plan.config.provider):
        return
    for node in plan.nodes:
        if node.accelerator is not None:
            yield node, version


def plan_notes(plan: Plan) -> tuple[str, ...]:
    """Return notes on defaults that were chosen and on machines that will be retired, one line
    each.
    """
    found: dict[str, None] = {}
    for node in plan.nodes:
        group = plan.config.nodes[node.role]
        if group.machine is None and node.machine is not None:
            why = f"the cheapest with {node.accelerator}" if node.accelerator else "the default"
            found[f"nodes.{node.role}: no machine is set: using {node.machine}, {why}"] = None
        end = catalog.note(plan.config.provider, node)
        if end:
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
"""Disk size in GB that is enough: the largest images that `auto` chooses have 30 to 65 GB, and CUDA
takes 15.
"""


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
    caution = cuda.caution(version, node.accelerator.kind) if version else None
    if caution:
        yield f": {caution}"


def _first_steps(plan: Plan) -> Iterator[str]:
    """Notes on GPUs that are newer than the TensorFlow release, with its own estimate of the
    duration.
    """
    for node, version in _with_gpus(plan):
        kind = node.accelerator.kind if node.accelerator else ""
        fits, own = gpus.fit(kind, version), gpus.first_release(kind, "own")
        later = f"; {own} and later have it" if own else ""
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


def regions(config: ClusterConfig) -> tuple[str, ...]:
    """Regions of the placement, in its order."""
    return tuple(catalog.region_of(config.provider, place) for place in config.placement)


def tasks(plan: Plan, nodes: Sequence[Node] = ()) -> tuple[Task, ...]:
    """One task on each node, in the plan's order.

    A node with reserved ports uses the first of them. Nodes of a cloud at loopback addresses belong
    to an emulator and share this machine: their tasks get a port each.
    """
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
    this machine share its ports.
    """
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
    order = ("ps", "chief", "worker", "evaluator")
    return tuple(
        sorted(
            tasks,
            key=lambda task: (
                order.index(task.role) if task.role in order else len(order),
                task.role,
                task.index,
            ),
        )
    )
