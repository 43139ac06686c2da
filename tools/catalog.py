"""Writes each cloud's providers/CLOUD/machines.csv, and AWS' bandwidth.csv: `tools/catalog.py`.

Needs apache-libcloud and moto (`pip install apache-libcloud moto`), whose tables are two of the
sources. The others are below, as they were read. docs/machines.md describes each source and what
the table lacks. A price without a source is omitted, never guessed: none is computed from the price
of another machine or region. Google alone bills no machines, but vCPUs, GiB and GPUs at a price
each (https://cloud.google.com/compute/vm-instance-pricing); its machines are sums of these.

A new machine goes to `AWS_READ`, under the day on which its prices held, to `AZURE_READ`, or as a
row to `gcp()`; without a price to `AWS_UNPRICED`, `GCP_UNPRICED`, or to `AZURE_READ` without
prices. One of AWS that moto lacks also goes to `AWS_HARDWARE`, a GPU that EC2 names otherwise, or
sells with two sizes of memory, to `AWS_KINDS`, one that GCP attaches to N1 to `ATTACHED`. One that
is not simply sold on demand and as spot is also a row of providers/CLOUD/families.csv.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

Prices = dict[str, float]
"""Region → $/hour."""
Dated = dict[str, tuple[float, str]]
"""Region → $/hour and the day of that price, "" for the table's."""
Row = tuple[str, float, float, str, int, str, Prices | Dated]
"""Machine type, vCPUs, GiB, accelerator, its count, market, prices."""

HEAD = ("machine", "vcpus", "memory_gib", "accelerator", "count", "market")


def main() -> None:
    for name, text in tables():
        path = Path(__file__).parent.parent / "providers" / name
        path.write_text(text, encoding="utf-8")
        print(f"{name}: {text.count(chr(10)) - 2} rows, {path.stat().st_size} bytes")


def tables() -> Iterator[tuple[str, str]]:
    """Each file in providers/ with its text."""
    pricing = json.loads(packaged("libcloud", "data/pricing.json").read_text())
    date = datetime.fromtimestamp(int(pricing["updated"]), timezone.utc).date().isoformat()
    compute = pricing["compute"]
    machines = list(aws(compute["ec2_linux"]))
    yield "aws/machines.csv", as_csv(date, machines)
    yield "aws/bandwidth.csv", aws_bandwidth(dict.fromkeys(name for name, *_ in machines))
    yield "gcp/machines.csv", as_csv(date, list(gcp(compute)))
    yield "azure/machines.csv", as_csv(date, list(azure(compute["azure_linux"])))


