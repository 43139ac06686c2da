"""Records what clouds answer, for a report: JSON lines, secrets and names replaced.

docs/commands.md has the form. Requests are recorded without their bodies, which hold keys; answers
that hand out credentials without theirs. What goes to a store and for tokens is not recorded."""

from __future__ import annotations

import getpass
import hmac
import ipaddress
import json
import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from xml.sax.saxutils import escape, unescape

from cloudtrain.core import moments
from cloudtrain.core.cloud import clouds
from cloudtrain.node.key_shapes import given_keys, looks_like_key, looks_like_key_name, without_keys

FORMAT = 1
HEADERS = frozenset(
    {"azure-asyncoperation", "content-type", "date", "location", "retry-after", "www-authenticate"}
    | {"retry-after-ms", "x-ms-retry-after-ms", "x-ms-failure-cause", "x-amzn-errortype"}
)
"""Headers that drivers read, in lower case."""
_OF_CLOUDS = (
    *(".googleapis.com", ".azure.com"),
    *(".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu"),
)
_SIGNED = frozenset({"t", "c", "s", "h", "sig"})
"""Parameters that sign the URL of one of Azure's operations."""
_HAND_OUT = frozenset({"sts", "sso", "sso-oidc", "signin"})
"""Services of AWS that answer with credentials."""


