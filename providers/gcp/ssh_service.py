"""Identity-Aware Proxy: SSH to VMs without a public address, by the gcloud CLI."""

from __future__ import annotations

from cloudtrain.core.cloud import ProxyFault, SshService

RANGE = "35.235.240.0/20"
"""Addresses from which IAP connects: https://cloud.google.com/iap/docs/using-tcp-forwarding, read
2026-11-24. A network's firewall must have it for port 22."""

PERMISSIONS = ("iap.tunnelInstances.accessViaIAP",)
"""Permissions of roles/iap.tunnelResourceAccessor that gcloud needs for a tunnel, besides
compute.instances.get: https://cloud.google.com/iap/docs/using-tcp-forwarding#grant-permission"""


def command(project: str, zone: str, instance: str) -> tuple[str, ...]:
    """The command that `gcloud compute ssh --tunnel-through-iap` uses as its ProxyCommand.
    `--listen-on-stdin` is hidden in gcloud's help: surface/compute/start_iap_tunnel.py of the SDK
    (read), which also names the positional instance and port."""
    words = ("gcloud", "compute", "start-iap-tunnel", instance, "22", "--listen-on-stdin")
    return (*words, f"--project={project}", f"--zone={zone}", "--verbosity=warning", "--quiet")


SERVICE = SshService(
    field="iap",
    programs={"gcloud": "install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install"},
    versions=("gcloud", "version"),
    faults=(
        ProxyFault(
            written=r"\b4033\b|iap\.tunnelInstances\.accessViaIAP",
            hint="grant roles/iap.tunnelResourceAccessor in the project to the account that "
            "`gcloud auth list` shows (docs/private-nodes.md)",
        ),
        ProxyFault(
            written=r"\b4003\b|failed to connect to (backend|port)",
            hint="the node's SSH server does not answer yet, or a firewall keeps out IAP's range "
            f"{RANGE}, which `cloudtrain up` lets in",
            lasting=False,
        ),
        ProxyFault(written=r"\b4047\b", hint="the node is not running yet", lasting=False),
        ProxyFault(
            written=r"gcloud auth login|active account selected",
            hint="run `gcloud auth login`: gcloud's own credentials are others than the "
            "application default ones",
        ),
    ),
    # 4033: google-github-actions/ssh-compute#44; 4047: hashicorp/packer-plugin-googlecompute#195
    source="https://cloud.google.com/iap/docs/faq, 2026-11-24",
)
