"""The API of registries of images, by answers that real ones seldom give."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cloudtrain.checks.images import image_findings
from cloudtrain.core.errors import (
    CloudConfigError,
    CloudError,
    CredentialsError,
    NotFoundError,
    RateError,
    TransientError,
)
from cloudtrain.core.image_name import RegistryLogin, image_name
from cloudtrain.core.model import Plan, Setup
from cloudtrain.core.shell import Secret
from cloudtrain.stores import registry
from cloudtrain.stores.registry import MANIFESTS, Registry
from tests.support.fakes import make_plan

DIGEST = f"sha256:{'a' * 64}"


@dataclass
class Answers:
    """A registry that answers as it is told, and remembers what it was asked."""

    routes: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(self, path: str, body: Any = b"", status: int = 200, **headers: str) -> str:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.routes[path] = (status, named, data)
        return f"sha256:{hashlib.sha256(data).hexdigest()}"


@contextmanager
def answering() -> Iterator[Answers]:
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            login = self.headers.get("Authorization", "")
            answers.asked.append((self.command, self.path, login))
            status, headers, body = answers.routes.get(self.path, (404, {}, b""))
            if callable(body):
                status, headers, body = body(login)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        answers.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield answers
        finally:
            server.shutdown()


@pytest.fixture
def there() -> Iterator[Answers]:
    with answering() as answers:
        yield answers


ABOUT = {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/start"]}}


def put(there: Answers, tag: str = "1") -> str:
    config = there.add("/config", ABOUT)
    there.routes[f"/v2/it/blobs/{config}"] = there.routes["/config"]
    sizes = [{"size": 100}, {"size": 20}]
    manifest = {"schemaVersion": 2, "config": {"digest": config}, "layers": sizes}
    kind = MANIFESTS[0]
    digest = there.add(f"/v2/it/manifests/{tag}", manifest, Content_Type=kind)
    there.routes[f"/v2/it/manifests/{digest}"] = there.routes[f"/v2/it/manifests/{tag}"]
    return digest


def registry_of(there: Answers, login: RegistryLogin | None = None, tag: str = "1") -> Registry:
    return Registry(image=image_name(f"{there.host}/it:{tag}"), login=login)


def test_an_image_is_told_by_its_manifest_and_config(there: Answers) -> None:
    digest = put(there)
    facts = registry_of(there).facts("amd64")
    assert (facts.digest, facts.size) == (digest, 120)
    assert facts.architectures == ("amd64",)
    assert facts.entrypoint == ("/start",)
    assert registry_of(there).digest() == digest


def test_of_an_index_the_image_for_the_machine_counts_and_attestations_do_not(
    there: Answers,
) -> None:
    digest = put(there, "other")
    listed = [
        {"digest": DIGEST, "platform": {"os": "linux", "architecture": "arm64"}},
        {"digest": digest, "platform": {"os": "linux", "architecture": "amd64"}},
        {"digest": DIGEST, "platform": {"os": "unknown", "architecture": "unknown"}},
    ]
    whole = there.add("/v2/it/manifests/1", {"manifests": listed}, Content_Type=registry.INDEXES[0])
    facts = registry_of(there).facts("amd64")
    assert (facts.digest, facts.size, facts.architectures) == (whole, 120, ("arm64", "amd64"))


def test_a_token_is_asked_for_where_the_registry_says_so(there: Answers) -> None:
    digest = put(there)
    whole = there.routes["/v2/it/manifests/1"]
    bearer = f'Bearer realm="http://{there.host}/token",service="reg",scope="repository:it:pull"'

    def by_token(login: str) -> tuple[int, Mapping[str, str], bytes]:
        return whole if login == "Bearer t0k" else (401, {"WWW-Authenticate": bearer}, b"")

    there.routes["/v2/it/manifests/1"] = (0, {}, by_token)
    there.add("/token?service=reg&scope=repository%3Ait%3Apull", {"token": "t0k"})
    login = RegistryLogin(user="me", password=Secret("pass"))
    assert registry_of(there, login).digest() == digest
    logins = [login for _, _, login in there.asked[:3]]
    assert logins == ["", "Basic bWU6cGFzcw==", "Bearer t0k"]


def test_a_redirect_carries_no_credential_to_another_host(there: Answers) -> None:
    with answering() as elsewhere:
        put(there)
        config = next(path for path in there.routes if path.startswith("/v2/it/blobs/"))
        elsewhere.routes["/moved"] = there.routes[config]
        there.add(config, status=307, Location=f"http://{elsewhere.host}/moved")
        there.routes["/v2/it/manifests/1"] = asked_for_basic(there.routes["/v2/it/manifests/1"])
        login = RegistryLogin(user="me", password=Secret("pass"))
        registry_of(there, login).facts("amd64")
        assert there.asked[-1][2].startswith("Basic ")
        assert elsewhere.asked == [("GET", "/moved", "")]


def asked_for_basic(whole: Any) -> Any:
    def by_login(login: str) -> tuple[int, Mapping[str, str], bytes]:
        return whole if login else (401, {"WWW-Authenticate": 'Basic realm="it"'}, b"")

    return (0, {}, by_login)


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, CredentialsError, "without a login"),
        (403, CredentialsError, "without a login: no pull"),
        (404, NotFoundError, "has no 127"),
        (429, RateError, "too often"),
        (503, TransientError, "answers 503"),
        (418, CloudError, "answers 418"),
    ],
)
def test_a_refusal_is_told_with_the_registrys_words(
    there: Answers, status: int, kind: type[CloudError], words: str
) -> None:
    there.add("/v2/it/manifests/1", {"errors": [{"message": "no pull"}]}, status)
    if status == 401:
        there.routes["/v2/it/manifests/1"] = (401, {"WWW-Authenticate": "Basic"}, b"")
    with pytest.raises(kind, match=words) as refused:
        registry_of(there).facts("amd64")
    assert type(refused.value) is kind


def test_content_that_is_not_that_of_its_digest_is_refused(there: Answers) -> None:
    put(there)
    config = next(path for path in there.routes if path.startswith("/v2/it/blobs/"))
    there.add(config, {"architecture": "amd64", "config": {}})
    with pytest.raises(CloudError, match="something else"):
        registry_of(there).facts("amd64")


def put_about(there: Answers, about: Any, layers: Any = ()) -> None:
    config = there.add("/config", about)
    there.routes[f"/v2/it/blobs/{config}"] = there.routes["/config"]
    there.add("/v2/it/manifests/1", {"config": {"digest": config}, "layers": layers})


@pytest.mark.parametrize(
    "listed",
    [
        None,
        ["x"],
        [{"platform": ["linux"]}],
        [{"platform": {"os": "linux"}}],
        [{"platform": {"os": "linux", "architecture": "amd64"}}],
        [{"platform": {"os": "linux", "architecture": ["amd64"]}, "digest": DIGEST}],
    ],
)
def test_a_list_of_images_of_another_form_is_the_registrys_error(
    there: Answers, listed: Any
) -> None:
    there.add("/v2/it/manifests/1", {"manifests": listed})
    with pytest.raises(CloudError, match="does not answer as a registry"):
        registry_of(there).facts("amd64")


@pytest.mark.parametrize(
    ("about", "layers"),
    [
        ({"config": ["x"]}, []),
        ({"config": {"Entrypoint": 5}}, []),
        (ABOUT, None),
        (ABOUT, ["x"]),
        (ABOUT, [{"size": "many"}]),
        (ABOUT, [{"size": float("inf")}]),
    ],
)
def test_an_image_of_another_form_is_the_registrys_error(
    there: Answers, about: Any, layers: Any
) -> None:
    put_about(there, about, layers)
    with pytest.raises(CloudError, match="does not answer as a registry"):
        registry_of(there).facts("amd64")


@pytest.mark.parametrize("place", ["https://[no", "https://host:port/", "https://a b/"])
@pytest.mark.parametrize(
    ("status", "header", "value"),
    [(307, "Location", "{}"), (401, "WWW_Authenticate", 'Bearer realm="{}"')],
)
def test_an_address_that_is_none_is_an_error_and_no_crash(
    there: Answers, place: str, status: int, header: str, value: str
) -> None:
    there.add("/v2/it/manifests/1", b"", status, **{header: value.format(place)})
    with pytest.raises(CloudError):
        registry_of(there).digest()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b"[" * 200_000])
def test_what_is_no_registry_is_named_as_that(there: Answers, body: bytes) -> None:
    there.add("/v2/it/manifests/1", body)
    with pytest.raises((CloudError, CloudConfigError)):
        registry_of(there).facts("amd64")


def test_a_registry_that_is_not_there_is_a_fault_that_may_pass(there: Answers) -> None:
    gone = replace(image_name("localhost:1/it"), tag="1")
    with pytest.raises(TransientError, match="cannot be reached"):
        Registry(image=gone).digest()


def test_a_registry_that_only_nodes_reach_is_no_fault_of_an_image_with_a_digest() -> None:
    (finding,) = image_findings(planned(f"localhost:1/it@{DIGEST}"))
    assert (finding.ok, finding.told) == (True, False)
    (finding,) = image_findings(planned("localhost:1/it:1"))
    assert not finding.ok


def planned(image: str) -> Plan:
    plan = make_plan()
    return replace(plan, config=replace(plan.config, setup=Setup(image=image)))


@pytest.mark.parametrize("said", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200])
def test_a_server_that_speaks_no_http_is_a_fault_that_may_pass(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            asking, _ = server.accept()
            with asking:
                asking.recv(1 << 16)
                asking.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        image = image_name(f"127.0.0.1:{server.getsockname()[1]}/it:1")
        with pytest.raises(TransientError, match="cannot be reached"):
            Registry(image=image).digest()
