"""A file from a stranger's repository against the user's credentials, variables, programs, files.

No test here may open a socket or start a process (conftest.py): a command that went on would fail.
"""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

import cloudtrain
from cloudtrain.checks.notes import open_notes
from cloudtrain.cli import printing, target
from cloudtrain.cli.app import cli
from cloudtrain.cluster.session import record_cluster
from cloudtrain.config import load
from cloudtrain.core.errors import ConfigError, CredentialsError, UntrustedError
from cloudtrain.core.model import ClusterConfig, Endpoints, Network
from cloudtrain.core.store_kinds import KINDS
from cloudtrain.providers.gcp.credentials import Credentials
from cloudtrain.state import Records
from cloudtrain.trust.consent import open_facts, refuse_untrusted
from cloudtrain.trust.file_facts import FileFact, file_facts

ROOT = Path(__file__).parents[2]
PLACES = {"gcp": "us-east4-c", "aws": "us-east-1a", "azure": "eastus-1"}
EVIL = {"auth": "https://evil.example/token"}


@pytest.fixture(autouse=True)
def _stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone in this user's home, which has more than that."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CLOUDTRAIN_TRUST_ENDPOINT")
    monkeypatch.delenv("ARM_ENDPOINT", raising=False)
    (tmp_path / "clone" / ".git").mkdir(parents=True)
    (tmp_path / "clone" / "job").mkdir()
    (tmp_path / ".ssh").mkdir()
    monkeypatch.chdir(tmp_path / "clone")


def write(provider: str = "gcp", **sections: object) -> Path:
    """job/m.yaml of the clone, for that provider."""
    values: dict[str, object] = {"name": "m", "provider": provider, "strategy": "mirrored"}
    if provider in PLACES:
        values |= {"placement": [PLACES[provider]], "project": "p"}
    values["train"] = {"command": "python t.py"}
    path = Path("job/m.yaml").absolute()
    path.write_text(yaml.safe_dump(values | sections))
    return path


def facts(provider: str = "gcp", **sections: object) -> tuple[FileFact, ...]:
    return file_facts(load(write(provider, **sections)))


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, words, input=stdin)


def refused(done: Result) -> list[str]:
    """The facts because of which the command did nothing."""
    assert done.exit_code == 2, done.output
    assert "is not trusted, and" in done.stderr
    assert "`cloudtrain trust " in done.stderr
    assert "--trust" in done.stderr
    words = " ".join(done.stderr.split()).partition(" hint: ")[0]
    return re.split(r" ?\S*m\.yaml:\d+: ", words)[1:]


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (printing, target):
        monkeypatch.setattr(module, "on_terminal", lambda: True)


