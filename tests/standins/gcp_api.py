"""Compute Engine's own description of itself: which calls there are, what goes in, what comes out.

It is the discovery document that google-api-python-client ships, so nobody here wrote it.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.standins.gcp_errors import ApiError, not_acted_out, real

Schema = dict[str, Any]
PREFIX = "/compute/v1/"
SPANS = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
NOT_SERVED = ("fields", "callback", "key", "upload_protocol", "uploadType", "access_token")
"""Parameters of every Google API that change how a call is answered; nobody asked for them yet."""


PARTIAL = "returnPartialSuccess"


def _recommended(told: dict[str, Any]) -> dict[str, Schema]:
    """The document's words recommend a parameter of aggregated lists that its revision 20261106
    leaves out of their parameters: "To prevent failure, Google recommends that you set"."""
    named = PARTIAL in told.get("description", "")
    return {PARTIAL: {"type": "boolean", "location": "query"}} if named else {}


@dataclass(frozen=True, kw_only=True)
class Method:
    id: str
    """`instances.insert`."""
    verb: str
    path: str
    parameters: Mapping[str, Schema]
    request: str | None
    response: str | None


class Api:
    def __init__(self, document: dict[str, Any]) -> None:
        self.schemas: dict[str, Schema] = document["schemas"]
        self.common: dict[str, Schema] = document["parameters"]
        self.methods = [
            Method(
                id=told["id"].removeprefix("compute."),
                verb=told["httpMethod"],
                path=told["path"],
                parameters={**told.get("parameters", {}), **_recommended(told)},
                request=told.get("request", {}).get("$ref"),
                response=told.get("response", {}).get("$ref"),
            )
            for resource in document["resources"].values()
            for told in resource["methods"].values()
        ]
        # A literal part wins over a variable: …/images/family/{family} over …/images/{image}/{x}.
        self.methods.sort(key=lambda method: method.path.count("{"))
        self._routes: dict[tuple[str, int], list[tuple[re.Pattern[str], Method]]] = {}
        self._long_routes: list[tuple[re.Pattern[str], Method]] = []
        for method in self.methods:
            pattern = _pattern(method.path)
            key = method.verb, method.path.count("/")
            if "{+" in method.path:
                self._long_routes.append((pattern, method))
            else:
                self._routes.setdefault(key, []).append((pattern, method))

    def route(self, verb: str, url_path: str) -> tuple[Method, dict[str, str]]:
        """The method and its path parameters; 404 where the document has none."""
        path = url_path.removeprefix(PREFIX)
        if path != url_path:
            key = verb, path.count("/")
            for pattern, method in [*self._routes.get(key, ()), *self._long_routes]:
                found = pattern.fullmatch(path)
                if found and method.verb == verb:
                    return method, found.groupdict()
        raise real("url-unknown", url_path=url_path, verb=verb)

    def parameters(
        self, method: Method, in_path: dict[str, str], query: list[tuple[str, str]]
    ) -> dict[str, Any]:
        """Typed and checked; lists for those that may come again."""
        known = {**self.common, **method.parameters}
        taken: dict[str, Any] = {}
        for name, text in in_path.items():
            schema = method.parameters[name]
            if "pattern" in schema and not re.fullmatch(schema["pattern"], text):
                raise real("regex-not-matched", field=name, value=text, pattern=schema["pattern"])
            taken[name] = text
        for name, text in query:
            schema = known.get(name, {})
            if schema.get("location") != "query":
                raise real("parameter-unknown", name=name)
            value = self._query_value(name, schema, text)
            if schema.get("repeated"):
                taken.setdefault(name, []).append(value)
            elif name in taken:
                raise real("parameter-repeated", name=name)
            else:
                taken[name] = value
        for name, schema in method.parameters.items():
            if schema.get("required") and name not in taken:
                raise real("required-parameter", name=name)
        for name in NOT_SERVED:
            if name in taken:
                raise not_acted_out(f"'{name}'")
        if taken.get("alt", "json") != "json":
            raise not_acted_out("other forms than JSON")
        return taken

    def _query_value(self, name: str, schema: Schema, text: str) -> Any:
        if schema["type"] == "boolean":
            if text not in ("true", "false"):
                raise real("parameter-no-bool", name=name, text=text)
            return text == "true"
        if schema["type"] == "integer":
            low, high = SPANS[schema["format"]]
            if not re.fullmatch(r"-?\d+", text) or not low <= int(text) <= high:
                raise real("parameter-of-wrong-type", name=name, format=schema["format"].upper())
            return int(text)
        if "enum" in schema and text not in schema["enum"]:
            raise real("parameter-no-enum", name=name, text=text)
        if name == "requestId" and not _is_uuid(text):
            raise real("request-id-invalid", field="requestId", value=text)
        return text

    def take(self, method: Method, data: bytes) -> dict[str, Any]:
        """The body, checked, without what only the server writes; int64 as strings."""
        if method.request is None:
            if data.strip() not in (b"", b"{}"):
                raise real("body-not-wanted")
            return {}
        try:
            value = json.loads(data or b"{}")
        except ValueError as error:
            raise real("parse-error") from error
        taken = self._take({"$ref": method.request}, value, "", method)
        assert isinstance(taken, dict)
        return taken

    def _take(self, schema: Schema, value: Any, at: str, method: Method) -> Any:
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"]]
        kind = schema.get("type")
        if kind == "any":
            return value
        if kind == "array":
            if not isinstance(value, list):
                raise _wrong(at, "a list", value)
            items = schema["items"]
            return [self._take(items, item, f"{at}[{i}]", method) for i, item in enumerate(value)]
        if kind == "object":
            if not isinstance(value, dict):
                raise _wrong(at, "an object", value)
            return self._take_object(schema, value, at, method)
        return _scalar(schema, value, at)

    def _take_object(
        self, schema: Schema, value: dict[str, Any], at: str, method: Method
    ) -> dict[str, Any]:
        taken: dict[str, Any] = {}
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            told = properties.get(name, rest)
            if told is None:
                place = f" at '{at}'" if at else ""
                raise real("body-field-unknown", name=name, place=place)
            inside = f"{at}.{name}" if at else name
            if item is None:
                continue
            read = self._take(told, item, inside, method)
            if not _only_told(told):
                taken[name] = read
        for name, told in properties.items():
            needed = told.get("annotations", {}).get("required", ())
            if f"compute.{method.id}" in needed and name not in taken:
                raise real(
                    "field-required", field=f"resource.{at}.{name}" if at else f"resource.{name}"
                )
        return taken

    def check_answer(self, method: Method, value: Any) -> None:
        """AssertionError where the stand-in would say what Compute Engine never says."""
        assert method.response is not None, method.id
        self._check({"$ref": method.response}, value, method.response)

    def _check(self, schema: Schema, value: Any, at: str) -> None:
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"]]
        match schema.get("type"):
            case "any":
                pass
            case "array":
                assert isinstance(value, list), f"{at}: {value!r} is no list"
                for item in value:
                    self._check(schema["items"], item, f"{at}[]")
            case "object":
                assert isinstance(value, dict), f"{at}: {value!r} is no object"
                for name, item in value.items():
                    told = schema.get("properties", {}).get(
                        name, schema.get("additionalProperties")
                    )
                    assert told is not None, f"{at} has no {name}"
                    self._check(told, item, f"{at}.{name}")
            case _:
                _check_scalar(schema, value, at)

    def has_field(self, schema_name: str, path: list[str]) -> bool:
        """Whether a list filter may name it."""
        schema: Schema = {"$ref": schema_name}
        for part in path:
            while "$ref" in schema or schema.get("type") == "array":
                schema = self.schemas[schema["$ref"]] if "$ref" in schema else schema["items"]
            told = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
            if told is None:
                return False
            schema = told
        return True


def _only_told(field: Schema) -> bool:
    """Whether only the server writes it: Compute Engine's words, and those of newer APIs."""
    return bool(field.get("readOnly")) or field.get("description", "").startswith("[Output Only]")


