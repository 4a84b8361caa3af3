"""Programs that take memory from the machine, one for each kind of allocation that the kernel offers.

Each stops at the first refusal, or at `ENOUGH`, holds what it has for a moment, and says how it went.
"""

from __future__ import annotations

ENOUGH = 512 << 20  # what no sandbox of 64 MiB may get; a machine can spare it

BEFORE = f"""
import ctypes, errno, mmap, os, socket, struct, threading, time
ENOUGH, MIB, PAGE = {ENOUGH}, 1 << 20, 4096
libc = ctypes.CDLL(None, use_errno=True)
for name in ("mmap", "mremap"):
    getattr(libc, name).restype = ctypes.c_void_p
size = ctypes.c_size_t
address = ctypes.c_void_p
def check(result):
    if result in (-1, 2**64 - 1):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def call(number, *arguments):
    return check(libc.syscall(ctypes.c_long(number), *arguments))
def mapped(length, flags, fd=-1, protection=3, at=None, offset=0):
    return check(libc.mmap(address(at), size(length), protection, flags, fd, ctypes.c_long(offset)))
def touched(at, length):
    for page in range(at, at + length, PAGE):
        ctypes.c_char.from_address(page).value = b"x"
    return at
def filled(at, length):
    ctypes.memset(address(at), 120, size(length))
    return at
def unmapped(at, length):
    check(libc.munmap(address(at), size(length)))
SHARED, PRIVATE, FIXED, ANONYMOUS, NORESERVE, POPULATE = 1, 2, 16, 32, 0x4000, 0x8000
kept = []
def work():
"""

AFTER = """
try:
    work()
    said = "all of it"
except (OSError, MemoryError, RuntimeError, ValueError) as error:
    said = "refused " + type(error).__name__
try:
    print(said, flush=True)
except MemoryError:
    pass
time.sleep(0.15)
"""

