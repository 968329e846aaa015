"""Which addresses only this machine reaches."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host name or address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
