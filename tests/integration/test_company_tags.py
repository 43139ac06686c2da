"""`tags:` on the three stand-ins: on everything that is created, by the call that creates it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.core.errors import CloudError, NodesError
from cloudtrain.core.model import Network
from tests.support.company_parts import CLOUDS, company

TEAM = {"team": "vision", "cost-center": "4711"}
DEMANDED = {"aws": "required_tags", "azure": "required_tags", "gcp": "required_labels"}
CLOSE = Network(ssh_from="203.0.113.7/32", close="on")


@pytest.mark.parametrize("name", CLOUDS)
def test_a_policy_that_requires_a_tag_is_met_by_every_creating_call(
    name: str, tmp_path: Path
) -> None:
    with company(name, tmp_path, **{DEMANDED[name]: ["team"]}) as account:
        plan = account.plan(tags=TEAM, network=CLOSE)
        account.up(plan)
        created = {k: tags for k, tags in account.tags().items() if "cloudtrain-cluster" in tags}
        assert len(created) >= 2 * len(plan.nodes)
        assert [kind for kind, tags in created.items() if not TEAM.items() <= tags.items()] == []
        account.down(plan)
        assert account.cloud.holdings() == []


@pytest.mark.parametrize("name", CLOUDS)
def test_without_the_tag_up_ends_with_a_hint_at_tags_and_leaves_nothing(
    name: str, tmp_path: Path
) -> None:
    with company(name, tmp_path, **{DEMANDED[name]: ["team"]}) as account:
        plan = account.plan(network=CLOSE)
        with pytest.raises((CloudError, NodesError)) as refused:
            account.up(plan)
        assert "`tags:`" in _hint(refused.value)
        assert refused.value.exit_code == 4
        assert account.cloud.holdings() == []


def test_check_asks_ec2_with_the_tags_that_up_would_send(tmp_path: Path) -> None:
    with company("aws", tmp_path, required_tags=["team"]) as account:
        assert account.check(account.plan(tags=TEAM))["permissions"].ok
        refused = account.check(account.plan())["permissions"]
        assert not refused.ok
        assert "`tags:`" in str(refused.hint)


def test_the_rehearsal_on_azure_has_the_tags_that_up_would_send(tmp_path: Path) -> None:
    with company("azure", tmp_path, required_tags=["team"]) as account:
        for tags, passes in ((TEAM, True), ({}, False)):
            plan = account.plan(tags=tags)
            (finding, *_) = account.provider(plan.config).dry_run(plan)
            assert finding.ok is passes, finding


def test_gcp_describes_what_has_no_labels_with_the_tags_and_still_reads_whose_it_is(
    tmp_path: Path,
) -> None:
    with company("gcp", tmp_path) as account:
        # Names of tags that are words of our own descriptions, too.
        plan = account.plan(tags={"cluster": "theirs", "owner": "someone"}, network=CLOSE)
        account.up(plan)
        for kind in ("networks", "firewalls", "subnetworks"):
            (text, *_) = [
                t.body["description"] for t in account.app.under(kind) if "cloudtrain" in t.name
            ]
            assert text.startswith("made by cloudtrain: cluster=mnist ")
            assert text.endswith("; tags: cluster=theirs owner=someone")
        (held,) = account.provider(plan.config).sweep()
        assert held.cluster == "mnist"
        account.down(plan)
        assert account.cloud.holdings() == []


def test_another_up_of_the_same_file_changes_nothing(tmp_path: Path) -> None:
    with company("gcp", tmp_path) as account:
        plan = account.plan(tags=TEAM)
        account.up(plan)
        account.cloud.forget_calls()
        account.up(plan)
        verbs = {call["action"].rpartition(".")[2] for call in account.cloud.calls()}
        assert not verbs & {"insert", "patch", "update", "delete"}
        account.down(plan)


def _hint(error: CloudError | NodesError) -> str:
    one = next(iter(error.failures.values())) if isinstance(error, NodesError) else error
    return str(getattr(one, "hint", ""))
