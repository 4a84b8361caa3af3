"""Hostile programs, and what must hold against each of them. Runs as root and as an ordinary user."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from marft.envs.sandbox import Limits, Outcome, require_sandbox, run
from marft.envs.sandbox.limits import MIB
from marft.types import MarftError

REPOSITORY = Path(__file__).parents[3]
SET_CHILD_SUBREAPER = 36
try:
    require_sandbox()
except MarftError as error:
    pytest.skip(str(error), allow_module_level=True)
only_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="names calls by their x86-64 numbers")

EARLIER: list[str] = []


@pytest.fixture(autouse=True, scope="module")
def _nothing_stays_behind() -> Iterator[None]:
    """Whatever outlives its parent becomes our child, where it can be seen."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)
    EARLIER[:] = children()
    before = set(os.listdir("/proc/self/fd"))
    yield
    until = time.monotonic() + 5
    while new_children() and time.monotonic() < until:
        time.sleep(0.05)
    assert new_children() == []
    assert set(os.listdir("/proc/self/fd")) == before
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 0)


def new_children() -> list[str]:
    """Those that other tests did not leave here before: a grader waits for its next question."""
    return [child for child in children() if child not in EARLIER]


def children() -> list[str]:
    """Our children, dead or alive: one that is dead and not buried is left behind, too."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            _, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid():
            found.append(f"{pid} {read(f'/proc/{pid}/cmdline')}")
    return found


def sandboxed(pid: int) -> bool:
    """Whether below this process an interpreter runs in a sandbox: bubblewrap, and its child."""
    generation = [pid]
    for _ in range(2):
        generation = [int(child) for each in generation for child in read(f"/proc/{each}/task/{each}/children").split()]
    return bool(generation)


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def attempt(code: str) -> str:
    """A program that says whether `code` was refused; a system call through `call` counts as refused at -1."""
    body = "".join(f"    {line}\n" for line in code.strip().split("\n"))
    return f"""
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    function = libc.syscall if isinstance(name, int) else getattr(libc, name)
    result = function(*([name] if isinstance(name, int) else []), *arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
try:
{body}except (OSError, ValueError) as error:
    print("refused", type(error).__name__)
else:
    print("ESCAPED")
"""


REFUSED = {
    "a TCP socket": "socket.create_connection(('127.0.0.1', 80), timeout=1)",
    "a UDP socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))",
    "an IPv6 socket": "socket.socket(socket.AF_INET6)",
    "a name server": "socket.getaddrinfo('example.org', 80)",
    "vsock to the host": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "the kernel's crypto sockets": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "the repository": f"os.listdir({str(REPOSITORY)!r})",
    "the host's temporary files": "os.listdir('/var/tmp')",
    "the password file": "open('/etc/passwd').read()",
    "the shadow file": "open('/etc/shadow').read()",
    "the root of process 1": "open('/proc/1/root/etc/passwd').read()",
    "up and out": "open('../../../../../etc/passwd').read()",
    "a symlink out": "os.symlink('/etc/passwd', '/tmp/a')\nopen('/tmp/a').read()",
    "a hard link to the interpreter": "os.link(sys.executable, '/tmp/a')",
    "writing to /": "open('/a', 'w')",
    "writing to /dev": "open('/dev/a', 'w')",
    "writing to /program": "open('/program/main.py', 'a')",
    "a new file in /program": "open('/program/json.py', 'w')",
    "writing into the library": "open(os.__file__, 'a')",
    "a sitecustomize": "open(os.path.join(os.path.dirname(os.__file__), 'sitecustomize.py'), 'w')",
    "a kernel setting": "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/a')",
    "a setting of the namespace": "open('/proc/sys/user/max_user_namespaces', 'w').write('100')",
    "the magic key": "open('/proc/sysrq-trigger', 'w').write('b')",
    "the kernel's memory": "open('/proc/kcore', 'rb').read(1)",
    "becoming root": "os.setuid(0)",
    "becoming somebody else": "os.setresuid(1000, 1000, 1000)",
    "a group": "os.setgroups([0])",
    "chroot": "os.chroot('/tmp')",
    "mount": "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
    "umount": "call('umount2', b'/proc', 2)",
    "remounting / writable": "call('mount', b'none', b'/', None, 32 | 4096, None)",
    "a nested user namespace": "call('unshare', 0x10000000)",
    "a nested mount namespace": "call('unshare', 0x00020000)",
    "another's namespace": "call('setns', os.open('/proc/1/ns/user', os.O_RDONLY), 0)",
    "a device": "os.mknod('/tmp/a', 0o60666, os.makedev(8, 0))",
    "ptrace": "call('ptrace', 16, 1, 0, 0)",
    "tracing oneself": "call('ptrace', 0, 0, 0, 0)",
    "the host's name": "socket.sethostname('a')",
    "reboot": "call('reboot', 0x1234567)",
    "the clock": "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)",
    "a higher memory limit": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "a higher process limit": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (999, 999))",
    "a better priority": "os.nice(-5)",
    "fork": "os.fork()",
    "forkpty": "import pty\npty.fork()",
    "a subprocess": "import subprocess\nsubprocess.run([sys.executable, '-c', ''])",
    "posix_spawn": "os.posix_spawn(sys.executable, [sys.executable, '-c', ''], {})",
    "multiprocessing": "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()",
    "a signal to a foreign process": f"os.kill({os.getpid()}, 9)",
    "a file that is too big": "open('/tmp/a', 'wb').write(bytes(20 << 20))",
    "a sparse file": "os.truncate(os.open('/tmp/a', os.O_CREAT | os.O_RDWR), 1 << 40)",
    "more files than /tmp holds": "for i in range(9): open(f'/tmp/{i}', 'wb').write(bytes(8 << 20))",
    "more open files than allowed": "kept = [open('/dev/null') for _ in range(100)]",
    "locked memory": "call('mlockall', 3)",
    "memory in a memfd": "os.memfd_create('a')",
    "a Unix socket": "socket.socket(socket.AF_UNIX)",
    "a pair of sockets of another family": "socket.socketpair(socket.AF_TIPC, socket.SOCK_STREAM)",
    "a pair of sockets for datagrams": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "a larger buffer": "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)",
    "a descriptor in flight": "a, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])",
    "a larger pipe": "import fcntl\nfcntl.fcntl(os.pipe()[0], 1031, 1 << 20)",
    "a lock on a range of a file": "import fcntl\nfcntl.lockf(open('/tmp/a', 'w'), fcntl.LOCK_EX, 1, 0)",
    "an attribute of a file": "os.close(os.open('/tmp/a', os.O_CREAT))\nos.setxattr('/tmp/a', 'user.a', b'x')",
    "a shared anonymous map": "import mmap\nmmap.mmap(-1, 4096)",
    "/dev/zero": "open('/dev/zero')",
    "another table of open files": "call('close_range', 60, 61, 2)",
    "huge pages": "import mmap\nmmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).madvise(mmap.MADV_HUGEPAGE)",
    "huge pages for the whole process": "call('prctl', 41, 0, 0, 0, 0)",
    "being out of sight": "call('prctl', 4, 0, 0, 0, 0)",
}  # fmt: skip

REFUSED_CALLS = {
    "fork, by number": "call(57)",
    "vfork, by number": "call(58)",
    "clone of a process": "call(56, 17, 0, 0, 0, 0)",
    "clone3": "call(435, ctypes.create_string_buffer(88), 88)",
    "reading the memory of process 1": "call(310, 1, 0, 0, 0, 0, 0)",
    "a descriptor of process 1": "call(438, os.pidfd_open(1), 0, 0)",
    "the keyring": "call(250, 0, -3, 0, 0, 0)",
    "bpf": "call(321, 0, ctypes.create_string_buffer(128), 128)",
    "io_uring": "call(425, 8, ctypes.create_string_buffer(120))",
    "perf events": "call(298, ctypes.create_string_buffer(128), 0, -1, -1, 0)",
    "userfaultfd": "call(323, 1)",
    "shared memory of System V": "call(29, 0, 1 << 30, 0o1600)",
    "message queues of System V": "call(68, 0, 0o1600)",
    "the new mount calls": "call(430, b'tmpfs', 0)",
    "a file by its handle": "call(304, -100, ctypes.create_string_buffer(128), 0)",
    "more timers than allowed": "for _ in range(100): call(222, 1, None, ctypes.byref(ctypes.c_int()))",
    "a thread with its own open files": "call(56, 0x10900, 0, 0, 0, 0)",
    "a call newer than any": "call(463, -100, b'/tmp', 0, b'user.a', ctypes.create_string_buffer(16), 16)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str) -> None:
    outcome = run(attempt(REFUSED[name]))
    assert outcome.stdout.startswith("refused "), outcome
    assert outcome.ended == "ok"


@only_x86_64
@pytest.mark.parametrize("name", REFUSED_CALLS)
def test_the_call_is_refused(name: str) -> None:
    outcome = run(attempt(REFUSED_CALLS[name]))
    assert outcome.stdout.startswith("refused "), outcome


@only_x86_64
@pytest.mark.parametrize("machine_code", ["b802000000cd80c3", "b839000040" + "0f05c3"])  # int 0x80; x32
def test_calls_by_another_door_end_the_program(machine_code: str) -> None:
    outcome = run(f"""
import ctypes, mmap
page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
page.write(bytes.fromhex({machine_code!r}))
print("before", flush=True)
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("ESCAPED")
""")
    assert (outcome.stdout, outcome.ended) == ("before\n", "killed")


def test_servers_outside_are_out_of_reach(tmp_path: Path) -> None:
    path = tmp_path / "s"
    tmp_path.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:  # fmt: skip
        named.bind(str(path))
        path.chmod(0o777)
        abstract.bind(f"\0marft-{os.getpid()}")
        for each in (named, abstract):
            each.listen()
        for code in (
            f"socket.create_connection(('127.0.0.1', {tcp.getsockname()[1]}), timeout=1)",
            f"socket.socket(socket.AF_UNIX).connect({str(path)!r})",
            f"socket.socket(socket.AF_UNIX).connect('\\0marft-{os.getpid()}')",
        ):
            assert run(attempt(code)).stdout.startswith("refused ")


def test_a_file_that_everybody_may_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the expected outputs")
    for folder in (secret, *tmp_path.parents[:3], tmp_path):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o755)
    assert run(attempt(f"open({str(secret)!r}).read()")).stdout == "refused FileNotFoundError\n"


def test_nothing_of_ours_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    outcome = run("""
import os, socket
print(set(os.environ) - {"LC_CTYPE", "MALLOC_ARENA_MAX", "PWD"})
print([pid for pid in os.listdir("/proc") if pid.isdigit()])
print(sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")))
print(os.getresuid(), os.getresgid(), os.getgroups(), socket.gethostname(), os.getcwd())
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print([status[key].strip() for key in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs")])
print([name for name in os.listdir("/sys")] if os.path.exists("/sys") else "no /sys")
print(open("/proc/1/environ").read())
""")
    lines = outcome.stdout.splitlines()
    assert lines[0] == "set()"
    assert lines[1] == "['1']"
    assert lines[2] == "['0', '1', '2'] 4"  # the fourth is the listing itself
    assert lines[3] in (
        "(65534, 65534, 65534) (65534, 65534, 65534) [] sandbox /tmp",
        "(65534, 65534, 65534) (65534, 65534, 65534) [65534] sandbox /tmp",
    )
    assert lines[4] == "['0000000000000000', '0000000000000000', '0000000000000000', '1']"
    assert lines[5] == "no /sys"
    assert "hunter2" not in outcome.stdout


@pytest.mark.parametrize("home", ["/root", "/home", str(Path.home())])
def test_of_the_homes_nothing_but_the_interpreter_is_there(home: str) -> None:
    machine = require_sandbox()
    needed = [Path(path) for path in (*machine.folders, machine.python) if Path(home) in Path(path).parents]
    there = {path.relative_to(home).parts[0] for path in needed}
    outcome = run(f"import os\nprint(sorted(os.listdir({home!r})) if os.path.exists({home!r}) else [])")
    assert outcome.stdout == f"{sorted(there)}\n"


def test_only_tmp_can_be_written() -> None:
    outcome = run("""
import os
for line in open("/proc/mounts"):
    place = line.split()[1]
    if os.path.isdir(place):
        try:
            open(os.path.join(place, "a"), "w")
            print(place)
        except OSError:
            pass
""")
    assert outcome.stdout == "/tmp\n"


def test_no_installed_packages() -> None:
    outcome = run("""
import os, sys
found = []
for prefix in {sys.prefix, "/usr"}:
    for folder, names, files in os.walk(os.path.join(prefix, "lib")):
        if folder.endswith("-packages"):
            found += names + files
print(found, len(os.listdir(os.path.dirname(sys.executable))))
""")
    assert outcome.stdout == "[] 1\n"  # the interpreter is the only program there is


OVER_TIME = {
    "sleeping": "import time; time.sleep(60)",
    "computing": "while True: pass",
    "one long operation": "10 ** 10 ** 9",
    "deaf to every signal": """
import signal, time
for number in set(range(1, 65)) - {9, 19, 32, 33}:
    signal.signal(number, signal.SIG_IGN)
while True: time.sleep(1)""",
    "closing what it could be heard by": "import os, time\nfor fd in range(3): os.close(fd)\ntime.sleep(60)",
    "never ending threads": "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
    "reading what never comes": "import os; r, w = os.pipe(); os.read(r, 1)",
    "never leaving": "import atexit, time; atexit.register(time.sleep, 60)",
    "catching the exit": "try:\n    exit()\nfinally:\n    import time; time.sleep(60)",
}


@pytest.fixture(scope="module")
def late() -> dict[str, Outcome]:
    with ThreadPoolExecutor(4) as pool:
        limits = Limits(seconds=2.0, cpu_seconds=5)
        return dict(zip(OVER_TIME, pool.map(lambda code: run(code, limits=limits), OVER_TIME.values()), strict=True))


@pytest.mark.parametrize("name", OVER_TIME)
def test_it_is_ended_in_time(late: dict[str, Outcome], name: str) -> None:
    assert (late[name].ended, late[name].exit_code) == ("timeout", None)
    assert late[name].seconds >= 2.0


def test_computing_time_is_counted() -> None:
    outcome = run("while True: pass", limits=Limits(seconds=60, cpu_seconds=1))
    assert outcome.ended == "timeout"
    deaf = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert run(deaf, limits=Limits(seconds=60, cpu_seconds=1)).ended == "killed"


@pytest.mark.parametrize(
    "code",
    ["bytearray(2 << 30)", "a = []\nwhile True: a.append(bytes(1 << 20))", "'x' * (4 << 30)", "[0] * 10**9"],
)
def test_memory_bombs(code: str) -> None:
    outcome = run(code, limits=Limits(memory=256 * MIB))
    assert (outcome.ended, outcome.stdout) == ("memory", "")


def test_mapped_memory_counts() -> None:
    code = "import mmap\nkept = [mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(8)]"
    assert run(attempt(code), limits=Limits(memory=256 * MIB)).stdout == "refused OSError\n"


@pytest.mark.parametrize("stream", [1, 2])
def test_output_floods(stream: int) -> None:
    outcome = run(f"import os\nwhile True: os.write({stream}, b'x' * 65536)", limits=Limits(output_bytes=100_000))
    assert outcome.ended == "output"
    assert len(outcome.stdout) == (100_000 if stream == 1 else 0)
    assert len(outcome.stderr) == (4096 if stream == 2 else 0)


def test_output_that_just_fits() -> None:
    outcome = run("print('x' * 99, end='\\n')", limits=Limits(output_bytes=100))
    assert (outcome.ended, len(outcome.stdout)) == ("ok", 100)
    assert run("print('x' * 100, end='\\n')", limits=Limits(output_bytes=100)).ended == "output"


def test_a_program_goes_on_when_nobody_listens() -> None:
    outcome = run("import os\nos.close(1)\ntry:\n    print('x' * 99999, flush=True)\nexcept OSError: os._exit(7)")
    assert (outcome.ended, outcome.exit_code, outcome.stdout) == ("error", 7, "")


THREAD_BOMB = """
import threading, time
started = 0
try:
    while started < 500:
        threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()
        started += 1
except RuntimeError:
    print("refused", started)
"""


def test_a_thread_bomb_is_held_and_hurts_nobody_else() -> None:
    few = "import threading\nfor _ in range(5): threading.Thread(target=print, args=('up',)).start()"
    with ThreadPoolExecutor(9) as pool:
        bombs = [pool.submit(run, THREAD_BOMB, limits=Limits(processes=12))]
        others = [pool.submit(run, few) for _ in range(8)]
    said = bombs[0].result().stdout
    assert said.startswith("refused ")
    assert 5 <= int(said.split()[1]) < 12
    assert all(other.result().stdout.split() == ["up"] * 5 for other in others)


@pytest.mark.parametrize(
    ("code", "ended", "exit_code"),
    [
        ("import sys; sys.exit(0)", "ok", 0),
        ("import sys; sys.exit(3)", "error", 3),
        ("import os; os._exit(0)", "ok", 0),
        ("exit(1)", "error", 1),
        ("raise SystemExit('no')", "error", 1),
        ("1 / 0", "error", 1),
        ("def f(: pass", "error", 1),
        ("f = lambda: f()\nf()", "error", 1),
        ("import os, signal\nfor who in (0, 1): os.kill(who, signal.SIGKILL)", "ok", 0),  # process 1 is deaf to itself
        ("import os, signal\nfor who in (0, 1): os.kill(who, signal.SIGSTOP)", "ok", 0),
        ("import ctypes; ctypes.string_at(0)", "killed", 139),
        ("import os; os.abort()", "killed", 139),
    ],
)
def test_every_end_is_told(code: str, ended: str, exit_code: int) -> None:
    outcome = run(code)
    assert (outcome.ended, outcome.exit_code) == (ended, exit_code)


@pytest.mark.parametrize(
    "code", ["def f(n): return f(n + 1)", "import functools\nf = functools.cache(lambda n: f(n + 1))"]
)
def test_deep_recursion_is_the_programs_own_misfortune(code: str) -> None:
    outcome = run(f"import sys; sys.setrecursionlimit(10**9)\n{code}\nf(0)", limits=Limits(memory=256 * MIB))
    assert outcome.ended in ("memory", "killed", "error")  # where memory ends, so may the traceback


def test_signals_reach_nobody_outside() -> None:
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run(f"import os\nfor pid in [{victim.pid}, {os.getpid()}, -{os.getpgid(0)}, 0, -1]:\n    try: os.kill(pid, 15)\n    except OSError: pass")  # fmt: skip
    assert victim.poll() is None
    victim.communicate(b"\n")
    assert victim.returncode == 0


def test_a_program_does_not_outlive_those_who_run_it() -> None:
    code = "from marft.envs.sandbox import run; print('up', flush=True); run('import time; time.sleep(60)')"
    runner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert runner.stdout is not None
    assert runner.stdout.readline() == "up\n"
    until = time.monotonic() + 10
    while not sandboxed(runner.pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert sandboxed(runner.pid)
    time.sleep(0.5)  # bubblewrap asks to die with its parent only after it has made its child
    runner.kill()
    runner.communicate()
    until = time.monotonic() + 10
    while new_children() and time.monotonic() < until:
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)  # we have inherited what its parent can no longer bury
        time.sleep(0.02)
    assert new_children() == []


def test_its_own_memory_is_its_own() -> None:
    """Writing to one's own memory is allowed and changes nothing for anybody else."""
    assert run("open('/proc/self/mem', 'r+b')\nprint('mine')").stdout == "mine\n"
    assert run("print('the next one is clean')").stdout == "the next one is clean\n"


def test_one_run_leaves_nothing_for_the_next() -> None:
    assert run("open('/tmp/left', 'w').write('x'); print('written')").stdout == "written\n"
    assert run("import os; print(os.listdir('/tmp'))").stdout == "[]\n"


def test_no_file_is_left_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run("open('/tmp/a', 'w').write('x')")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.meta_path.insert(0, None)\nimport json",
        "import builtins\nbuiltins.print = None\nbuiltins.exit = None\nprint(1)",
        "import sys\nsys.stdout = sys.stderr = None\nsys.modules.clear()\n1 / 0",
        "import sys\nsys.excepthook = lambda *a: None\n1 / 0",
    ],
)
def test_a_broken_interpreter_is_an_error_and_no_more(code: str) -> None:
    outcome = run(code)
    assert (outcome.ended, outcome.stdout) == ("error", "")
