"""JSON Schema of the file for editors, generated from the sections and the nouns' defaults."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from cloudtrain.config.section import Section, defaults
from cloudtrain.config.sections import ConfigFile
from cloudtrain.core.cloud import clouds

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    generated = ConfigFile.model_json_schema(schema_generator=_WithoutTitles)
    definitions = generated.pop("$defs")
    for section in _sections(Section):
        target = generated if section is ConfigFile else definitions[section.__name__]
        _add_defaults(target, section)
    generated["properties"]["hosts"]["anyOf"].append({"title": "INI file", "type": "string"})
    generated["properties"]["nodes"]["anyOf"][0]["additionalProperties"] = {
        "anyOf": [{"$ref": "#/$defs/NodesEntry"}, {"const": False}, {"type": "null"}]
    }
    generated["properties"]["data"]["anyOf"][0]["additionalProperties"] = {
        "anyOf": [{"$ref": "#/$defs/DataEntry"}, {"title": "URI", "type": "string"}]
    }
    definitions["NetworkSection"]["properties"]["ssh_proxy"]["anyOf"].insert(
        0, {"title": "iap | ssm", "enum": ["iap", "ssm"]}
    )
    definitions["TrainSection"]["properties"]["command"]["anyOf"].insert(
        0, {"title": "shell line", "type": ["string", "number", "boolean"]}
    )
    needs_placement = {
        "if": {
            "required": ["provider"],
            "properties": {"provider": {"enum": [cloud.name for cloud in clouds()]}},
        },
        "then": {"required": ["placement"]},
    }
    return {
        "$schema": DIALECT,
        "title": "cloudtrain config",
        **generated,
        "required": ["strategy"],
        "anyOf": [{"required": [name]} for name in ("provider", "any_of", "ordered")],
        **needs_placement,
        "$defs": definitions,
    }


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out titles that repeat a field's name, which are noise in an editor."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _sections(base: type[Section]) -> list[type[Section]]:
    return base.__subclasses__()


def _add_defaults(target: dict[str, Any], section: type[Section]) -> None:
    target.pop("title", None)
    known = defaults(section.of)
    for name, field in target["properties"].items():
        field.pop("default", None)
        value = known.get(name)
        if value not in (None, (), {}) and not is_dataclass(value):
            field["default"] = list(value) if isinstance(value, tuple) else value