# ── What needs consent ───────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("provider", "sections", "field", "words"),
    [
        (
            "gcp",
            {"endpoints": EVIL},
            "endpoints.auth",
            "sends your GCP credentials to evil.example",
        ),
        ("azure", {"endpoints": EVIL}, "endpoints.auth", "Azure credentials to evil.example"),
        (
            "azure",
            {"endpoints": {"compute": "https://me.cloudapp.azure.com/"}},
            "endpoints.compute",
            "",
        ),
        (
            "gcp",
            {"endpoints": {"compute": "https://management.azure.com/"}},
            "endpoints.compute",
            "",
        ),
        (
            "gcp",
            {"endpoints": {"compute": "http://127.0.0.1:8080/"}},
            "endpoints.compute",
            "to 127.0.0.1:8080, where any program of this machine may listen",
        ),
        (
            "aws",
            {
                "endpoints": {"storage": "https://evil.example"},
                "artifacts": {"store": "gs://bbb/x"},
            },
            "endpoints.storage",
            "GCP credentials to evil.example",
        ),
        (
            "local",
            {"endpoints": {"storage": "https://evil.example"}, "data": {"d": "az://aaa/box/x"}},
            "endpoints.storage",
            "Azure credentials to evil.example",
        ),
        (
            "local",
            {"code": {"git": "https://evil.example/x", "token": "T"}, "secrets": {"T": "${ANY}"}},
            "code.token",
            "sends your ${ANY} to evil.example",
        ),
        (
            "local",
            {
                "setup": {
                    "packages": ["a"],
                    "index": "https://evil.example/@pypi.org/s",
                    "index_password": "T",
                },
                "secrets": {"T": "${ANY}"},
            },
            "setup.index_password",
            "sends your ${ANY} to evil.example",
        ),
        *(
            (cloud, {"identity": name}, "identity", f"act as {name} of your account")
            for cloud, name in (
                ("gcp", "p@appspot.gserviceaccount.com"),
                ("aws", "ecsInstanceRole"),
                ("azure", "group/name"),
            )
        ),
        (
            "local",
            {"notify": {"command": "./told.sh now"}},
            "notify.command",
            "runs on this machine: ./told.sh now",
        ),
        (
            "aws",
            {"secrets": {"X": "${AWS_SECRET_ACCESS_KEY}"}},
            "secrets.X",
            "hands your ${AWS_SECRET_ACCESS_KEY} to its program on the nodes",
        ),
        (
            "gcp",
            {"network": {"ssh_proxy": {"command": "nc {address} {port}"}, "ssh_from": "none"}},
            "network.ssh_proxy.command",
            "runs on this machine: nc {address} {port}",
        ),
        ("local", {"code": {"path": "../.."}}, "code.path", "outside of its project"),
        ("local", {"code": {"path": "~/.ssh"}}, "code.path", "/.ssh, which is outside"),
        ("local", {"code": {"path": "link"}}, "code.path", "/.ssh, which is outside"),
        ("local", {"code": {"git": "../../other"}}, "code.git", "outside of its project"),
        ("local", {"code": {"git": "file:///etc"}}, "code.git", "/etc"),
        ("local", {"data": {"d": "file:///etc"}}, "data.d", "reads /etc"),
        ("local", {"data": {"d": "file:///%65tc"}}, "data.d", "reads /etc"),
        ("local", {"data": {"d": "file://${PWD}/job"}}, "data.d", "/.ssh, which is outside"),
        ("local", {"setup": {"requirements": "r.txt"}}, "setup.requirements", "/.ssh/config"),
        (
            "local",
            {"artifacts": {"store": "file://${HOME}/.config/x"}},
            "artifacts.store",
            "writes",
        ),
        (
            "hosts",
            {"hosts": [{"address": "10.0.0.4", "role": "chief", "key": "~/.ssh/prod"}]},
            "hosts[0].key",
            "logs in with the key",
        ),
        *(
            ("hosts", {"hosts": [{"address": name, "role": "chief"}]}, "hosts[0].address", "runs")
            for name in (
                "localhost",
                "127.0.0.1",
                "127.1",
                "2130706433",
                "0.0.0.0",
                "::1",
                "Localhost.",
            )
        ),
    ],
)
def test_what_uses_the_users_rights_is_found(
    provider: str,
    sections: dict[str, object],
    field: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PWD", str(Path.cwd()))
    (Path.home() / "other").mkdir()
    Path("job/link").symlink_to(Path.home() / ".ssh")
    Path("job/r.txt").write_text("-r ../../.ssh/config\n")
    (Path.home() / ".ssh" / "config").write_text("six\n")
    [found] = facts(provider, **sections)
    assert found.field == field
    assert words in found.text


def test_of_several_candidates_each_counts() -> None:
    several = [
        {"provider": "gcp", "placement": ["us-east4-c"]},
        {"provider": "azure", "placement": ["eastus-1"], "endpoints": EVIL},
        {
            "provider": "aws",
            "placement": ["us-east-1a"],
            "network": {"ssh_proxy": {"command": "./p"}, "ssh_from": "10.0.0.1/32"},
        },
    ]
    text = yaml.safe_dump({"name": "m", "strategy": "mirrored", "any_of": several})
    path = Path("job/m.yaml").absolute()
    path.write_text(text)
    assert [fact.kind for fact in file_facts(load(path))] == ["credentials", "program"]


def test_anchors_merges_settings_and_variables_are_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WHERE", "https://evil.example/")
    for overrides in (("endpoints.auth=${WHERE}",), ("endpoints={auth: 'https://evil.example/'}",)):
        [found] = file_facts(load(write(), overrides=overrides))
        assert "evil.example" in found.text
    path = Path("job/m.yaml").absolute()
    path.write_text(
        "strategy: mirrored\nany_of:\n"
        "  - {provider: gcp, placement: [us-east4-c], endpoints: &e {auth: '${WHERE}'}}\n"
        "  - {provider: azure, placement: [eastus-1], endpoints: {<<: *e}}\n"
    )
    assert [fact.text.split()[2] for fact in file_facts(load(path))] == ["GCP", "Azure"]


def test_an_ordinary_file_needs_none() -> None:
    """Of ours, of each service's own hosts, and of what only the clouds see."""
    for path in (*ROOT.glob("configs/*.yaml"), *ROOT.glob("configs/templates/*.yaml")):
        assert file_facts(load(path, {"HOME": str(Path.home())})) == (), path
    private = {"compute": "https://compute-me.p.googleapis.com/compute/v1/"}
    key = "${WANDB_API_KEY}"
    for provider, sections in (
        (
            "gcp",
            {"endpoints": private, "secrets": {"WANDB_API_KEY": key, "HF_TOKEN": "${HF_TOKEN}"}},
        ),
        ("azure", {"endpoints": {"auth": "https://login.microsoftonline.us"}}),
        ("aws", {"endpoints": {"compute": "https://evil.example"}}),  # signs for that host alone
        ("local", {"endpoints": {"storage": "http://minio.lab:9000"}, "data": {"d": "s3://bbb/x"}}),
        ("local", {"code": {"path": ".."}, "data": {"d": f"file://{Path.cwd()}/data"}}),
        ("local", {"artifacts": {"store": "file:///tmp/x"}}),
        (
            "gcp",
            {
                "code": {"git": "https://github.com/a/b", "token": "T"},
                "secrets": {"T": "${GH_TOKEN}"},
            },
        ),
        ("gcp", {"network": {"ssh_proxy": "iap", "private": True}}),
        ("hosts", {"hosts": [{"address": "a", "role": "chief", "key": "~/.ssh/id_ed25519"}]}),
    ):
        assert facts(provider, **sections) == (), (provider, sections)


def test_no_home_folder_is_the_project_of_what_is_below_it() -> None:
    """Also if it is a repository, as of somebody's settings."""
    (Path.home() / ".git").mkdir()
    path = Path.home() / "Downloads" / "m.yaml"
    path.parent.mkdir()
    path.write_text(write("local", code={"path": ".."}).read_text())
    [found] = file_facts(load(path))
    assert found.text == f"reads {Path.home()}, which is outside of its project"


def test_what_the_users_own_defaults_say_is_the_users(tmp_path: Path) -> None:
    defaults = tmp_path / "config.yaml"
    defaults.write_text(
        "provider: gcp\nendpoints: {auth: https://login.corp.example/}\n"
        "identity: trainer@p.iam.gserviceaccount.com\n"
    )
    assert file_facts(load(write(), defaults=defaults)) == ()


def test_no_settings_are_read_from_the_folder_of_a_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CLOUDTRAIN_CONFIG")
    for name in ("config.yaml", "cloudtrain.yaml", ".cloudtrain", ".cloudtrain.yaml"):
        Path(name).write_text("provider: gcp\nendpoints: {auth: https://evil.example/}\n")
    assert run("plan", str(write())).stdout.count("evil.example") == 0


# ── Asking ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "command", ["check", "up", "train", "run", "down", "stop-run", "status", "logs", "gc"]
)
def test_a_command_on_such_a_file_does_nothing_before_it_is_trusted(command: str) -> None:
    path = write("azure", endpoints=EVIL)
    done = run(command, str(path))
    if command in ("down", "stop-run"):
        assert "`cloudtrain down m --provider azure` ends it" in " ".join(done.stderr.split())
    assert refused(done) == ["endpoints.auth: sends your Azure credentials to evil.example"]


