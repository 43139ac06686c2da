"""Reads the end of a VM's serial log from managed boot diagnostics, which is free and needs no
storage key.
"""

from __future__ import annotations

from typing import Any

from cloudtrain.providers.azure.client import ArmClient
from cloudtrain.providers.azure.expiry import where
from cloudtrain.providers.azure.faults import TABLE
from cloudtrain.providers.base.driver import Vm
from cloudtrain.providers.base.serial_log import last_lines

MINUTES = "10"
"""Validity of the link to the log, in minutes."""
TIMEOUT = 20.0
"""Seconds without data before a request times out."""


def serial_log(arm: ArmClient, machine: Vm) -> str:
    """The end of the serial log:
    https://learn.microsoft.com/rest/api/compute/virtual-machines/retrieve-boot-diagnostics-data
    """
    group, name = where(machine)
    path = f"{group.vm(name)}/retrieveBootDiagnosticsData"
    answer = arm.call("POST", path, query={"sasUriExpirationTimeInMinutes": MINUTES})
    body: Any = answer.body
    url = body.get("serialConsoleLogBlobUri") if isinstance(body, dict) else None
    return "" if not url else last_lines(_fetched(name, str(url)))


def _fetched(name: str, url: str) -> str:
    """Fetch a presigned link without sending our token; errors do not show the link."""
    import requests

    with TABLE.mapped(f"GET serial log of {name}"):
        try:
            answer = requests.get(url, timeout=TIMEOUT)
        except requests.RequestException as error:
            raise ConnectionError(type(error).__name__) from None
        return answer.content.decode("utf-8", "replace") if answer.ok else ""
