"""`cloudtrain trust`"""

from __future__ import annotations

from cloudtrain.cli import options
from cloudtrain.cli.options import given_settings
from cloudtrain.cli.printing import confirm, print_json, print_lines
from cloudtrain.cli.target import read_target
from cloudtrain.core.codec import pick
from cloudtrain.core.errors import UsageError


@options.command("trust", "cloudtrain trust gcp.yaml")
@options.file(trusts=False)
@options.option("--forget", "Ask about FILE again, whatever was agreed to.")
@options.yes
@options.as_json
def trust_command(file: str, forget: bool, yes: bool, as_json: bool) -> None:
    """List what FILE would do with your rights, and ask once whether it may: send credentials to
    hosts that are none of the clouds' own, run programs on this machine, hand identities and
    credentials of your account to its nodes, use files outside of its project. A FILE that does
    none of it, as most, needs no trust. Only a change of these facts is asked about again."""
    config = read_target(file).config
    if config is None:
        raise UsageError(
            f"{file} is a cluster's name", hint="pass the FILE that it is created from"
        )
    from cloudtrain.trust import consent
    from cloudtrain.trust.consent import fact_lines, open_facts
    from cloudtrain.trust.file_facts import file_facts

    if forget:
        consent.forget(config.source)
    facts = file_facts(config)
    lines = list(fact_lines(config, facts))
    left = open_facts(config, given_settings().trusted_hosts)
    if not as_json and not lines:
        print_lines([f"{config.source} uses none of your rights: there is nothing to trust"])
    elif not as_json:
        known = "you have not trusted" if left else "you trust"
        print_lines([f"{known} {config.source} with this:", *(f"  {line}" for line in lines)])
    if left and not forget and (yes or not as_json):
        confirm("Is that what you want?", yes=yes)
        consent.remember(config.source, facts)
        left = ()
    if as_json:
        shown = [
            {**pick(fact, "kind field what"), "text": line, "trusted": fact not in left}
            for fact, line in zip(facts, lines, strict=True)
        ]
        print_json({"file": config.source, "trusted": not left, "facts": shown})
