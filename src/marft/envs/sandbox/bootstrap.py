"""The first code that runs inside the sandbox: it sets the limits, says that it is up, and becomes the program.

Its text is handed to an interpreter that sees nothing of marft, and it imports as little as it can: each run waits for
it. Arguments: a file descriptor to report on, one that says when the program may begin, the number of limits, each limit
as NAME=VALUE, the program's own arguments.
"""

import sys


def run_program(path: str) -> None:
    """Run the program as if the interpreter had been started with it."""
    import _ctypes
    import _signal  # type: ignore[import-not-found]
    import builtins
    import posix  # neither os nor signal, which take milliseconds to load
    import resource
    from _sitebuiltins import Quitter

    # A huge page stays whole while any part of it is mapped, and the limit of the address space counts that part only.
    prctl, disable_huge_pages = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"), 41  # type: ignore[arg-type]
    if _ctypes.call_function(prctl, (disable_huge_pages, 1, 0, 0, 0)) != 0:
        raise OSError("huge pages cannot be switched off")
    report, gate, count = map(int, sys.argv[1:4])
    for pair in sys.argv[4 : 4 + count]:
        name, _, value = pair.partition("=")
        limit = int(value)
        hard = limit + 1 if name == "RLIMIT_CPU" else limit  # in between, it can still say why it ends
        resource.setrlimit(getattr(resource, name), (limit, hard))
    sys.argv[:] = [path, *sys.argv[4 + count :]]
    sys.path.insert(0, "/program")
    for each in ("exit", "quit"):  # the interpreter starts without `site`, which would make them
        setattr(builtins, each, Quitter(each, ""))
    _signal.signal(_signal.SIGXCPU, lambda *_: posix._exit(128 + _signal.SIGXCPU))
    if posix.read(gate, 1) != b"1":  # whoever would have limited the program's memory is gone
        posix._exit(1)
    posix.write(report, b"1")
    for descriptor in (report, gate):
        posix.close(descriptor)
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    space = globals()
    del space["run_program"]
    space["__file__"] = path
    exec(code, space)


if __name__ == "__main__":
    run_program("/program/main.py")
