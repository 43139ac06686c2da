"""The HTTP proxy of rented nodes: variables, and what their first boot writes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from cloudtrain.core.model import Network

NEVER = (
    *("localhost", "127.0.0.1", "::1"),
    *("169.254.169.254", "metadata.google.internal"),
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
)
"""What no proxy is asked for: the node itself, the metadata service, private addresses."""


def variables(network: Network, addresses: Iterable[str] = ()) -> Mapping[str, str]:
    """Environment variables of a node; {} without a proxy. `addresses`: of the cluster's nodes,
    each by itself, as not all programs understand ranges: Python's urllib compares names alone;
    gRPC reads `no_proxy`, too (http_proxy_mapper.cc)."""
    if network.http_proxy is None:
        return {}
    direct = ",".join(dict.fromkeys((*NEVER, *network.no_proxy, *addresses)))
    both = {"http_proxy": network.http_proxy, "https_proxy": network.http_proxy}
    both["no_proxy"] = direct
    return {**both, **{name.upper(): value for name, value in both.items()}}


def boot_commands(network: Network) -> tuple[str, ...]:
    """Shell lines for each boot, as root, before sshd starts; () without a proxy. PAM gives
    /etc/environment to every login (pam_env(8)), and so to pip, uv, git, curl, tasks and our own
    programs; sudo keeps them by its own setting, apt has settings of its own (apt.conf(5))."""
    if network.http_proxy is None:
        return ()
    commands = []
    for name, value in variables(network).items():
        line = shlex.quote(f"{name}={value}")
        commands.append(
            f"{{ grep -qsxF {line} /etc/environment || printf '%s\\n' {line} >>/etc/environment; }}"
            " 2>/dev/null || true"
        )
    apt = [f'Acquire::{scheme}::Proxy "{network.http_proxy}";' for scheme in ("http", "https")]
    commands.append(
        f"{{ [ ! -d /etc/apt/apt.conf.d ] || printf '%s\\n' {shlex.join(apt)} "
        ">/etc/apt/apt.conf.d/95cloudtrain-proxy; } 2>/dev/null || true"
    )
    kept = shlex.quote(f'Defaults env_keep += "{" ".join(variables(network))}"')
    commands.append(
        f"{{ [ ! -d /etc/sudoers.d ] || (umask 0337; rm -f {_SUDO}; "
        f"printf '%s\\n' {kept} >{_SUDO}); }} 2>/dev/null || true"
    )
    return tuple(commands)


_SUDO = "/etc/sudoers.d/91-cloudtrain-proxy"
