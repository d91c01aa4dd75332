"""Every Metal kernel, emulated in four schedules and checked."""

from metal_body import *  # noqa: F403