@functools.cache
def api() -> Api:
    import googleapiclient.discovery_cache

    folder = Path(googleapiclient.discovery_cache.__file__).parent / "documents"
    return Api(json.loads((folder / "compute.v1.json").read_text()))


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\+?\w+)\}", path)
    text = ""
    for number, part in enumerate(parts):
        if number % 2 == 0:
            text += re.escape(part)
        elif part.startswith("+"):
            text += f"(?P<{part[1:]}>.+)"
        else:
            text += f"(?P<{part}>[^/]+)"
    return re.compile(text)


def _scalar(schema: Schema, value: Any, at: str) -> Any:
    kind, form = schema["type"], schema.get("format", "")
    if form in SPANS:
        low, high = SPANS[form]
        number = _whole(value)
        if number is None or not low <= number <= high:
            raise _wrong(at, f"TYPE_{form.upper()}", value)
        return str(number) if kind == "string" else number
    if kind == "boolean":
        if not isinstance(value, bool):
            raise _wrong(at, "TYPE_BOOL", value)
    elif kind == "number":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(at, "TYPE_DOUBLE", value)
    elif not isinstance(value, str):
        raise _wrong(at, "TYPE_STRING", value)
    elif form == "byte" and not _is_base64(value):
        raise _wrong(at, "TYPE_BYTES", value)
    elif "enum" in schema and value not in schema["enum"]:
        raise _wrong(at, "TYPE_ENUM", value)
    return value


def _check_scalar(schema: Schema, value: Any, at: str) -> None:
    kind, form = schema["type"], schema.get("format", "")
    types = {"string": str, "boolean": bool, "integer": int, "number": int | float}[kind]
    assert isinstance(value, types), f"{at}: {value!r} is no {kind}"
    if kind != "boolean":
        assert not isinstance(value, bool), f"{at}: {value!r} is no {kind}"
    if form in SPANS:
        low, high = SPANS[form]
        assert low <= int(value) <= high, f"{at}: {value!r} is no {form}"
    if form == "byte":
        assert isinstance(value, str), f"{at}: {value!r} is no text"
        assert _is_base64(value), f"{at}: {value!r} is not base64"
    if "enum" in schema:
        assert value in schema["enum"], f"{at}: {value!r} is not one of {schema['enum']}"


def _whole(value: Any) -> int | None:
    """Google's JSON takes a number as text too, and the other way round."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d+", value) else None


def _is_base64(value: str) -> bool:
    try:
        base64.b64decode(value, altchars="-_" if re.search("[-_]", value) else None, validate=True)
    except ValueError:
        return False
    return True


def _is_uuid(text: str) -> bool:
    try:
        return uuid.UUID(text).int != 0 and len(text) == 36
    except ValueError:
        return False


def _wrong(at: str, wanted: str, value: Any) -> ApiError:
    return real("value-of-wrong-type", at=at, wanted=wanted, given=json.dumps(value))
