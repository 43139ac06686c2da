"""Azure Bastion: SSH to VMs without a public address, by the az CLI."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.core.cloud import ProxyFault, SshService
from cloudtrain.core.own_python import program

WRAPPER = Path(__file__).parent / "bastion_tunnel.py"


def command(bastion: str, vm: str) -> tuple[str, ...]:
    """The command for the IDs of a Bastion and a VM.

    `az network bastion tunnel` listens on a local port and serves one connection at a time, and has
    no form for ProxyCommand (Azure/azure-cli#27999, #24600; azext_bastion/tunnel.py, read): the
    wrapper starts one for each connection, and fills in `{port}`."""
    _, _, subscription, _, group, *_, name = bastion.split("/")
    tunnel = ["az", "network", "bastion", "tunnel", "--name", name, "--resource-group", group]
    tunnel += ["--target-resource-id", vm, "--resource-port", "22", "--port", "{port}"]
    return (*program(str(WRAPPER), "--", *tunnel, "--subscription", subscription),)


SERVICE = SshService(
    field="bastion",
    programs={
        "az": "install the Azure CLI: https://learn.microsoft.com/cli/azure/install-azure-cli",
    },
    # `tunnel` is in an extension, and az asks whether to install one that is missing
    versions=("az", "extension", "show", "--name", "bastion", "--query", "version"),
    faults=(
        ProxyFault(
            written=r"Native Client must be enabled",
            hint="the Bastion must be of the Standard or Premium SKU, with native client support: "
            "`az network bastion update --enable-tunneling true`",
        ),
        ProxyFault(written=r"az login|AADSTS\d", hint="run `az login`"),
        ProxyFault(
            written=r"AuthorizationFailed|does not have authorization",
            hint="grant yourself Reader on the Bastion, the VMs and their network interfaces "
            "(docs/private-nodes.md)",
        ),
        ProxyFault(
            written=r"requires the extension bastion|'bastion' is misspelled",
            hint="run `az extension add --name bastion`",
        ),
    ),
    source="azure-cli-extensions, src/bastion/azext_bastion/custom.py, 2026-11-24",
)
