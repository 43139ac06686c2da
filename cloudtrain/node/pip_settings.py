"""Translates the settings of a node's pip for uv, which reads none of them.

Input: what `pip config list` prints, in which a variable PIP_… is a key of `:env:`. Output, for the
shell: assignments of uv's variables, so that no password of an index is in a process list, and
uv's options after those that are there. Which variable of uv stands for which setting of pip:
docs.astral.sh/uv/pip/compatibility, docs.rs/uv-static (EnvVars; both read 2026-11-27) and the help
of uv 0.13.9. As pip, it takes the best version of all indexes (UV_INDEX_STRATEGY), and trusts the
certificates of the system (UV_SYSTEM_CERTS), where a company puts its own.
"""

import ast
import os
import re
import shlex
import sys

SECTIONS = ("global", "install", ":env:")
"""Of pip's configuration, for `pip install`; a later one replaces keys of an earlier one."""

VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "retries": ("UV_HTTP_RETRIES", " "),
}
"""uv's variable for a key, and what separates its values there."""

OPTIONS = {"constraint": "-c", "no-binary": "--no-binary", "only-binary": "--only-binary"}
FLAGS = {"pre": "--prerelease=allow", "no-index": "--no-index"}

WITHOUT_EFFECT = re.compile(
    "break-system-packages|cache-dir|compile|config-file|disable-pip-version-check|exists-action|log"
    "|quiet|prefer-binary|progress-bar|python-version-warning|require-virtualenv|user"
    "|resume-retries|root-user-action|use-deprecated|use-feature|verbose"
    "|no-(cache-dir|color|compile|input|python-version-warning|warn-conflicts|warn-script-location)"
)
"""How pip works and what it says; `user` has no effect in an environment."""


class Unknown(Exception):
    """A setting that uv has nothing for."""


def read(printed: str) -> "dict[str, str]":
    """The settings that hold for `pip install`, by their keys."""
    found: dict[str, dict[str, str]] = {}
    for line in printed.splitlines():
        section, _, rest = line.partition(".")
        key, equals, value = rest.partition("=")
        if equals:
            found.setdefault(section, {})[key.replace("_", "-")] = str(ast.literal_eval(value))
    return {key: value for name in SECTIONS for key, value in found.get(name, {}).items()}


def translated(settings: "dict[str, str]") -> "tuple[dict[str, str], list[str]]":
    """uv's variables and options. Raises Unknown."""
    variables, options = {}, []  # type: dict[str, str], list[str]
    for key, value in settings.items():
        values = value.split()
        if not values:
            continue
        if key in VARIABLES:
            name, between = VARIABLES[key]
            variables[name] = between.join(values)
        elif key in OPTIONS:
            for each in re.split(r"[\s,]+", " ".join(values)):
                options += [OPTIONS[key], each]
        elif key in FLAGS:
            options += [FLAGS[key]] if value.lower() in ("1", "true", "yes", "on") else []
        elif not WITHOUT_EFFECT.fullmatch(key):
            raise Unknown(key)
    return variables, options


def main() -> None:
    try:
        variables, options = translated(read(sys.stdin.read()))
    except Unknown as unknown:
        print(f"error: uv has nothing for the setting `{unknown}` of pip")
        sys.exit(1)
    variables.update(UV_INDEX_STRATEGY="unsafe-best-match", UV_SYSTEM_CERTS="1")
    for name, value in variables.items():
        if name not in os.environ:  # the node's own setting of uv
            print(f"export {name}={shlex.quote(value)}")
    print('set -- "$@" ' + " ".join(map(shlex.quote, options)))


if __name__ == "__main__":
    main()
