"""Amazon's GPU machines that are not simply available on demand and as spot. All that are sold on
demand can be reserved. Trainium (trn1, trn2) is also sold in Capacity Blocks, but has no GPU.

tools/generate_docs.py copies the rows to docs/machines.md.
"""

from datetime import date

from cloudtrain.core.cloud import Family

_AWS_OLD = "https://aws.amazon.com/ec2/previous-generation/"
_GRID = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/install-nvidia-driver.html"
_AMD = "its GPUs are AMD's, and TensorFlow's wheels support NVIDIA's only"
_READ = date(2026, 11, 22)
_BLOCKS = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html"
_BLOCKS_READ = date(2026, 11, 24)


def _in_blocks(machines: str, shown: str, kind: str) -> Family:
    """Machines that are also sold in Capacity Blocks, in some regions."""
    return Family(
        machines=machines,
        shown=shown,
        kind=kind,
        markets=("on-demand", "spot", "reservation", "capacity-block"),
        source=_BLOCKS,
        read=_BLOCKS_READ,
    )


FAMILIES = (
    Family(
        machines=r"p2\..*",
        shown="p2",
        kind="K80",
        markets=(),
        instead="g4dn.xlarge",
        source=_AWS_OLD,
        read=_READ,
    ),
    Family(
        machines=r"p3\.(2|8|16)xlarge",
        shown="p3",
        kind="V100",
        markets=(),
        instead="g5.xlarge",
        source="https://github.com/dstackai/gpuhunt/issues/233",
        read=date(2026, 11, 26),
    ),
    Family(
        machines=r"g2\..*",
        shown="g2",
        kind="K520",
        markets=(),
        instead="g4dn.xlarge",
        source=_AWS_OLD,
        read=_READ,
    ),
    Family(
        machines=r"g3s?\..*",
        shown="g3, g3s",
        kind="M60",
        markets=(),
        instead="g4dn.xlarge",
        source=_AWS_OLD,
        read=_READ,
    ),
    Family(
        machines=r"g4ad\..*",
        shown="g4ad",
        kind="V520",
        unfit=_AMD,
        instead="g4dn.xlarge",
        source="https://aws.amazon.com/ec2/instance-types/g4/",
        read=_READ,
    ),
    Family(
        machines=r"g5g\..*",
        shown="g5g",
        kind="T4G",
        arm=True,
        instead="g4dn.xlarge",
        source="https://aws.amazon.com/ec2/instance-types/g5g/",
        read=_READ,
    ),
    Family(
        machines=r"g(r)?6f\..*",
        shown="g6f, gr6f",
        kind="L4",
        unfit="it has a share of one L4, which needs NVIDIA's GRID driver",
        instead="g6.xlarge",
        source=_GRID,
        read=_READ,
    ),
    _in_blocks(r"p4d\.24xlarge", "p4d.24xlarge", "A100"),
    _in_blocks(r"p4de\.24xlarge", "p4de.24xlarge", "A100-80GB"),
    _in_blocks(r"p5\.(4|48)xlarge", "p5.4xlarge, p5.48xlarge", "H100"),
    _in_blocks(r"p5en?\.48xlarge", "p5e.48xlarge, p5en.48xlarge", "H200"),
    _in_blocks(r"p6-b200\.48xlarge", "p6-b200.48xlarge", "B200"),
    _in_blocks(r"p6-b300\.48xlarge", "p6-b300.48xlarge", "B300"),
    Family(
        machines=r"(u-)?p6e-gb[23]00.*",
        shown="p6e-gb200, p6e-gb300",
        kind="GB200",
        markets=("reservation",),
        arm=True,
        instead="p5en.48xlarge",
        source="https://aws.amazon.com/ec2/instance-types/p6/",
        read=_READ,
    ),
)
