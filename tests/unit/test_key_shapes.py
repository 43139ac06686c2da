"""Keys are known by their shape, and what only sounds like one is none."""

import base64
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core.store_kinds import KINDS
from cloudtrain.node.key_shapes import (
    _VALUES,
    file_reason,
    key_file_reason,
    kind_of_key,
    looks_like_key,
    looks_like_key_name,
)

NAMES = """
WANDB_API_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID AWS_SESSION_TOKEN HF_TOKEN GITHUB_TOKEN TOKEN
HUGGING_FACE_HUB_TOKEN DB_PASSWORD PGPASSWORD PASSWORD MYSQL_PWD SMTP_PASS SSHPASS apiKey
dbPassword wandb_api_key NEPTUNE_API_TOKEN COMET_API_KEY KAGGLE_KEY AZURE_CLIENT_SECRET
AZURE_STORAGE_KEY AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_SAS_TOKEN OPENAI_API_KEY_2
SECRET_KEY MY_SECRET SECRETS API_KEYS GITHUB_PAT SIGNING_KEY DOCKER_AUTH_CONFIG TOKEN_BASE64
GOOGLE_CREDENTIALS WANDBAPIKEY MLFLOW_TRACKING_PASSWORD WANDB_API_KEY_TEAM SSH_PRIVATE_KEY
ACCESS_TOKEN API_TOKENS api-key Passphrase
"""
OTHER_NAMES = """
TOKENIZERS_PARALLELISM KEYBOARD MAX_TOKENS NUM_TOKENS TOKEN_LENGTH PASSWORD_MIN PASSWORD_MIN_LENGTH
KEY LABEL_KEY FEATURE_KEY PUBLIC_KEY SSH_PUBLIC_KEY PAD_TOKEN EOS_TOKEN MASK_TOKEN TOKEN_URL
TOKENIZER PWD OLDPWD FORWARD_PASS PASS PASSES SECRET_NAME API_KEY_FILE PASSWORD_FILE
GOOGLE_APPLICATION_CREDENTIALS AWS_SHARED_CREDENTIALS_FILE MONKEY COMPASS KEYS PATH TF_CONFIG
PYTHONPATH SECRETARY ACCESS_TOKEN_TTL TOKEN_DROPOUT USER AUTHOR CUDA_VISIBLE_DEVICES SORT_KEY BATCH
JAX_PLATFORMS PATTERN LICENSE
"""
_A = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ"  # not at random, so that no scanner is misled by this file
LONG = _A * 5
SIGNED = {
    "gs": "https://storage.googleapis.com/b/o?X-Goog-Expires=60&X-Goog-Signature=" + "0a" * 256,
    "s3": "https://bucket.s3.amazonaws.com/o?X-Amz-Expires=60&X-Amz-Signature=" + "0a" * 32,
    "az": f"https://x.blob.core.windows.net/c?sv=2024-01-01&sig={LONG[:43]}%3D",
}
"""By the scheme of a store, a URL that is a right in itself."""
VALUES = [
    f"AKIA{'IOSFODNN7EXAMPLE'}",
    f"ghp_{LONG[:36]}",
    f"github_pat_{LONG[:82]}",
    f"glpat-{LONG[:20]}",
    f"hf_{'abcdefghij' * 4}"[:37],
    f"sk-{LONG[:48]}",
    f"sk-proj-{LONG[:60]}",
    f"sk-ant-api03-{LONG[:40]}_{LONG[:40]}",
    f"AIza{LONG[:35]}",
    f"ya29.{LONG[:60]}",
    f"xoxb-{'123456789012'}-{LONG[:20]}",
    f"npm_{LONG[:36]}",
    f"pypi-AgE{LONG[:60]}",
    "-----BEGIN RSA PRIVATE KEY-----\nMII",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=" + "a" * 86 + "==",
    *SIGNED.values(),
    '{"type": "service_account", "project_id": "x"}',
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLWhlcmU",
    "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXX",
    "postgres://me:s3cret@db.example.com/x",
    f"Bearer {LONG[:30]}",
    f"--token=ghp_{LONG[:36]}",
]
OTHER_VALUES = [
    "",
    "64",
    "true",
    hashlib.sha1(b"x").hexdigest(),
    hashlib.sha256(b"x").hexdigest(),
    hashlib.sha512(b"x").hexdigest(),
    "sha512-" + base64.b64encode(hashlib.sha512(b"x").digest()).decode(),
    "3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "/home/me/models/mnist/checkpoint-1000/variables/variables.data-00000-of-00001",
    "s3://bucket/a/very/long/prefix/with/Many/Parts0123456789",
    base64.b64encode(json.dumps({"learning_rate": 0.1, "batch": 64}).encode()).decode(),
    "sk-learn-random-forest-classifier-with-many-trees-v2",
    "task-abcdefghijklmnopqrstuvwxyz",
    "https://example.com:8080/a@b",
    "https://me@example.com/x.git",
    "https://user:${PASSWORD}@example.com/",
    "ssh://git@github.com:22/me/x.git",
    "git@github.com:me/x.git",
    "hf_hub_download",
    "ghp_short",
    "-----BEGIN PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----",
    "docker://nvcr.io/nvidia/tensorflow:24.05-tf2-py3",
    "module.submodule.ClassNameWithManyWords.method_name_of_it",
]


