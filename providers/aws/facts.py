"""Facts of `provider: aws`."""

from datetime import date
from pathlib import Path

from cloudtrain.core.cloud import (
    Cloud,
    DiskPrice,
    Egress,
    NodeIdentity,
    NodeParts,
    Preemption,
    ReservationName,
    ResourceName,
    TagRules,
    TokenQuery,
)
from cloudtrain.providers.aws.ssh_service import SERVICE
from cloudtrain.providers.base.fact_tables import families

FOLDER = Path(__file__).parent

_DIRECTION = "(?:north|south|east|west|central|northeast|northwest|southeast|southwest)"

DISK_GB = 50
IMAGE_GB = 8
"""Smallest image; a disk with GPUs is 50 GB larger than its image."""

EGRESS = Egress(
    regions=0.02,
    internet=0.09,
    # Not from an API: a summary of AWS' pages
    source="https://wring.co/blog/aws-data-transfer-pricing-guide, 2026-11-22",
)

PARTS = NodeParts(
    # gp3: $0.08 for each GB and month, $0.04 for each MiB/s and month above the 125 that are
    # included. Nodes with GPUs have 500 (requests.FASTER).
    disks=(
        DiskPrice(kind="gp3 with 500 MiB/s", gpus=True, per_gb=0.08, fixed=(500 - 125) * 0.04),
        DiskPrice(kind="gp3", per_gb=0.08),
    ),
    address=0.005,
    # Frankfurt and Tokyo by usage types of the price list (EUC1-, APN1-EBS:VolumeP-Throughput.gp3:
    # $0.0476, $0.048)
    regions={
        "us-east-1": 1.0,
        "us-east-2": 1.0,
        "us-west-2": 1.0,
        "eu-central-1": 1.19,
        "ap-northeast-1": 1.2,
    },
    # Not read region by region; the highest known is São Paulo's, 1.9 times (from memory)
    elsewhere=2.0,
    # 50 GB more than the image: those with NVIDIA's driver have 75 GB or less (2026-11)
    gpu_disk_gb=125,
    source="https://aws.amazon.com/ebs/pricing/ and https://aws.amazon.com/vpc/pricing/ "
    "(public IPv4 addresses)",
    read=date(2026, 11, 24),
)

