"""The last wave of programs leaves cores idle."""

from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "tail",
    116,
    "The programs make {waves:.2f} waves, and {empty_places} of their places stay empty.",
    above={"waves": 1.0, "empty_places": 0.15},
    evidence={"empty_places": "empty places, share"},
    advice="Make the kernel persistent, or choose a tile whose programs fill their waves.",
    effort="medium",
    gain="empty_places",
    yields_to=("at_ceiling",),
    source="planted kernels on an H200",
)
