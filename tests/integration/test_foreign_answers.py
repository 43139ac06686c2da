"""Labels that anyone may have written, and answers of another shape, on each cloud's stand-in.

A cluster is created once for each cloud. What its driver reads afterwards is changed on the way in:
one label of one resource, or one value of one answer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import CloudtrainError, LeftoverError
from cloudtrain.core.model import Network, NodeGroup, Plan
from cloudtrain.providers.aws import xml
from cloudtrain.providers.base import http, labels
from cloudtrain.providers.base.provider import CloudProvider
from tests.support import aws_parts, azure_parts, gcp_parts
from tests.support.fakes import make_identity, no_journal
from tests.support.lanes import Cases

JUNK = (
    "",
    "Mnist",
    "x" * 300,
    "a\nhint: run this",
    "\x1b[2J\x07",
    "1" + "0" * 30,
    "-1",
    "nan",
    "\u0661\u0662",
    '{"a": 1}',
    "../../etc",
    "-oProxyCommand=touch x",
    "mnist ",
)
KEYS = (
    labels.CLUSTER,
    labels.ROLE,
    labels.INDEX,
    labels.OWNER,
    labels.OWNER_NAME,
    labels.MACHINE,
    labels.EXPIRES,
    labels.GENERATION,
    labels.CREATING,
    labels.HOSTS,
)
FITS = {(labels.ROLE, "nan"), (labels.OWNER, "nan"), (labels.OWNER_NAME, "nan")}
FITS |= {(labels.MACHINE, "nan"), (labels.OWNER, "-1"), (labels.OWNER_NAME, "-1")}
FITS |= {(key, "1" + "0" * 30) for key in (labels.OWNER, labels.OWNER_NAME, labels.MACHINE)}
FITS |= {(labels.MACHINE, "-1"), (labels.CLUSTER, "nan")}
"""What a name may be."""


@dataclass
class World:
    """One cloud with a cluster `mnist`, and a hand on each answer that its driver reads."""

    name: str
    provider: Callable[[], CloudProvider[Any]]
    plan: Plan
    change: Callable[[Any], Any] = lambda answer: answer
    read: list[Any] = field(default_factory=list)

    def answer(self, parsed: Any) -> Any:
        self.read.append(copy.deepcopy(parsed))
        return self.change(parsed)

    def deletes(self) -> set[str]:
        """What `down mnist` would delete."""
        provider = self.provider()
        machines, resources = provider._finder(provider._search("mnist")).near()
        return {*map(str, machines), *map(str, resources)}


@pytest.fixture(scope="module", params=["aws", "gcp", "azure"])
def one_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        yield started(request.param, tmp_path_factory.mktemp("keys"), stack, patch)


@pytest.fixture
def world(one_world: World) -> Iterator[World]:
    one_world.read.clear()
    yield one_world
    one_world.change = lambda answer: answer


def started(name: str, folder: Path, stack: ExitStack, patch: pytest.MonkeyPatch) -> World:
    provider: Callable[[], CloudProvider[Any]]
    if name == "gcp":
        gcp = stack.enter_context(gcp_parts.standing_in())
        plan = gcp.plan(nodes=nodes("n1-standard-8"))

        def provider() -> CloudProvider[Any]:
            account = gcp.account(nodes=plan.config.nodes)
            return CloudProvider(account, caller=lambda: "", timing=gcp.timing())

    elif name == "aws":
        aws = stack.enter_context(aws_parts.stand_in(regions=["us-east-1"]))
        plan = aws_parts.plan_of(aws, nodes=nodes("m6i.xlarge"), placement=("us-east-1a",))

        def provider() -> CloudProvider[Any]:
            return aws_parts.provider_of(plan)

    else:
        azure = stack.enter_context(azure_parts.stand_in())
        plan = azure_parts.plan_of(azure, nodes=nodes("Standard_D4s_v5"), network=Network())

        def provider() -> CloudProvider[Any]:
            account = azure_parts.account_of(plan)
            return CloudProvider(account, caller=lambda: "", timing=azure_parts.FAST)

    world = World(name, provider, plan)
    provider().create(plan, make_identity(folder, plan), no_journal)
    for module, name in ((http, "parse_json"), (xml, "tree")):
        parse = getattr(module, name)
        patch.setattr(module, name, lambda text, parse=parse: world.answer(parse(text)))
    return world


def nodes(machine: str) -> dict[str, NodeGroup]:
    one = NodeGroup(machine=machine)
    return {"chief": one, "worker": replace(one, count=1)}


# ── Labels ───────────────────────────────────────────────────────────────────


def things(answer: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every resource in an answer that has our label, with its id."""
    if isinstance(answer, list):
        for each in answer:
            yield from things(each)
    if isinstance(answer, dict):
        if labels.CLUSTER in of(answer):
            ids = ("selfLink", "instanceId", "groupId", "volumeId", "networkInterfaceId", "id")
            id = next((answer[key] for key in ids if key in answer), answer.get("groupName"))
            yield str(id).lower(), answer
        for each in answer.values():
            yield from things(each)


def is_described(thing: dict[str, Any]) -> bool:
    """True for a resource of GCP that has no labels."""
    return str(thing.get("description", "")).startswith("made by cloudtrain: ")


def of(thing: dict[str, Any]) -> dict[str, str]:
    """The labels of a resource, in whichever form its cloud has them."""
    if isinstance(thing.get("tagSet"), list):
        return {tag["key"]: tag["value"] for tag in thing["tagSet"]}
    if is_described(thing) and "labels" not in thing:
        words = thing["description"].partition(": ")[2].split()
        return {f"cloudtrain-{key}": value for key, _, value in (w.partition("=") for w in words)}
    found = thing.get("labels") or thing.get("tags")
    return found if isinstance(found, dict) else {}


