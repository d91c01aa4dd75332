"""The fingerprint of a Mac, from stored output of its programs: an allow-list, and refusals."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mac_programs import ON_AC, ON_BATTERY, PMSET, run

from workbench.backend.metal.metal import NoMetal, mac_device
from workbench.data.mac import (
    SETTINGS,
    VERSIONS,
    Mac,
    mac_environment,
    parse_displays,
    parse_low_power,
    parse_power,
    read_mac,
)


def test_a_mac_is_read():
    assert read_mac(run) == Mac("Apple M2 Max", 30, 64 << 30, "ac", False)
    assert read_mac(lambda *command: None) == Mac(None, None, None, None, None)


def test_nothing_but_the_allow_list_leaves_the_machine(monkeypatch):
    environment = mac_environment(read_mac(run), {"architecture": "applegpu_g14s", "x": "secret"})
    assert set(environment.settings) <= set(SETTINGS) and set(environment.versions) <= set(VERSIONS)
    assert environment.settings["architecture"] == "applegpu_g14s"
    assert environment.gpu == "Apple M2 Max" and environment.settings["power"] == "ac"
    for secret in ("C02SECRET", "Alice", "secret", "4653155", "sleepimage"):
        assert secret not in repr(environment)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (PMSET, False), (PMSET.replace("lowpowermode         0", "lowpowermode         1"), True),
        (PMSET.replace("lowpowermode         0", "powermode            1"), True),
        (PMSET.replace("lowpowermode         0", "powermode            2"), False),
        (PMSET.replace(" lowpowermode         0\n", ""), False), ("", None), ("nonsense", None),
    ],
)  # fmt: skip
def test_low_power_mode(text, mode):
    assert parse_low_power(text) is mode


def test_the_power_source():
    assert parse_power(ON_AC) == "ac" and parse_power(ON_BATTERY) == "battery"
    assert parse_power("No battery") is None


@given(
    st.one_of(
        st.text(), st.recursive(st.text() | st.integers() | st.none(), st.lists).map(json.dumps)
    )
)
def test_any_text_is_read_without_an_error(text):
    assert parse_displays(text) == (None, None)
    parse_power(text)
    parse_low_power(text)


@pytest.mark.parametrize(
    ("mac", "word"),
    [
        (Mac("Apple M2", 10, 1, "battery", False), "battery"),
        (Mac("Apple M2", 10, 1, "ac", True), "Low power"),
        (Mac("Apple M2", 10, 1, None, None), "pmset"),
    ],
)
def test_a_mac_on_slow_power_is_refused(mac, word):
    assert word in mac.refusal()
    assert Mac("Apple M2", 10, 1, "ac", False).refusal() is None
    assert Mac("Apple M2", 10, 1, "ac", None).refusal() is None


def test_the_device_has_the_cores_of_this_mac():
    whole = mac_device(Mac("Apple M2 Max", 38, None, "ac", False))
    part = mac_device(Mac("Apple M2 Max", 30, None, "ac", False))
    assert (whole.limits.cores, part.limits.cores) == (38, 30) and part.dram is None
    assert part.peaks["fp32"].value == pytest.approx(whole.peaks["fp32"].value * 30 / 38)
    for chip in (None, "Apple M99", "Intel Iris"):
        with pytest.raises(NoMetal, match="No device file"):
            mac_device(Mac(chip, None, None, "ac", False))