def test_plan_and_help_need_no_trust_and_say_what_the_file_does() -> None:
    path = write(
        endpoints=EVIL,
        code={"git": "https://evil.example/x.git", "token": "T"},
        secrets={"T": "${MY_TOKEN}"},
        network={"ssh_proxy": {"command": "./p {address}"}, "ssh_from": "0.0.0.0/1"},
        data={"d": "https://data.example/x", "e": "gs://payroll/2026"},
        tags={"who": "${USER:-me}"},
    )
    done = run("plan", str(path))
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "reads ${MY_TOKEN}, ${USER}" in lines
    assert "runs here git, ./p {address}" in lines
    assert "asks evil.example, data.example" in lines
    assert "data https://data.example/x, gs://payroll/2026" in lines
    notes = "\n".join(lines)
    assert "endpoints.auth: sends your GCP credentials to evil.example" in notes
    assert "network.ssh_from: port 22 is open to 2,147,483,648 addresses (0.0.0.0/1)" in notes
    assert json.loads(run("plan", str(path), "--json").stdout)["uses"] == {
        "variables": ["MY_TOKEN", "USER"],
        "programs": ["git", "./p {address}"],
        "hosts": ["evil.example", "data.example"],
        "data": ["https://data.example/x", "gs://payroll/2026"],
    }
    assert run("check", "--help").exit_code == 0