KINDS = {
    "private anonymous maps": """
for _ in range(ENOUGH // MIB):
    kept.append(filled(mapped(MIB, PRIVATE | ANONYMOUS), MIB))
""",
    "maps without a reservation": """
for _ in range(ENOUGH // MIB):
    kept.append(filled(mapped(MIB, PRIVATE | ANONYMOUS | NORESERVE), MIB))
""",
    "the heap": """
libc.sbrk.restype = ctypes.c_void_p
for _ in range(ENOUGH // MIB):
    filled(check(libc.sbrk(ctypes.c_long(MIB))), MIB)
""",
    "objects of Python": """
while True:
    kept.append(b"x" * (MIB // 4))
""",
    "stacks of threads": """
def deep():
    filled(ctypes.addressof(ctypes.create_string_buffer(30 * MIB)), 30 * MIB)
    time.sleep(1)
threading.stack_size(32 * MIB)
for _ in range(15):
    thread = threading.Thread(target=deep, daemon=True)
    thread.start()
    kept.append(thread)
time.sleep(0.3)
""",
    "shared anonymous maps, all but a page unmapped": """
for _ in range(ENOUGH // (8 * MIB)):
    at = filled(mapped(8 * MIB, SHARED | ANONYMOUS), 8 * MIB)
    unmapped(at + PAGE, 8 * MIB - PAGE)
""",
    "shared maps of /dev/zero, all but a page unmapped": """
fd = os.open("/dev/zero", os.O_RDWR)
for _ in range(ENOUGH // (8 * MIB)):
    at = filled(mapped(8 * MIB, SHARED, fd), 8 * MIB)
    unmapped(at + PAGE, 8 * MIB - PAGE)
""",
    "huge pages, all but a page unmapped": """
HUGE = 2 * MIB
for _ in range(ENOUGH // HUGE):
    at = mapped(2 * HUGE, PRIVATE | ANONYMOUS)
    start = -(-at // HUGE) * HUGE
    libc.madvise(address(start), size(HUGE), 14)
    filled(start, HUGE)
    unmapped(start + PAGE, at + 2 * HUGE - start - PAGE)
    if start > at:
        unmapped(at, start - at)
""",
    "page tables": """
HUGE, GIB = 2 * MIB, 1 << 30
for i in range(ENOUGH // (3 * PAGE)):  # each page needs a table of its own, and a table for that
    at = 0x100000000000 + i * GIB
    ctypes.c_char.from_address(mapped(PAGE, PRIVATE | ANONYMOUS | FIXED, at=at)).value = b"x"
""",
    "page tables, by machine code": """
code = mapped(PAGE, PRIVATE | ANONYMOUS, protection=7)
raw = bytes.fromhex(  # for each of 60,000 GiB: map a page there, and write to it
    "55be00100000bd0900000048bf000000000010000053ba0300000031dbeb18904883c301c600014881c7000000404881fb60"
    "ea0000742041ba3200000049c7c0ffffffff4531c94889e80f054885c079cf4889d85b5dc348c7c3ffffffff4889d85b5dc3"
)
ctypes.memmove(code, raw, len(raw))
if ctypes.CFUNCTYPE(ctypes.c_long)(code)() >= 0:
    raise MemoryError
""",
    "page tables of trimmed maps": """
HUGE = 2 * MIB
for i in range(ENOUGH // (2 * PAGE)):
    at = mapped(2 * HUGE, PRIVATE | ANONYMOUS)
    start = -(-at // HUGE) * HUGE
    unmapped(start + PAGE, at + 2 * HUGE - start - PAGE)
    if start > at:
        unmapped(at, start - at)
    ctypes.c_char.from_address(start).value = b"x"
""",
    "page tables, when the first thread has ended": """
GIB = 1 << 30
def sparse():
    time.sleep(0.1)
    for i in range(ENOUGH // (3 * PAGE)):
        ctypes.c_char.from_address(mapped(PAGE, PRIVATE | ANONYMOUS | FIXED, at=0x100000000000 + i * GIB)).value = b"x"
threading.Thread(target=sparse).start()
call(60, 0)
""",
    "files in /tmp beside the heap": """
heap = filled(mapped(24 * MIB, PRIVATE | ANONYMOUS), 24 * MIB)
for i in range(ENOUGH // (8 * MIB)):
    with open(f"/tmp/{i}", "wb", buffering=0) as file:
        for _ in range(32):
            if file.write(bytes(MIB // 4)) < MIB // 4:
                raise OSError("full")
""",
    "unlinked files that are held open": """
heap = filled(mapped(24 * MIB, PRIVATE | ANONYMOUS), 24 * MIB)
for i in range(40):
    fd = os.open(f"/tmp/{i}", os.O_CREAT | os.O_RDWR)
    os.unlink(f"/tmp/{i}")
    kept.append(fd)
    os.posix_fallocate(fd, 0, 8 * MIB)
""",
    "shared maps of files, unmapped": """
heap = filled(mapped(24 * MIB, PRIVATE | ANONYMOUS), 24 * MIB)
for i in range(40):
    fd = os.open(f"/tmp/{i}", os.O_CREAT | os.O_RDWR)
    os.truncate(fd, 8 * MIB)
    at = mapped(8 * MIB, SHARED, fd)
    for page in range(at, at + 8 * MIB, PAGE):
        os.pwrite(fd, b"x", page - at)
    unmapped(at, 8 * MIB)
""",
    "empty files": """
for i in range(ENOUGH // 1024):
    os.close(os.open(f"/tmp/{i:0200}", os.O_CREAT | os.O_WRONLY))
""",
    "folders": """
for i in range(ENOUGH // 1024):
    os.mkdir(f"/tmp/{i:0200}")
""",
    "hard links and symbolic links": """
os.close(os.open("/tmp/a", os.O_CREAT))
for i in range(ENOUGH // 1024):
    os.symlink("x" * 120, f"/tmp/s{i:0200}")
    os.link("/tmp/a", f"/tmp/l{i:0200}")
""",
    "setxattr": """
os.close(os.open("/tmp/a", os.O_CREAT))
for i in range(ENOUGH // 65536):
    os.setxattr("/tmp/a", f"user.{i}", bytes(65536))
""",
    "lsetxattr": """
os.close(os.open("/tmp/a", os.O_CREAT))
for i in range(ENOUGH // 65536):
    os.setxattr("/tmp/a", f"user.{i}", bytes(65536), follow_symlinks=False)
""",
    "fsetxattr": """
fd = os.open("/tmp/a", os.O_CREAT)
for i in range(ENOUGH // 65536):
    os.setxattr(fd, f"user.{i}", bytes(65536))
""",
    "setxattrat": """
fd = os.open("/tmp/a", os.O_CREAT)
value = bytes(65536)
at = ctypes.cast(ctypes.c_char_p(value), address).value
for i in range(ENOUGH // 65536):
    arguments = struct.pack("QII", at, 65536, 0)
    call(463, -100, b"/tmp/a", 0, f"user.{i}".encode(), arguments, size(16))
""",
    "memfd_create": """
fd = os.memfd_create("a")
for _ in range(ENOUGH // MIB):
    os.write(fd, bytes(MIB))
""",
    "memfd_secret": """
fd = call(447, 0)
os.ftruncate(fd, ENOUGH)
kept.append(filled(mapped(8 * MIB, SHARED, fd), 8 * MIB))
""",
    "shared memory of System V": """
shmat = libc.shmat
shmat.restype = ctypes.c_void_p
for _ in range(ENOUGH // (8 * MIB)):
    at = check(shmat(check(libc.shmget(0, size(8 * MIB), 0o1600)), None, 0))
    filled(at, 8 * MIB)
    libc.shmdt(address(at))
""",
    "message queues": """
for i in range(64):
    attributes = struct.pack("qqqqqqqq", 0, 10, 8192, 0, 0, 0, 0, 0)
    queue = check(libc.mq_open(f"/{i}".encode(), os.O_CREAT | os.O_RDWR, 0o600, attributes))
    for _ in range(10):
        check(libc.mq_send(queue, bytes(8192), size(8192), 0))
    kept.append(queue)
""",
    "pipes made larger": """
import fcntl
heap = filled(mapped(24 * MIB, PRIVATE | ANONYMOUS), 24 * MIB)
for _ in range(28):
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, 1031, 4 * MIB)
    except OSError:
        try:
            fcntl.fcntl(write, 1031, MIB)
        except OSError:
            pass
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * PAGE)
    except BlockingIOError:
        pass
""",
    "pages given to pipes": """
HUGE = 2 * MIB
for _ in range(16):
    read, write = os.pipe()
    os.set_blocking(write, False)
    for _ in range(16):
        at = mapped(2 * HUGE, PRIVATE | ANONYMOUS)
        start = -(-at // HUGE) * HUGE
        libc.madvise(address(start), size(HUGE), 14)
        filled(start, HUGE)
        check(libc.vmsplice(write, struct.pack("QQ", start, PAGE), ctypes.c_ulong(1), 2))
        unmapped(at, 2 * HUGE)
""",
    "pages of deleted files in pipes": """
heap = filled(mapped(24 * MIB, PRIVATE | ANONYMOUS), 24 * MIB)
fd = os.open("/tmp/a", os.O_CREAT | os.O_RDWR)
import fcntl
for _ in range(28):
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, 1031, MIB)
    except OSError:
        pass
    os.set_blocking(write, False)
    os.pwrite(fd, b"x" * MIB, 0)
    os.lseek(fd, 0, 0)
    if hasattr(os, "splice"):
        try:
            os.splice(fd, write, MIB)
        except OSError:
            os.sendfile(write, fd, 0, MIB)
    os.ftruncate(fd, 0)
""",
    "buffers of sockets": """
heap = filled(mapped(24 * MIB, PRIVATE | ANONYMOUS), 24 * MIB)
def pair(kind):
    both = socket.socketpair(socket.AF_UNIX, kind)
    for end in both:
        end.setblocking(False)
        for option in (32, 7):
            try:
                end.setsockopt(socket.SOL_SOCKET, option, 64 * MIB)
            except OSError:
                pass
        try:
            for piece in (200_000, 100_000, 4096, 1):
                while end.send(b"x" * piece):
                    pass
        except OSError:
            pass
    return both
refusals = 0
for kind in [socket.SOCK_DGRAM] * 20 + [socket.SOCK_SEQPACKET] * 20 + [socket.SOCK_STREAM] * 30:
    try:
        kept.append(pair(kind))
    except OSError as refusal:
        refusals += 1
if refusals:
    raise OSError(refusals)
""",
    "sockets, files, page tables and the heap together": """
for _ in range(22):
    both = socket.socketpair()
    kept.append(both)
    for end in both:
        end.setblocking(False)
        try:
            while end.send(b"x" * 65536):
                pass
        except BlockingIOError:
            pass
with open("/tmp/a", "wb", buffering=0) as file:
    file.write(bytes(15 * MIB))
for i in range(2000):
    os.mkdir(f"/tmp/{i:0200}")
for i in range(ENOUGH // PAGE):
    at = 0x100000000000 + (i << 30) if i % 4 == 0 else None
    flags = PRIVATE | ANONYMOUS | (FIXED if at else 0)
    ctypes.c_char.from_address(mapped(PAGE, flags, at=at)).value = b"x"
""",
    "sockets in flight": """
heap = filled(mapped(24 * MIB, PRIVATE | ANONYMOUS), 24 * MIB)
carriers = [socket.socketpair() for _ in range(4)]
for i in range(120):
    a, b = socket.socketpair()
    for end in (a, b):
        end.setblocking(False)
        try:
            end.setsockopt(socket.SOL_SOCKET, 7, 16 * MIB)
        except OSError:
            pass
        try:
            while end.send(b"x" * 65536):
                pass
        except BlockingIOError:
            pass
    socket.send_fds(carriers[i % 4][0], [b"x"], [a.fileno(), b.fileno()])
    a.close()
    b.close()
""",
    "sockets nobody accepted": """
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/s")
server.listen(4096)
for _ in range(ENOUGH // 200_000):
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    client.connect("/tmp/s")
    try:
        while client.send(b"x" * 65536):
            pass
    except BlockingIOError:
        pass
    client.close()
""",
    "datagrams of senders that are gone": """
server = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(50)]
for i, each in enumerate(server):
    each.bind(f"/tmp/{i}")
    for _ in range(11):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            try:
                client.sendto(b"x" * 200_000, f"/tmp/{i}")
            except BlockingIOError:
                pass
""",
    "a table of open files for each thread": """
def many():
    try:
        call(436, 3, 2**31 - 1, 2)
        while True:
            both = socket.socketpair()
            kept.append(both)
            for end in both:
                end.setblocking(False)
                try:
                    while end.send(b"x" * 65536):
                        pass
                except BlockingIOError:
                    pass
    except OSError as error:
        failures.append(error)
    time.sleep(1)
failures = []
heap = filled(mapped(16 * MIB, PRIVATE | ANONYMOUS), 16 * MIB)
threading.stack_size(MIB)
for _ in range(12):
    thread = threading.Thread(target=many, daemon=True)
    thread.start()
    kept.append(thread)
time.sleep(1)
raise failures[0]
""",
    "locks on ranges of a file": """
import fcntl
fd = os.open("/tmp/a", os.O_CREAT | os.O_RDWR)
lock = struct.Struct("hhqqi4x")
for i in range(3_000_000, 0, -1):  # from the end, where the kernel's list is quick
    fcntl.fcntl(fd, fcntl.F_SETLK, lock.pack(fcntl.F_WRLCK, 0, 2 * i, 1, 0))
""",
    "a table of futexes": """
check(libc.prctl(78, 1, ctypes.c_ulong(1 << 22), ctypes.c_ulong(0), ctypes.c_ulong(0)))
""",
    "timers": """
identity = ctypes.c_int()
for _ in range(600_000):
    call(222, 1, None, ctypes.byref(identity))
""",
    "waiting signals": """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
information = (ctypes.c_char * 128)()
struct.pack_into("iii", information, 0, 40, 0, -1)
for _ in range(2_000_000):
    call(129, os.getpid(), 40, information)
""",
    "watches of descriptors": """
import select
heap = filled(mapped(24 * MIB, PRIVATE | ANONYMOUS), 24 * MIB)
watchers = [select.epoll() for _ in range(20)]
files = [os.pipe()[0] for _ in range(8)]
for file in files:
    for number in range(40, 60):
        os.dup2(file, number)
        for each in watchers:
            each.register(number)
        os.close(number)
raise OSError("no more")
""",
    "watches of files": """
watchers = [check(libc.inotify_init()) for _ in range(40)]
places = []
for i in range(8000):
    os.close(os.open(f"/tmp/{i}", os.O_CREAT))
for i in range(8000):
    for each in watchers:
        check(libc.inotify_add_watch(each, f"/tmp/{i}".encode(), 2))
""",
    "rules of landlock": """
for _ in range(50):
    rules = call(444, struct.pack("QQ", 0, 3), size(16), 0)
    for port in range(65536):
        call(445, rules, 2, struct.pack("QQ", 1, port), 0)
""",
    "semaphores of System V": """
for _ in range(1000):
    check(libc.semget(0, 32000, 0o1600))
""",
    "contexts of asynchronous input": """
heap = filled(mapped(24 * MIB, PRIVATE | ANONYMOUS), 24 * MIB)
context = ctypes.c_ulong()
for _ in range(64):
    context.value = 0
    call(206, 4096, ctypes.byref(context))
""",
    "arguments of a new program": """
def again():
    os.execv("/nothing", ["x" * 100_000] * 55)
while time.process_time() < 0.5:
    threads = [threading.Thread(target=again) for _ in range(8)]
    for each in threads: each.start()
    for each in threads: each.join()
""",
}

# Nothing is refused: the memory was never there, or is within the limits.
ALLOWED = ("huge pages, all but a page unmapped", "pipes made larger", "arguments of a new program")


def by_number(kind: str) -> bool:
    """Whether it holds numbers of system calls, or machine code, of x86-64."""
    return "call(" in KINDS[kind] or "machine code" in kind


def program(kind: str) -> str:
    body = "".join(f"    {line}\n" for line in KINDS[kind].strip().split("\n"))
    return BEFORE + body + AFTER
