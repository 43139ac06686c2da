"""Rules on `${VAR}`: a credential goes to tasks under `secrets`, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

from cloudtrain.config.variables import only_variable, variables
from cloudtrain.config.yaml_source import Block, Scalar, dotted, scalars
from cloudtrain.core.model import Problem
from cloudtrain.node.key_shapes import kind_of_key, looks_like_key_name


def broken_variable_rules(tree: Block) -> Iterator[Problem]:
    """Uses of credentials outside `secrets`, by which they would be in names, addresses, records,
    process lists and errors. No text has a value."""
    section = tree.get("secrets")
    values = section.values() if isinstance(section, Block) else ()
    secret = {only_variable(value.source) for value in values if isinstance(value, Scalar)}
    for path, value in scalars(tree.without("secrets")):
        field = dotted(path)
        for variable in sorted(variables(value.source)):
            text = _wrong(field, variable, value, variable in secret)
            if text:
                at = value.place
                yield Problem(file=at.file, line=at.line or None, field=field, text=text)


def _wrong(field: str, variable: str, value: Scalar, is_secret: bool) -> str:
    if is_secret:
        return f"{variable} is listed under `secrets`, and may be used only there"
    kind = "" if looks_like_key_name(variable) else kind_of_key(value.environ.get(variable, ""))
    if not kind and not looks_like_key_name(variable):
        return ""
    why = f"the value of {variable} looks like {kind}" if kind else f"{variable} is a credential"
    way = f"write `token: {variable}` under `code`, and" if field == "code.git" else "there, write"
    name = field.removeprefix("train.env.") if field.startswith("train.env.") else variable
    line = f'`{name}: "${{{variable}}}"`'
    return f"{why}, and may be used only under `secrets`: {way} {line}"
