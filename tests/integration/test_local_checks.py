"""An address that this machine cannot use is found before local nodes are created."""

from __future__ import annotations

from cloudtrain.core.errors import PermissionsError
from cloudtrain.providers.local import environment


def test_an_address_that_is_not_there_is_found() -> None:
    finding = environment.check_loopback("192.0.2.1")
    found = (finding.what, finding.ok, finding.error)
    assert found == ("loopback", False, PermissionsError)
    assert "192.0.2.1" in finding.text
