"""Tells keys, passwords and tokens by their shape: names of variables, values, and files.

The one list for the config file, `import`, the delivery of code, landing and what is shown. Shapes
of values are those that the issuers document, as collected by well-kept scanners (gitleaks,
config/gitleaks.toml; detect-secrets, plugins/; read 2026-11-26). Entropy is not used: Git commits,
digests, UUIDs and encoded settings are no keys.
"""

import os
import re

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    import typing

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_WHEREVER = re.compile(
    r"(?:.*(?:PASSWORDS?|PASSWD|PASSPHRASE|(?:API|ACCESS|ACCOUNT|AUTH|PRIVATE|SECRET)_?KEYS?|"
    r"(?:ACCESS|API|AUTH)_?TOKENS?|CLIENT_?SECRET|CONNECTION_?STRING)|"
    r"(?:.*_)?(?:ADMIN|APP|CLIENT|DEPLOY|ENCRYPTION|HMAC|KAGGLE|LICENSE|MASTER|NGC|SAS|SERVICE|SHARED|"
    r"SIGNING|SSH|STORAGE|SUBSCRIPTION|WANDB)_KEYS?)"
    r"(?!.*_(?:ARN|CACHE|CHARS|COLUMN|COUNT|DIM|DIR|ENABLED|ENV|EXPIRES|EXPIRY|FIELD|FILE|FOLDER|HEADER|"
    r"INDEX|LEN|LENGTH|LIMIT|MAX|MIN|NAMES?|NUM|PATH|PATTERN|POLICY|PROMPT|REGEX|REQUIRED|ROTATION|"
    r"SIZE|TTL|TYPE|URI|URL|VERSION)(?:_|$))(?:_.*)?"
)
"""`API_KEY`, not `LABEL_KEY`, unless what follows says something about the key."""
_LAST = re.compile(
    r"(?:(?:.*_)?(?:TOKEN|SECRETS?|CREDENTIALS?|AUTHORIZATION)|"
    r"(?:.*_)?(?:ADMIN|DB|EMAIL|FTP|HTTP|LDAP|MAIL|MYSQL|PG|POSTGRES|PROXY|REDIS|ROOT|SMTP|SQL|SSH|"
    r"SUDO|USER)_(?:PWD|PASS)|(?:.*_)?(?:ADO|AZDO|DEVOPS|GH|GITHUB|GITLAB)_PAT|"
    r"(?:.*_)?(?:ACCOUNT|AZURE|BLOB|CONTAINER|STORAGE)_SAS)"
    r"(?:_(?:\d+|VALUE|RAW|PLAIN|BASE_64|B_64|JSON|PEM|DEV|STAGING|PROD|OLD|NEW|DEFAULT|CI))*"
)
"""`HF_TOKEN`, `DB_PWD`; `TOKEN_LENGTH` and `PWD` are none."""
_VOCABULARY = re.compile(
    r"(?:.*_)?(?:BOS|BY|CLS|END|EOS|IMAGE|MASK|MAX|MIN|NEXT|NUM|OOV|PAD|PER|PREV|SEP|SPECIAL|START|STOP|"
    r"UNK|UNKNOWN|WORD)_TOKEN(?:_.*)?"
)
_EXACT = {"SSHPASS": True, "DOCKER_AUTH_CONFIG": True, "GOOGLE_APPLICATION_CREDENTIALS": False}
"""What the rules get wrong; the last one's value is a path."""


def looks_like_key_name(name: str) -> bool:
    """True for `WANDB_API_KEY`, `dbPassword`, `HF_TOKEN`; not `MAX_TOKENS`, `TOKEN_LENGTH`."""
    words = "_".join(_WORD.findall(name)).upper()
    if words in _EXACT:
        return _EXACT[words]
    if _WHEREVER.fullmatch(words):
        return True
    return bool(_LAST.fullmatch(words)) and not _VOCABULARY.fullmatch(words)


