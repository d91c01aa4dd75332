"""A program that reports step times of its own: `python stepping_program.py WITHOUT WITH [END]`.
The clock of its marks is replaced, so that nothing depends on the machine."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import workbench
import workbench.workload
from workbench.workload import step_marks

time_s = 100.0
step_marks.now = lambda: time_s


def main(without, pinned, end=""):
    global time_s
    with_table = bool(os.environ.get("WORKBENCH_TUNED"))
    counter = Path(os.environ.get("RUN_NUMBER_FILE", os.devnull))
    number = len(counter.read_text())
    counter.write_text("x" * (number + 1))
    if step_marks.StepMarks.active is not None:
        step_marks.StepMarks.active._began = time_s
    time_s += 1.0 if with_table else 10.0
    if end == "early":
        sys.exit(4)
    workbench.step()
    busy = Path("busy")  # that of another run is an error
    if end == "alone":
        busy.touch(exist_ok=False)
    for step in range(5):
        time_s += float(pinned if with_table else without) * (1 + 0.0001 * ((number + step) % 3))
        workbench.step()
        workbench.workload.output("loss", 2.0 + 0.25 * with_table)
    workbench.workload.output("same", np.array([1.0, np.nan, np.inf]))
    busy.unlink(missing_ok=True)
    if end == "fail" and with_table:
        sys.exit(3)
    if end == "interrupt" and number == 5:
        os.killpg(os.getpgrp(), signal.SIGINT)  # as a terminal does
        signal.pause()
    print(json.dumps({"steps": 6}))


if __name__ == "__main__":
    main(*sys.argv[1:])
