"""What `--record` writes has no key and no name in it, and is read as the answer it was."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import requests

from cloudtrain.core import recorder
from cloudtrain.core.recorder import Masks, Recorder, recorded, recording
from tests.standins.refusals import CLOUDS
from tests.standins.refusals import recorded as corpus
from tests.support.recorded import answers, classified

KEY = b"a key of this machine"
AWS_KEY = "AKIA" + "Q3EGRIZDLUXYZABC"
PLANTED = {
    "an account": "123456789012",
    "an account with dashes": "1234-5678-9012",
    "a GUID": "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "a mail address": "ann.bergmann@corp.example.org",
    "a public address": "34.86.7.101",
    "an address of documentation": "203.0.113.9",
    "a public IPv6 address": "2600:1f18:22ba:8c00::17",
    "the user": "ann.bergmann",
    "the user as in a label": "ann-bergmann",
    "the machine": "annes-laptop",
    "a key": AWS_KEY,
    "a token": "ya29." + "a0AfH6SMBx7Qk3r-Zl0uVw2yT9",
    "a project": "acme-ml-prod-4711",
}
SAYS = {
    "in a sentence": "it is {}, which may not do this.",
    "in quotes": "User '{}' is not authorized",
    "in an ARN": "arn:aws:sts::000000000000:assumed-role/Dev/{}",
    "in a path": "https://x.googleapis.com/a/{}/b",
    "in a list": "a,{},b",
}


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> Masks:
    monkeypatch.setenv("USER", "ann.bergmann")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme-ml-prod-4711")
    monkeypatch.setattr("socket.gethostname", lambda: "annes-laptop.corp.example.org")
    return Masks(KEY)


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("what", PLANTED)
def test_no_name_and_no_key_stays(what: str, says: str, masks: Masks) -> None:
    name = PLANTED[what]
    told = SAYS[says].format(name)
    document = json.dumps(
        {"error": {"message": told}, "tags": {told: [told]}, "n\n": f"\n{name}\n"}
    )
    xml = f"<R><item><key>x</key><value>{told}</value></item><Message>{told}</Message></R>"
    for body in (document, xml, told):
        made = masks.body(body)
        assert name not in json.dumps(made), made
        assert json.dumps(masks.body(body)) == json.dumps(made), "the same placeholder"
        again = made if isinstance(made, str) else json.dumps(made)
        assert json.dumps(masks.body(again)) == json.dumps(made), "a placeholder stays"
    ElementTree.fromstring(str(masks.body(xml)))


def test_a_name_that_is_no_whole_text_leaves_no_key_unmasked(masks: Masks) -> None:
    told = json.dumps({"owner": "\ud800nna", "adminPassword": "hunter2 hunter2"})
    for body in (told, json.dumps({"message": told})):
        assert "hunter2" not in json.dumps(masks.body(body))


def test_a_name_has_one_placeholder_wherever_it_is_and_another_with_another_key(
    masks: Masks,
) -> None:
    guid, project = PLANTED["a GUID"], "other-project-1"
    texts = [f"/subscriptions/{guid}/x", f"of {guid.upper()}.", f"<id>{guid}</id>"]
    found = {re.findall(r"0{8}-[-0-9a-f]{27}", str(masks.body(text)))[0] for text in texts}
    assert len(found) == 1
    assert found.isdisjoint({str(Masks(b"other").text(guid))})
    body = masks.body(json.dumps({"a": f"projects/{project}/zones/z", "b": f"of {project}"}))
    assert body["a"].split("/")[1] == body["b"].split()[1] != project
    owner = masks.body("<i><key>cloudtrain-owner-name</key><value>berta</value></i><d>berta</d>")
    assert "berta" not in owner
    assert len(set(re.findall(r"user-[0-9a-f]{8}", owner))) == 1


def test_what_names_nobody_stays() -> None:
    plain = {
        "addresses": "10.0.0.2/32 127.0.0.1 169.254.169.254 fd00::1",
        "image": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts",
        "time": "2026-11-26T18:22:40.000-08:00",
        "unix": 1795717859131,
        "name": "mnist-worker0",
        "etag": "42WmSpB8rSM=",
        "version": "2021-03-01",
        "quota": "consumer 764086051850 of gcloud",
    }
    assert Masks(KEY).body(json.dumps(plain)) == plain


def test_what_a_machine_was_given_and_what_it_printed_is_left_out(masks: Masks) -> None:
    script = "#!/bin/sh\necho a\n"
    given: dict[str, Any] = {
        "metadata": {"items": [{"key": "startup-script", "value": script}]},
        "contents": script,
        "userData": "IyEvYmluL3NoCg==",
        "properties": {"osProfile": {"customData": "IyEvYmluL3NoCg=="}},
        "Credentials": {"SecretAccessKey": "x", "SessionToken": "y"},
    }
    made = json.dumps(masks.body(json.dumps(given)))
    assert made.count("***") == 6
    xml = masks.body("<R><userData><value>IyEv</value></userData><output>IyEv</output></R>")
    assert "<output>***</output>" in xml


def test_a_name_that_is_no_unicode_text_unmasks_nothing_beside_it(masks: Masks) -> None:
    """JSON may have half a surrogate pair, which has no bytes in UTF-8."""
    inner = json.dumps({"surname": "ann\ud800", "clientSecret": "hidden"})
    for document in ({"owner": "ann\ud800", "clientSecret": "hidden"}, {"message": inner}):
        made = json.dumps(masks.body(json.dumps(document)))
        assert "hidden" not in made
        assert "***" in made


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_real_refusal_means_the_same_without_its_names(cloud: str) -> None:
    """All that people met: names of others, as cloudtrain does not know them either."""
    from dataclasses import replace

    masks = Masks(KEY)
    for name, entry in corpus(cloud).items():
        if not entry.means:
            continue
        body = masks.body(entry.body)
        text = body if isinstance(body, str) else json.dumps(body)
        masked = replace(entry, body=text, names={})
        error, before = classified(cloud, masked), classified(cloud, entry)
        assert (type(error), error.scope, error.code) == (
            type(before),
            before.scope,
            before.code,
        ), name


def test_a_request_is_recorded_without_its_body_and_its_headers(tmp_path: Path) -> None:
    path, said = tmp_path / "x.jsonl", []
    form = f"Action=RunInstances&UserData=SECRET&Key={AWS_KEY}"
    scope = (
        f"AWS4-HMAC-SHA256 Credential={AWS_KEY}/20261126/eu-west-1/ec2/aws4_request, Signature=ab"
    )
    request = requests.Request(
        "POST",
        "https://host.corp.org/x?sig=abc&api-version=1",
        {"Authorization": scope},
        data=form,
    ).prepare()

    def broken(*_: Any, **__: Any) -> Any:
        raise requests.ConnectionError("no route to host.corp.org for ann@corp.org")

    with recording(Recorder(path, KEY, said.append)), pytest.raises(requests.ConnectionError):
        recorded(broken, "aws")(request)
    (answer,) = answers(path)
    assert answer.action == "RunInstances in eu-west-1"
    assert answer.error.startswith("ConnectionError: no route to host-")
    assert re.fullmatch(r"https://host-[0-9a-f]{8}/x\?sig=\*\*\*&api-version=1", answer.url)
    for secret in ("SECRET", AWS_KEY, "Signature", "corp.org"):
        assert secret not in path.read_text()
    assert said == []


def test_what_cannot_be_read_is_said_and_reaches_the_command(tmp_path: Path) -> None:
    said: list[str] = []
    request = requests.Request("PUT", "https://compute.googleapis.com/x", data=b"\xff").prepare()
    answer, other = SimpleNamespace(status_code=200, headers={}, content=b"\xff{"), object()
    with recording(Recorder(tmp_path / "x.jsonl", KEY, said.append)):
        assert recorded(lambda *_, **__: answer, "gcp")(request) is answer
        assert recorded(lambda *_, **__: other, "gcp")(request) is other
        assert recorded(lambda *_, **__: other, "gcp")(request) is other
    assert [each.status for each in answers(tmp_path / "x.jsonl")] == [200]
    (line,) = said
    assert line.endswith("x.jsonl: AttributeError; the command goes on without it")


@pytest.mark.parametrize(
    ("service", "status", "kept"), [("iam", 200, True), ("sts", 200, False), ("sts", 403, True)]
)
def test_an_answer_that_hands_out_credentials_is_recorded_without_them(
    service: str, status: int, kept: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    model = SimpleNamespace(
        name="AssumeRole",
        http={"method": "POST"},
        has_streaming_output=False,
        service_model=SimpleNamespace(service_name=service),
    )
    url = f"https://{service}.amazonaws.com/"
    http = SimpleNamespace(url=url, status_code=status, headers={}, content=b"<R>no</R>")
    with recording(Recorder(path, KEY, print)):
        recorder.of_botocore(
            "aws", http_response=http, model=model, context={"client_region": "eu-west-1"}
        )
        model.service_model.service_name = "s3"
        recorder.of_botocore("aws", http_response=http, model=model)
    (answer,) = answers(path)
    assert (answer.body == "<R>no</R>") is kept
    assert answer.action == f"{service}:AssumeRole in eu-west-1"


def test_the_file_of_a_killed_command_goes_on_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"format": 1, "ti')
    path.chmod(0o644)
    with recording(Recorder(path, KEY, print)):
        pass
    book = Recorder(path, KEY, print)
    book.add("gcp", "GET", "https://compute.googleapis.com/x", status=200, body="{}")
    book.close()
    assert [answer.path for answer in answers(path)] == ["/x"]
    assert path.stat().st_mode & 0o777 == 0o600