def packaged(package: str, path: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / path


def as_csv(date: str, rows: list[Row]) -> str:
    """One line for each machine, accelerator and market; one column for each region."""
    regions = sorted({region for row in rows for region in row[-1]})
    text = io.StringIO()
    text.write(f"# {date} written by tools/catalog.py; the sources are in docs/machines.md\n")
    out = csv.writer(text, lineterminator="\n")
    out.writerow([*HEAD, *regions])
    for machine, vcpus, memory, kind, count, market, prices in rows:
        cells = [cell(prices[region]) if region in prices else "" for region in regions]
        out.writerow([machine, f"{vcpus:g}", f"{memory:g}", kind, count or "", market, *cells])
    lines = [line.rstrip(",") for line in text.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


def cell(price: float | tuple[float, str]) -> str:
    cost, day = price if isinstance(price, tuple) else (price, "")
    return f"{cost:.6g}@{day}" if day else f"{cost:.6g}"


# ── AWS ──────────────────────────────────────────────────────────────────────

# On-demand in us-east-1, each machine's own price: Amazon's karpenter-provider-aws,
# pkg/providers/pricing/zz_generated.pricing_aws.go, "generated at 2026-01-19T13:23:24Z for
# us-east-1", read 2026-11-26.
AWS_LISTED = "2026-01-19"
AWS_US_EAST_1 = """
t3.micro 0.0104 t3.small 0.0208 t3.medium 0.0416 t3.large 0.0832 t3.xlarge 0.1664 t3.2xlarge 0.3328
m5.large 0.096 m5.xlarge 0.192 m5.2xlarge 0.384 m5.4xlarge 0.768 m5.8xlarge 1.536 m5.12xlarge 2.304
m5.24xlarge 4.608
m6i.large 0.096 m6i.xlarge 0.192 m6i.2xlarge 0.384 m6i.4xlarge 0.768 m6i.8xlarge 1.536
m6i.16xlarge 3.072 m6i.32xlarge 6.144
m7i.large 0.1008 m7i.xlarge 0.2016 m7i.2xlarge 0.4032 m7i.4xlarge 0.8064 m7i.8xlarge 1.6128
m7i.16xlarge 3.2256 m7i.48xlarge 9.6768
m7i-flex.large 0.09576 m7i-flex.xlarge 0.19152 m7i-flex.2xlarge 0.38304 m7i-flex.4xlarge 0.76608
m7i-flex.8xlarge 1.53216
c5.large 0.085 c5.xlarge 0.17 c5.2xlarge 0.34 c5.4xlarge 0.68 c5.9xlarge 1.53 c5.18xlarge 3.06
c5.24xlarge 4.08
c6i.large 0.085 c6i.xlarge 0.17 c6i.2xlarge 0.34 c6i.4xlarge 0.68 c6i.8xlarge 1.36 c6i.16xlarge 2.72
c6i.32xlarge 5.44
c7i.large 0.08925 c7i.xlarge 0.1785 c7i.2xlarge 0.357 c7i.4xlarge 0.714 c7i.8xlarge 1.428
c7i.24xlarge 4.284 c7i.48xlarge 8.568
c7i-flex.large 0.08479 c7i-flex.xlarge 0.16958 c7i-flex.2xlarge 0.33915 c7i-flex.4xlarge 0.6783
c7i-flex.8xlarge 1.3566
r6i.large 0.126 r6i.xlarge 0.252 r6i.2xlarge 0.504 r6i.4xlarge 1.008 r6i.8xlarge 2.016
r6i.16xlarge 4.032 r6i.32xlarge 8.064
g4dn.xlarge 0.526 g4dn.2xlarge 0.752 g4dn.4xlarge 1.204 g4dn.8xlarge 2.176 g4dn.12xlarge 3.912
g4dn.16xlarge 4.352 g4dn.metal 7.824
g5.xlarge 1.006 g5.2xlarge 1.212 g5.4xlarge 1.624 g5.8xlarge 2.448 g5.12xlarge 5.672
g5.16xlarge 4.096 g5.24xlarge 8.144 g5.48xlarge 16.288
g6.xlarge 0.8048 g6.2xlarge 0.9776 g6.4xlarge 1.3232 g6.8xlarge 2.0144 g6.12xlarge 4.6016
g6.16xlarge 3.3968 g6.24xlarge 6.6752 g6.48xlarge 13.3504 gr6.4xlarge 1.5392 gr6.8xlarge 2.4464
g6e.xlarge 1.861 g6e.2xlarge 2.24208 g6e.4xlarge 3.00424 g6e.8xlarge 4.52856 g6e.12xlarge 10.49264
g6e.16xlarge 7.57719 g6e.24xlarge 15.06559 g6e.48xlarge 30.13118
"""
# In other regions, each machine's own price: SkyPilot's public catalog, v8/aws/vms.csv at commit
# 00148f2, read 2026-11-26; not older than its newest machine, r8a of 2025-11-04. It has the same
# price for every zone of a region, and lacks the regions that SkyPilot does not use. "-": not read.
SKYPILOT_READ = "2025-11-04"
AWS_SKYPILOT = """
t3 micro small medium large xlarge 2xlarge
af-south-1 0.0136 0.0271 0.0542 0.1085 0.217 0.4339
ap-east-1 0.0146 0.0292 0.0584 0.1168 0.2336 0.4672
ap-northeast-1 0.0136 0.0272 0.0544 0.1088 0.2176 0.4352
ap-northeast-2 0.013 0.026 0.052 0.104 0.208 0.416
ap-northeast-3 0.0136 0.0272 0.0544 0.1088 0.2176 0.4352
ap-south-1 0.0112 0.0224 0.0448 0.0896 0.1792 0.3584
ap-southeast-1 0.0132 0.0264 0.0528 0.1056 0.2112 0.4224
ap-southeast-2 0.0132 0.0264 0.0528 0.1056 0.2112 0.4224
ap-southeast-3 0.0132 0.0264 0.0528 0.1056 0.2112 0.4224
ap-southeast-4 0.0132 0.0264 0.0528 0.1056 0.2112 0.4224
ca-central-1 0.0116 0.0232 0.0464 0.0928 0.1856 0.3712
eu-central-1 0.012 0.024 0.048 0.096 0.192 0.384
eu-north-1 0.0108 0.0216 0.0432 0.0864 0.1728 0.3456
eu-south-1 0.012 0.024 0.0479 0.0958 0.1917 0.3834
eu-south-2 0.0114 0.0228 0.0456 0.0912 0.1824 0.3648
eu-west-1 0.0114 0.0228 0.0456 0.0912 0.1824 0.3648
eu-west-2 0.0118 0.0236 0.0472 0.0944 0.1888 0.3776
eu-west-3 0.0118 0.0236 0.0472 0.0944 0.1888 0.3776
me-central-1 0.0125 0.0251 0.0502 0.1003 0.2006 0.4013
me-south-1 0.0125 0.0251 0.0502 0.1003 0.2006 0.4013
us-east-2 0.0104 0.0208 0.0416 0.0832 0.1664 0.3328
us-west-1 0.0124 0.0248 0.0496 0.0992 0.1984 0.3968
us-west-2 0.0104 0.0208 0.0416 0.0832 0.1664 0.3328

m6i large xlarge 2xlarge 4xlarge 8xlarge 32xlarge
af-south-1 0.127 - 0.508 1.016 2.032 8.128
ap-east-1 0.132 - 0.528 1.056 2.112 8.448
ap-northeast-1 0.124 - 0.496 0.992 1.984 7.936
ap-northeast-2 0.118 - 0.472 0.944 1.888 7.552
ap-northeast-3 0.124 - 0.496 0.992 1.984 7.936
ap-south-1 0.101 - 0.404 0.808 1.616 6.464
ap-southeast-1 0.12 0.24 0.48 0.96 1.92 7.68
ap-southeast-2 0.12 0.24 0.48 0.96 1.92 7.68
ap-southeast-3 0.12 0.24 0.48 0.96 1.92 7.68
ca-central-1 0.107 0.214 0.428 0.856 1.712 6.848
eu-central-1 0.115 0.23 0.46 0.92 1.84 7.36
eu-north-1 0.102 0.204 0.408 0.816 1.632 6.528
eu-south-1 0.112 0.224 0.448 0.896 1.792 7.168
eu-west-1 0.107 0.214 0.428 0.856 1.712 6.848
eu-west-2 0.111 0.222 0.444 0.888 1.776 7.104
eu-west-3 0.112 0.224 0.448 0.896 1.792 7.168
me-central-1 0.1177 0.2354 0.4708 0.9416 1.8832 7.5328
me-south-1 0.132 0.264 0.528 1.056 2.112 8.448
us-east-2 0.096 0.192 0.384 0.768 1.536 6.144
us-west-1 0.112 0.224 0.448 0.896 1.792 7.168
us-west-2 0.096 0.192 0.384 0.768 1.536 6.144

g4dn xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge metal
af-south-1 0.698 0.998 1.597 2.887 5.19 - -
ap-east-1 0.81 1.158 1.854 3.351 6.024 - -
ap-northeast-1 0.71 1.015 1.625 2.938 5.281 5.875 -
ap-northeast-2 0.647 0.925 1.481 2.677 4.812 5.353 -
ap-northeast-3 0.71 1.015 1.625 2.938 5.281 5.875 -
ap-south-1 0.579 0.828 1.325 2.395 4.306 4.791 -
ap-southeast-1 0.736 1.052 1.685 3.045 5.474 6.089 -
ap-southeast-2 0.684 0.978 1.566 2.83 5.087 5.659 -
ca-central-1 0.584 0.835 1.337 2.416 4.343 4.832 -
eu-central-1 0.658 0.94 1.505 2.72 4.89 5.44 -
eu-north-1 0.558 0.798 1.277 2.308 4.15 4.617 -
eu-south-1 0.616 0.88 1.41 2.547 4.58 5.095 -
eu-west-1 0.587 0.838 1.342 2.426 4.362 4.853 -
eu-west-2 0.615 0.88 1.409 2.546 4.577 5.092 -
eu-west-3 0.615 0.879 1.408 2.544 4.574 5.088 -
me-south-1 0.645 0.922 1.477 2.669 4.798 5.338 9.596
us-east-2 0.526 0.752 1.204 2.176 3.912 4.352 7.824
us-west-1 0.631 0.902 1.445 2.611 4.694 5.222 9.389
us-west-2 0.526 0.752 1.204 2.176 3.912 4.352 7.824

g5 xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge
ap-east-1 1.5488 1.86595 2.50025 3.76885 8.7324 6.30605 12.5382 25.0764
ap-northeast-1 1.459 1.75776 2.35528 3.55033 8.22609 5.94042 11.81123 23.62246
ap-northeast-2 1.237 1.4903 1.99691 3.01012 6.97442 5.03653 10.01404 20.02809
ap-south-1 1.208 1.45536 1.95009 2.93955 6.81091 4.91846 9.77928 19.55855
ap-southeast-2 1.308 1.57584 2.11152 3.18289 7.37473 5.32561 10.58882 21.17764
ap-southeast-3 1.408 1.69632 2.27295 3.42623 7.93854 5.73277 11.39836 22.79672
ca-central-1 1.117 1.34573 1.80319 2.71811 6.29784 4.54794 9.04259 18.08518
eu-central-1 1.258 1.5156 2.03081 3.06122 7.09282 5.12204 10.18405 20.3681
eu-north-1 1.067 1.28549 1.72247 2.59644 6.01593 4.34437 8.63782 17.27564
eu-west-1 1.123 1.35296 1.81287 2.73271 6.33167 4.57237 9.09117 18.18233
eu-west-2 1.277 1.53849 2.06148 3.10745 7.19994 5.1994 10.33786 20.67572
me-central-1 1.234 1.48669 1.99206 3.00282 6.9575 5.02432 9.98976 19.97951
us-east-2 1.006 1.212 1.624 2.448 5.672 4.096 8.144 16.288
us-west-2 1.006 1.212 1.624 2.448 5.672 4.096 8.144 16.288

g6 xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge
ap-northeast-1 1.1672 1.41781 1.91903 2.92148 6.67369 4.92637 9.68103 19.36206
ap-northeast-2 0.9896 1.20208 1.62704 2.47695 5.65823 4.17678 8.20797 16.41595
ap-south-1 0.9664 1.1739 1.58889 2.41888 5.52558 4.07886 - 16.0311
ap-southeast-2 1.0464 1.27107 1.72042 2.61912 5.98299 4.41652 - 17.35817
ca-central-1 0.8936 1.08547 1.4692 2.23666 5.10933 3.7716 - 14.82346
eu-central-1 1.0064 1.22249 1.65466 2.519 5.75429 4.24769 8.34732 16.69464
eu-north-1 0.8536 1.03688 1.40343 2.13655 4.88062 3.60277 7.07996 14.15992
eu-south-2 0.848 1.03008 1.39423 2.12253 4.8486 3.57913 7.03351 14.06702
eu-west-2 1.0216 1.24095 1.67965 2.55705 5.8412 4.31184 8.47339 16.94678
eu-west-3 1.0216 1.24095 1.67965 2.55705 5.8412 4.31184 8.47339 16.94678
me-central-1 0.98824 1.20043 1.6248 2.47355 5.65045 4.17104 8.19669 16.39339
us-east-2 0.8048 0.9776 1.3232 2.0144 4.6016 3.3968 6.6752 13.3504
us-west-2 0.8048 0.9776 1.3232 2.0144 4.6016 3.3968 6.6752 13.3504

g6e xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge
ap-northeast-1 2.699 3.25168 4.35703 6.56775 15.21742 10.98917 21.84956 43.69912
ap-northeast-2 2.288 2.75652 3.69355 5.56762 12.90014 9.31575 18.52234 37.04468
eu-central-1 2.327 2.8035 3.75651 5.66252 13.12002 9.47454 18.83806 37.67612
eu-north-1 1.974 2.37822 3.18666 4.80353 11.12975 8.03728 15.98037 31.96075
eu-south-2 1.961 2.36256 3.16567 4.7719 11.05645 7.98435 15.87513 31.75027
us-east-2 1.861 2.24208 3.00424 4.52856 10.49264 7.57719 15.06559 30.13118
us-west-2 1.861 2.24208 3.00424 4.52856 10.49264 7.57719 15.06559 30.13118

p5 4xlarge 48xlarge
ap-northeast-1 8.6 68.8
ap-northeast-2 - 75.9552
ap-south-1 8.256 66.048
ap-southeast-2 8.944 71.552
ap-southeast-3 9.4944 75.9552
ca-central-1 - 63.296
eu-north-1 - 58.8928
eu-west-2 8.944 71.552
us-east-2 6.88 55.04
us-west-1 - 68.8
us-west-2 6.88 55.04
"""
# The same catalog of SkyPilot, of an earlier reading, after the price cuts of June 2025.
AWS_CUT = "2025-06-05"
AWS_READ: dict[str, dict[str, Prices]] = {
    AWS_LISTED: {
        "p3dn.24xlarge": {"us-east-1": 31.212},
        "p4d.24xlarge": {"us-east-1": 21.957642},
        "p4de.24xlarge": {"us-east-1": 27.44705},
        "p5.4xlarge": {"us-east-1": 6.88},
        "p5.48xlarge": {"us-east-1": 55.04},
        "p5e.48xlarge": {},
        "p5en.48xlarge": {"us-east-1": 63.296},
        "p6-b200.48xlarge": {"us-east-1": 113.9328},
    },
    SKYPILOT_READ: {
        "p3dn.24xlarge": {"ap-northeast-1": 42.783, "eu-west-1": 33.711, "us-west-2": 31.212},
        "p4d.24xlarge": {
            "ap-northeast-1": 30.09784,
            "ap-northeast-2": 30.41028,
            "ap-south-1": 26.3444,
            "ap-southeast-2": 28.54493,
            "ca-central-1": 25.25174,
            "eu-central-1": 27.43298,
            "eu-north-1": 23.71569,
            "eu-west-1": 23.71569,
            "eu-west-2": 28.54493,
            "us-east-2": 21.95764,
            "us-west-2": 21.95764,
        },
        "p4de.24xlarge": {
            "ap-northeast-1": 37.6223,
            "ap-southeast-1": 32.93646,
            "eu-central-1": 34.29122,
            "us-west-2": 27.44705,
        },
    },
    AWS_CUT: {
        "p5en.48xlarge": {
            "ap-northeast-1": 79.12,
            "ap-northeast-2": 87.34848,
            "ap-south-1": 75.9552,
            "ap-southeast-3": 87.34848,
            "eu-north-1": 67.72672,
            "eu-south-2": 68.35968,
            "us-east-2": 63.296,
            "us-west-1": 79.12,
            "us-west-2": 63.296,
        },
        "p6-b200.48xlarge": {"us-east-2": 113.9328, "us-west-2": 113.9328},
    },
}
"""Day on which the prices held → machine → its own prices. A price that was read of another source,
or of a newer state of these, is under a day of its own, with the source in a comment; of two days
the later one counts."""
AWS_KINDS = {
    "A100": {40960: "A100", 81920: "A100-80GB"},
    "V100": {32768: "V100-32GB"},
    "RTX PRO Server 6000": {98304: "RTXPRO6000"},
    "RTX PRO 4500": {32768: "RTXPRO4500"},
}
AWS_HARDWARE: dict[str, dict[str, Any]] = {}
"""Machines that moto lacks, as EC2's DescribeInstanceTypes has them, with the day and the source:
`VCpuInfo` (`DefaultVCpus`), `MemoryInfo` (`SizeInMiB`), `GpuInfo` (`Gpus`: one with `Name`,
`Count`, `MemoryInfo`), `NetworkInfo` (`NetworkPerformance`, `MaximumNetworkCards`, `NetworkCards`:
each with `NetworkPerformance`, `PeakBandwidthInGbps`)."""
AWS_UNPRICED = (
    *(
        f"g7.{size}"
        for size in ("2xlarge", "4xlarge", "8xlarge", "12xlarge", "24xlarge", "48xlarge")
    ),
    *(
        f"g7e.{size}"
        for size in ("2xlarge", "4xlarge", "8xlarge", "12xlarge", "24xlarge", "48xlarge")
    ),
    "p6-b300.48xlarge",
)
"""Machines of which no source has a price."""


def aws(listed: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    words = AWS_US_EAST_1.split()
    references = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    read = aws_skypilot()
    machines = (*references, *(name for prices in AWS_READ.values() for name in prices))
    for name in dict.fromkeys(machines):
        found: Dated = {}
        if name in references and not name.startswith("t3."):  # libcloud's are in part those of
            shared = aws_shared(name, references, listed)  # dedicated tenancy
            found = {region: (price, "") for region, price in shared.items()}
        found |= dated(read.get(name, {}), SKYPILOT_READ)
        if name in references:
            found["us-east-1"] = (references[name], AWS_LISTED)
        for day in sorted(AWS_READ):
            newer = dated(AWS_READ[day].get(name, {}), day)
            found |= {at: each for at, each in newer.items() if day >= found.get(at, each)[1]}
        yield (*aws_hardware(name), "on-demand", found)
    for name in AWS_UNPRICED:
        yield (*aws_hardware(name), "on-demand", {})


def dated(prices: Prices, day: str) -> Dated:
    return {region: (price, day) for region, price in prices.items()}


def aws_skypilot() -> dict[str, Prices]:
    """Machine → region → price, of AWS_SKYPILOT."""
    found: dict[str, Prices] = {}
    for block in AWS_SKYPILOT.strip().split("\n\n"):
        (family, *sizes), *lines = (line.split() for line in block.splitlines())
        for region, *prices in lines:
            for size, price in zip(sizes, prices, strict=True):
                if price != "-":
                    found.setdefault(f"{family}.{size}", {})[region] = float(price)
    return found


def aws_shared(
    name: str, references: Mapping[str, float], listed: Mapping[str, Mapping[str, Any]]
) -> Prices:
    """libcloud's own prices of a machine, where they are those of shared tenancy.

    Its table mixes prices of dedicated tenancy (6 to 10 % more) with those of shared tenancy, and
    has 0.0 for missing ones. Which it is shows in how much dearer than in us-east-1 a machine is:
    the lowest ratio of the family, if three sizes agree on it to 0.3 %. All others are left out.
    """
    ratios: dict[str, dict[str, float]] = {}
    for other, reference in references.items():
        if other.partition(".")[0] == name.partition(".")[0]:
            for region, price in (listed.get(other) or {}).items():
                if (
                    price
                    and region.count("-") <= 3
                    and "gov" not in region
                    and "-lax" not in region
                ):
                    ratios.setdefault(region, {})[other] = price / reference
    found = {}
    for region, known in ratios.items():
        highest = min(known.values()) * 1.003
        if sum(ratio < highest for ratio in known.values()) >= 3 and known.get(name, 9) < highest:
            found[region] = float(listed[name][region])
    return found


@cache
def described() -> dict[str, Any]:
    """Facts of each machine type by EC2's DescribeInstanceTypes, as moto has copied them."""
    packed = packaged("moto", "ec2/resources/instance_types.json.gz").read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(packed))
    return found | AWS_HARDWARE


def aws_bandwidth(machines: Iterable[str]) -> str:
    """Gbit/s of one node: of its first network card, and of all cards together."""
    notes = [
        "# Gbit/s of one node, of EC2's DescribeInstanceTypes; written by tools/catalog.py",
        "# up_to: only for a short while; all_cards: of all cards together, with EFA on each",
        "machine,gbits,up_to,all_cards",
    ]
    rows = []
    for name in machines:
        network = described()[name]["NetworkInfo"]
        first = network["NetworkCards"][0]
        up_to = "yes" if first["NetworkPerformance"].startswith("Up to") else ""
        every = ""
        if network["MaximumNetworkCards"] > 1:  # `3200 Gigabit`, or `4x 100 Gigabit`
            *cards, gbits = re.findall(r"\d+", network["NetworkPerformance"])
            every = f"{int(gbits) * int((cards or [1])[0])}"
        rows.append(f"{name},{first['PeakBandwidthInGbps']:g},{up_to},{every}")
    return "\n".join([*notes, *rows, ""])


def aws_hardware(name: str) -> tuple[str, float, float, str, int]:
    facts = described().get(name)
    if facts is None:
        raise SystemExit(f"moto does not know {name}: add it to AWS_HARDWARE in tools/catalog.py")
    vcpus, memory = facts["VCpuInfo"]["DefaultVCpus"], facts["MemoryInfo"]["SizeInMiB"] / 1024
    if "GpuInfo" not in facts:
        return name, vcpus, memory, "", 0
    (gpu,) = facts["GpuInfo"]["Gpus"]
    kind = AWS_KINDS.get(gpu["Name"], {}).get(gpu["MemoryInfo"]["SizeInMiB"], gpu["Name"])
    return name, vcpus, memory, kind, gpu["Count"]


# ── GCP ──────────────────────────────────────────────────────────────────────

# Prices of one GPU, on demand and spot, from SkyPilot's public catalog (v8/gcp/vms.csv). In some
# regions its on-demand prices of A100, H100 and H200 are those of reserved capacity (lower than
# spot, or out of proportion to the region's CPU): those are omitted.
AMERICAS = ("us-central1", "us-east1", "us-west1")
"""The regions of the SKUs "running in Americas"; SkyPilot's table has the same prices for each."""


def alike(on_demand: float, spot: float, *regions: str) -> dict[str, tuple[float, float]]:
    return dict.fromkeys(regions, (on_demand, spot))


T4 = alike(0.35, 0.175, *AMERICAS) | {
    "asia-east1": (0.35, 0.1383),
    "asia-east2": (0.44, 0.2004),
    "asia-northeast1": (0.37, 0.1311),
    "asia-northeast3": (0.37, 0.1539),
    "asia-south1": (0.41, 0.1701),
    "asia-southeast1": (0.37, 0.1645),
    "asia-southeast2": (0.4033, 0.1854),
    "australia-southeast1": (0.44, 0.1746),
    "europe-central2": (0.41, 0.164),
    "europe-west1": (0.35, 0.14),
    "europe-west2": (0.399, 0.1181),
    "europe-west3": (0.41, 0.164),
    "europe-west4": (0.3675, 0.175),
    "me-west1": (0.385, 0.1093),
    "northamerica-northeast1": (0.38538, 0.1868),
    "southamerica-east1": (0.48, 0.2329),
    "us-east4": (0.37, 0.1644),
    "us-west2": (0.42074, 0.164),
    "us-west3": (0.42074, 0.1195),
    "us-west4": (0.37, 0.1258),
}
V100 = alike(2.48, 1.0885, *AMERICAS)
V100 |= {"asia-east1": (2.48, 0.6356), "europe-west4": (2.604, 1.0443)}
P100 = alike(1.46, 0.7034, *AMERICAS) | {
    "asia-east1": (1.6, 0.144),
    "australia-southeast1": (1.6, 0.2839),
    "europe-west1": (1.6, 0.2816),
    "europe-west4": (1.533, 0.2341),
}
P4 = {
    "asia-southeast1": (0.65, 0.0585),
    "australia-southeast1": (0.65, 0.075),
    "europe-west4": (0.63, 0.132),
    "northamerica-northeast1": (0.65, 0.0738),
    "us-central1": (0.6, 0.2236),
    "us-east4": (0.6, 0.1734),
    "us-west2": (0.72, 0.0794),
}
ATTACHED = {
    # kind: prices, and for each allowed count the most vCPUs and GiB of the n1 machine
    # (https://cloud.google.com/compute/docs/gpus#n1-gpus)
    "T4": (T4, {1: (48, 312), 2: (48, 312), 4: (96, 624)}),
    "V100": (V100, {1: (12, 78), 2: (24, 156), 4: (48, 312), 8: (96, 624)}),
    "P100": (P100, {1: (16, 104), 2: (32, 208), 4: (96, 624)}),
    "P4": (P4, {1: (24, 156), 2: (48, 312), 4: (96, 624)}),
}
# n1-standard, per vCPU with 3.75 GiB: n1-standard-16 on demand / 16, n1-standard-2 spot / 2.
N1 = {
    region: (price / 16, spot / 2)
    for region, (price, spot) in (
        alike(0.76, 0.02612, *AMERICAS)
        | {
            "asia-east1": (0.87999, 0.01782),
            "asia-east2": (1.063375, 0.02626),
            "asia-northeast1": (0.97503, 0.03331),
            "asia-northeast2": (0.97503, 0.04586),
            "asia-northeast3": (0.97503, 0.03091),
            "asia-south1": (0.9128, 0.02073),
            "asia-south2": (0.9128, 0.02969),
            "asia-southeast1": (0.937545, 0.01936),
            "asia-southeast2": (1.021925, 0.02367),
            "australia-southeast1": (1.07836, 0.03549),
            "australia-southeast2": (1.07836, 0.01955),
            "europe-central2": (0.91962, 0.01954),
            "europe-north1": (0.83674, 0.02855),
            "europe-west1": (0.83603, 0.03126),
            "europe-west2": (0.97916, 0.02546),
            "europe-west3": (0.97916, 0.0308),
            "europe-west4": (0.83667, 0.04184),
            "europe-west6": (0.99554, 0.03399),
            "me-west1": (0.836, 0.02204),
            "northamerica-northeast1": (0.83667, 0.04791),
            "northamerica-northeast2": (0.83667, 0.03517),
            "southamerica-east1": (1.20638, 0.02502),
            "us-east4": (0.85594, 0.0226),
            "us-west2": (0.91286, 0.03814),
            "us-west3": (0.91286, 0.03306),
            "us-west4": (0.85594, 0.03254),
        }
    ).items()
}
# Machines with built-in GPUs: (price of the smallest machine, price of one GPU).
A2 = {  # a2-highgpu-1g; None: not known, or the price of reserved capacity
    **dict.fromkeys(AMERICAS, ((0.73948, 2.93391), (0.36975, 1.4341))),
    "asia-northeast1": (None, (0.41783, 1.2307)),
    "asia-northeast3": (None, (0.34226, 1.2406)),
    "asia-southeast1": (None, (0.41954, 1.4261)),
    "europe-west4": (None, (0.31824, 1.1691)),
    "me-west1": ((0.81342, 3.2273), (0.33516, 1.058)),
    "us-west3": ((0.8882, 3.43686), (0.40554, 1.5648)),
    "us-west4": ((0.8328, 3.10155), (0.33306, 1.2406)),
}
# a2-ultragpu-1g: machine, GPU, 375 GiB of local SSD (libcloud). In other regions the source has
# only the price of reserved capacity.
A2_ULTRA = {"asia-southeast1": 1.35641 + 4.84607 + 375 * 0.0001222}
A3 = {  # a3-highgpu-8g on demand: the machine's price and one GPU's; smaller ones are spot only
    **dict.fromkeys(("us-central1", "us-east4", "us-west1"), (9.46006, 9.79655)),
    "asia-northeast3": (12.14861, 12.58073),
    "asia-south1": (9.83846, 10.18841),
    "europe-west2": (10.78447, 11.16807),
    "europe-west3": (11.16287, 11.55993),
    "europe-west9": (10.97367, 11.364),
    "us-east5": (10.65487, 11.03385),
}
# g2-standard-48 without its GPUs, on demand and spot, and eight L4, on demand and spot: SkyPilot's
# v8/gcp/vms.csv at commit 006059e, read 2026-11-26. The day of its prices is not known.
G2 = {
    **dict.fromkeys(AMERICAS, (1.7615, 0.70483, 4.48032, 1.7848)),
    "asia-east1": (2.03965, 0.53875, 5.18776, 1.8488),
    "asia-northeast1": (2.26212, 1.13069, 5.75363, 2.8512),
    "asia-northeast3": (2.26212, 0.43853, 5.75363, 1.244),
    "asia-south1": (1.83364, 0.73325, 4.66381, 1.8568),
    "asia-southeast1": (2.17317, 0.90422, 5.52737, 1.9824),
    "europe-west1": (1.93959, 0.63552, 4.93328, 1.9248),
    "europe-west2": (2.00562, 0.9289, 5.10123, 2.2776),
    "europe-west3": (2.076, 1.00714, 5.28678, 2.5608),
    "europe-west4": (1.85143, 0.85795, 4.70434, 1.9504),
    "europe-west6": (2.30769, 1.05773, 6.26752, 1.5856),
    "me-central2": (2.81841, 1.04986, 7.16852, 3.116),
    "northamerica-northeast1": (1.93959, 0.60019, 4.93328, 2.0168),
    "northamerica-northeast2": (1.93959, 0.64483, 4.93328, 1.8384),
    "us-east4": (1.75574, 0.70214, 4.46565, 1.7864),
    "us-west4": (1.98398, 0.61498, 5.04619, 1.6824),
}
G2_SIZES = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}


def gcp(compute: Mapping[str, Any]) -> Iterator[Row]:
    yield from n1_standard()
    yield from n1_by_units(unit_prices(compute, "n1"))
    for family, sizes in {"n2": (2, 4, 8, 16, 32, 48, 64, 80, 96), "e2": (2, 4, 8, 16, 32)}.items():
        units = unit_prices(compute, family)
        for size in sizes:
            prices = {r: size * core + 4 * size * gib for r, (core, gib) in units.items()}
            yield f"{family}-standard-{size}", size, 4 * size, "", 0, "on-demand", prices
    for size, count in G2_SIZES.items():
        for market, which in (("on-demand", 0), ("spot", 1)):
            prices = {
                region: size / 48 * units[which] + count / 8 * units[which + 2]
                for region, units in G2.items()
            }
            yield f"g2-standard-{size}", size, 4 * size, "L4", count, market, prices
    yield from a2()
    ssd = compute["gce_disks"]["Local SSD"]["on_demand"]
    for count in (1, 2, 4, 8):
        prices = {}
        if count == 8:  # with the 6000 GiB of local SSD that it always has
            prices = {
                r: m + 8 * g + 6000 * local(ssd, r) for r, (m, g) in A3.items() if local(ssd, r)
            }
        name = f"a3-highgpu-{count}g"
        yield name, 26 * count, 234 * count, "H100", count, "on-demand", prices
    yield "a3-ultragpu-8g", 224, 2952, "H200", 8, "on-demand", {}
    yield "a4-highgpu-8g", 224, 3968, "B200", 8, "on-demand", {}
    for row in GCP_UNPRICED:
        yield (*row, "on-demand", {})


GCP_UNPRICED = (
    # https://cloud.google.com/compute/docs/accelerator-optimized-machines (2026-11-22)
    ("a2-megagpu-16g", 96, 1360, "A100", 16),
    ("a3-megagpu-8g", 208, 1872, "H100", 8),
    ("a3-edgegpu-8g", 208, 1872, "H100", 8),
    ("g4-standard-48", 48, 180, "RTXPRO6000", 1),
    ("g4-standard-96", 96, 360, "RTXPRO6000", 2),
    ("g4-standard-192", 192, 720, "RTXPRO6000", 4),
    ("g4-standard-384", 384, 1440, "RTXPRO6000", 8),
)
"""Machines for which no source has a price."""


def local(ssd: Mapping[str, Any], region: str) -> float:
    """$ per GiB and hour of local SSD; libcloud lacks the Americas (0.08 a month of 730 hours)."""
    return 0.08 / 730 if region in AMERICAS else float((ssd.get(region) or {}).get("price", 0.0))


def n1_standard() -> Iterator[Row]:
    for size in (1, 2, 4, 8, 16, 32, 64, 96):
        for kind, count, gpu in attachable(size, 3.75 * size):
            for market, which in (("on-demand", 0), ("spot", 1)):
                there = N1 if not kind else {r: p for r, p in N1.items() if r in gpu}
                prices = {
                    r: size * p[which] + (count * gpu[r][which] if kind else 0.0)
                    for r, p in there.items()
                }
                yield f"n1-standard-{size}", size, 3.75 * size, kind, count, market, prices


N1_SIZES = {
    # GiB per vCPU (https://cloud.google.com/compute/docs/general-purpose-machines#n1_machines)
    "n1-highmem": {size: 624 if size == 96 else 6.5 * size for size in (2, 4, 8, 16, 32, 64, 96)},
    "n1-highcpu": {size: 0.9 * size for size in (2, 4, 8, 16, 32, 64, 96)},
}
"""Machines of n1 with libcloud's prices per vCPU and GiB: GiB by vCPUs."""


def n1_by_units(units: Mapping[str, tuple[float, float]]) -> Iterator[Row]:
    for family, sizes in N1_SIZES.items():
        for size, memory in sizes.items():
            for kind, count, gpu in attachable(size, memory):
                there = units if not kind else {r: u for r, u in units.items() if r in gpu}
                prices = {
                    r: size * core + memory * gib + (count * gpu[r][0] if kind else 0.0)
                    for r, (core, gib) in there.items()
                }
                yield f"{family}-{size}", size, memory, kind, count, "on-demand", prices


def attachable(vcpus: int, memory: float) -> Iterator[tuple[str, int, dict[str, Any]]]:
    yield "", 0, {}
    for kind, (gpu, limits) in ATTACHED.items():
        for count, (most_vcpus, most_memory) in limits.items():
            if vcpus <= most_vcpus and memory <= most_memory:
                yield kind, count, gpu


def unit_prices(compute: Mapping[str, Any], family: str) -> dict[str, tuple[float, float]]:
    """Region → $ per vCPU and per GiB, from libcloud; it has no us-east1 and us-west1."""
    core = compute["gce_instances"][family]["cpu"]["on_demand"]
    gib = compute["gce_instances"][family]["ram"]["on_demand"]
    known = {
        r: (core[r]["price"], gib[r]["price"]) for r in core if core[r]["price"] and gib[r]["price"]
    }
    return known | dict.fromkeys(AMERICAS, known["us-central1"])


def a2() -> Iterator[Row]:
    for count in (1, 2, 4, 8):
        name = f"a2-highgpu-{count}g"
        for market, which in (("on-demand", 0), ("spot", 1)):
            known = ((region, units[which]) for region, units in A2.items())
            prices: Prices = {region: count * sum(unit) for region, unit in known if unit}
            yield name, 12 * count, 85 * count, "A100", count, market, prices
    for count in (1, 2, 4, 8):
        prices = {region: count * price for region, price in A2_ULTRA.items()}
        yield (
            f"a2-ultragpu-{count}g",
            12 * count,
            170 * count,
            "A100-80GB",
            count,
            "on-demand",
            prices,
        )


# ── Azure ────────────────────────────────────────────────────────────────────

D_SIZES = (2, 4, 8, 16, 32, 48, 64)
EAST = ("eastus", "eastus2", "northcentralus", "westus2", "westus3")
# Standard_D*s_v5 and everything below, each size's own price in the USA: SkyPilot's public catalog
# v8/azure/vms.csv, as forked by coopslarhette/skypilot-catalog (commit 20291d7), read 2026-11-26;
# the day of its prices is not known, so they count as old as the table. Its spot prices are years
# old, a tenth of these, or for H100 those on demand: they are omitted.
# size: centralus, EAST, southcentralus and westcentralus, westus
D_V5 = {
    2: (0.108, 0.096, 0.115, 0.112),
    4: (0.217, 0.192, 0.23, 0.224),
    8: (0.434, 0.384, 0.461, 0.448),
    16: (0.868, 0.768, 0.922, 0.896),
    32: (1.736, 1.536, 1.843, 1.792),
    48: (2.604, 2.304, 2.765, 2.688),
    64: (3.471, 3.072, 3.686, 3.584),
}
T4_V3 = {"centralus": 0.594, "southcentralus": 0.631, "westus": 0.631}
T4_V3 |= dict.fromkeys(EAST, 0.526)
NC6S_V3 = {"centralus": 3.458, "southcentralus": 3.366, "westus": 3.978}
NC6S_V3 |= dict.fromkeys(("eastus", "eastus2", "westus2", "westus3"), 3.06)
H100 = {"southcentralus": 8.38}
H100 |= dict.fromkeys(("centralus", "eastus", "eastus2", "westus3"), 6.98)
# name: vCPUs, GiB, kind, count, prices.
AZURE_READ: dict[str, tuple[float, float, str, int, Prices]] = {
    "Standard_NC4as_T4_v3": (4, 28, "T4", 1, T4_V3),
    "Standard_NC8as_T4_v3": (8, 56, "T4", 1, {
        "centralus": 0.849, "eastus": 0.752, "eastus2": 0.752, "northcentralus": 0.752,
        "southcentralus": 0.902, "westus": 0.902, "westus2": 0.752, "westus3": 0.752,
    }),
    "Standard_NC16as_T4_v3": (16, 110, "T4", 1, {
        "centralus": 1.36, "eastus": 1.204, "eastus2": 1.204, "northcentralus": 1.204,
        "southcentralus": 1.445, "westus": 1.445, "westus2": 1.204, "westus3": 1.204,
    }),
    "Standard_NC64as_T4_v3": (64, 440, "T4", 4, {
        "centralus": 4.907, "eastus": 4.352, "eastus2": 4.352, "northcentralus": 4.352,
        "southcentralus": 5.222, "westus": 5.222, "westus2": 4.352, "westus3": 4.352,
    }),
    "Standard_NC6s_v3": (6, 112, "V100", 1, NC6S_V3),
    "Standard_NC12s_v3": (12, 224, "V100", 2, {
        "centralus": 6.916, "eastus": 6.12, "eastus2": 6.12, "southcentralus": 6.732,
        "westus": 7.956, "westus2": 6.12, "westus3": 6.12,
    }),
    "Standard_NC24s_v3": (24, 448, "V100", 4, {
        "centralus": 13.831, "eastus": 12.24, "eastus2": 12.24, "southcentralus": 13.464,
        "westus": 15.912, "westus2": 12.24, "westus3": 12.24,
    }),
    "Standard_NC24rs_v3": (24, 448, "V100", 4, {
        "centralus": 15.214, "eastus": 13.46, "eastus2": 13.464, "southcentralus": 14.8104,
        "westus": 17.503, "westus2": 13.46, "westus3": 13.46,
    }),
    "Standard_ND40rs_v2": (40, 672, "V100-32GB", 8, {
        "eastus": 22.032, "southcentralus": 26.438, "westus2": 22.032,
    }),
    "Standard_NC24ads_A100_v4": (24, 220, "A100-80GB", 1, {
        "centralus": 4.15, "eastus": 3.673, "eastus2": 3.673, "southcentralus": 4.408,
        "westus": 4.775, "westus2": 3.673, "westus3": 3.673,
    }),
    "Standard_NC48ads_A100_v4": (48, 440, "A100-80GB", 2, {
        "centralus": 8.301, "eastus": 7.346, "eastus2": 7.346, "southcentralus": 8.815,
        "westus": 9.55, "westus2": 7.346, "westus3": 7.346,
    }),
    "Standard_NC96ads_A100_v4": (96, 880, "A100-80GB", 4, {
        "centralus": 16.602, "eastus": 14.692, "eastus2": 14.692, "southcentralus": 17.63,
        "westus": 19.1, "westus2": 14.692, "westus3": 14.692,
    }),
    "Standard_ND96asr_v4": (96, 900, "A100", 8, {
        "eastus": 27.197, "southcentralus": 32.63, "westus2": 27.197,
    }),
    "Standard_ND96amsr_A100_v4": (96, 1924, "A100-80GB", 8, {
        "eastus": 32.77, "eastus2": 32.77, "southcentralus": 39.324, "westus2": 32.77,
    }),
    "Standard_NC40ads_H100_v5": (40, 320, "H100", 1, H100),
    "Standard_NC80adis_H100_v5": (80, 640, "H100", 2, {
        "centralus": 13.96, "eastus": 13.96, "eastus2": 13.96, "southcentralus": 16.76,
        "westus3": 13.96,
    }),
    "Standard_ND96isr_H100_v5": (96, 1900, "H100", 8, {
        "eastus": 98.32, "eastus2": 98.32, "westus": 127.816,
    }),
    "Standard_ND96isr_H200_v5": (96, 1850, "H200", 8, {}),
    "Standard_NV36ads_A10_v5": (36, 440, "A10", 1, {
        "eastus": 3.2, "eastus2": 3.2, "northcentralus": 3.84, "southcentralus": 3.84,
        "westus": 4.16, "westus2": 3.2, "westus3": 3.2,
    }),
}  # fmt: skip


def azure(listed: Mapping[str, Prices]) -> Iterator[Row]:
    for version in ("v3", "v4"):
        for size in D_SIZES:
            name = f"Standard_D{size}s_{version}"
            yield name, size, 4 * size, "", 0, "on-demand", in_libcloud(listed, name)
    for size, (central, east, south, west) in D_V5.items():
        prices = {"centralus": central, "southcentralus": south, "westcentralus": south}
        prices |= {"westus": west} | dict.fromkeys(EAST, east)
        yield f"Standard_D{size}s_v5", size, 4 * size, "", 0, "on-demand", prices
    # Without a price: learn.microsoft.com/azure/virtual-machines/sizes/general-purpose/dsv6-series
    for size in (*D_SIZES, 96, 128):
        yield f"Standard_D{size}s_v6", size, 4 * size, "", 0, "on-demand", {}
    for size in (2, 4, 8, 16, 32, 48, 64, 72):
        name = f"Standard_F{size}s_v2"
        yield name, size, 2 * size, "", 0, "on-demand", in_libcloud(listed, name)
    for name, (vcpus, memory, kind, count, read) in AZURE_READ.items():
        prices = in_libcloud(listed, name) | read
        yield name, vcpus, memory, kind, count, "on-demand", prices


def in_libcloud(listed: Mapping[str, Prices], name: str) -> Prices:
    prices = listed.get(name.replace("_", "").lower(), {})
    return {region: price for region, price in prices.items() if price and "gov" not in region}


if __name__ == "__main__":
    main()
