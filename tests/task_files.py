"""The example of each format of a task, with its submission."""

from pathlib import Path

TASKS = Path(__file__).parents[1] / "examples" / "tasks"
SOFTPLUS = TASKS / "kernelbench" / "softplus.py"
OF_MODEL = TASKS / "kernelbench" / "softplus_triton.py"
ADD = TASKS / "gpu_mode" / "scaled_add"
NORM = TASKS / "flashinfer_bench" / "definitions" / "norm" / "weighted_rms_norm_h512.json"
SOLUTION = TASKS / "flashinfer_bench" / "solutions" / "rows_in_triton.json"
