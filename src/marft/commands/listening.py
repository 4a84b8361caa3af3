"""Where a server listens, and who may ask it: known before anything heavy is loaded."""

from __future__ import annotations

import ipaddress
import os
import socket

from marft.types import MarftError

TOKEN = "MARFT_TOKEN"  # the environment variable


def require_http() -> None:
    """Raise a MarftError where the HTTP library is missing."""
    try:
        import aiohttp  # noqa: F401
    except ModuleNotFoundError as error:
        raise MarftError(f"marft serve needs {error.name}; pip install 'marft[programs]'") from None


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet: whoever comes before the model is loaded is refused."""
    if not 0 <= port < 1 << 16:  # the system would take the rest of a division
        raise MarftError(f"--port {port}: ports are numbers from 0 to 65535")
    bound = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
        if os.name == "posix":  # a server that has just ended leaves connections behind that hold its port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except UnicodeError:
        raise MarftError(f"--host {host}: not the name of a host") from None
    except OSError as error:
        if bound is not None:
            bound.close()
        raise MarftError(
            f"--host {host} --port {port}: {error.strerror or error}; give another, or --port 0 for a free one"
        ) from None
    return bound


def chosen_token(given: str | None) -> str | None:
    """What clients must know: as it was given, else the environment's; None: nothing."""
    return (os.environ.get(TOKEN) or None) if given is None else given


def check_token(bound: socket.socket, token: str | None) -> None:
    """Raise a MarftError where others than this machine's users could ask without a token."""
    host = bound.getsockname()[0]
    if token is None and not ipaddress.ip_address(host).is_loopback:
        raise MarftError(
            f"--host {host}: other machines reach it, so it needs a token: set {TOKEN} (--token shows it in the list of "
            "processes)"
        )
    if token is not None and (not token.strip() or not token.isascii() or not token.isprintable()):
        raise MarftError(f"{TOKEN}: a token is printable ASCII, and not empty")


def base_url(bound: socket.socket) -> str:
    """The address that clients are given."""
    host, port = bound.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/v1"
