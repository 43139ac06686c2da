"""AWS: moto's EC2, and whatever else it has, mended where it is not as the real one.

What moto 5.2 lacks and is here: state that takes time, client tokens, placement groups, capacity
and quotas, Capacity Reservations and Blocks, what refuses to go while it is in use, checks of the
parameters and of the signature, today's images.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from moto.core.exceptions import ServiceException
from moto.core.serialize import EC2Serializer, XFormedAttributePicker
from moto.core.utils import get_service_model
from moto.ec2.responses._base_response import EC2BaseResponse
from werkzeug.wrappers import Request, Response

from tests.standins import (
    aws_data,
    aws_iam,
    aws_metadata,
    aws_profiles,
    aws_query,
    aws_signature,
    aws_sts,
    aws_subnets,
)
from tests.standins.aws_groups import Groups
from tests.standins.aws_query import Refused, of_moto, params_of, real
from tests.standins.aws_reservations import Reservations
from tests.standins.aws_schedules import Schedules

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

BY_STATUS = {
    401: "AuthFailure",
    403: "UnauthorizedOperation",
    404: "InvalidInstanceID.NotFound",
    429: "RequestLimitExceeded",
    500: "InternalError",
    503: "ServiceUnavailable",
}
"""EC2's own code for an error that a test asked for by its status alone."""


