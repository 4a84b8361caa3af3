"""The system calls a program cannot make: a small BPF filter, which bubblewrap installs before the program starts.

A program stays one process (threads are allowed) with one table of open files, so that limits per process are limits of
the run; it has no sockets but pairs of connected ones, since not every address family ends at a network namespace
(vsock reaches the host of a virtual machine); and memory that no limit counts, or parts of the kernel with a history of
holes, are out of its reach. Calls newer than this list do not exist for it.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

LOAD, EQUALS, AT_LEAST, HAS_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in the kernel's seccomp_data
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
CLONE_FILES, CLONE_THREAD = 0x00000400, 0x00010000
CLOSE_RANGE_UNSHARE = 2
MAP_SHARED, MAP_ANONYMOUS, MAP_HUGETLB = 0x1, 0x20, 0x40000
MADVISE_MERGEABLE, MADVISE_HUGEPAGE, MADVISE_COLLAPSE = 12, 14, 25
SET_NAME, GET_NAME, DISABLE_HUGE_PAGES = 15, 16, 41  # of prctl
DUPLICATE, GET_FD, SET_FD, GET_FLAGS, SET_FLAGS, GET_LOCK, DUPLICATE_CLOEXEC = 0, 1, 2, 3, 4, 5, 1030  # of fcntl
AF_UNIX, SOCK_STREAM, SOCKET_TYPE = 1, 1, 0xF
FOREIGN_CALLS = 0x40000000  # numbers from here on are x86-64's second set of calls (x32)

CLONE3, CLOSE_RANGE, UNKNOWN = 435, 436, 443  # the same on all machines; from `UNKNOWN` on nothing is needed
# name, number on x86-64, number on AArch64 (- where it has none)
CALLS = """
clone 56 220
fcntl 72 25
madvise 28 233
mmap 9 222
prctl 157 167
socket 41 198
socketpair 53 199
"""
REFUSED = """
fork 57 -
vfork 58 -
ptrace 101 117
process_vm_readv 310 270
process_vm_writev 311 271
kcmp 312 272
unshare 272 97
setns 308 268
mount 165 40
umount2 166 39
pivot_root 155 41
chroot 161 51
add_key 248 217
request_key 249 218
keyctl 250 219
bpf 321 280
perf_event_open 298 241
seccomp 317 277
modify_ldt 154 -
userfaultfd 323 282
memfd_create 319 279
shmget 29 194
msgget 68 186
semget 64 190
mq_open 240 180
setxattr 188 5
lsetxattr 189 6
fsetxattr 190 7
splice 275 76
tee 276 77
vmsplice 278 75
sendfile 40 71
sendmsg 46 211
sendmmsg 307 269
bind 49 200
listen 50 201
connect 42 203
accept 43 202
accept4 288 242
setsockopt 54 208
io_setup 206 0
inotify_init 253 -
inotify_init1 294 26
fanotify_init 300 262
mbind 237 235
set_mempolicy 238 237
remap_file_pages 216 234
io_uring_setup 425 425
io_uring_enter 426 426
io_uring_register 427 427
open_tree 428 428
move_mount 429 429
fsopen 430 430
fsconfig 431 431
fsmount 432 432
fspick 433 433
pidfd_getfd 438 438
process_madvise 440 440
mount_setattr 442 442
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What one architecture calls these system calls."""

    architecture: int
    calls: dict[str, int]
    refused: dict[str, int]


def parse_column(table: str, index: int) -> dict[str, int]:
    """Numbers by name from one column of a table; `-` is left out."""
    rows = [row.split() for row in table.strip().splitlines()]
    return {row[0]: int(row[index]) for row in rows if row[index] != "-"}


MACHINES = {
    name: Numbers(architecture=architecture, calls=parse_column(CALLS, index), refused=parse_column(REFUSED, index))
    for name, architecture, index in (("x86_64", 0xC000003E, 1), ("aarch64", 0xC00000B7, 2))
}


def instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; `then` and `otherwise` say how many instructions a comparison jumps over."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def load_argument(index: int) -> bytes:
    """Loads an argument of the call."""
    return instruction(LOAD, ARGUMENTS + 8 * index)  # of 64 bits, the lower 32


def return_error(error: int) -> bytes:
    """Ends the filter: the call fails with this errno."""
    return instruction(RETURN, REFUSE | error)


ALLOWED = instruction(RETURN, ALLOW)


def allow_only(values: tuple[int, ...], error: int) -> list[bytes]:
    """Allow what was loaded if it is one of these."""
    return [*(part for value in values for part in (instruction(EQUALS, value, 0, 1), ALLOWED)), return_error(error)]


def refuse_only(values: tuple[int, ...], error: int) -> list[bytes]:
    """Refuse what was loaded if it is one of these."""
    return [*(part for value in values for part in (instruction(EQUALS, value, 0, 1), return_error(error))), ALLOWED]


def argument_rules(own: Numbers) -> dict[int, list[bytes]]:
    """Calls that depend on their arguments; each list ends in a verdict."""
    calls = own.calls
    return {
        # A thread that did not share the table of open files would have as many files again.
        calls["clone"]: [
            load_argument(0), instruction(HAS_BIT, CLONE_THREAD, 0, 2), instruction(HAS_BIT, CLONE_FILES, 0, 1), ALLOWED, return_error(errno.EPERM),
        ],
        CLOSE_RANGE: [load_argument(2), instruction(HAS_BIT, CLOSE_RANGE_UNSHARE, 0, 1), return_error(errno.EPERM), ALLOWED],
        # Pages of shared anonymous memory outlive their part of the address space.
        calls["mmap"]: [
            load_argument(3), instruction(HAS_BIT, MAP_HUGETLB, 2, 0), instruction(HAS_BIT, MAP_ANONYMOUS, 0, 2),
            instruction(HAS_BIT, MAP_SHARED, 0, 1), return_error(errno.ENOMEM), ALLOWED,
        ],
        # A huge page of which one small page is left mapped stays whole.
        calls["madvise"]: [
            load_argument(2), *refuse_only((MADVISE_MERGEABLE, MADVISE_HUGEPAGE, MADVISE_COLLAPSE), errno.EINVAL),
        ],
        calls["prctl"]: [
            load_argument(0), instruction(EQUALS, DISABLE_HUGE_PAGES, 0, 4), load_argument(1), *allow_only((1,), errno.EPERM),
            *allow_only((SET_NAME, GET_NAME), errno.EPERM),
        ],
        # Neither locks, of which a file may have any number, nor larger pipes.
        calls["fcntl"]: [
            load_argument(1),
            *allow_only((DUPLICATE, GET_FD, SET_FD, GET_FLAGS, SET_FLAGS, GET_LOCK, DUPLICATE_CLOEXEC), errno.EPERM),
        ],
        calls["socket"]: [return_error(errno.EAFNOSUPPORT)],
        calls["socketpair"]: [
            load_argument(0), instruction(EQUALS, AF_UNIX, 1, 0), return_error(errno.EAFNOSUPPORT),
            load_argument(1), instruction(AND, SOCKET_TYPE), *allow_only((SOCK_STREAM,), errno.EPROTONOSUPPORT),
        ],
        CLONE3: [return_error(errno.ENOSYS)],  # its flags cannot be looked at; the C library falls back to clone
    }  # fmt: skip


def seccomp_filter(machine: str = "") -> bytes | None:
    """The filter for this machine (or the one named); None for an architecture whose calls are not listed here."""
    own = MACHINES.get(machine or platform.machine())
    if own is None:
        return None
    steps = [
        instruction(LOAD, ARCHITECTURE),
        instruction(EQUALS, own.architecture, 1, 0),
        instruction(RETURN, KILL),
        instruction(LOAD, NUMBER),
        instruction(AT_LEAST, FOREIGN_CALLS, 0, 1),
        instruction(RETURN, KILL),
        instruction(AT_LEAST, UNKNOWN, 0, 1),
        return_error(errno.ENOSYS),
    ]
    for call, verdict in argument_rules(own).items():
        steps += [instruction(EQUALS, call, 0, len(verdict)), *verdict]
    for call in own.refused.values():
        steps += [instruction(EQUALS, call, 0, 1), return_error(errno.EPERM)]
    return b"".join([*steps, ALLOWED])
