"""Which host a URL names, for every parser alike, and whether it is one of a cloud's own."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
import urllib3.util
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core.cloud import cloud_of, clouds
from cloudtrain.core.network import (
    host_of,
    is_below,
    is_link_local,
    is_loopback,
    is_of_the_user,
    named_host,
)

OWN = tuple(name for cloud in clouds() for name in cloud.credential_hosts)
NAMES = st.text("abcxyz019-", min_size=1, max_size=8).map(lambda text: f"a{text}z")


@pytest.mark.parametrize(
    "url",
    [
        "https://storage.googleapis.com@evil.example/",
        "https://storage.googleapis.com%40evil.example/",
        "https://u:p@storage.googleapis.com/",
        "https://storage.googleapis.com\\@evil.example/",
        "https://evil.example\\.googleapis.com/",
        "https://evil.example#.googleapis.com/",
        "https://evil.example?.googleapis.com/",
        "https://storage.googleapis.com\t.evil.example/",
        "https://stor\u0430ge.googleapis.com/",  # a Cyrillic letter
        "https://storage.googleapis。com/",
        "https://storage..googleapis.com/",
        "https:///storage.googleapis.com/",
        "https:storage.googleapis.com",
        "//storage.googleapis.com",
        "ftp://storage.googleapis.com/",
        "https://2852039166/",
        "https://0xa9fea9fe/",
        "https://127.1/",
        "https://0177.0.0.1/",
        "https://1.2.3.4.5/",
        "https://[::1%25lo]/",
        "https://storage.googleapis.com:0/",
        "https://storage.googleapis.com:99999/",
        "https://-oProxyCommand=x/",
        "https://",
        "",
    ],
)
def test_a_url_of_which_parsers_differ_names_no_host(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        host_of(url)


@given(
    st.text(max_size=40).map(lambda text: f"https://{text}") | st.from_regex(r"https?://.{0,40}")
)
def test_what_is_read_at_all_every_parser_reads_the_same(url: str) -> None:
    try:
        host = host_of(url)
    except ValueError:
        return
    for name, port in (
        (urlsplit(url).hostname, urlsplit(url).port),
        (urllib3.util.parse_url(url).hostname, urllib3.util.parse_url(url).port),
    ):
        assert (name or "").lower().strip("[]").removesuffix(".") in (host.name, url.split("/")[2])
        assert (port or {"http": 80, "https": 443}[host.scheme]) == host.port


@given(st.sampled_from(OWN), NAMES, NAMES)
def test_only_what_is_below_a_clouds_own_domain_is_its_own(own: str, one: str, two: str) -> None:
    domain = own.removeprefix(".")
    for url in (f"https://{domain}", f"https://{domain.upper()}./v1", f"https://{domain}:443/"):
        assert is_below(host_of(url).name, [own])
    assert is_below(host_of(f"https://{one}.{two}.{domain}/").name, [own]) == own.startswith(".")
    others = (f"{one}{domain}", f"{domain}.{one}", f"{domain}.{one}.{two}", f"{one}-{domain}")
    for other in (*others, domain.partition(".")[2], f"{domain}{one}"):
        assert not is_below(host_of(f"https://{other}/").name, [own]), other


@pytest.mark.parametrize(
    ("cloud", "hosts"),
    [
        (
            "gcp",
            "oauth2.googleapis.com compute.googleapis.com storage.googleapis.com "
            "b.storage.googleapis.com compute-me.p.googleapis.com restricted.googleapis.com "
            "storage.s3nsapis.fr compute.apis-berlin-build0.goog compute.mtls.googleapis.com",
        ),
        (
            "azure",
            "management.azure.com westeurope.management.azure.com login.microsoftonline.com "
            "login.microsoftonline.us management.usgovcloudapi.net "
            "login.partner.microsoftonline.cn "
            "management.chinacloudapi.cn x.blob.core.windows.net "
            "x.privatelink.blob.core.windows.net "
            "x.blob.core.chinacloudapi.cn x.blob.core.usgovcloudapi.net "
            "x.z31.blob.storage.azure.net",
        ),
    ],
)
def test_sovereign_clouds_and_private_endpoints_need_no_trust(cloud: str, hosts: str) -> None:
    facts = cloud_of(cloud)
    assert facts is not None
    assert [name for name in hosts.split() if not is_below(name, facts.credential_hosts)] == []


CUSTOMERS = """
me.westeurope.cloudapp.azure.com me.azurewebsites.net me.azurefd.net me.web.core.windows.net
me.blob.core.cloudapi.de me.run.app me.appspot.com me.cloudfunctions.net x.endpoints.me.cloud.goog
lh3.googleusercontent.com ec2-1-2-3-4.compute-1.amazonaws.com googleapis.com.evil.org
evilgoogleapis.com management.azure.com.evil.org
"""


@pytest.mark.parametrize("host", CUSTOMERS.split())
def test_what_customers_run_in_a_cloud_is_not_the_cloud(host: str) -> None:
    assert not is_below(host, OWN)


def test_this_machine_and_metadata_services_are_known_in_every_form() -> None:
    for name in (
        "localhost",
        "LocalHost",
        "127.0.0.1",
        "127.9.8.7",
        "::1",
        "[::1]",
        "::ffff:127.0.0.1",
    ):
        assert is_loopback(name)
    for name in ("localhost.evil.org", "128.0.0.1", "0.0.0.0", "::2", "[::1", "::1]", ""):
        assert not is_loopback(name)
    for name in ("169.254.169.254", "169.254.170.2", "fe80::1", "::ffff:169.254.169.254"):
        assert is_link_local(host_of(f"http://{f'[{name}]' if ':' in name else name}/").name)
    assert is_link_local("metadata.google.internal")


def test_the_user_names_hosts_by_flag_by_variable_and_by_the_clouds_own_variables() -> None:
    host = host_of("https://minio.lab:9000")
    assert not is_of_the_user(host, (), {})
    assert is_of_the_user(host, ("minio.lab",), {})
    assert is_of_the_user(host, ("MinIO.lab.:9000",), {})
    assert not is_of_the_user(host, ("minio.lab:9001", "lab", "x.minio.lab"), {})
    assert is_of_the_user(host, (), {"CLOUDTRAIN_TRUST_ENDPOINT": "a.example minio.lab:9000"})
    assert is_of_the_user(host, (), {"ARM_ENDPOINT": "https://minio.lab:9000/x"})
    assert not is_of_the_user(host, (), {"ARM_ENDPOINT": "https://minio.lab/x"})
    here = host_of("http://127.0.0.1:8080")
    assert is_of_the_user(here, ("localhost",), {})
    assert not is_of_the_user(here, ("localhost:81",), {})
    for wrong in ("https://x", "a b", "u@x", "x:0x1", "*"):
        with pytest.raises(ValueError, match=r"."):
            named_host(wrong)