class AwsStandIn(Schedules, Groups, Reservations):
    def __init__(self) -> None:
        super().__init__()
        self.secrets: dict[str, str] | None = {
            "AKIASTANDIN000000000": "the-stand-in-knows-this-secret"
        }
        """By access key; None: any signature is right."""
        self.mfa_codes: list[str] = []
        """Codes that the account's MFA device shows; each is taken once."""
        self.ended_keys: list[str] = []
        """Access keys whose session has ended."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        request.get_data(cache=True)
        try:
            if aws_metadata.serves(request.path):
                response = aws_metadata.told(self, request)
            else:
                response = self._answer(request)
        except Refused as refused:
            response = aws_sts.refused(request, refused) or self.error(
                refused.status, refused.code, refused.message
            )
        except ServiceException as refused:
            response = self.error(400, str(refused.code), str(refused.message))
        return response(environ, start_response)

    def action(self, environ: WSGIEnvironment) -> str:
        request = Request(environ)
        request.get_data(cache=True)
        found = re.search(r"/\d{8}/([^/]+)/([^/]+)/", request.headers.get("Authorization", ""))
        region, service = (found[1], found[2]) if found else ("", "")
        if target := request.headers.get("X-Amz-Target"):
            return f"{target.rpartition('.')[2]} {region}"
        if service == "s3" or not (named := params_of(request).get("Action")):
            return f"{request.method} {request.path}"
        return f"{named} {region}"

    def error(self, status: int, code: str, message: str) -> Response:
        """As EC2 has it: without a namespace, whereas its other answers have one."""
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f"<Response><Errors><Error><Code>{code or BY_STATUS.get(status, 'InternalError')}"
            f"</Code><Message>{escape(message)}</Message></Error></Errors>"
            "<RequestID>5e7d2a3c-0000-4000-8000-000000000000</RequestID></Response>"
        )
        return Response(body, status, content_type="text/xml;charset=UTF-8")

    def _answer(self, request: Request) -> Response:
        scope = aws_signature.scope(request)
        if self.secrets is not None:
            if scope.key not in self.secrets:
                raise aws_signature.failure()
            aws_signature.verify(request, self.secrets[scope.key])
        aws_sts.check_end(self, scope.key, scope.service)
        if scope.service == "sts" and request.form.get("Action") == "AssumeRole":
            return aws_sts.assume_role(self, request)
        if scope.service == "servicequotas":
            return self._service_quotas(request)
        if scope.service == "freetier":
            told = {"accountId": self.account, "accountPlanType": self.account_plan}
            return _json({**told, "accountPlanStatus": "ACTIVE"})
        if scope.service == "scheduler":
            with self.lock:
                self.go_on()
                return self.scheduler(scope.region, request)
        if scope.service == "iam" and request.form.get("Action") == "SimulatePrincipalPolicy":
            return aws_profiles.simulate(self, request)
        if scope.service != "ec2":
            return self.by_moto(request)
        aws_signature.refuse_old(request)
        if scope.region not in self.regions:  # Unknown, or not opted in to.
            raise aws_signature.failure()
        params = params_of(request)
        given = aws_query.parse(params)
        with self.lock:
            self.settle_in(scope.region)
            self.go_on()
            self.actions.add(params["Action"])
            aws_iam.check(self, scope.region, params["Action"], given)
            if params["Action"] == "CreateSecurityGroup":  # it sees those that others do not yet
                body = self._carried_out(scope.region, params["Action"], given, request)
            else:
                with self.late_groups_hidden(scope.region):
                    body = self._carried_out(scope.region, params["Action"], given, request)
        return _as_ec2(body, params["Version"])

    def _carried_out(
        self, region: str, action: str, given: dict[str, Any], request: Request
    ) -> Response:
        own = getattr(self, f"_{_snake(action)}", None)
        if own:
            answer = own(region, given, request)
            return answer if isinstance(answer, Response) else _xml(action, answer)
        with self.late_ones_hidden(region, self._lag_of(action, given)):
            return self.by_moto(request)

    def _lag_of(self, action: str, given: dict[str, Any]) -> float:
        zones = any(each["Name"] == "availability-zone" for each in given.get("Filters", ()))
        wide = action == "DescribeInstances" and not given.get("InstanceIds") and not zones
        return max(self.lag, self.wide_lag) if wide else self.lag

    def _describe_subnets(self, region: str, given: dict[str, Any], request: Request) -> Response:
        return aws_subnets.described(self, request)

    def _describe_regions(self, region: str, given: dict[str, Any], request: Request) -> Any:
        wanted = given.get("RegionNames") or self.regions
        for name in wanted:
            if name not in self.regions:
                raise real("region-invalid", name=name)
        regions = [
            {
                "RegionName": name,
                "Endpoint": f"ec2.{name}.amazonaws.com",
                "OptInStatus": "opt-in-not-required",
            }
            for name in wanted
        ]
        return {"Regions": regions}

    def _service_quotas(self, request: Request) -> Response:
        """https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference"""
        given = request.get_json(force=True)
        quotas = [
            {
                "ServiceCode": "ec2",
                "QuotaCode": code,
                "QuotaName": aws_data.QUOTAS[code][0],
                "Value": vcpus,
                "Unit": "None",
                "Adjustable": True,
                "GlobalQuota": False,
            }
            for code, vcpus in self.quotas.items()
        ]
        match request.headers.get("X-Amz-Target", "").rpartition(".")[2]:
            case "ListServiceQuotas":
                return _json({"Quotas": quotas})
            case "GetServiceQuota":
                for quota in quotas:
                    code = quota["QuotaCode"]
                    if code == given.get("QuotaCode") and code not in self.unapplied_quotas:
                        return _json({"Quota": quota})
            case "GetAWSDefaultServiceQuota":
                for quota in quotas:
                    if quota["QuotaCode"] == given.get("QuotaCode"):
                        return _json({"Quota": quota})
        return _json({"__type": "NoSuchResourceException", "Message": "no such quota"}, 400)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


_TRANSFORMERS = {
    key: change
    for key, change in EC2BaseResponse.RESPONSE_KEY_PATH_TO_TRANSFORMER.items()
    if not key.startswith("RunInstances.")
}


def _xml(action: str, result: Any) -> Response:
    serializer = EC2Serializer(
        # moto's own model: its serializer accepts no other classes
        operation_model=get_service_model("ec2").operation_model(action),
        value_picker=XFormedAttributePicker(response_transformers=_TRANSFORMERS),
    )
    made = serializer.serialize(result)
    return Response(made["body"], made["status_code"], content_type="text/xml;charset=UTF-8")


def _as_ec2(response: Response, version: str) -> Response:
    """The namespace ends with a slash, and an error has none."""
    if response.status_code == 501:
        raise of_moto(response.get_data(as_text=True).strip())
    text = response.get_data(as_text=True)
    space = f' xmlns="http://ec2.amazonaws.com/doc/{version}/"'
    old = re.compile(r' xmlns="http://ec2\.amazonaws\.com/doc/[^"]*"')
    response.set_data(old.sub("" if response.status_code >= 400 else space, text, count=1))
    return response


def _json(body: Any, status: int = 200) -> Response:
    return Response(json.dumps(body), status, content_type="application/x-amz-json-1.1")
