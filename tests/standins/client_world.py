"""What a client believes of time and of its network, told by a test while the client runs: a clock
that was set or has slept, and a network that is away. Made here with gcc, for LD_PRELOAD.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "CLOUDTRAIN_TEST_WORLD"
AWAY = {"": 0, "refused": 1, "unresolved": 2}
"""What becomes of a new connection: ECONNREFUSED, or no answer for the host's name (EAI_AGAIN)."""

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

/* Seconds by which the clock was set, seconds slept, what is away, until when (CLOCK_MONOTONIC). */
struct world { double set, slept, away, until; };
static const volatile struct world *told;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOUDTRAIN_TEST_WORLD");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(0, sizeof(struct world), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) told = found;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*ask)(clockid_t, struct timespec *);
    if (!ask) ask = real("clock_gettime");
    int code = ask(which, now);
    if (code || !told) return code;
    if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) now->tv_sec += told->set;
    if (which == CLOCK_BOOTTIME) now->tv_sec += told->slept;
    return code;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict into, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    into->tv_sec = now.tv_sec;
    into->tv_usec = now.tv_nsec / 1000;
    return 0;
}

static int is_away(int how) {
    struct timespec now;
    if (!told || told->away != how) return 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9 < told->until;
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    static int (*ask)(int, const struct sockaddr *, socklen_t);
    if (!ask) ask = real("connect");
    if ((address->sa_family == AF_INET || address->sa_family == AF_INET6) && is_away(1)) {
        errno = ECONNREFUSED;
        return -1;
    }
    return ask(socket, address, length);
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    static int (*ask)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!ask) ask = real("getaddrinfo");
    return is_away(2) ? EAI_AGAIN : ask(host, service, hints, found);
}
"""


@dataclass(frozen=True)
class World:
    """Of the processes that are started with `environment`; `file` is read at each of their calls.
    Any process may `tell`."""

    file: Path

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.file), "LD_PRELOAD": str(self.file.with_suffix(".so"))}

    def tell(
        self, *, clock: float = 0.0, slept: float = 0.0, away: str = "", lasts: float = 0.0
    ) -> None:
        """Their clock is `clock` seconds ahead, they have stood still for `slept` seconds, and for
        `lasts` seconds from now their network is `away`: one of AWAY."""
        told = struct.pack("dddd", clock, slept, AWAY[away], time.monotonic() + lasts)
        with self.file.open("r+b") as file:  # not made anew: it is mapped
            file.write(told)


def made(folder: Path) -> World | None:
    """A world in which nothing is wrong yet; None where there is no gcc."""
    assert " " not in str(folder), "LD_PRELOAD is a list with spaces between its files"
    if shutil.which("gcc") is None:
        return None
    world = World(folder / "world")
    world.file.write_bytes(bytes(32))
    command = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o"]
    library = world.environment["LD_PRELOAD"]
    subprocess.run([*command, library, "-ldl"], input=_SOURCE, text=True, check=True)
    return world
