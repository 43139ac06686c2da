"""Amazon's GPU machines that are not available both on demand and as spot.

tools/generate_docs.py copies the rows to docs/machines.md.
"""

from datetime import date

from cloudtrain.cloud import Family

_AWS_OLD = "https://aws.amazon.com/ec2/previous-generation/"
_GRID = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/install-nvidia-driver.html"
_AMD = "its GPUs are AMD's, and TensorFlow's wheels support NVIDIA's only"
_READ = date(2026, 11, 22)

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
