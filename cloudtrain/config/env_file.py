"""Reads the variables of `--env-file` in dotenv form."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.core.errors import ConfigError, UsageError
from cloudtrain.core.model import ClusterConfig, Problem
from cloudtrain.core.shell import Secret


def read_env_file(path: Path) -> dict[str, str]:
    """Variables by name, each value as written: a `${…}` in it is not expanded.

    The form is that of python-dotenv: `NAME=value`, quotes, comments, `export NAME=value`. The
    process environment is neither read nor changed. Raises UsageError, ConfigError with each line
    that is not of this form, without its text, which may be a secret."""
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    try:
        with path.open(encoding="utf-8-sig") as stream:
            bindings = list(parse_stream(stream))
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {path}: it is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="--env-file is a file of NAME=value lines"
        ) from None
    wrong = [each.original.line for each in bindings if each.error]
    wrong += [each.original.line for each in bindings if each.key and each.value is None]
    if wrong:
        text = "must be NAME=value, or a comment that begins with #"
        raise ConfigError(
            [Problem(file=str(path), line=line, field="", text=text) for line in sorted(wrong)]
        )
    found = dotenv_values(path, interpolate=False, encoding="utf-8-sig")
    return {name: value for name, value in found.items() if value is not None}


def environment_of(
    config: ClusterConfig, environ: Mapping[str, str] = os.environ
) -> Mapping[str, str]:
    """The environment `environ`, and over it the variables of the file that `--env-file` gave.
    Raises UsageError if that file can no longer be read."""
    if not config.env_file:
        return environ
    return {**environ, **read_env_file(Path(config.env_file))}


def secret_of(config: ClusterConfig, name: str, field: str) -> Secret:
    """The value of the entry `name` under `secrets:`, which `field` names. Raises ConfigError if it
    is not set, or not one line of text."""
    variable = config.secrets[name]
    value = environment_of(config).get(variable, "").strip()
    wrong, hint = f"the value of {variable} is not one line of text", None
    if not value:
        wrong = f"the environment variable {variable} is not set here"
        hint = "export it in the shell that runs cloudtrain"
    if not value.isprintable() or not value:
        raise ConfigError(
            [Problem(file=config.source, line=None, field=field, text=wrong)], hint=hint
        )
    return Secret(value)
