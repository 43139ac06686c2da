"""What `plan`, `check` and `up` say of machines and their price before anything is rented."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cloudtrain.catalog import availability
from cloudtrain.checks import check as verb
from cloudtrain.cli.app import cli
from cloudtrain.cluster.plan import make_plan
from cloudtrain.cluster.session import Handle
from cloudtrain.cluster.task_launch import gpu_environment
from cloudtrain.config import load
from cloudtrain.console.logging_console import LoggingConsole
from cloudtrain.core.errors import LeftoverError, QuotaError, StoreError, UsageError
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Finding
from tests.support.fakes import FakeProvider


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    fake = FakeProvider()
    monkeypatch.setattr("cloudtrain.cluster.session.open_provider", lambda config: fake)
    return fake


def cloudtrain(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


def config(nodes: str, provider: str = "gcp", limits: str = "{}", place: str = "us-east4-c") -> str:
    text = (
        f"name: mnist\nprovider: {provider}\nproject: p\nplacement: [{place}]\nstrategy: custom\n"
    )
    text += f"nodes: {nodes}\nlimits: {limits}\ntrain: {{command: echo}}\n"
    Path("mnist.yaml").write_text(text)
    return "mnist.yaml"


OLD = "prices of 2025-03-02, more than 180 days old: run `plan --refresh-prices`; without traffic"
PARTS = "disks 0.0301 $, addresses 0.0100 $"
TWO_T4 = f"1.64 $/hour in us-east4-c, at most 19.63 $ in 12h (machines 1.60 $, {PARTS}; {OLD})"
CHECKED_T4 = (
    "ok    price        1.64 $/hour in us-east4-c, at most 19.63 $ in 12h",
    f"                   machines 1.60 $, {PARTS}, no traffic",
    "                   prices of 2025-03-02, over 180 days old: `plan --refresh-prices`",
)
T4 = "{worker: {count: 2, machine: n1-standard-8, accelerator: T4:1}}"
SPOT = "{worker: {count: 2, accelerator: T4:1, spot: true}}"
BRAND_NEW = "{worker: {machine: z9-brandnew-4}}"


# ── plan ─────────────────────────────────────────────────────────────────────


def test_a_plan_tells_what_it_costs_and_what_was_chosen() -> None:
    file = config("{chief: {machine: n1-standard-8, accelerator: T4:1}, worker: {accelerator: T4}}")
    lines = cloudtrain("plan", file).stdout.splitlines()
    assert "  mnist-chief0  n1-standard-8  T4:1  0.798 $/hour  port 8900" in lines
    assert "  mnist-worker0  n1-standard-4  T4:1  0.584 $/hour  port 8900" in lines
    at = lines.index("  price      1.42 $/hour in us-east4-c, at most 17.07 $ in 12h")
    assert lines[at + 1 : at + 3] == [
        f"             machines 1.38 $, {PARTS}, no traffic",
        "             prices of 2025-03-02, over 180 days old: `plan --refresh-prices`",
    ]
    assert lines[-1] == (
        "  note: nodes.worker: no machine is set: using n1-standard-4, the cheapest with T4:1"
    )


def test_the_price_of_a_tpu_is_without_a_limit_as_nothing_ends_it() -> None:
    configs = Path(__file__).parents[2] / "configs"
    document = json.loads(cloudtrain("plan", str(configs / "tpu.yaml"), "--json").stdout)
    assert document["price"].startswith(
        "9.63 $/hour in us-west4-a, without a limit (nothing ends a TPU by itself) (machines "
        "9.60 $, disks 0.0226 $, addresses 0.0050 $; prices"
    )
    assert document["price_at_most"] is None


def test_a_plan_as_json_has_every_price() -> None:
    document = json.loads(
        cloudtrain("plan", config(T4, limits="{max_lifetime: 2h}"), "--json").stdout
    )
    assert [node["price_per_hour"] for node in document["nodes"]] == [0.79797] * 2
    parts = {"machines": 1.59594, "disks": 2 * 11 / 730, "addresses": 0.01}
    assert document["price_parts"] == pytest.approx(parts, abs=1e-6)
    assert document["price_per_hour"] == pytest.approx(sum(parts.values()), abs=1e-6)
    assert document["price_per_hour_at_most"] == document["price_per_hour"]
    assert document["price_at_most"] == pytest.approx(2 * sum(parts.values()), abs=1e-5)
    assert (document["price_place"], document["price_date"]) == ("us-east4-c", "2025-03-02")


def test_what_is_not_known_is_null_and_said_to_be_unknown() -> None:
    document = json.loads(cloudtrain("plan", config(BRAND_NEW), "--json").stdout)
    assert document["nodes"][0]["price_per_hour"] is None
    names = ("price_per_hour", "price_per_hour_at_most", "price_at_most")
    assert [document[name] for name in names] == [None] * 3
    text = cloudtrain("plan", "mnist.yaml").stdout
    assert "  price      not known: z9-brandnew-4 in us-east4\n             prices of" in text
    assert "0.00" not in text


def test_a_spot_price_that_is_not_known_is_bounded_by_that_on_demand() -> None:
    file = config(SPOT, provider="aws", place="us-east-1")
    document = json.loads(cloudtrain("plan", file, "--json").stdout)
    assert (document["price_per_hour"], document["price_per_hour_at_most"]) == (None, 1.130493)
    assert (
        "not known: spot g4dn.xlarge in us-east-1; at most 1.13 $/hour, the on-demand price, "
        "at most 13.57 $ in 12h" in document["price"]
    )


def test_a_cluster_without_an_end_has_no_most() -> None:
    file = config(T4, limits="{max_lifetime: off}")
    assert json.loads(cloudtrain("plan", file, "--json").stdout)["price_at_most"] is None
    assert "without a limit (limits.max_lifetime is off)" in cloudtrain("plan", file).stdout


def test_what_runs_here_costs_nothing() -> None:
    file = config("{worker: {count: 2}}", provider="local")
    text = Path(file).read_text().replace("project: p\nplacement: [us-east4-c]\n", "")
    Path(file).write_text(text)
    document = json.loads(cloudtrain("plan", file, "--json").stdout)
    assert (document["price_per_hour"], document["price_date"]) == (0.0, None)
    assert "  price      none: nothing is rented" in cloudtrain("plan", file).stdout


def test_prices_of_less_than_half_a_year_are_not_called_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(availability, "today", lambda: date(2025, 8, 29))
    price = json.loads(cloudtrain("plan", config(T4), "--json").stdout)["price"]
    assert price.endswith("; prices of 2025-03-02; without traffic)")
    monkeypatch.setattr(availability, "today", lambda: date(2025, 8, 30))
    assert "180 days old" in json.loads(cloudtrain("plan", config(T4), "--json").stdout)["price"]


def test_a_plan_refuses_what_no_cloud_makes() -> None:
    done = cloudtrain("plan", config("{worker: {machine: Standard_NC6}}", "azure", place="eastus"))
    assert done.exit_code == 2
    assert done.stderr.startswith(
        "error: mnist.yaml:6: nodes.worker: Standard_NC6 is retired since 2023-08-31: the "
        "cloud no longer offers it; use Standard_NC4as_T4_v3 (T4:1)\nhint: "
    )


def test_prices_that_cannot_be_refreshed_are_an_error_of_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", (tmp_path / "nowhere").as_uri())
    done = cloudtrain("plan", config(T4), "--refresh-prices")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: cannot fetch current prices: ")
    assert done.stderr.endswith("hint: omit --refresh-prices to use the prices on this machine\n")
    assert (len(done.stderr.splitlines()), done.stdout) == (2, "")


# ── check ────────────────────────────────────────────────────────────────────


def found(file: str, what: str = "price") -> Finding:
    (finding,) = [one for one in verb.check(make_plan(load(Path(file)))) if one.what == what]
    return finding


def test_check_tells_the_price(cloud: FakeProvider) -> None:
    finding = found(config(T4))
    assert (finding.ok, finding.text) == (
        True,
        TWO_T4,
    )


def test_a_price_over_max_price_is_refused_before_anything_is_made(cloud: FakeProvider) -> None:
    assert found(config(T4, limits="{max_price: 1.64}")).ok
    finding = found(config(T4, limits="{max_price: 1.6}"))  # 1.596 without disks and addresses
    assert (finding.ok, finding.error) == (False, UsageError)
    assert finding.text.endswith(", more than limits.max_price: 1.6 $/hour")
    with pytest.raises(UsageError, match=r"more than limits\.max_price"):
        verb.refuse(Handle(load(Path("mnist.yaml"))), LoggingConsole())


def test_the_dearest_placement_is_held_against_max_price(cloud: FakeProvider) -> None:
    limits = "{max_price: 1.64}"
    assert not found(config(T4, limits=limits, place="us-east4-c, southamerica-east1")).ok


def test_max_price_needs_a_price_that_is_known(cloud: FakeProvider) -> None:
    assert found(config(BRAND_NEW)).ok
    finding = found(config(BRAND_NEW, limits="{max_price: 20}"))
    assert (finding.ok, finding.error) == (False, UsageError)
    assert finding.text.endswith("so limits.max_price cannot be enforced")
    assert finding.hint is not None
    assert "--refresh-prices" in finding.hint
    assert "remove limits.max_price" in finding.hint


def test_a_spot_price_that_is_not_known_does_not_stand_in_the_way(cloud: FakeProvider) -> None:
    file = config(SPOT, provider="aws", place="us-east-1", limits="{max_price: 2}")
    assert found(file).ok
    assert not found(config(SPOT, provider="aws", place="us-east-1", limits="{max_price: 1}")).ok


def test_a_machine_that_cannot_be_is_told_before_the_cloud_is_asked(cloud: FakeProvider) -> None:
    cloud.findings = (Finding(what="quota", ok=True, text="asked"),)
    findings = verb.check(make_plan(load(Path(config("{worker: {accelerator: T4:3}}")))))
    assert [one.what for one in findings][:2] == ["machines", "setup"]
    assert findings[0].text == (
        "nodes.worker: no machine of gcp has T4:3; available: T4:1, T4:2, T4:4"
    )
    assert "quota" in [one.what for one in verb.check(make_plan(load(Path(config(T4)))))]


def test_a_deep_check_rehearses_where_nothing_is_wrong_yet(
    cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "try_machine", lambda plan, console, ignore: ())
    cloud.rehearsed = (Finding(what="rehearsal", ok=True, text="asked, for nothing"),)
    done = cloudtrain("check", config(T4), "--deep")
    assert "ok    rehearsal  asked, for nothing" in done.stdout
    assert "rehearsal" not in cloudtrain("check", config(T4)).stdout
    cloud.findings = (Finding(what="quota", ok=False, text="none left", error=QuotaError),)
    done = cloudtrain("check", config(T4), "--deep")
    assert done.exit_code == 3
    assert "?     rehearsal  skipped: fix quota first" in done.stdout


@pytest.mark.parametrize(
    ("limit", "refused"),
    [
        ("{max_price: 0.02}", "t3.small was not created: price: 0.0313 $/hour in us-east-1"),
        ("{max_price: 0.05}", ""),
    ],
)
def test_a_deep_check_creates_no_machine_above_max_price(
    cloud: FakeProvider, limit: str, refused: str
) -> None:
    """A smaller machine than the cheapest that boots reliably is cheaper, too."""
    cloud.findings = (Finding(what="account", ok=False, text="none", error=UsageError),)
    plan = make_plan(load(Path(config("{chief: {machine: t3.micro}}", "aws", limit, "us-east-1"))))
    first, *_ = verb.try_machine(plan, LoggingConsole())
    assert (first.what, first.ok, first.error) == ("trial", False, UsageError)
    assert first.text.startswith(refused or "t3.small was not created: account: none")
    if refused:
        assert "more than limits.max_price: 0.02 $/hour" in first.text
        ignoring, *_ = verb.try_machine(plan, LoggingConsole(), ignore=("price",))
        assert "account: none" in ignoring.text
    assert (cloud.deeds, cloud.cloud) == ([], {})


def test_a_proof_that_fails_on_the_machine_of_a_deep_check_is_a_finding_by_itself(
    cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are told, and the machine is deleted; this cloud says no end of it."""

    def refused(*given: object) -> str:
        raise StoreError("the bucket refuses the node", hint="allow it")

    monkeypatch.setattr("cloudtrain.cluster.provision.await_first_login", lambda *a, **named: None)
    monkeypatch.setattr(verb, "prove_upload", refused)
    plan = make_plan(load(Path(config("{chief: {}}", "aws", "{}", "us-east-1"))))
    found = {each.what: each for each in verb.try_machine(plan, LoggingConsole())}
    assert [what for what, each in found.items() if each.ok] == [
        *("trial image", "trial SSH", "trial host key", "trial")
    ]
    assert (found["trial end"].text, found["trial end"].error) == (
        "NO END: the cloud says none",
        LeftoverError,
    )
    upload = found["trial upload"]
    assert (upload.text, upload.hint) == ("the bucket refuses the node", "allow it")
    assert [deed for deed, _ in cloud.deeds] == ["create", "destroy"]
    assert not any(cloud.cloud.values())
    assert list(Path("home/clusters").glob("*trial*")) == []