_CR = r"(?P<id>cr-[0-9a-f]{8,17})"
FACTS = Cloud(
    name="aws",
    title="AWS",
    vendor="Amazon",
    packages=("libcloud", "boto3"),
    project_word="profile",
    project_variable="AWS_PROFILE",
    store_scheme="s3",
    identity=NodeIdentity(
        word="the name or ARN of an instance profile",
        example="trainer",
        pattern=r"(?:arn:aws[a-z-]*:iam::\d{12}:instance-profile/(?:[!-.0-~]+/)*)?"
        r"([\w+=,.@-]{1,128})",
        token=TokenQuery(
            address="http://169.254.169.254",
            path="/latest/meta-data/iam/security-credentials/",
            token_path="/latest/api/token",
            token_headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"},
            token_header="X-aws-ec2-metadata-token",
            key="AccessKeyId",
            listed=True,
            source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/"
            "instance-metadata-security-credentials.html",
        ),
        # instanceProfileNameType of botocore's model of IAM
        source="https://docs.aws.amazon.com/IAM/latest/APIReference/API_GetInstanceProfile.html, "
        "2026-11-22",
    ),
    disk_key=ResourceName(
        word="the ID, alias or ARN of a KMS key",
        example="alias/training-disks",
        pattern=r"(?:arn:aws[a-z-]*:kms:(?:[a-z0-9-]+|\{region\}):\d{12}:)?"
        r"((?:key/)?(?:mrk-[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
        r"|alias/[\w/-]{1,250})",
        # EbsBlockDevice.KmsKeyId of botocore's model of EC2
        source="https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_EbsBlockDevice.html, "
        "2026-11-24",
    ),
    vpc=ResourceName(
        word="the ID of a VPC",
        example="vpc-0123456789abcdef0",
        pattern=r"(vpc-[0-9a-f]{8,17})",
        # VpcId of botocore's model of EC2, and the longer IDs of 2018
        source="https://docs.aws.amazon.com/vpc/latest/userguide/how-it-works.html, 2026-11-24",
    ),
    firewall=ResourceName(
        word="the ID of a security group",
        example="sg-0123456789abcdef0",
        pattern=r"(sg-[0-9a-f]{8,17})",
        source="https://docs.aws.amazon.com/vpc/latest/userguide/vpc-security-groups.html, "
        "2026-11-24",
    ),
    most_firewalls=16,
    tags=TagRules(
        # EC2 itself takes more, but other services and organizations' tag policies do not.
        name=r"[\w.:/=+@-][\w .:/=+@-]{0,127}",
        value=r"[\w .:/=+@-]{0,256}",
        words="letters, digits, spaces and `_.:/=+-@`: a name of up to 128, a value of up to 256",
        most=39,
        reserved=("aws:",),
        taken=("Name",),
        # 50 tags each; upper and lower case differ
        source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html, 2026-11-24",
    ),
    markets=("on-demand", "spot", "reservation", "capacity-block"),
    reservations={
        # The ARN of a resource group: botocore's model of Resource Groups (GroupArnV2)
        "reservation": ReservationName(
            word="the id of a Capacity Reservation, or the ARN of a resource group of them",
            example="cr-0123456789abcdef0",
            pattern=_CR
            + r"|(?P<arn>arn:aws[a-z-]*:resource-groups:[a-z0-9-]+:\d{12}:group/[\w./-]+)",
            source="https://docs.aws.amazon.com/AWSEC2/latest/APIReference/"
            "API_CapacityReservationTarget.html, 2026-11-24",
        ),
        # Only UltraServer Capacity Blocks can be in resource groups
        "capacity-block": ReservationName(
            word="the id of a Capacity Block's reservation",
            example="cr-0123456789abcdef0",
            pattern=_CR,
            source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html, "
            "2026-11-24",
        ),
    },
    ssh_proxy=SERVICE,
    machines=FOLDER / "machines.csv",
    gpuhunt="aws",
    default_machine="m6i.xlarge",
    desk_machine="t3.medium",
    project_is_local=True,
    # Signature Version 4 signs the header Host:
    # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    signs_by_host=True,
    address_variables=(
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_EC2",
        "AWS_ENDPOINT_URL_IAM",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL_STS",
    ),
    # By default the metadata service is asked for credentials once, for a second (2026-11-24):
    # https://docs.aws.amazon.com/sdkref/latest/guide/feature-ec2-instance-metadata.html
    desk_variables={"AWS_METADATA_SERVICE_NUM_ATTEMPTS": "5", "AWS_METADATA_SERVICE_TIMEOUT": "5"},
    gpu_machines=r"(u-)?(g|gr|p)\d[\w-]*\..+",
    families=families(FOLDER),
    first_region="us-east-1",
    egress=EGRESS,
    parts=PARTS,
    # The node's own timer, then the schedule that AWS holds (expiry.LATER), to the minute
    end_takes=300.0,
    # InstanceInitiatedShutdownBehavior is `terminate` (requests.py), and its disk goes with it,
    # spot or not: it counts "when you perform a shutdown from the operating system".
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_ChangingInstanceInitiatedShutdownBehavior.html
    # (2026-11-27)
    shutdown_leaves="",
    disk_gb=DISK_GB,
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-store-volumes.html: all with a d
    # after the number, and most with GPUs
    scratch_machines=r"(g\d|gr\d|p\d|[a-z]+\d+[a-z]*d[a-z]*[.-]).+",
    gpu_disk_gb=IMAGE_GB + 50,
    zone=r"(.+-\d+)[a-z]",
    # No region has more than six: https://docs.aws.amazon.com/global-infrastructure/latest/regions/
    zone_names=r".+[a-f]",
    # https://docs.aws.amazon.com/global-infrastructure/latest/regions/aws-regions.html, 2026-11-22
    region=r"(?:af|ap|ca|cn|eu|eusc|il|me|mx|sa|us|us-gov|eu-iso[a-z]|us-iso[a-z]?)-"
    rf"(?:[a-z]{{2}}-)?{_DIRECTION}-\d\d?(?:-[a-z]+-\d)?",
    region_likeness=0.6,
    preemption=Preemption(
        address="http://169.254.169.254",
        path="/latest/meta-data/spot/instance-action",
        token_path="/latest/api/token",
        token_headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"},
        token_header="X-aws-ec2-metadata-token",
        answer=r"[\s\S]+",
        seconds=120.0,
        source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/"
        "spot-instance-termination-notices.html",
    ),
)
