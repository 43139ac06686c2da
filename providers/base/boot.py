"""First-boot data: our user, a known host key, and the timer that shuts the node down."""

from __future__ import annotations

from typing import Any

import yaml

from cloudtrain.core.model import HostKey, Network
from cloudtrain.ssh import node_proxy

USER = "cloudtrain"

# Written in C where PyYAML has them: ten times as fast, which counts for hundreds of nodes.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def user_data(
    *,
    public_key: str,
    host_key: HostKey,
    expires: float | None,
    timed: bool = False,
    network: Network = Network(),  # noqa: B008 - frozen
) -> str:
    """A `#cloud-config` document for cloud-init 20 to 25, about 3 KB (clouds accept 16).

    The node shuts down at `expires` (Unix time), also after a reboot; `move_end_command` can change
    that time later. With `timed`, the timer is installed even if `expires` is None, so that an end
    can be set later. With `network.http_proxy`, logins and apt use that proxy. The document
    contains the private half of the bootstrap host key: never log it."""
    boot = (*_NO_UPGRADES, *node_proxy.boot_commands(network), _NO_OTHER_HOST_KEYS)
    document: dict[str, Any] = {
        # Without `default` in it, the image's own user (ubuntu, debian, …) is not created.
        "users": [
            {
                "name": USER,
                "gecos": USER,
                "shell": "/bin/bash",
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "lock_passwd": True,
                "ssh_authorized_keys": [public_key],
            }
        ],
        # Keys that the project or account puts into the instance metadata give no access.
        "allow_public_ssh_keys": False,
        "disable_root": True,
        "ssh_pwauth": False,
        # With `ssh_keys` no other key is generated (cloudinit/config/cc_ssh.py), so
        # `ssh_genkeytypes` is not needed; the schema refuses an empty one (minItems: 1). The
        # module runs once per instance: a host key changed later survives reboots.
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": host_key.private.reveal(),
            "ed25519_public": f"{host_key.public}\n",
        },
        "package_update": False,
        "package_upgrade": False,
        "bootcmd": [*boot, *_ending(expires, timed=timed)],
    }
    return _text(document)


def _text(document: dict[str, Any]) -> str:
    text = yaml.dump(document, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=1000)
    return f"#cloud-config\n{text}"


def with_end(user_data: str, expires: float, *, moved: str) -> str:
    """The user data of a stopped node with another end, which also counts before the one that its
    END file has, once. `moved`: an ID of this move. Raises ValueError if it is not ours."""
    document = document_of(user_data)
    commands = document.get("bootcmd") if isinstance(document, dict) else None
    if not commands:
        raise ValueError("no bootcmd")
    kept = [line for line in commands if END not in str(line) and "shutdown -P" not in str(line)]
    text = str(int(expires))
    once = (
        f'mkdir -p {_FOLDER}; [ "$(cat {END}.moved 2>/dev/null)" = {moved} ] || '
        f"{{ echo {text} >{END}.new && mv {END}.new {END} && echo {moved} >{END}.moved; }} || "
        f"rm -f {END}"
    )
    return _text({**document, "bootcmd": [*kept, once, *_ending(expires, timed=True)]})


def document_of(user_data: str) -> dict[str, Any]:
    """The document of `user_data`."""
    document: dict[str, Any] = yaml.load(user_data, Loader=_LOADER)
    return document


# bootcmd runs at each boot, as root, before sshd starts. All lines form one script: each must
# exit with 0.

_UNITS = (
    "apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service "
    "unattended-upgrades.service"
)
_NO_UPGRADES = (
    # They hold dpkg's lock while the node is set up, and change the kernel under the GPU's driver.
    f"systemctl --no-block stop {_UNITS} >/dev/null 2>&1 || true",
    f"systemctl mask {_UNITS} >/dev/null 2>&1 || true",
    "{ [ ! -d /etc/apt/apt.conf.d ] || printf '%s\\n' 'APT::Periodic::Enable \"0\";' "
    "'APT::Periodic::Unattended-Upgrade \"0\";' >/etc/apt/apt.conf.d/99cloudtrain; } "
    ">/dev/null 2>&1 || true",
)

# On GCE, each of Google's agents (google_guest_agent, and the plugin agent of 2025, which may be
# there alone) generates its own host keys on a new instance unless its configuration disables it.
# Of its three files, in this order, the last one counts, and packages bring `= true`
# (GoogleCloudPlatform/guest-agent, google_guest_agent/cfg/cfg.go). They start after this; on other
# clouds nothing reads the file.
_GOOGLE = "/etc/default/instance_configs.cfg"
_NO_OTHER_HOST_KEYS = (
    "{ mkdir -p /etc/default; "
    f"for file in {_GOOGLE}.distro {_GOOGLE} {_GOOGLE}.template; do [ ! -e $file ] || "
    "sed -i 's/^[[:space:]]*set_host_keys[[:space:]]*=.*/set_host_keys = false/' $file; done; "
    f"grep -qs '^set_host_keys = false' {_GOOGLE} || "
    "printf '%s\\n' '[InstanceSetup]' 'set_host_keys = false' "
    f">>{_GOOGLE}; }} >/dev/null 2>&1 || true"
)


END = "/var/lib/cloudtrain/end"
"""File that holds the end as Unix time in whole seconds, or `off`. If it exists, it overrides the
end in the user data, which cannot change while the instance runs."""
_FOLDER = END.rpartition("/")[0]


def _ending(expires: float | None, *, timed: bool) -> tuple[str, ...]:
    """Build the command that waits in the background for the end, then shuts the node down.

    `shutdown -P +minutes` does not work here: this early in a boot logind does not run yet, and
    before systemd 250 a delayed shutdown without logind becomes an immediate one (systemctl's
    halt_main: "No delay, or logind failed or is not at all available")."""
    if expires is None and not timed:
        return ()
    first = "off" if expires is None else str(int(expires))
    wait = (
        f"while :; do end=$(cat {END} 2>/dev/null); "
        f'case $end in off) ;; ""|*[!0-9]*) end={first} ;; esac; '
        "[ $end = off ] && { sleep 20; continue; }; "
        "left=$((end - $(date +%s))); [ $left -gt 0 ] || break; "
        "sleep $((left > 20 ? 20 : left)); done; until shutdown -P now; do sleep 20; done"
    )
    return (f"setsid sh -c '{wait}' </dev/null >/dev/null 2>&1 &",)


CAN_MOVE = f"pgrep -f 'cat [{END[0]}]{END[1:]}' >/dev/null"
"""Shell command for the node that succeeds if the node's timer reads the END file; timers of
earlier versions do not. The brackets keep the pattern from matching the shell that runs the
command."""


def has_end_command(expires: float) -> str:
    """Build the shell command that succeeds if the node's timer will end it at `expires`."""
    return (
        f'end=$(cat {END} 2>/dev/null); {{ [ -z "$end" ] || [ "$end" = {int(expires)} ]; }} '
        "&& pgrep -f 'shutdown -[P]' >/dev/null"
    )


def move_end_command(expires: float | None) -> str:
    """Build the shell command that changes the end; run it on the node as a user with sudo. It
    succeeds if the timer, which reads the file, is there."""
    text = "off" if expires is None else str(int(expires))
    return (
        f"sudo mkdir -p {_FOLDER} && echo {text} | sudo tee {END}.new >/dev/null "
        f'&& sudo mv {END}.new {END} && [ "$(cat {END})" = {text} ] && {CAN_MOVE}'
    )
