"""Check the service account of `identity`: it exists, may be attached, and may use the buckets.

https://iam.googleapis.com/$discovery/rest?version=v1 and
https://storage.googleapis.com/$discovery/rest?version=v1, read 2026-11-22; not tried on a real
project.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from urllib.parse import quote, urlsplit

from cloudtrain.core.errors import NotFoundError, PermissionsError, if_told
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from cloudtrain.core.store_kinds import own_uris
from cloudtrain.providers.base.findings import NotChecked, finding, not_checked
from cloudtrain.providers.base.words import NOT_REPORTED
from cloudtrain.providers.gcp import faults
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.facts import FACTS

IAM = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM", "https://iam.googleapis.com", "v1")
STORAGE = (
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",
    "https://storage.googleapis.com/storage/v1",
    "",
)
"""Environment variable of gcloud for a custom endpoint, Google's own, and the version in the path
that it lacks."""

ACT_AS = "iam.serviceAccounts.actAs"
EVERYBODY = ("allUsers", "allAuthenticatedUsers")
DISABLED = ("SERVICE_DISABLED", "accessNotConfigured")


def check(api: GcpClient, plan: Plan) -> Iterator[Finding]:
    """Yield the findings; none without `identity`. What cannot be asked fails nothing."""
    email = plan.config.identity
    if email is None:
        return
    iam, storage = _service(api, IAM), _service(api, STORAGE)
    first = finding("identity", lambda: _account(iam, api, email))
    yield first
    for uri in own_uris(plan.config, FACTS.bucket_schemes) if iam and first.ok else ():
        if storage is not None:
            yield finding("identity", partial(_bucket, storage, email, uri.bucket))


def _service(api: GcpClient, service: tuple[str, str, str]) -> GcpClient | None:
    """A client for the service; None if only Compute Engine has a custom endpoint."""
    variable, google, version = service
    url = os.environ.get(variable) or (None if api.endpoint else google)
    if url is None:
        return None
    url = url.rstrip("/")
    name = urlsplit(google).hostname or ""
    return api.at(url if url.endswith(version) else f"{url}/{version}", service=name)


def _account(iam: GcpClient | None, api: GcpClient, email: str) -> str:
    """Text on the account. Raises PermissionsError if it cannot be attached."""
    if iam is None:
        raise NotChecked(f"{email}: {NOT_REPORTED}")
    path = f"projects/-/serviceAccounts/{quote(email)}"
    try:
        found: Json | None = iam.get(f"service account {email}", path)
    except NotFoundError as error:
        if error.code == faults.UNKNOWN_METHOD:
            raise NotChecked(f"{email}: {NOT_REPORTED}") from error
        raise PermissionsError(f"no service account {email}", hint=faults.NO_ACCOUNT) from error
    except PermissionsError as error:
        if error.code in DISABLED:
            raise NotChecked(
                f"{email}: not checked: the IAM API is disabled; to check, run `gcloud services "
                f"enable iam.googleapis.com --project {api.project}`"
            ) from error
        found = None  # it may exist, and actAs alone is needed
    if found is not None and found.get("disabled"):
        raise PermissionsError(
            f"the service account {email} is disabled",
            hint=f"run `gcloud iam service-accounts enable {email}`",
        )
    what = f"permissions on {email}"
    answer = iam.call(what, "POST", f"{path}:testIamPermissions", body={"permissions": [ACT_AS]})
    if ACT_AS not in (answer.get("permissions") or ()):
        exists = "" if found else ", or it does not exist"
        raise PermissionsError(f"{email}: {ACT_AS} is not granted{exists}", hint=faults.ATTACH)
    text = f"{email} may be attached"
    if found is not None and found.get("projectId") not in (None, api.project):
        text += (
            f"; it is of project {found['projectId']}: the organization policy "
            "iam.disableCrossProjectServiceAccountUsage must allow it"
        )
    return text


def _bucket(storage: GcpClient, email: str, bucket: str) -> str:
    """Report the account's roles in the bucket's own policy.

    Roles on the project or a folder, and those of groups, are not in it, so that their absence
    proves nothing.
    """
    policy = if_told(
        lambda: storage.get(f"policy of gs://{bucket}", f"b/{quote(bucket)}/iam"),
        not_checked(f"gs://{bucket}: could not be checked"),
    )
    members = (f"serviceAccount:{email}".lower(), *(each.lower() for each in EVERYBODY))
    roles = sorted(
        str(binding.get("role"))
        for binding in policy.get("bindings") or ()
        if any(str(member).lower() in members for member in binding.get("members") or ())
    )
    if roles:
        return f"gs://{bucket}: has {', '.join(roles)}"
    raise NotChecked(
        f"gs://{bucket}: has no role in the bucket's own policy; one on the project, or of a "
        "group, could not be checked"
    )