def test_names_of_variables_that_have_keys_are_known_and_others_are_not() -> None:
    assert [name for name in NAMES.split() if not looks_like_key_name(name)] == []
    assert [name for name in OTHER_NAMES.split() if looks_like_key_name(name)] == []


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_key_is_known_by_its_value_also_within_a_line(value: str) -> None:
    assert looks_like_key(value)
    assert looks_like_key(f"first {value} last")
    assert kind_of_key(value)


def test_a_signed_url_of_each_kind_of_store_is_known() -> None:
    """As a value, above: node/key_shapes.py has the pattern."""
    assert {kind.scheme for kind in KINDS if kind.package} == {*SIGNED}, "add one to SIGNED here"


def test_what_is_long_and_odd_is_no_key() -> None:
    assert [value for value in OTHER_VALUES if looks_like_key(value)] == []


KEY_FILES = {
    ".env": "",
    "conf/.env.production": "",
    "prod.env": "",
    ".netrc": "",
    "id_rsa": "",
    "id_ed25519_work": "",
    "service-account.json": "",
    "gcp_service_account_prod.json": "",
    "credentials": "",
    "credentials.json": "",
    ".pgpass": "",
    ".pypirc": "",
    "kubeconfig": "",
    ".kube/config": "",
    ".aws/credentials": "",
    ".docker/config.json": "",
    "secrets.toml": "",
    "x/.config/gcloud/application_default_credentials.json": "",
    "x/gcloud/legacy_credentials/me/adc.json": "",
    "key.p12": "",
    "server.key": "-----BEGIN EC PRIVATE KEY-----",
    "chain.pem": "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----",
    "unknown.pem": "\x30\x82",
    "deploy": "-----BEGIN OPENSSH PRIVATE KEY-----\nx",
    "settings.json": '{"type": "service_account", "private_key": "x"}',
    "aws.ini": "[default]\naws_secret_access_key = x",
    "my.yaml": f"token: hf_{'abcdefghij' * 4}"[:45],
    ".npmrc": "//registry.npmjs.org/:_authToken=abcdef",
    "pip.conf": "[global]\nindex-url = https://me:s3cret@pypi.example.com/simple",
    ".env.example": f"TOKEN=ghp_{LONG[:36]}",
}
OTHER_FILES = {
    "train.py": f'TOKEN = "ghp_{LONG[:36]}"',
    "secrets.py": "",
    "id_rsa.pub": "ssh-rsa AAAA",
    "ca.pem": "-----BEGIN CERTIFICATE-----\nMII",
    "added_tokens.json": '{"<pad>": 0}',
    "tokenizer.json": "{}",
    "keyboard.py": "",
    ".env.example": "TOKEN=put-yours-here",
    ".npmrc": "save-exact=true",
    "pip.conf": "[global]\nindex-url = https://pypi.example.com/simple",
    "run.sh": "export AWS_SECRET_ACCESS_KEY=$MY_KEY\npython train.py",
    "envs/config.json": '{"type": "model"}',
    ".ssh/config": "Host x",
    "model.h5": "-----BEGIN PRIVATE KEY-----",
}


def test_files_of_keys_are_known_by_name_or_by_what_is_in_them(tmp_path: Path) -> None:
    def reason(name: str, text: str) -> str:
        return key_file_reason(name, text.encode("latin-1"))

    assert [name for name, text in KEY_FILES.items() if not reason(name, text)] == []
    assert [name for name, text in OTHER_FILES.items() if reason(name, text)] == []
    for name, text in (*KEY_FILES.items(), *OTHER_FILES.items()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="latin-1")
        assert file_reason(bytes(path), path.stat().st_size) == reason(name, text), name


def test_no_file_of_this_project_is_taken_for_one_of_keys() -> None:
    top = Path(__file__).parents[2]
    folders = ("cloudtrain", "providers", "playbooks", "configs", "docs", "examples", "tools")
    files = [path for each in folders for path in (top / each).rglob("*") if path.is_file()]
    assert len(files) > 300
    assert [path for path in files if file_reason(bytes(path), path.stat().st_size)] == []


@pytest.mark.parametrize(("parts", "shape"), [(parts, shape) for _, parts, shape in _VALUES])
@given(data=st.data())
def test_whatever_a_pattern_matches_has_one_of_its_parts(
    parts: str, shape: str, data: st.DataObject
) -> None:
    text = data.draw(st.from_regex(shape))
    assert any(part in text.casefold() for part in parts.split("|"))
