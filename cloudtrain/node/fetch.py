"""Downloads a program of another project, and keeps it only if its SHA-256 is the expected one."""

import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request

TRIES = 4
SECONDS = 60
"""Without a byte."""
MOST = 1 << 28


def download(url: str, path: str) -> str:
    """The SHA-256 of what was written to `path`. Raises OSError or HTTPException."""
    found = hashlib.sha256()
    size = 0
    with urllib.request.urlopen(url, timeout=SECONDS) as answer, open(path, "wb") as file:
        while True:
            data = answer.read(1 << 20)
            if not data:
                return found.hexdigest()
            size += len(data)
            if size > MOST:
                raise OSError(f"the answer has more than {MOST} bytes")
            found.update(data)
            file.write(data)


def fetch(url: str, wanted: str, path: str) -> "str | None":
    """Download to `path` as an executable; returns what went wrong, or None."""
    new, why = path + ".new", ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(2**attempt / 2)
        try:
            found = download(url, new)
        except urllib.error.HTTPError as error:
            why = f"{url}: {error}"
            if error.code < 500 and error.code not in (408, 429):
                return why
            continue
        except (OSError, http.client.HTTPException) as error:
            why = f"{url}: {error}"
            continue
        if found != wanted:
            os.unlink(new)
            return f"{url} has the SHA-256 {found}, not {wanted}: it was not run"
        os.chmod(new, 0o755)
        os.rename(new, path)
        return None
    return why


def main() -> None:
    why = fetch(*sys.argv[1:4])
    if why is not None:
        sys.exit(why)


if __name__ == "__main__":
    main()
