"""Tells keys, passwords and tokens by their shape: names of variables, values, and files.

The one list for the config file, `import`, the delivery of code, landing and what is shown. Shapes
of values are those that the issuers document, as collected by well-kept scanners (gitleaks,
config/gitleaks.toml; detect-secrets, plugins/; read 2026-11-26). Entropy is not used: Git commits,
digests, UUIDs and encoded settings are no keys.
"""

import os
import re

# Patterns are texts, compiled by `re` at their first use: all of them take 7 ms.
_WORD = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+"
_WHEREVER = (
    r"(?:.*(?:PASSWORDS?|PASSWD|PASSPHRASE|(?:API|ACCESS|ACCOUNT|AUTH|PRIVATE|SECRET)_?KEYS?|"
    r"(?:ACCESS|API|AUTH)_?TOKENS?|CLIENT_?SECRET|CONNECTION_?STRING)|"
    r"(?:.*_)?(?:ADMIN|APP|CLIENT|DEPLOY|ENCRYPTION|HMAC|KAGGLE|LICENSE|MASTER|NGC|SAS|SERVICE|SHARED|"
    r"SIGNING|SSH|STORAGE|SUBSCRIPTION|WANDB)_KEYS?)"
    r"(?!.*_(?:ARN|CACHE|CHARS|COLUMN|COUNT|DIM|DIR|ENABLED|ENV|EXPIRES|EXPIRY|FIELD|FILE|FOLDER|HEADER|"
    r"INDEX|LEN|LENGTH|LIMIT|MAX|MIN|NAMES?|NUM|PATH|PATTERN|POLICY|PROMPT|REGEX|REQUIRED|ROTATION|"
    r"SIZE|TTL|TYPE|URI|URL|VERSION)(?:_|$))(?:_.*)?"
)
"""`API_KEY`, not `LABEL_KEY`, unless what follows says something about the key."""
_LAST = (
    r"(?:(?:.*_)?(?:TOKEN|SECRETS?|CREDENTIALS?|AUTHORIZATION)|"
    r"(?:.*_)?(?:ADMIN|DB|EMAIL|FTP|HTTP|LDAP|MAIL|MYSQL|PG|POSTGRES|PROXY|REDIS|ROOT|SMTP|SQL|SSH|"
    r"SUDO|USER)_(?:PWD|PASS)|(?:.*_)?(?:ADO|AZDO|DEVOPS|GH|GITHUB|GITLAB)_PAT|"
    r"(?:.*_)?(?:ACCOUNT|AZURE|BLOB|CONTAINER|STORAGE)_SAS)"
    r"(?:_(?:\d+|VALUE|RAW|PLAIN|BASE_64|B_64|JSON|PEM|DEV|STAGING|PROD|OLD|NEW|DEFAULT|CI))*"
)
"""`HF_TOKEN`, `DB_PWD`; `TOKEN_LENGTH` and `PWD` are none."""
_VOCABULARY = (
    r"(?:.*_)?(?:BOS|BY|CLS|END|EOS|IMAGE|MASK|MAX|MIN|NEXT|NUM|OOV|PAD|PER|PREV|SEP|SPECIAL|START|STOP|"
    r"UNK|UNKNOWN|WORD)_TOKEN(?:_.*)?"
)
_EXACT = {"SSHPASS": True, "DOCKER_AUTH_CONFIG": True, "GOOGLE_APPLICATION_CREDENTIALS": False}
"""What the rules get wrong; the last one's value is a path."""


def looks_like_key_name(name: str) -> bool:
    """True for `WANDB_API_KEY`, `dbPassword`, `HF_TOKEN`; not `MAX_TOKENS`, `TOKEN_LENGTH`."""
    words = "_".join(re.findall(_WORD, name)).upper()
    if words in _EXACT:
        return _EXACT[words]
    if re.fullmatch(_WHEREVER, words):
        return True
    return bool(re.fullmatch(_LAST, words)) and not re.fullmatch(_VOCABULARY, words)


_STARTS = (
    *((start, "[A-Za-z0-9]{36,}") for start in ("gsk_", "xai-", "pplx-", "r8_")),
    *((start, r"(?:live|test)_\w{10,}") for start in ("sk_", "rk_")),
    *((start, "[a-f0-9]{64}") for start in ("doo_v1_", "dop_v1_", "dor_v1_")),
    ("nvapi-", r"[\w-]{50,}"),
    ("dapi", "[0-9a-f]{32}"),
    ("tgp_v1_", r"[\w-]{40,}"),
    ("lsv2_", r"(?:pt|sk)_\w{32,}"),
    ("SG.", r"[\w-]{16,}\.[\w-]{32,}"),
    ("glsa_", r"\w{32,}"),
    ("hvs.", r"[\w-]{24,}"),
)
"""Beginning and rest of API keys. Of a pattern whose branches all begin with a letter, `re` tries
only the places that have one of these: `\\b` before them takes six times as long."""