def test_a_deep_check_tries_the_next_machine_where_the_account_may_not_have_the_cheapest(
    cloud: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on AWS' Free plan, in the order of the price; a full network stops it at once."""
    asked: list[str] = []

    def check(plan: Plan) -> tuple[Finding, ...]:
        (node,) = plan.nodes
        asked.append(f"{plan.config.image} {node.machine} {node.provisioning}")
        fine = node.machine == "c7i-flex.large"
        return (Finding(what=wrong, ok=fine, text="not eligible", error=UsageError),)

    monkeypatch.setattr(cloud, "check", check)
    spot = "{chief: {machine: g4dn.xlarge, spot: true}}"
    plan = make_plan(load(Path(config(spot, "aws", "{}", "us-east-1"))))
    wrong = "account"
    handle, refused = verb.accepted(plan, ())
    assert (handle.plan.nodes[0].machine, refused) == ("c7i-flex.large", ())
    assert asked == [
        f"deeplearning {name} spot"
        for name in ("t3.small", "t3.medium", "t3.large", "c7i-flex.large")
    ]
    asked.clear()
    wrong = "network"
    assert [each.text for each in verb.accepted(plan, ())[1]] == [
        "t3.small was not created: network: not eligible"
    ]
    assert asked == ["deeplearning t3.small spot", "auto t3.small spot"]


def test_check_on_one_screen_tells_what_is_wrong_last_and_whole(cloud: FakeProvider) -> None:
    cloud.findings = (
        Finding(
            what="quota",
            ok=False,
            text="us-east4: 2 T4 needed, 0 of 0 left\nus-central1: 2 T4 needed, 1 of 1 left",
            hint="ask for more, or name another region",
            error=QuotaError,
        ),
        Finding(what="credentials", ok=True, text="me@example.org\nby application default"),
    )
    done = cloudtrain("check", config(T4))
    assert done.exit_code == 3
    assert done.stdout.splitlines() == [
        "ok    machines     n1-standard-8",
        *CHECKED_T4,
        "ok    credentials  me@example.org …",
        "ok    setup        none",
        "ok    code         none",
        "ok    secrets      none",
        "ok    store        artifacts are downloaded to this machine",
        "FAIL  quota        us-east4: 2 T4 needed, 0 of 0 left",
        "                   us-central1: 2 T4 needed, 1 of 1 left",
        "                   hint: ask for more, or name another region",
        "1 of 8 findings would stop `cloudtrain up`",
    ]
    cloud.findings = ()
    assert cloudtrain("check", "mnist.yaml").stdout.splitlines()[-1] == (
        "nothing would stop `cloudtrain up`"
    )


# ── up ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("nodes", "question"),
    [
        (T4, "Create 2 worker (n1-standard-8, T4:1) on gcp, 1.64 $/hour?"),
        (BRAND_NEW, "Create 1 worker (z9-brandnew-4) on gcp, price not known?"),
        ("{worker: {}}", "Create 1 worker (e2-standard-4) on gcp, 0.16 $/hour?"),
    ],
)
def test_up_asks_with_the_price(nodes: str, question: str) -> None:
    done = cloudtrain("up", config(nodes))
    assert done.exit_code == 2
    assert question in done.stderr


