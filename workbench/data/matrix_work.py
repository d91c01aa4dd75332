"""Operations of one matrix instruction, by its opcode."""

import re

# Counters of FLOP of the matrix unit by the type of its operands. Those of one sparsity are parts
# of others, and `realtime` is the same once more.
MATRIX_COUNTERS = re.compile(r"sm__ops_path_tensor_src_(?!.*(?:sparsity|realtime))\w+\.sum")

_HMMA = re.compile(r"[HIDQ]MMA\.(?:SP\.)?(\d+)")
_HGMMA = re.compile(r"[HIQ]GMMA\.(?:SP\.)?(\d+)x(\d+)x(\d+)")
_MFMA = re.compile(r"v_s?\w*?(?:mfma|wmma|mfmac|wmmac)\w*?_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?")
_SHAPES = {"884": (8, 8, 4), "1688": (16, 8, 8), "1684": (16, 8, 4), "8816": (8, 8, 16),
           "16816": (16, 8, 16), "16832": (16, 8, 32), "16864": (16, 8, 64),
           "8832": (8, 8, 32)}  # fmt: skip


def opcode_flops(opcode: str) -> int | None:
    """Return the operations of a matrix instruction, two for a multiply-add: of one warp, or of a
    warp group for wgmma. None where a descriptor holds the shape (tcgen05), and for other
    instructions."""
    if wide := _HGMMA.match(opcode):
        return 2 * int(wide[1]) * int(wide[2]) * int(wide[3])
    if amd := _MFMA.match(opcode):
        return 2 * int(amd[1]) * int(amd[2]) * int(amd[3]) * int(amd[4] or 1)
    if (short := _HMMA.match(opcode)) and short[1] in _SHAPES:
        m, n, k = _SHAPES[short[1]]
        return 2 * m * n * k
    return None