def test_what_was_agreed_to_is_remembered_and_a_change_of_it_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Path("p.sh")
    program.write_text("exec nc $1 22")
    network = {"ssh_proxy": {"command": "./p.sh {address}"}, "ssh_from": "none"}
    path = write(endpoints=EVIL, network=network)
    at_a_terminal(monkeypatch)
    assert run("trust", str(path), stdin="n\n").exit_code != 0
    assert open_facts(load(path))
    agreed = run("trust", str(path), stdin="y\n")
    assert agreed.exit_code == 0
    assert agreed.stdout.count("endpoints.auth: ") == 1
    refuse_untrusted(load(path))
    refuse_untrusted(load(write(endpoints=EVIL, network=network, tags={"a": "b"})))
    refuse_untrusted(load(write()))  # less than was agreed to
    for changed, kind in (
        ({"ssh_proxy": {"command": "./p.sh x"}, "ssh_from": "none"}, "program"),
        ({**network, "ssh_proxy": {"command": "./q.sh {address}"}}, "program"),
    ):
        [found] = open_facts(load(write(endpoints=EVIL, network=changed)))
        assert found.kind == kind
    for service, url in (
        ("auth", "https://evil.example:81/"),
        ("compute", "https://evil.example/"),
    ):
        [found] = open_facts(load(write(endpoints={**EVIL, service: url}, network=network)))
        assert found.field == f"endpoints.{service}"
    program.write_text("exec evil")
    [again] = open_facts(load(write(endpoints=EVIL, network=network)))
    assert again.kind == "program"


def test_a_file_elsewhere_or_another_users_record_is_not_this_ones_trust() -> None:
    path = write(endpoints=EVIL)
    assert run("trust", str(path), "--yes").exit_code == 0
    [record] = (Path.home() / "state" / "trusted").iterdir()
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert "evil" not in record.read_text()
    copy = path.with_name("m2.yaml")
    copy.write_text(path.read_text())
    assert open_facts(load(copy))
    record.write_text("{")
    assert open_facts(load(path))
    assert run("trust", str(path), "--yes").exit_code == 0
    assert not open_facts(load(path))
    assert run("trust", str(path), "--forget").exit_code == 0
    assert open_facts(load(path))