# ── what fits what ───────────────────────────────────────────────────────────


def with_tensorflow(nodes: str, version: str, provider: str = "gcp") -> str:
    file = config(nodes, provider, place="us-east-1" if provider == "aws" else "us-east4-c")
    Path(file).write_text(Path(file).read_text() + f'setup: {{tensorflow: "{version}"}}\n')
    return file


@pytest.mark.parametrize(
    ("provider", "nodes", "version", "words"),
    [
        ("aws", "{worker: {machine: p6-b200.48xlarge}}", "2.21", "B200 (compute capability 10.0)"),
        ("aws", "{worker: {machine: g7e.2xlarge}}", "2.20", "RTXPRO6000 (compute capability 12.0)"),
        ("gcp", "{ps: {accelerator: B200:8, spot: true}}", "2.18", "nodes.ps: TensorFlow 2.18 has"),
        ("gcp", "{worker: {machine: g4-standard-96}}", "2.15.1", "TensorFlow 2.15.1 has no code"),
    ],
)
def test_gpus_that_no_tensorflow_has_code_for_are_refused_and_can_be_insisted_on(
    provider: str, nodes: str, version: str, words: str, cloud: FakeProvider
) -> None:
    file = with_tensorflow(nodes, version, provider)
    for verb_ in ("plan", "check"):
        done = cloudtrain(verb_, file)
        assert done.exit_code == 2
        assert words in done.output
        assert "its container image" in done.output
    assert "mnist.yaml:6: nodes." in cloudtrain("plan", file).output
    assert cloudtrain("plan", file, "--ignore", "gpus").exit_code == 0
    ignored = cloudtrain("check", file, "--ignore=gpus")
    assert "gpus" in ignored.stdout
    assert "ignored: nodes." in ignored.stdout
    assert "FAIL" not in ignored.stdout


