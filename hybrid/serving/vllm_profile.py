"""What a request for a profile may ask of a Python profiler."""

from typing import Any, Final

from hybrid.scheduler import InvalidRequest

REFUSED_FIELDS: Final = ("start_step", "num_steps", "record_shapes", "profile_by_stage")
"""Of ``StartProfileRequest``; ``with_stack`` is always so."""
ACTIVITIES: Final = ("CPU",)


def check_profile_request(request: Any) -> None:
    """Refuse what the profile would not show.

    Raises:
        InvalidRequest: names the field.
    """
    for descriptor, value in request.ListFields():
        if descriptor.name in REFUSED_FIELDS and value:
            raise InvalidRequest(
                f"{descriptor.name} is not offered: a profile lasts from StartProfile "
                "to StopProfile",
                field=descriptor.name,
                value=value,
            )
    for activity in request.activities:
        if activity not in ACTIVITIES:
            raise InvalidRequest(
                f"activities has {activity[:64]!r}, must be {', '.join(ACTIVITIES)}",
                field="activities",
                value=activity[:64],
            )