def test_scripts_list_by_json_agree_by_yes_and_pass_trust_for_one_command() -> None:
    path = write("local", data={"d": "file:///etc"})
    listed = json.loads(run("trust", str(path), "--json").stdout)
    assert (listed["trusted"], [each["kind"] for each in listed["facts"]]) == (False, ["file"])
    assert run("trust", str(path)).exit_code != 0  # no terminal, no --yes
    assert len(refused(run("logs", str(path)))) == 1
    assert "is not trusted" not in run("logs", str(path), "--trust").stderr
    assert len(refused(run("logs", str(path)))) == 1
    assert json.loads(run("trust", str(path), "--json", "--yes").stdout)["trusted"]
    assert "nothing to trust" in run("trust", str(write("local"))).stdout


def test_a_host_that_the_user_named_gets_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(write(endpoints={"auth": "http://127.0.0.1:8080/"}))
    assert open_facts(config)
    assert not open_facts(config, ["127.0.0.1:8080"])
    for value in ("127.0.0.1:8081", "evil.example"):
        monkeypatch.setenv("CLOUDTRAIN_TRUST_ENDPOINT", value)
        assert open_facts(config)
    monkeypatch.setenv("CLOUDTRAIN_TRUST_ENDPOINT", "localhost evil.example")
    assert not open_facts(config)


def test_no_variable_and_no_defaults_file_stands_for_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, defaults = write(endpoints=EVIL), tmp_path / "config.yaml"
    defaults.write_text("trust: true\n")
    with pytest.raises(ConfigError, match="no defaults file may stand for --trust"):
        load(path, defaults=defaults)
    monkeypatch.setenv("CLOUDTRAIN_TRUST", "1")
    assert "no variable may stand for --trust" in run("check", str(path)).stderr


def test_from_python_such_a_file_is_refused_unless_it_is_trusted() -> None:
    path = write(endpoints=EVIL)
    with pytest.raises(UntrustedError, match=r"sends your GCP credentials to evil\.example"):
        cloudtrain.load(path)
    assert cloudtrain.load(path, trust=True).endpoints.auth == EVIL["auth"]