@pytest.mark.parametrize(
    ("machine", "version", "words"),
    [
        (
            "p5.48xlarge",
            "2.15",
            "30 minutes or longer. NCCL cannot be compiled: its GPUs cannot work together; 2.16",
        ),
        ("p5en.48xlarge", "2.14", "no code built for H200"),
        ("g6.xlarge", "2.15.1", "it runs that of an earlier generation"),
        ("g6e.xlarge", "2.16", "2.17 and later have it"),
        ("g6.xlarge", "2.17", None),
        ("g5.xlarge", "2.15", None),
        ("p5.48xlarge", "2.21", None),
    ],
)
def test_a_release_that_compiles_for_the_gpu_first_is_noted_and_what_it_compiles_kept(
    machine: str, version: str, words: str | None
) -> None:
    file = with_tensorflow(f"{{worker: {{machine: {machine}}}}}", version, "aws")
    notes = " ".join(json.loads(cloudtrain("plan", file, "--json").stdout)["notes"])
    environment = gpu_environment(make_plan(load(Path(file))), "mnist-worker0")
    if words is None:
        assert "no code" not in notes
        assert ("compiles 1,149 of 1,479 parts of" in notes) == (machine == "p5.48xlarge")
        assert environment == {}
    else:
        assert words in notes
        assert environment == {"CUDA_CACHE_MAXSIZE": "4294967296"}