def label(thing: dict[str, Any], key: str, value: str) -> None:
    given = {**of(thing), key: value}
    if "tagSet" in thing:
        thing["tagSet"] = [{"key": key, "value": value} for key, value in given.items()]
    elif is_described(thing) and "labels" not in thing:
        words = (f"{k.removeprefix('cloudtrain-')}={v}" for k, v in given.items())
        thing["description"] = f"made by cloudtrain: {' '.join(words)}"
    else:
        thing["labels" if "labels" in thing else "tags"] = given


def test_what_has_labels_that_we_never_write_is_named_and_never_deleted_and_all_else_goes_on(
    world: World, cases: Cases
) -> None:
    held = world.provider().sweep()
    there = {id: thing for answer in world.read for id, thing in things(answer)}
    assert len(there) >= 5, sorted(there)
    before = world.deletes()
    every = [
        (id, key, value)
        for id, thing in there.items()
        for key in KEYS
        for value in JUNK
        if (key, value) not in FITS
        # A description ends its words at the space, and knows no node.
        if not (is_described(thing) and "labels" not in thing)
        or (not any(c.isspace() for c in value) and key not in _OF_NODES)
    ]
    print(f"{world.name}: {len(every)} cases")
    always = [(id, labels.CLUSTER, "Mnist") for id in there]
    for id, key, value in cases.of(every, 5, always=always[:2]):

        def change(answer: Any, id: str = id, key: str = key, value: str = value) -> Any:
            for found, thing in things(answer):
                if found == id:
                    label(thing, key, value)
            return answer

        where = f"{world.name}: {id} with {key}: {value!r}"
        world.change = change
        listed = world.provider().sweep()
        assert [held.cluster for held in listed] == ["mnist"], where
        if not listed.foreign:  # its labels are not read: it goes with its VM or group
            assert (listed, world.deletes()) == (held, before), where
            continue
        for foreign in listed.foreign:
            assert key in foreign.why, where
            assert str(foreign).isprintable(), where
            assert len(str(foreign)) < 300, where
        assert not any(each.silent for each in listed.not_asked), where
        lost = before - world.deletes()
        assert len(lost) == 1, (where, lost)
        world.provider().nodes("mnist")


_OF_NODES = (labels.ROLE, labels.INDEX, labels.EXPIRES, labels.HOSTS)


# ── Shapes ───────────────────────────────────────────────────────────────────

OTHERS: tuple[Any, ...] = ("text", 5, True, None, [], {}, ["text"], {"a": "text"}, -1.5)
OF_XML = (0, 6, 7)
"""Those that EC2's XML can have."""


def places(answer: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    pairs: Any = answer.items() if isinstance(answer, dict) else ()
    pairs = enumerate(answer) if isinstance(answer, list) else pairs
    for key, value in pairs:
        yield from places(value, (*path, key))


def at(answer: Any, path: tuple[Any, ...]) -> Any:
    return at(answer[path[0]], path[1:]) if path else answer


def replaced(answer: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    changed = copy.copy(answer)
    changed[path[0]] = replaced(answer[path[0]], path[1:], other)
    return changed


def test_an_answer_of_another_shape_is_an_error_of_the_cloud_and_hides_no_machine(
    world: World, cases: Cases
) -> None:
    asks: dict[str, tuple[Any, ...]] = {
        "sweep": (),
        "nodes": ("mnist",),
        "nodes_and_ends": ("mnist",),
        "check": (world.plan,),
    }
    every, originals = [], []
    for ask, given in asks.items():
        world.read.clear()
        getattr(world.provider(), ask)(*given)
        for answer in world.read:
            originals.append(answer)
            every += [
                (ask, len(originals) - 1, path, other)
                for path in places(answer)
                for other in (OF_XML if world.name == "aws" else range(len(OTHERS)))
                if not isinstance(OTHERS[other], type(at(answer, path)))
            ]
    print(f"{world.name}: {len(every)} cases in {len(originals)} answers")
    for ask, number, path, chosen in cases.of(every, 12):
        original, other = originals[number], OTHERS[chosen]

        def change(
            answer: Any, original: Any = original, path: Any = path, other: Any = other
        ) -> Any:
            return replaced(answer, path, other) if answer == original else answer

        world.change = change
        try:
            found = getattr(world.provider(), ask)(*asks[ask])
        except CloudtrainError:
            continue
        except Exception as error:
            raise AssertionError(f"{world.name} {ask}: {path} = {other!r}") from error
        if ask == "check":
            continue
        listed = [n for held in found for n in held.nodes] if ask == "sweep" else found
        seen, named = {node.name for node in listed}, " ".join(map(str, found.not_asked))
        lost = [n for n in world.plan.names if n not in seen and n not in named]
        # Azure lists what has no tags with null for them.
        assert not lost or other is None, (world.name, ask, path, other, lost)


def test_a_resource_group_with_a_vm_that_cannot_be_ours_stays_and_our_vms_in_it_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure deletes a group with all that is in it."""
    with ExitStack() as stack:
        world = started("azure", tmp_path, stack, monkeypatch)

        def change(answer: Any) -> Any:
            for id, thing in things(answer):
                if id.endswith("/virtualmachines/mnist-worker0"):
                    label(thing, labels.INDEX, "-1")
            return answer

        world.change = change
        with pytest.raises(LeftoverError) as left:
            world.provider().destroy("mnist", no_journal)
        assert "mnist-worker0 has cloudtrain labels that cloudtrain never wrote" in str(left.value)
        world.change = lambda answer: answer
        assert [node.name for node in world.provider().nodes("mnist")] == ["mnist-worker0"]
        world.provider().destroy("mnist", no_journal)
        assert world.provider().sweep() == ()
