"""`check` of `disk_key`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cloudtrain.core.errors import CloudConfigError
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.providers.gcp.facts import FACTS

_LOCATION = re.compile(r"/locations/([^/]+)/")


def check(plan: Plan, regions: Sequence[str]) -> Iterator[Finding]:
    """Say whether the key is in the right place. Whether Google may use it shows at the first disk:
    the right is the service agent's, not the caller's.

    A regional key is for disks of its region, one of `global` for all:
    https://cloud.google.com/compute/docs/disks/customer-managed-encryption (documented)
    """
    key = plan.config.disk_key
    if key is None:
        return
    wrong = [region for region in regions if not _serves(plan.config.disk_key_in(region), region)]
    if wrong:
        text = f"the key is not in {', '.join(wrong)}: {key}"
        hint = "write {region} for its location, or choose other regions in `placement`"
        yield Finding(what="disk key", ok=False, text=text, hint=hint, error=CloudConfigError)
        return
    text = f"{key}; whether Compute Engine's service agent may use it is known after `up`"
    yield Finding(what="disk key", ok=True, text=text, told=False)


def _serves(key: str | None, region: str) -> bool:
    """False if the key is certainly of another region; the locations of several regions are left to
    Google.
    """
    found = _LOCATION.search(key or "")
    where = found[1] if found else ""
    return where == region or re.fullmatch(FACTS.region, where) is None