@pytest.mark.parametrize("command", ["down", "stop-run"])
def test_no_trust_keeps_anybody_from_ending_a_cluster_on_record(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended by the record of `up`, and not where the changed file says."""
    record_cluster(load(write("local")), Records("m"))
    path = write("local", data={"d": "file:///etc"}, secrets={"A": "${AWS_SECRET_ACCESS_KEY}"})
    seen: list[tuple[str, ClusterConfig | None]] = []
    module = {"down": "down", "stop-run": "stop_run"}[command]

    def verb(name: str, config: ClusterConfig | None = None, **_: object) -> None:
        seen.append((name, config))

    monkeypatch.setattr(f"cloudtrain.commands.{module}.{module}", verb)
    run(command, str(path))
    assert seen == [("m", None)]


def test_anothers_file_of_the_same_name_ends_nothing(tmp_path: Path) -> None:
    record_cluster(load(write("local")), Records("m"))
    other = tmp_path / "elsewhere" / "m.yaml"
    other.parent.mkdir()
    other.write_text(write("local", data={"d": "file:///etc"}).read_text())
    write("local")
    assert "was created from" in run("down", str(other)).stderr


def test_a_rehearsal_is_asked_about_what_it_does_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        "cloudtrain.commands.rehearse.rehearse",
        lambda config, **_: seen.append(config.name) or 1 / 0,
    )
    network = {"ssh_proxy": {"command": "./p"}, "ssh_from": "none"}
    run("rehearse", str(write(endpoints=EVIL, network=network)))
    assert seen == ["m"]
    stranger = write(secrets={"A": "${AWS_SECRET_ACCESS_KEY}"}, endpoints=EVIL)
    [line] = refused(run("rehearse", str(stranger)))
    assert line.startswith("secrets.A: ")


# ── Refused whoever trusts it ────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sections", "field", "line"),
    [
        ({"code": {"git": "http://h/${AWS_SECRET_ACCESS_KEY:-}/x.git"}}, "code.git", "`token: AWS"),
        (
            {"train": {"command": "x", "env": {"K": "${HF_TOKEN}"}}},
            "train.env.K",
            '`K: "${HF_TOKEN}"`',
        ),
        ({"tags": {"a": "${DB_PASSWORD}"}}, "tags.a", '`DB_PASSWORD: "${DB_PASSWORD}"`'),
        ({"data": {"d": "https://h/${MY_API_KEY}"}}, "data.d", "`secrets`"),
        ({"endpoints": {"auth": "https://${GH_TOKEN}/"}}, "endpoints.auth", "`secrets`"),
        ({"image": "${INNOCENT}"}, "image", "looks like a GitHub token"),
    ],
)
def test_a_credential_stands_nowhere_but_under_secrets(
    sections: dict[str, object], field: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = "ghp_" + "a1B2" * 9
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "DB_PASSWORD", "MY_API_KEY", "INNOCENT"):
        monkeypatch.setenv(name, hidden)
    with pytest.raises(ConfigError) as raised:
        load(write(**sections))
    [problem] = [each for each in raised.value.problems if line in each.text]
    assert problem.field == field
    assert problem.line
    assert hidden not in str(raised.value)


@pytest.mark.parametrize(
    ("provider", "endpoints", "words"),
    [
        ("gcp", {"auth": "http://login.corp.example/"}, "is http://"),
        ("azure", {"compute": "http://management.azure.com/"}, "is http://"),
        ("gcp", {"compute": "http://169.254.169.254/"}, "is a metadata service"),
        ("aws", {"compute": "https://[fe80::1]/"}, "is a metadata service"),
        ("gcp", {"storage": "https://me:pw@storage.googleapis.com/"}, "user or password"),
    ],
)
def test_no_trust_allows_what_nobody_can_want(
    provider: str, endpoints: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(write(provider, endpoints=endpoints))
    assert words in str(raised.value)


def test_a_refresh_token_goes_to_its_issuer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth
    from google.oauth2.credentials import Credentials as OfUser

    own = OfUser(  # type: ignore[no-untyped-call]
        None,
        refresh_token="1//r",
        token_uri="https://oauth2.googleapis.com/token",
        client_id="id",
        client_secret="s",
    )
    monkeypatch.setattr(google.auth, "default", lambda scopes: (own, "p"))
    config = ClusterConfig(name="m", provider="gcp", strategy="custom", nodes={})
    for uri in ("https://evil.example/token", "http://127.0.0.1:1/token"):
        elsewhere = Credentials(ClusterConfig(**{**vars(config), "endpoints": Endpoints(auth=uri)}))
        with pytest.raises(CredentialsError, match="did not issue the refresh token"):
            elsewhere.headers()


# ── Whom the nodes let in ────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("0.0.0.0/0", "4,294,967,296"),
        ("0.0.0.0/1", "2,147,483,648"),
        ("::/0", "2^128"),
        ("2000::/3", "2^125"),
        ("::ffff:0:0/96", "4,294,967,296"),
        ("10.0.0.0/8", "16,777,216"),
        ("10.1.0.0/16", None),
        ("2001:db8:1::/48", None),
        ("203.0.113.7/32", None),
        ("auto", None),
        ("none", None),
    ],
)
def test_a_port_that_is_open_to_more_than_a_network_is_said_with_its_number(
    source: str, count: str | None
) -> None:
    for provider in PLACES:
        config = ClusterConfig(
            name="m",
            provider=provider,
            strategy="custom",
            nodes={},
            network=Network(ssh_from=source),
        )
        noted = open_notes(config)
        assert [f"open to {count} addresses" in note for note in noted] == [True] * bool(count)


def test_a_host_that_the_uri_of_a_store_names_is_asked_for() -> None:
    """None has one yet: those of clouds get their credentials, and others are this machine."""
    for kind in KINDS:
        if "HOST" in kind.form:
            found = facts(artifacts={"store": f"{kind.scheme}://other.example/x"})
            hosts = [fact.host.name for fact in found if fact.host is not None]
            assert hosts == ["other.example"], f"trust/file_facts.py: ask for that of {kind.scheme}"
