"""Facts of `provider: aws`."""

from pathlib import Path

from cloudtrain.cloud import Cloud, Egress, NodeIdentity, Preemption, TokenQuery
from cloudtrain.providers.aws.families import FAMILIES

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

FACTS = Cloud(
    name="aws",
    title="AWS",
    vendor="Amazon",
    packages=("libcloud", "boto3"),
    project_word="profile",
    project_variable="AWS_PROFILE",
    store_scheme="s3",
    bucket_schemes=("s3", "s3a"),
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
    machines=Path(__file__).parent / "machines.csv",
    gpuhunt="aws",
    default_machine="m6i.xlarge",
    gpu_machines=r"(u-)?(g|gr|p)\d[\w-]*\..+",
    families=FAMILIES,
    first_region="us-east-1",
    egress=EGRESS,
    disk_gb=DISK_GB,
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-store-volumes.html: all with a d
    # after the number, and most with GPUs
    scratch_machines=r"(g\d|gr\d|p\d|[a-z]+\d+[a-z]*d[a-z]*[.-]).+",
    gpu_disk_gb=IMAGE_GB + 50,
    zone=r"(.+-\d+)[a-z]",
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