def test_a_machine_that_cannot_be_is_told_with_its_line() -> None:
    Path("mnist.yaml").write_text(
        "name: mnist\nprovider: aws\nplacement: [us-east-1]\nstrategy: custom\nnodes:\n"
        "  chief: {machine: g5.xlarge}\n  worker:\n    count: 2\n    machine: p9-b900.48xlarge\n"
        "train: {command: echo}\n"
    )
    done = cloudtrain("plan", "mnist.yaml")
    assert done.exit_code == 2
    assert "mnist.yaml:9: nodes.worker: p9-b900.48xlarge seems to have GPUs" in done.output
    assert "add `accelerator: KIND:COUNT`" in done.output


def test_everything_that_is_wrong_with_machines_is_told_at_once() -> None:
    nodes = "{chief: {accelerator: 'H100:1'}, worker: {machine: g4-standard-48}}"
    done = cloudtrain("plan", with_tensorflow(nodes, "2.21"))
    assert done.exit_code == 2
    assert "nodes.chief: Google does not sell a3-highgpu-1g on demand" in done.output
    assert "nodes.worker: TensorFlow 2.21 has no code for RTXPRO6000" in done.output


def test_a_check_that_is_wrong_can_be_passed_by(cloud: FakeProvider) -> None:
    cloud.findings = (
        Finding(what="quota", ok=False, text="N2_CPUS: 8 needed", hint="ask", error=QuotaError),
    )
    file = config(T4, limits="{max_price: 0.01}")
    assert cloudtrain("check", file).exit_code == 3
    assert cloudtrain("check", file, "--ignore", "quota").exit_code == 2
    done = cloudtrain("check", file, "--ignore", "quota, price")
    assert done.exit_code == 0
    assert "ignored: N2_CPUS: 8 needed" in done.stdout
    with pytest.raises(QuotaError) as caught:
        verb.refuse(Handle(load(Path(config(T4)))), LoggingConsole())
    assert caught.value.hint == "ask; pass `--ignore quota` to continue anyway"
    verb.refuse(Handle(load(Path(config(T4)))), LoggingConsole(), ("quota",))
    wrong = cloudtrain("check", file, "--ignore", "quotas")
    assert wrong.exit_code == 2
    assert "'quotas' is not one of quota, price, machines, gpus, permissions" in wrong.output