_STARTS = (
    *((start, "[A-Za-z0-9]{36,}") for start in ("gsk_", "xai-", "pplx-", "r8_")),
    *((start, r"(?:live|test)_\w{10,}") for start in ("sk_", "rk_")),
    *((start, "[a-f0-9]{64}") for start in ("doo_v1_", "dop_v1_", "dor_v1_")),
    ("nvapi-", r"[\w-]{50,}"),
    ("dapi", "[0-9a-f]{32}"),
    ("tgp_v1_", r"[\w-]{40,}"),
    ("lsv2_", r"(?:pt|sk)_\w{32,}"),
    (r"SG\.", r"[\w-]{16,}\.[\w-]{32,}"),
    ("glsa_", r"\w{32,}"),
    (r"hvs\.", r"[\w-]{24,}"),
)
"""Beginning and rest of API keys. Of a pattern whose branches all begin with a letter, `re` tries
only the places that have one of these: `\\b` before them takes six times as long."""
_CONTENT = {
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY|PuTTY-User-Key-File|AGE-SECRET-KEY-1",
    "a Google credential": r"\"type\"\s*:\s*\"(?:service_account|authorized_user)\"",
    "a Google key": r"\bAIza[\w-]{35}|\bGOCSPX-[\w-]{20,}|\bya29\.[\w-]{20,}|\b1//0[\w-]{30,}",
    # docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html, "Unique identifiers"
    "an AWS access key": r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
    "an AWS secret key": r"(?i:aws_secret_access_key|aws_session_token)"
    r"[\"']?\s*[=:]\s*[\"']?[\w/+]",
    "an AWS session token": r"\bIQoJb3JpZ2lu[\w+/=]{60,}",
    "an Azure key": r"(?i:AccountKey|SharedAccessKey)=[\w+/%]{20,}|"
    r"\b[\w~.]{3}[0-9]Q~[\w~.-]{31,34}",
    # docs.github.com, "About authentication to GitHub"; docs.gitlab.com, "Token overview"
    "a GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{22,}",
    "a GitLab token": r"\bgl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[\w-]{20,}",
    "a Hugging Face token": r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}",
    "an API key": r"sk-(?<![\w-]sk-)(?:(?:proj|svcacct|admin|ant-[a-z0-9]+|or-v1|lf)-[\w-]{20,}|"
    r"[A-Za-z0-9]{20,})|"
    + "|".join(start + r"(?<!\w" + start + ")" + rest for start, rest in _STARTS),
    "a package index's token": r"\bpypi-AgE[\w-]{50,}|\bnpm_[A-Za-z0-9]{36}|\bdckr_pat_[\w-]{20,}",
    # api.slack.com/authentication/token-types
    "a Slack token": r"\bxox[abeoprs]-[\w-]{10,}|\bxapp-\d-[\w-]{10,}",
    "a webhook": r"hooks\.slack\.com/(?:services|workflows)/\w+/\w+/\w+|"
    r"webhook\.office\.com/webhookb2/\S{36,}|discord(?:app)?\.com/api/webhooks/\d+/[\w-]{40,}",
}
_PASSING = {
    # RFC 7519, section 3: header and payload are JSON objects, `{"` is `eyJ` in base64url.
    "a JSON web token": r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}",
    "a bearer token": r"\b(?i:Bearer)\s+[\w.~+/-]{20,}",
    # A request that is signed (SAS, presigned URL) is a right in itself.
    "a signed URL": r"[?&;](?:sig=[\w%+/]{40,}|X-(?:Amz|Goog)-Signature=[0-9a-f]{32,})",
    "a URL with a password": r"://[^\s/:@\"'<>]*:(?!\*+@)[^\s/@\"'<>{}$]+@[\w\[]",
}
_IN_FILES = [(what, re.compile(shape)) for what, shape in _CONTENT.items()]
_IN_FILES.append(("an API key", re.compile(r"\b\d{8,10}:AA[\w-]{33}")))
_VALUES = [*_IN_FILES, *((what, re.compile(shape)) for what, shape in _PASSING.items())]
LEAST_VALUE = 12
"""Characters of the shortest value that can match."""


def looks_like_key(value: str) -> bool:
    """True if a key, a password or a token is in a text."""
    return bool(kind_of_key(value))


def kind_of_key(value: str) -> str:
    """`a GitHub token`; empty if none is seen."""
    return _seen(value, _VALUES)


def without_keys(text: str) -> str:
    """The text with `***` in the place of each word with a key; of all, if one has several."""
    for _, given in given_keys(text):
        text = text.replace(given, "***")
    masked = "".join("***" if looks_like_key(word) else word for word in re.split(r"(\s+)", text))
    return "***" if looks_like_key(masked) else masked


_GIVEN = re.compile(r"(?:^|[\s;&|(])(?:(\w+)=|--([\w-]+)(?:=|\s+))(\"[^\"]+\"|'[^']+'|[^\s;&|)]+)")
_SAYS_NOTHING = re.compile(r"|true|false|yes|no|on|off|none|null|[01]|\*+", re.IGNORECASE)
_PATH = re.compile(r"(?:~|\.{1,2})?/.*|\{.*")
_SECRET_KEY = 40
"""Characters of an AWS secret key, which may begin with a slash."""


def given_keys(line: str) -> "list[tuple[str, str]]":
    """Name and text of each key that a shell line gives: `NAME=value`, `--name value`."""
    found = []
    for variable, option, given in _GIVEN.findall(line):
        name, said = variable or option, given.strip("\"'")
        if looks_like_key_name(name) and said[:1] not in ("-", "$") and not is_no_key(said):
            found.append((name, given))
    return found


