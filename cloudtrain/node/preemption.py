"""Asks the cloud whether it takes this node."""

import http.client
import json
import urllib.parse


def preempted(kind: str, address: str, name: str) -> bool:
    """Whether the cloud says that it takes this node.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption
    https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
    """
    if kind == "gcp":
        place = "/computeMetadata/v1/instance/preempted"
        return asked(address, "GET", place, {"Metadata-Flavor": "Google"}).strip() == "TRUE"
    if kind == "aws":
        seconds = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = {"X-aws-ec2-metadata-token": asked(address, "PUT", "/latest/api/token", seconds)}
        return bool(asked(address, "GET", "/latest/meta-data/spot/instance-action", token))
    place = "/metadata/scheduledevents?api-version=2020-07-01"
    try:
        events = json.loads(asked(address, "GET", place, {"Metadata": "true"}))["Events"]
        return any(e["EventType"] == "Preempt" and name in e["Resources"] for e in events)
    except (ValueError, KeyError, TypeError):
        return False


def asked(address: str, method: str, place: str, headers: "dict[str, str]") -> str:
    """Empty where there is nothing. Azure takes up to two minutes for its first answer."""
    target = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=150)
    try:
        connection.request(method, place, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    return body.decode("utf-8", "replace") if answer.status == 200 else ""