class Recorder:
    """A file that answers are appended to. Thread-safe. An error ends it, and is said once."""

    def __init__(self, path: Path, key: bytes, say: Callable[[str], None]) -> None:
        self._path, self._say, self._lock = path, say, threading.Lock()
        self._masks = Masks(key)
        self._file: int | None = None
        self._is_said = False
        with self.said():
            self._file = _opened(path)

    def add(
        self,
        cloud: str,
        method: str,
        url: str,
        *,
        action: str = "",
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Write one line, whole. `body` None: left out, or not answered because of `error`."""
        with self._lock, self.said():
            if self._file is None:
                return
            masks = self._masks
            told = {name.lower(): str(value) for name, value in (headers or {}).items()}
            line = {
                "format": FORMAT,
                "time": round(moments.now(), 3),
                "cloud": cloud,
                "method": method,
                "url": self._url(url),
                **({"action": action} if action else {}),
                "status": status,
                "headers": {
                    name: self._url(value) if "://" in value[:9] else masks.text(value)
                    for name, value in told.items()
                    if name in HEADERS
                },
                "body": None if body is None else masks.body(body),
                **({"error": masks.text(f"{type(error).__name__}: {error}")} if error else {}),
            }
            _write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _url(self, url: str) -> str:
        """A URL with names replaced, decoded, and without what signs it."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if not host.endswith(_OF_CLOUDS) and re.search("[a-z]", host) and ":" not in host:
            self._masks.learn("host", host)
        self._masks.notice(parts.path)
        query = "&".join(
            f"{name}={'***' if name in _SIGNED else self._masks.value(value, name)}"
            for name, value in parse_qsl(parts.query, keep_blank_values=True)
        )
        plain = self._masks.text(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
        path = "/".join(map(self._masks.text, parts.path.split("/")))
        return f"{plain}{path}{'?' if query else ''}{query}"

    @contextmanager
    def said(self) -> Iterator[None]:
        """End the file at an error, and say it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (the command goes on)
            self._close()
            why = getattr(error, "strerror", None) or type(error).__name__
            if not self._is_said:
                self._is_said = True
                self._say(f"--record {self._path}: {why}; the command goes on without it")


_recorder: Recorder | None = None


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record what clouds answer to this process."""
    global _recorder
    before, _recorder = _recorder, recorder
    try:
        yield
    finally:
        _recorder = before
        recorder.close()


def recorded(send: Callable[..., Any], cloud: str) -> Callable[..., Any]:
    """`send` of a session of the library requests, recorded while a recorder is there."""

    def sent(request: Any, **options: Any) -> Any:
        try:
            answer = send(request, **options)
        except Exception as error:
            failure = error  # its own name is gone after this block
            _note(lambda: {**_asked(cloud, request), "error": failure})
            raise
        _note(
            lambda: {
                **_asked(cloud, request),
                "status": answer.status_code,
                "headers": answer.headers,
                "body": _text(answer.content),
            }
        )
        return answer

    return sent


def of_botocore(
    cloud: str, *, http_response: Any, model: Any, context: Any = None, **_: Any
) -> None:
    """Record an answer to botocore, from its event `after-call`."""
    service, status = model.service_model.service_name, http_response.status_code
    region = (context or {}).get("client_region", "")
    is_left_out = (service in _HAND_OUT and status < 300) or model.has_streaming_output
    if service == "s3":  # a store
        return
    _note(
        lambda: {
            "cloud": cloud,
            "method": str(model.http.get("method", "")),
            "url": http_response.url,
            "action": f"{service}:{model.name} in {region}",
            "status": status,
            "headers": http_response.headers,
            "body": None if is_left_out else _text(http_response.content),
        }
    )


def _note(record: Callable[[], dict[str, Any]]) -> None:
    """Add what this returns, if a recorder is there. Raises nothing."""
    if _recorder is not None:
        with _recorder.said():
            _recorder.add(**record())


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _asked(cloud: str, request: Any) -> dict[str, Any]:
    """The request; `action`: `RunInstances in us-east-1` of a form that is signed for EC2."""
    sent = _text(request.body) if isinstance(request.body, bytes) else request.body
    named = re.match(r"Action=(\w+)&|.*&Action=(\w+)", sent or "")
    scope = re.search(
        r"/\d{8}/([\w-]+)/[\w-]+/aws4_request", request.headers.get("Authorization", "")
    )
    action = f"{named[1] or named[2]} in {scope[1]}" if named and scope else ""
    return {"cloud": cloud, "method": request.method, "url": request.url, "action": action}


def _opened(path: Path) -> int:
    """Open a private file to append to; a line that was cut off there is ended first."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a file")
        os.fchmod(file, 0o600)
        if found.st_size and os.pread(file, 1, found.st_size - 1) != b"\n":
            _write(file, b"\n")
    except BaseException:
        os.close(file)
        raise
    return file


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


# ── Masks: secrets and names are replaced, each by the same placeholder of its form ───────────
# So the answer can still be read as the cloud's. A placeholder is a keyed hash of the name: it is
# the same in all files of one machine, and tells nothing without that machine's key.

_SHAPES = re.compile(
    r"(?P<mail>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<guid>(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f]))"
    r"|(?P<v4>(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\d|[a-z_]))"
    r"|(?P<dashed>(?<=ec2-)\d{1,3}(?:-\d{1,3}){3}(?=\.))"
    r"|(?P<v6>(?<![\w:])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:]))"
    r"|(?P<account>(?<![0-9a-z.])(?:\d{12}|\d{4}-\d{4}-\d{4})(?![0-9a-z]))",
    re.IGNORECASE,
)
_MADE = re.compile(
    r"user-[0-9a-f]{8}@example\.com|(?:user|host|project)-[0-9a-f]{8}|0{8}-0{4}-0{4}-0{4}-[0-9a-f]{12}|"
    r"0{6}\d{6}"
)
"""Placeholders: they stay, so that what was recorded can be recorded again."""
_TELLS = (
    ("project", re.compile(r"\bprojects/((?:[a-z][\w.-]*\.[a-z]+:)?[a-z][a-z0-9-]{4,}|\d{6,})")),
    ("project", re.compile(r"\bproject[ _a-z]{0,8}[#:=\"' ]+(\d{6,})", re.IGNORECASE)),
    # docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html, "IAM ARNs"
    ("user", re.compile(r":(?:user|assumed-role)/(?:[\w+=,.@-]+/)*([\w+=,.@-]+)")),
    # A network's description: providers/gcp/requests.py
    ("user", re.compile(r"\bowner(?:[_-]name)?=([\w.-]+)")),
)
"""Where an answer or a request names somebody: from there on, the name is replaced everywhere."""
_PEOPLE = frozenset(
    {"username", "userprincipalname", "givenname", "surname", "mailnickname", "tenantdisplayname"}
    | {"defaultdomain", "cloudtrain-owner", "cloudtrain-owner-name", "owner"}
)
"""Fields and labels whose value is a name, in lower case."""
_CONTENT = frozenset(
    {"userdata", "customdata", "user-data", "startup-script", "shutdown-script", "ssh-keys"}
    | {"sshkeys", "keydata", "publickey", "output", "contents", "consolescreenshotbloburi"}
    | {"serialconsolelogbloburi"}
)
"""Fields with what a machine was given or has printed, in lower case."""
_PUBLIC = re.compile(
    # cloud.google.com/compute/docs/images/os-details, and gcloud's own project (faults.py)
    r"(?:centos|cos|debian|fedora-coreos|fedora|opensuse|oracle-linux|rhel|rhel-sap|rocky-linux|suse|"
    r"suse-sap|ubuntu-os|ubuntu-os-pro|windows|windows-sql)-cloud|ubuntu-os-accelerator-images|"
    r"deeplearning-platform-release|ml-images|764086051850"
)
_COMMON = re.compile(
    r"google|amazon|microsoft|compute|root|ubuntu|debian|admin|administrator|users?|runner|cloudtrain|"
    r"localhost|localdomain|default|system|azureuser|ec2-user|unknown|none|true|false|test|train|chief|"
    r"worker|project|region|zone|global"
)
"""Names that tell nothing about anybody, and words of the clouds."""
_is_key_name = cache(looks_like_key_name)
_XML_PAIR = re.compile(r"(<key>([^<]*)</key>\s*<value>)([^<]*)(?=</value>)")
_XML_LEAF = re.compile(r"(<([\w:.-]+)(?:\s[^<>]*)?>)([^<>]+)(?=</\2>)")
_OWN_NETWORKS = [
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/3"),
        *("::/127", "fc00::/7", "fe80::/10", "ff00::/8", "2001:db8::/32"),
    )
]
"""Addresses that are nobody's: private ones (RFC 6890), and those of placeholders."""
LONG = 200
"""Characters from which a text in Base64 is content."""
SEVERAL = 1000
"""The same of a text of several lines: a refusal has fewer."""
_LONG_PARAMETER = re.compile(r"([?&][^=&\s]+=)[^&\s\"']{40,}")
"""Of a URL: where a list goes on, or a signature."""
REMEMBERED = 20_000
"""Texts whose form without names is kept."""
MOST = 4 << 20
"""Characters of the longest answer that is kept."""


class Masks:
    """The names seen so far, and their placeholders. For one thread at a time."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._known: dict[str, str] = {}
        self._names: re.Pattern[str] | None = None
        self._read: dict[str, str] = {}
        self._clouds = {each.name for each in clouds()}
        host = socket.gethostname()
        self.learn("host", host)
        self.learn("host", host.partition(".")[0])
        for name in ("USER", "LOGNAME"):
            self.learn("user", os.environ.get(name, ""))
        for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT"):
            self.learn("project", os.environ.get(name, ""))
        with suppress(KeyError, OSError):  # no such user
            self.learn("user", getpass.getuser())

    def learn(self, kind: str, name: str) -> None:
        """Replace this name from now on, as a whole word and in any case."""
        word = name.strip().lower()
        is_known = word in self._known or word in self._clouds
        is_number = kind == "user" and not re.search("[a-z]", word)
        if len(word) < 3 or is_number or is_known:
            return
        if _COMMON.fullmatch(word) or _PUBLIC.fullmatch(word) or _MADE.fullmatch(word):
            return
        made = self._placeholder(kind, word)
        for form in {word, re.sub(r"[^a-z0-9_-]+", "-", word)}:  # as in a label: owner.py
            self._known.setdefault(form, made)
        self._read.clear()
        names = "|".join(map(re.escape, sorted(self._known, key=len, reverse=True)))
        self._names = re.compile(rf"(?<![a-z0-9])(?:{names})(?![a-z0-9])", re.IGNORECASE)

    def notice(self, text: str) -> None:
        """Learn the names that a text tells."""
        for kind, tells in _TELLS:
            for name in set(tells.findall(text)):
                self.learn(kind, name)
        for mail in set(re.findall(r"([\w.+-]+)@(?![\w.-]*gserviceaccount\.com)[\w-]+\.", text)):
            self.learn("user", mail)

    def body(self, text: str) -> Any:
        """An answer as a JSON document, or as a text if it is XML or anything else."""
        if len(text) > MOST:
            return None
        self.notice(text)
        try:
            document = json.loads(text)
        except ValueError:
            return self._markup(text)
        return self.document(document)

    def document(self, found: Any, name: str = "") -> Any:
        if isinstance(found, Mapping):
            return self._object(found)
        if isinstance(found, list):
            return [self.document(each, name) for each in found]
        return self.value(found, name) if isinstance(found, str) else found

    def value(self, text: str, name: str = "") -> str:
        """The value of a field."""
        field = name.lower()
        if not text:
            return text
        if field in _CONTENT or (_is_key_name(name) and not text.startswith("/")):
            return "***"
        if field in _PEOPLE and "@" not in text:
            self.learn("user", text)
        if text[:1] == "{":  # Azure passes on what another service of it answered
            with suppress(ValueError):
                return json.dumps(self.document(json.loads(text)))
        return self.text(text)

    def text(self, text: str) -> str:
        """Any text. What has been read already is not read again: lists repeat themselves."""
        made = self._read.get(text)
        if made is None:
            if len(self._read) > REMEMBERED:
                self._read.clear()
            made = self._read[text] = self._made(text)
        return made

    def _made(self, text: str) -> str:
        if (len(text) > SEVERAL and text.count("\n") > 2) or (
            len(text) > LONG and re.fullmatch(r"[\w+/=-]+", text)
        ):
            return f"({len(text)} characters)"
        text = _LONG_PARAMETER.sub(r"\1***", text)
        if looks_like_key(text) or given_keys(text):
            text = without_keys(text)
        text = _SHAPES.sub(self._replaced, text)
        if self._names is not None:
            text = self._names.sub(lambda found: self._known[found[0].lower()], text)
        return text

    def _object(self, found: Mapping[str, Any]) -> dict[str, Any]:
        told = found.get("key", found.get("Key"))
        if isinstance(told, str):  # a tag, or an item of a machine's metadata
            named = {"value": told, "Value": told}
        else:
            is_account = "subscriptionId" in found or "tenantId" in found
            named = {"displayName": "tenantDisplayName"} if is_account else {}
        return {
            self.text(name): self.document(value, named.get(name, name))
            for name, value in found.items()
        }

    def _markup(self, text: str) -> str:
        def made(found: re.Match[str]) -> str:
            return str(found[1] + escape(self.value(unescape(found[3]), found[2])))

        if not text.lstrip().startswith("<"):
            return self.text(text)
        return _XML_LEAF.sub(made, _XML_PAIR.sub(made, text))

    def _replaced(self, found: re.Match[str]) -> str:
        kind, text = str(found.lastgroup), found[0]
        if _MADE.fullmatch(text) or _PUBLIC.fullmatch(text):
            return text
        if kind == "dashed":
            return self._address("v4", text.replace("-", ".")).replace(".", "-")
        if kind in ("v4", "v6"):
            return self._address(kind, text)
        return self._placeholder(kind, text.replace("-", "") if kind == "account" else text)

    def _address(self, kind: str, text: str) -> str:
        with suppress(ValueError):
            address = ipaddress.ip_address(text)
            if not any(address in network for network in _OWN_NETWORKS):
                return self._placeholder(kind, text)
        return text

    def _placeholder(self, kind: str, name: str) -> str:
        told = f"{kind} {name.lower()}".encode("utf-8", "replace")
        digest = hmac.new(self._key, told, "sha256").hexdigest()
        number = int(digest[:16], 16)
        if kind == "mail":
            return f"user-{digest[:8]}@example.com"
        if kind == "guid":
            return f"00000000-0000-0000-0000-{digest[:12]}"
        if kind == "account":
            return f"000000{number % 10**6:06d}"
        if kind == "v4":  # RFC 1112, section 4: reserved
            return str(ipaddress.IPv4Address("240.0.0.0") + number % 2**27)
        if kind == "v6":  # RFC 3849
            return str(ipaddress.IPv6Address("2001:db8::") + number % 2**64)
        return f"{kind}-{digest[:8]}"