def _api_key(start: str, rest: str) -> str:
    start = start.replace(".", r"\.")
    return start + r"(?<!\w" + start + ")" + rest


_IN_FILES = [
    (
        "a private key",
        "private key|putty-user-key-file|age-secret-key-1",
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY|PuTTY-User-Key-File|AGE-SECRET-KEY-1",
    ),
    (
        "a Google credential",
        "service_account|authorized_user",
        r"\"type\"\s*:\s*\"(?:service_account|authorized_user)\"",
    ),
    (
        "a Google key",
        "aiza|gocspx-|ya29.|1//0",
        r"\bAIza[\w-]{35}|\bGOCSPX-[\w-]{20,}|\bya29\.[\w-]{20,}|\b1//0[\w-]{30,}",
    ),
    # docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html, "Unique identifiers"
    (
        "an AWS access key",
        "akia|asia|abia|acca",
        r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
    ),
    (
        "an AWS secret key",
        "aws_se",
        r"(?i:aws_secret_access_key|aws_session_token)[\"']?\s*[=:]\s*[\"']?[\w/+]",
    ),
    ("an AWS session token", "iqojb3jpz2lu", r"\bIQoJb3JpZ2lu[\w+/=]{60,}"),
    (
        "an Azure key",
        "accountkey=|sharedaccesskey=|q~",
        r"(?i:AccountKey|SharedAccessKey)=[\w+/%]{20,}|\b[\w~.]{3}[0-9]Q~[\w~.-]{31,34}",
    ),
    # docs.github.com, "About authentication to GitHub"; docs.gitlab.com, "Token overview"
    (
        "a GitHub token",
        "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_",
        r"\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{22,}",
    ),
    (
        "a GitLab token",
        "gl",
        r"\bgl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[\w-]{20,}",
    ),
    ("a Hugging Face token", "hf_|api_org_", r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}"),
    (
        "an API key",
        "|".join(["sk-", *(start.lower() for start, _ in _STARTS)]),
        r"sk-(?<![\w-]sk-)(?:(?:proj|svcacct|admin|ant-[a-z0-9]+|or-v1|lf)-[\w-]{20,}|"
        r"[A-Za-z0-9]{20,})|" + "|".join(_api_key(start, rest) for start, rest in _STARTS),
    ),
    (
        "a package index's token",
        "pypi-age|npm_|dckr_pat_",
        r"\bpypi-AgE[\w-]{50,}|\bnpm_[A-Za-z0-9]{36}|\bdckr_pat_[\w-]{20,}",
    ),
    # api.slack.com/authentication/token-types
    ("a Slack token", "xox|xapp-", r"\bxox[abeoprs]-[\w-]{10,}|\bxapp-\d-[\w-]{10,}"),
    (
        "a webhook",
        "hooks.slack.com/|webhook.office.com/|/api/webhooks/",
        r"hooks\.slack\.com/(?:services|workflows)/\w+/\w+/\w+|"
        r"webhook\.office\.com/webhookb2/\S{36,}|discord(?:app)?\.com/api/webhooks/\d+/[\w-]{40,}",
    ),
    ("an API key", ":aa", r"\b\d{8,10}:AA[\w-]{33}"),
]
"""What is seen, what a text with it has when its case is folded, with `|` between, and its pattern:
most texts have none, and compile none of these."""
_VALUES = [
    *_IN_FILES,
    # RFC 7519, section 3: header and payload are JSON objects, `{"` is `eyJ` in base64url.
    ("a JSON web token", "eyj", r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    ("a bearer token", "bearer", r"\b(?i:Bearer)\s+[\w.~+/-]{20,}"),
    # A request that is signed (SAS, presigned URL) is a right in itself.
    (
        "a signed URL",
        "sig=|-signature=",
        r"[?&;](?:sig=[\w%+/]{40,}|X-(?:Amz|Goog)-Signature=[0-9a-f]{32,})",
    ),
    ("a URL with a password", "://", r"://[^\s/:@\"'<>]*:(?!\*+@)[^\s/@\"'<>{}$]+@[\w\[]"),
]
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


_GIVEN = r"(?:^|[\s;&|(])(?:(\w+)=|--([\w-]+)(?:=|\s+))(\"[^\"]+\"|'[^']+'|[^\s;&|)]+)"
_SAYS_NOTHING = r"(?i)|true|false|yes|no|on|off|none|null|[01]|\*+"
_PATH = r"(?:~|\.{1,2})?/.*|\{.*"
_SECRET_KEY = 40
"""Characters of an AWS secret key, which may begin with a slash."""


def given_keys(line: str) -> "list[tuple[str, str]]":
    """Name and text of each key that a shell line gives: `NAME=value`, `--name value`."""
    found = []
    for variable, option, given in re.findall(_GIVEN, line):
        name, said = variable or option, given.strip("\"'")
        if looks_like_key_name(name) and said[:1] not in ("-", "$") and not is_no_key(said):
            found.append((name, given))
    return found


def is_no_key(text: str) -> bool:
    """True for what a variable called like a key may say instead of one."""
    if re.fullmatch(_SAYS_NOTHING, text):
        return True
    return bool(re.fullmatch(_PATH, text)) and len(text) != _SECRET_KEY


def _seen(text: str, shapes: "list[tuple[str, str, str]]") -> str:
    if len(text) < LEAST_VALUE:
        return ""
    folded = text.casefold()
    for what, parts, shape in shapes:
        if any(part in folded for part in parts.split("|")) and re.search(shape, text):
            return what
    return ""


_NAMED = (
    r"(?i)id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?(?:[-_.](?!pub$|py$)\w+)*|.*\.(?:p12|pfx|ppk|jks|kdbx|keystore)|"
    r"\.(?:netrc|pgpass|pypirc|git-credentials|env|envrc|htpasswd|s3cfg|boto|vault-token)|_netrc|htpasswd|"
    r"\.env\.(?!(?:example|sample|template|dist|defaults?)$).*|.*\.env|"
    r"credentials(?:\.(?:json|ya?ml|toml|ini|cfg|csv|txt|db))?|\.?secrets?(?:\.(?:json|ya?ml|toml|ini|cfg|txt))?|"
    r"kaggle\.json|client_secret.*\.json|(?:.*[-_.])?service[-_]?account.*\.json|"
    r"application_default_credentials\.json|access_tokens\.db|(?:.*[-_])?accessKeys\.csv|rootkey\.csv|"
    r"accessTokens\.json|msal_token_cache\.(?:json|bin)|servicePrincipalProfile\.json|"
    r"kubeconfig|.*\.kubeconfig|authorized_keys|secring\.gpg|rclone\.conf|terraform\.tfstate"
)
"""Names of files that hold keys, passwords or tokens."""
_PLACED = (
    r"(?:^|/)(?:\.aws/(?:sso|cli)/cache/[^/]+|\.kube/config|\.docker/config\.json|huggingface/token|"
    r"gcloud/(?:legacy_credentials/.+|credentials\.db)|\.ssh/(?!config$|known_hosts)[^/]+(?<!\.pub)|"
    r"private-keys-v1\.d/[^/]+)$"
)
_PAIR = r"(?i).*\.(?:pem|key)"
_PUBLIC = r"-----BEGIN (?:TRUSTED |X509 )?(?:CERTIFICATE|(?:[A-Z0-9]+ )?PUBLIC KEY)"
_CLIENT = r"(?i)\.npmrc|\.?condarc|pip\.conf|pip\.ini|\.yarnrc(?:\.yml)?"
_PASSED = r"(?m)(?:_authToken|_password|_auth|npmAuthToken)[\"']?\s*[=:]\s*[\"']?[^\s\"'$]"
TEXTS = (
    r"(?i)[^.]*|.*\.(?:json|txt|cfg|conf|ini|ya?ml|toml|crt|cer|asc|sh|properties|xml|bak|old)|\.[a-z_-]+rc|"
    r"\.env\..*"
)
"""Names of files in which keys are looked for. A program with a key in it is no file of keys."""
MOST_CONTENT = 16384
"""Bytes of a text that may be a file of keys."""


def key_file_reason(name: str, head: bytes = b"") -> str:
    """Reason why a file is one of keys, by its path and its first bytes; empty if it is none."""
    own = name.rpartition("/")[2]
    if re.fullmatch(_NAMED, own) or re.search(_PLACED, name):
        return "a file of keys by its name"
    text = head.decode("latin-1")
    if re.fullmatch(_PAIR, own) and not (re.search(_PUBLIC, text) and "PRIVATE KEY" not in text):
        return "a file of keys by its name"
    if re.fullmatch(_CLIENT, own) and (re.search(_PASSED, text) or _seen(text, _VALUES)):
        return "has a password in it"
    kind = _seen(text, _IN_FILES) if re.fullmatch(TEXTS, own) else ""
    return "has " + kind + " in it" if kind else ""


def file_reason(path: bytes, size: int) -> str:
    """The same of a file; one that cannot be read is judged by its name."""
    name = os.fsdecode(path)
    head = b""
    own = name.rpartition("/")[2]
    if 0 < size <= MOST_CONTENT and (re.fullmatch(TEXTS, own) or re.fullmatch(_PAIR, own)):
        try:
            with open(path, "rb") as file:
                head = file.read(MOST_CONTENT)
        except OSError:
            pass
    return key_file_reason(name, head)