# ── limits.budget ────────────────────────────────────────────────────────────


def test_plan_tells_how_long_a_budget_lasts() -> None:
    file = config(T4, limits="{budget: 10}")
    text = cloudtrain("plan", file).stdout
    assert "1.64 $/hour in us-east4-c, at most 9.92 $ in 6.06h, which limits.budget of 10 $" in text
    document = json.loads(cloudtrain("plan", file, "--json").stdout)
    assert document["price_at_most"] == pytest.approx(9.92, abs=0.01)
    file = config(T4, limits="{budget: 100, max_lifetime: 2h}")
    assert "1.64 $/hour in us-east4-c, at most 3.27 $ in 2h\n" in cloudtrain("plan", file).stdout


def test_a_budget_that_does_not_last_an_hour_is_refused(cloud: FakeProvider) -> None:
    assert found(config(T4, limits="{budget: 1.8}")).ok
    finding = found(config(T4, limits="{budget: 1.5}"))
    assert (finding.ok, finding.error) == (False, UsageError)
    assert finding.text == (
        "limits.budget of 1.5 $ pays for 52 min at 1.64 $/hour: less than 60 min"
    )
    assert found(config(T4, limits="{budget: 1.5, max_lifetime: 30m}")).ok, "it needs no more"


def test_what_azure_bills_after_the_end_is_kept_back(cloud: FakeProvider) -> None:
    nodes = "{worker: {count: 2, machine: Standard_NC4as_T4_v3}}"
    finding = found(config(nodes, "azure", limits="{budget: 4}", place="eastus"))
    assert not finding.ok
    assert "with what stays until `down` (0.0363 $/hour)" in finding.text
    assert found(config(nodes, "azure", limits="{budget: 6}", place="eastus")).ok


def test_a_budget_needs_a_price_that_is_known(cloud: FakeProvider) -> None:
    finding = found(config(BRAND_NEW, limits="{budget: 20}"))
    assert (finding.ok, finding.error) == (False, UsageError)
    assert finding.text.endswith("so limits.budget cannot be enforced")
    with pytest.raises(UsageError, match=r"limits\.budget cannot be enforced"):
        verb.refuse(Handle(load(Path("mnist.yaml"))), LoggingConsole())


def test_a_spot_price_that_is_not_known_is_budgeted_as_on_demand(cloud: FakeProvider) -> None:
    file = config(SPOT, provider="aws", place="us-east-1", limits="{budget: 10}")
    assert "at most 9.91 $ in 8.76h, which limits.budget of 10 $" in found(file).text
