"""What the programs of a Mac print, stored as text; no Mac took part."""

import json

# As macOS 14 prints them; the serial number and the names are made up.
DISPLAYS = json.dumps({
    "SPDisplaysDataType": [{
        "_name": "Apple M2 Max",
        "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
        "spdisplays_ndrvs": [{
            "_name": "Studio Display of Alice",
            "_spdisplays_display-serial-number": "C02SECRET",
            "spdisplays_main": "spdisplays_yes",
        }],
        "spdisplays_vendor": "sppci_vendor_Apple",
        "sppci_bus": "spdisplays_builtin",
        "sppci_cores": "30",
        "sppci_device_type": "spdisplays_gpu",
        "sppci_model": "Apple M2 Max",
    }]
})  # fmt: skip
ON_AC = "Now drawing from 'AC Power'\n -InternalBattery-0 (id=4653155)\t100%; charged"
ON_BATTERY = ON_AC.replace("AC Power", "Battery Power").replace("charged", "discharging")
PMSET = """System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 hibernatefile        /var/vm/sleepimage
 powernap             1
 networkoversleep     0
 disksleep            10
 sleep                1 (sleep prevented by powerd)
 lowpowermode         0
 displaysleep         10
"""
PROGRAMS = {
    "system_profiler": DISPLAYS,
    "pmset batt": ON_AC,
    "pmset": PMSET,
    "sysctl": "68719476736",
}


def run(*command, programs=PROGRAMS):
    return programs.get(f"{command[0]} batt" if "batt" in command else command[0])
