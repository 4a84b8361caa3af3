"""The system calls a program cannot make: a small BPF filter, which bubblewrap installs before the program starts.

A program stays one process (threads are allowed), so that limits per process are limits of the run; it has no sockets
but Unix ones, since not every address family ends at a network namespace (vsock reaches the host of a virtual machine);
and memory that no limit counts (System V, memfd) or parts of the kernel with a history of holes are out of its reach.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

LOAD, EQUALS, AT_LEAST, HAS_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in the kernel's seccomp_data
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
CLONE_THREAD = 0x00010000
AF_UNIX = 1
FOREIGN_CALLS = 0x40000000  # numbers from here on are x86-64's second set of calls (x32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What one architecture calls these system calls."""

    architecture: int
    clone: int
    socket: int
    refused: tuple[int, ...]


def numbers(*lists: str) -> tuple[int, ...]:
    return tuple(int(each) for text in lists for each in text.split())


# fork vfork ptrace process_vm_readv process_vm_writev kcmp unshare setns mount umount2 pivot_root chroot
# add_key request_key keyctl bpf perf_event_open userfaultfd memfd_create shmget msgget semget
X86_64 = "57 58 101 310 311 312 272 308 165 166 155 161 248 249 250 321 298 323 319 29 68 64"
AARCH64 = "117 270 271 272 97 268 40 39 41 51 217 218 219 280 241 282 279 194 186 190"  # has no fork and no vfork
# three of io_uring, six of mounting, pidfd_getfd, mount_setattr, memfd_secret: the same on all machines
NEWER = "425 426 427 428 429 430 431 432 433 438 442 447"
CLONE3 = 435
MACHINES = {
    "x86_64": Numbers(architecture=0xC000003E, clone=56, socket=41, refused=numbers(X86_64, NEWER)),
    "aarch64": Numbers(architecture=0xC00000B7, clone=220, socket=198, refused=numbers(AARCH64, NEWER)),
}


def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; `then` and `otherwise` say how many instructions a comparison jumps over."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def refuse(error: int) -> bytes:
    return step(RETURN, REFUSE | error)


def seccomp_filter(machine: str = "") -> bytes | None:
    """The filter for this machine (or the one named); None for an architecture whose calls are not listed here."""
    own = MACHINES.get(machine or platform.machine())
    if own is None:
        return None
    steps = [
        step(LOAD, ARCHITECTURE),
        step(EQUALS, own.architecture, 1, 0),
        step(RETURN, KILL),
        step(LOAD, NUMBER),
        step(AT_LEAST, FOREIGN_CALLS, 0, 1),
        step(RETURN, KILL),
    ]
    for call in own.refused:
        steps += [step(EQUALS, call, 0, 1), refuse(errno.EPERM)]
    steps += [
        step(EQUALS, CLONE3, 0, 1),  # its flags cannot be looked at; without it the C library falls back to clone
        refuse(errno.ENOSYS),
        step(EQUALS, own.clone, 0, 4),
        step(LOAD, FIRST_ARGUMENT),
        step(HAS_BIT, CLONE_THREAD, 0, 1),
        step(RETURN, ALLOW),
        refuse(errno.EPERM),
        step(EQUALS, own.socket, 0, 3),
        step(LOAD, FIRST_ARGUMENT),
        step(EQUALS, AF_UNIX, 1, 0),
        refuse(errno.EAFNOSUPPORT),
        step(RETURN, ALLOW),
    ]
    return b"".join(steps)
