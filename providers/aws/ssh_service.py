"""Session Manager: SSH to instances without a public address, by the aws CLI and its plugin."""

from __future__ import annotations

from cloudtrain.core.cloud import ProxyFault, SshService

DOCUMENT = "AWS-StartSSHSession"

NODE_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
"""What the node's agent needs, of AmazonSSMManagedInstanceCore:
https://docs.aws.amazon.com/systems-manager/latest/userguide/
getting-started-add-permissions-to-existing-profile.html"""


def command(instance: str, region: str, profile: str | None) -> tuple[str, ...]:
    """AWS' own ProxyCommand, with the instance's id:
    https://docs.aws.amazon.com/systems-manager/latest/userguide/
    session-manager-getting-started-enable-ssh-connections.html"""
    words = ["aws", "ssm", "start-session", "--target", instance, "--document-name", DOCUMENT]
    words += ["--parameters", "portNumber=22", "--region", region]
    words += ["--profile", profile] if profile else []
    return tuple(words)


SERVICE = SshService(
    field="ssm",
    programs={
        "aws": "install the AWS CLI: https://docs.aws.amazon.com/cli/latest/userguide/"
        "getting-started-install.html",
        "session-manager-plugin": "install the Session Manager plugin: https://docs.aws.amazon.com/"
        "systems-manager/latest/userguide/session-manager-working-with-install-plugin.html",
    },
    versions=("aws", "--version"),
    faults=(
        ProxyFault(
            written=r"SessionManagerPlugin is not found",
            hint="install the Session Manager plugin: https://docs.aws.amazon.com/systems-manager/"
            "latest/userguide/session-manager-working-with-install-plugin.html",
        ),
        ProxyFault(
            written=r"TargetNotConnected",
            hint="the node's SSM agent has not registered yet: it needs `identity:` with "
            "AmazonSSMManagedInstanceCore and a way to the SSM endpoints (docs/private-nodes.md)",
            lasting=False,
        ),
        ProxyFault(
            written=r"AccessDeniedException",
            hint=f"allow ssm:StartSession on the instances and on the document {DOCUMENT} "
            "(docs/private-nodes.md)",
        ),
        ProxyFault(
            written=r"Unable to locate credentials|ExpiredToken|aws sso login",
            hint="sign in for the aws CLI, with `aws sso login` or new keys",
        ),
    ),
    # An agent that has just started may be "not connected" for tens of seconds after its first
    # session: skypilot-org/skypilot#9509; the plugin's message: aws/session-manager-plugin#5
    source="errors of ssm StartSession in botocore's service model, 2026-11-24",
)
