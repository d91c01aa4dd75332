"""Every Metal kernel on the Metal device, by the cases of the emulator's tests."""

from metal_body import *  # noqa: F403
