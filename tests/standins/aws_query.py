"""EC2's Query protocol, checked against the service model that botocore ships."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from botocore.loaders import Loader
from botocore.model import ListShape, OperationModel, ServiceModel, Shape, StructureShape

from tests.standins.refusals import recorded

if TYPE_CHECKING:
    from werkzeug.wrappers import Request

ENVELOPE = frozenset({"Action", "Version"})
STALE_ENUMS = frozenset({"InstanceType"})
"""A new machine type is real before the model knows it."""


@dataclass
class Refused(Exception):
    """https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"""

    code: str
    message: str
    status: int = 400


def real(entry: str, /, **names: object) -> Refused:
    """The refusal of that name in the corpus, with these names in the place of the recorded."""
    told = recorded("aws")[entry]
    error = ElementTree.fromstring(told.text(**names)).find("Errors/Error")
    assert error is not None, entry
    assert isinstance(told.status, int), entry
    return Refused(str(error.findtext("Code")), str(error.findtext("Message")), told.status)


def of_moto(words: str) -> Refused:
    """moto's own words for an action that it lacks."""
    return Refused("InvalidAction", words)


def not_acted_out(what: str) -> Refused:
    """For what the real one knows and this one does not: better than to ignore it."""
    return Refused("NotActedOut", f"The stand-in does not act out {what}.", 501)


def params_of(request: Request) -> dict[str, str]:
    return {**request.args, **request.form}


def operation(action: str) -> OperationModel:
    if action not in _names():
        raise real("action-unknown", action=action)
    return _service().operation_model(action)


@cache
def _service() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("ec2", "service-2"), "ec2")


@cache
def _names() -> frozenset[str]:
    return frozenset(_service().operation_names)


def parse(params: Mapping[str, str]) -> dict[str, Any]:
    """The call's parameters as the model names them, without `Action` and `Version`."""
    shape = operation(params.get("Action", "")).input_shape
    tree = _tree({key: value for key, value in params.items() if key not in ENVELOPE})
    if shape is None:
        shape = StructureShape("Empty", {"type": "structure", "members": {}})
    parsed: dict[str, Any] = _read(shape, tree, "")
    for name in shape.metadata.get("required", []):
        if name not in parsed:
            raise real("parameter-missing", name=name)
    return parsed


def _tree(params: Mapping[str, str]) -> dict[str, Any]:
    """`Filter.1.Name=x` as {"Filter": {"1": {"Name": "x"}}}."""
    root: dict[str, Any] = {}
    for key, value in params.items():
        *path, last = key.split(".")
        branch = root
        for part in path:
            branch = branch.setdefault(part, {})
            if not isinstance(branch, dict):
                raise _unknown(key)
        branch[last] = value
    return root


def _read(shape: Shape, given: Any, path: str) -> Any:
    if isinstance(shape, StructureShape):
        if not isinstance(given, dict):
            raise _unknown(path)
        members = {_on_the_wire(name, member): name for name, member in shape.members.items()}
        for key in given:
            if key not in members:
                raise _unknown(f"{path}{key}")
        return {
            members[key]: _read(shape.members[members[key]], value, f"{path}{key}.")
            for key, value in given.items()
        }
    if isinstance(shape, ListShape):
        if not isinstance(given, dict) or not all(key.isdecimal() for key in given):
            raise _unknown(path.rstrip("."))
        return [_read(shape.member, given[key], f"{path}{key}.") for key in sorted(given, key=int)]
    if isinstance(given, dict):
        raise _unknown(f"{path}{next(iter(given))}")
    return _scalar(shape, given, path.rstrip("."))


def _scalar(shape: Shape, given: str, path: str) -> Any:
    invalid = real("value-invalid", given=given, path=path)
    if shape.type_name in ("integer", "long"):
        if not given.removeprefix("-").isdecimal():
            raise invalid
        return int(given)
    if shape.type_name == "boolean":
        if given not in ("true", "false", "True", "False", "1", "0"):
            raise invalid
        return given in ("true", "True", "1")
    allowed = shape.metadata.get("enum")
    if allowed and given not in allowed and shape.name not in STALE_ENUMS:
        raise invalid
    return given


def _on_the_wire(name: str, shape: Shape) -> str:
    """botocore.serialize.EC2Serializer._get_serialized_name"""
    serialization = shape.serialization
    if "queryName" in serialization:
        return str(serialization["queryName"])
    found = str(serialization.get("name", name))
    return found[0].upper() + found[1:]


def _unknown(path: str) -> Refused:
    return real("parameter-unknown", path=path)