def is_no_key(text: str) -> bool:
    """True for what a variable called like a key may say instead of one."""
    if _SAYS_NOTHING.fullmatch(text):
        return True
    return bool(_PATH.fullmatch(text)) and len(text) != _SECRET_KEY


def _seen(text: str, shapes: "list[tuple[str, typing.Pattern[str]]]") -> str:
    if len(text) < LEAST_VALUE:
        return ""
    return next((what for what, shape in shapes if shape.search(text)), "")


_NAMED = re.compile(
    r"id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?(?:[-_.](?!pub$|py$)\w+)*|.*\.(?:p12|pfx|ppk|jks|kdbx|keystore)|"
    r"\.(?:netrc|pgpass|pypirc|git-credentials|env|envrc|htpasswd|s3cfg|boto|vault-token)|_netrc|htpasswd|"
    r"\.env\.(?!(?:example|sample|template|dist|defaults?)$).*|.*\.env|"
    r"credentials(?:\.(?:json|ya?ml|toml|ini|cfg|csv|txt|db))?|\.?secrets?(?:\.(?:json|ya?ml|toml|ini|cfg|txt))?|"
    r"kaggle\.json|client_secret.*\.json|(?:.*[-_.])?service[-_]?account.*\.json|"
    r"application_default_credentials\.json|access_tokens\.db|(?:.*[-_])?accessKeys\.csv|rootkey\.csv|"
    r"accessTokens\.json|msal_token_cache\.(?:json|bin)|servicePrincipalProfile\.json|"
    r"kubeconfig|.*\.kubeconfig|authorized_keys|secring\.gpg|rclone\.conf|terraform\.tfstate",
    re.IGNORECASE,
)
"""Names of files that hold keys, passwords or tokens."""
_PLACED = re.compile(
    r"(?:^|/)(?:\.aws/(?:sso|cli)/cache/[^/]+|\.kube/config|\.docker/config\.json|huggingface/token|"
    r"gcloud/(?:legacy_credentials/.+|credentials\.db)|\.ssh/(?!config$|known_hosts)[^/]+(?<!\.pub)|"
    r"private-keys-v1\.d/[^/]+)$"
)
_PAIR = re.compile(r".*\.(?:pem|key)", re.IGNORECASE)
_PUBLIC = re.compile(r"-----BEGIN (?:TRUSTED |X509 )?(?:CERTIFICATE|(?:[A-Z0-9]+ )?PUBLIC KEY)")
_CLIENT = re.compile(r"\.npmrc|\.?condarc|pip\.conf|pip\.ini|\.yarnrc(?:\.yml)?", re.IGNORECASE)
_PASSED = re.compile(
    r"(?m)(?:_authToken|_password|_auth|npmAuthToken)[\"']?\s*[=:]\s*[\"']?[^\s\"'$]"
)
TEXTS = re.compile(
    r"[^.]*|.*\.(?:json|txt|cfg|conf|ini|ya?ml|toml|crt|cer|asc|sh|properties|xml|bak|old)|\.[a-z_-]+rc|"
    r"\.env\..*",
    re.IGNORECASE,
)
"""Names of files in which keys are looked for. A program with a key in it is no file of keys."""
MOST_CONTENT = 16384
"""Bytes of a text that may be a file of keys."""


def key_file_reason(name: str, head: bytes = b"") -> str:
    """Reason why a file is one of keys, by its path and its first bytes; empty if it is none."""
    own = name.rpartition("/")[2]
    if _NAMED.fullmatch(own) or _PLACED.search(name):
        return "a file of keys by its name"
    text = head.decode("latin-1")
    if _PAIR.fullmatch(own) and not (_PUBLIC.search(text) and "PRIVATE KEY" not in text):
        return "a file of keys by its name"
    if _CLIENT.fullmatch(own) and (_PASSED.search(text) or _seen(text, _VALUES)):
        return "has a password in it"
    kind = _seen(text, _IN_FILES) if TEXTS.fullmatch(own) else ""
    return "has " + kind + " in it" if kind else ""


def file_reason(path: bytes, size: int) -> str:
    """The same of a file; one that cannot be read is judged by its name."""
    name = os.fsdecode(path)
    head = b""
    own = name.rpartition("/")[2]
    if 0 < size <= MOST_CONTENT and (TEXTS.fullmatch(own) or _PAIR.fullmatch(own)):
        try:
            with open(path, "rb") as file:
                head = file.read(MOST_CONTENT)
        except OSError:
            pass
    return key_file_reason(name, head)
