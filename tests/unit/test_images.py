"""Names of images, and logins for their registries."""

from __future__ import annotations

import json

import pytest

from cloudtrain.core.image_name import RegistryLogin, image_name
from cloudtrain.core.shell import Secret
from cloudtrain.stores.registry import login_file

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
    assert repr(login) == "RegistryLogin(user='me', password=***)"
    told = json.loads(login_file(image_name("ubuntu"), login))
    assert told["auths"]["docker.io"] == {"auth": "bWU6cGFzcw=="}
    assert told["auths"].keys() == {"docker.io", "https://index.docker.io/v1/"}
    assert login_file(image_name("ubuntu"), None) == b""
