"""Names of images, and logins for their registries."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from cloudtrain.checks.images import image_findings
from cloudtrain.core.errors import CredentialsError
from cloudtrain.core.image_name import RegistryLogin, image_name
from cloudtrain.core.model import ClusterConfig, Plan, Setup
from cloudtrain.core.shell import Secret
from cloudtrain.stores.registry import login_file
from cloudtrain.stores.registry_logins import identity_login

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("docker://tensorflow/tensorflow:2.17.0-gpu", "docker.io/tensorflow/tensorflow:2.17.0-gpu"),
        ("index.docker.io/me/it", "docker.io/me/it:latest"),
        ("localhost:5000/it:1", "localhost:5000/it:1"),
        (f"nvcr.io/nvidia/tensorflow:24.08@{DIGEST}", f"nvcr.io/nvidia/tensorflow@{DIGEST}"),
        ("eu.gcr.io/p/a/b__c/d-e:v1", "eu.gcr.io/p/a/b__c/d-e:v1"),
    ],
)
def test_a_name_means_what_docker_pull_takes_it_for(text: str, whole: str) -> None:
    assert str(image_name(text)) == whole
    assert image_name(image_name(text).recorded) == image_name(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("oci://it", "must be an image's name"),
        ("Me/It", "in lower case"),
        ("it:a b", "a tag"),
        ("it@sha256:1", "a digest"),
        ("it; rm -rf /", "must be an image's name"),
        ("--privileged", "must be an image's name"),
        ("-v/:/host@" + DIGEST, "must be an image's name"),
        ("", "must be an image's name"),
    ],
)
def test_what_is_no_name_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        image_name(text)


def test_a_login_for_nodes_is_dockers_own_file_and_prints_as_stars() -> None:
    login = RegistryLogin(user="me", password=Secret("pass"))
    assert repr(login) == "RegistryLogin(user='me', password=***, for_nodes=True)"
    told = json.loads(login_file(image_name("ubuntu"), login))
    assert told["auths"]["docker.io"] == {"auth": "bWU6cGFzcw=="}
    assert told["auths"].keys() == {"docker.io", "https://index.docker.io/v1/"}
    assert login_file(image_name("ubuntu"), None) == b""


class Ecr:
    def client(self, service: str, *, region_name: str) -> Ecr:
        assert (service, region_name) == ("ecr", "eu-west-1")
        return self

    def get_authorization_token(self) -> object:
        return {"authorizationData": [{"authorizationToken": "QVdTOnRvazpl"}]}


ECR = image_name("123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1")


def test_a_login_for_ecr_is_made_by_the_profile_of_the_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str | None] = []

    def identity(profile: str | None) -> Ecr:
        asked.append(profile)
        return Ecr()

    monkeypatch.setattr("cloudtrain.identities.aws.identity", identity)
    login = identity_login(ECR, "work")
    assert login is not None
    assert login.pair == b"AWS:tok:e"
    assert asked == ["work"]


def test_an_answer_of_another_shape_is_no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ecr, "get_authorization_token", lambda self: {})
    monkeypatch.setattr("cloudtrain.identities.aws.identity", lambda profile: Ecr())
    with pytest.raises(CredentialsError, match=r"no login for 123456789012.*KeyError"):
        identity_login(ECR)


class Credentials:
    token = ""

    def refresh(self, request: object) -> None:
        self.token = "ya29"


class OfServiceAccount(Credentials):
    service_account_email = "me@example.org"
    scopes: tuple[str, ...] = ()

    def with_scopes(self, scopes: list[str]) -> OfServiceAccount:
        type(self).scopes = tuple(scopes)
        return self


@pytest.mark.parametrize("kind", [Credentials, OfServiceAccount])
def test_a_token_of_google_only_reads_where_that_can_be(
    kind: type[Credentials], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.identities.google.find", lambda: (kind(), None))
    login = identity_login(image_name("us-docker.pkg.dev/p/r/it"))
    assert login is not None
    assert login.pair == b"oauth2accesstoken:ya29"
    narrowed = ("https://www.googleapis.com/auth/cloud-platform.read-only",)
    assert getattr(kind, "scopes", narrowed) == narrowed
    assert login.for_nodes == (kind is OfServiceAccount)


def test_a_persons_token_that_cannot_be_narrowed_goes_to_no_node() -> None:
    image = image_name("us-docker.pkg.dev/p/r/it")
    whole = RegistryLogin(user="oauth2accesstoken", password=Secret("ya29"), for_nodes=False)
    with pytest.raises(CredentialsError, match="has all your rights, so no node gets it") as caught:
        login_file(image, whole)
    assert "--impersonate-service-account" in str(caught.value.hint)
    assert "ya29" not in repr(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (str(ECR), "ECR"),
        ("gcr.io/p/it", "Google"),
        ("eu.gcr.io/p/it", "Google"),
        ("mine.azurecr.io/it", "ACR"),
        ("public.ecr.aws/it/it", None),
        ("mine.azurecr.io.example.org/it", None),
        ("gcr.io.example.org/it", None),
        ("docker.pkg.dev.example.org/it", None),
        ("ubuntu", None),
    ],
)
def test_only_the_clouds_own_registries_are_shown_an_identity(name: str, kind: str | None) -> None:
    assert image_name(name).cloud_registry == kind
    if kind is None:
        assert identity_login(image_name(name)) is None


def plan_with(provider: str, setup: Setup, **secrets: str) -> Plan:
    config = ClusterConfig(
        name="it", provider=provider, strategy="custom", nodes={}, setup=setup, secrets=secrets
    )
    return cast(Plan, SimpleNamespace(config=config))


def test_a_password_that_is_not_set_is_the_finding_on_secrets_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PW_OF_MINE", raising=False)
    setup = Setup(image="localhost:1/it:1", registry_user="me", registry_password="PW")
    assert image_findings(plan_with("local", setup, PW="PW_OF_MINE")) == ()


def test_a_host_whose_name_begins_like_this_machines_is_another() -> None:
    """It would be asked, and shown the password, without TLS."""
    assert image_name("127.0.0.1:5000/it").is_here
    for name in ("127.0.0.1.example.com/it", "127.0.0.1.example.com:5000/it"):
        assert not image_name(name).is_here


def test_of_a_tag_and_a_digest_the_registry_is_asked_for_the_digest() -> None:
    assert image_name("it:1").reference == "1"
    assert image_name(f"it:1@{DIGEST}").reference == DIGEST
    assert image_name("it:1").pinned(DIGEST).reference == DIGEST


def test_a_registry_of_this_machine_is_none_for_rented_nodes() -> None:
    (finding,) = image_findings(plan_with("gcp", Setup(image="localhost:5000/it:1")))
    assert not finding.ok
    assert "localhost:5000 is a registry of this machine" in finding.text
