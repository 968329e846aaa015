"""How many connections the kernel lets a process hold."""

import resource

import structlog

log = structlog.get_logger()


def raise_descriptor_limit() -> None:
    """Take as many file descriptors as this process may: each connection needs one.

    What processes start with, usually 1,024, is for those that use ``select``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # Some kernels take no "unlimited" here.
        log.warning("server.few_descriptors", limit=soft)
