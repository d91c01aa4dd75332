"""Metal kernels with one planted fault each, by the classes that the emulator must detect, and
clean ones that a checker is tempted to reject. The line of the fault ends in `//!`.

Every kernel has the inputs x (128 floats) and c (2 floats, so in the address space `constant`), and
the output y (64 floats), unless it says otherwise.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from metal_shim.emulate import CheckName, MetalLaunch
from metal_shim.signature import ArrayType, MetalCall, MetalSource

SYNC, RACE, MEMORY, INIT = CheckName

BEGIN = """
    const uint lid = thread_index_in_threadgroup, lane = thread_index_in_simdgroup;
    const uint sg = simdgroup_index_in_threadgroup, at = thread_position_in_grid.x;
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


@dataclass(frozen=True)
class Bug:
    """A kernel with a fault: the check that must name it and words of its sentence."""

    name: str
    check: CheckName
    says: str
    body: str
    header: str = ""
    group: int = 64
    groups: int = 1

    @property
    def line(self) -> int | None:
        """Number of the marked line of the body or header; None if no line is at fault."""
        for text in (BEGIN + self.body, self.header):
            for number, line in enumerate(text.splitlines(), start=1):
                if line.endswith("//!"):
                    return number
        return None


def launch(
    name: str, body: str, header: str = "", group: int = 64, groups: int = 1, same: str = ""
) -> MetalLaunch:
    """A launch of this body; y has one element for each thread."""
    source = MetalSource(re.sub(r"\W", "_", f"k {name}"), ("x", "c"), ("y",), BEGIN + body, header)
    types = (ArrayType((128,), "fp32"), ArrayType((2,), "fp32"))
    outputs = (ArrayType((group * groups,), "fp32"),)
    x = struct.pack("=128f", *[i / 8 for i in range(128)])
    c = struct.pack("=2f", 1.0, 2.0)
    call = MetalCall(source, types, outputs, {})
    grid = (group * groups, 1, 1)
    return MetalLaunch(call, [x, c], grid, (group, 1, 1), tuple(same.split()))


BUGS = [
    # Bounds
    Bug("read past an input", MEMORY, "outside device memory x: at index 128 of 128", """
    y[at] =
        x[at + 65]; //!
    """),
    Bug("read before an input", MEMORY, "outside device memory x: at index -1", """
    y[at] = x[int(at) - 1]; //!
    """),
    Bug("write past the output", MEMORY, "write of 4 bytes outside device memory y", """
    y[at + 1] = x[at]; //!
    if (lid == 0) y[0] = 0;
    """),
    Bug("read past threadgroup memory", MEMORY, "index 64 is outside the threadgroup array s", f"""
    threadgroup float s[64];
    s[lid] = x[at];
    {BARRIER}
    y[at] = s[lid + 1]; //!
    """),
    Bug("private array", MEMORY, "index 4 is outside an array", """
    float own[4] = {0, 0, 0, 0};
    for (int i = 0; i <= 4; i++)
        own[i] += x[at + i]; //!
    y[at] = own[0] + own[3];
    """),
    Bug("index from data", MEMORY, "is outside an array", """
    float own[4] = {0, 0, 0, 0};
    own[int(x[at])] = 1; //!
    y[at] = own[lane & 3];
    """),
    Bug("misaligned vector", MEMORY, "at an address that is not a multiple", """
    const device float4* p = (const device float4*)(x + (lid & 31) + 1);
    y[at] = p[0].x; //!
    """),
    Bug("misaligned vector of bytes", MEMORY, "4 bytes at an address that is not a mult", """
    const device char4* p = (const device char4*)((const device char*)x + 1);
    const char4 v =
        p[lid]; //!
    y[at] = float(v.x + v.y + v.z + v.w);
    """),
    Bug("write to an input", MEMORY, "write to the input x", """
    y[at] = 1;
    ((device float*)x)[at] = 2; //!
    """),
    Bug("unsigned index below 0", MEMORY,
        "x: at index 4294967295 of 128, which is -1 as an int", """
    y[at] = x[at - 1]; //!
    """),
    Bug("a write that wraps", MEMORY, "outside device memory y: at index 4294967295 of 64", """
    y[at - 1] = x[at]; //!
    """),
    Bug("a product of 32 bits", MEMORY, "device memory x: at index 2147483648 of 128", """
    y[at] = x[at + (1u << 31)]; //!
    """),
    Bug("5 GiB past the end", MEMORY, "device memory y: at index 1342177280 of 64", """
    y[at + (5ul << 28)] = x[at]; //!
    """),
    Bug("far before threadgroup memory", MEMORY, "memory s: at index -1000000 of 64", """
    threadgroup float s[64];
    threadgroup float* p = s;
    p[int(at) - 1000000] = x[at]; //!
    y[at] = 0;
    """),
    # Initialisation
    Bug("minimum over an atomic that nothing set", INIT, "n[0], which nothing has written", f"""
    threadgroup atomic_uint n;
    atomic_fetch_min_explicit(&n, lid, memory_order_relaxed); //!
    {BARRIER}
    y[at] = float(atomic_load_explicit(&n, memory_order_relaxed));
    """),
    Bug("threadgroup memory unset", INIT, "threadgroup memory s[1], which nothing", f"""
    threadgroup float s[64];
    if (lid % 2 == 0) s[lid] = x[at];
    {BARRIER}
    y[at] = s[lid | 1]; //!
    """),
    Bug("output read before it is set", INIT, "device memory y[0], which nothing", """
    y[at] += x[at]; //!
    """),
    Bug("half of the output", INIT, "output y[32] was never written, nor 31", """
    if (lid < 32) y[at] = x[at];
    """),
    Bug("local variable unset", INIT, "uninitialized", """
    float total;
    for (uint i = lid; i < 64; i += 64)
        total += x[i]; //!
    y[at] = total;
    """),
    # Races
    Bug("no barrier", RACE, "race on threadgroup memory s[", """
    threadgroup float s[64];
    s[lid] = x[at];
    y[at] = s[63 - lid]; //!
    """),
    Bug("barrier of device memory", RACE, "no barrier of mem_threadgroup between", """
    threadgroup float s[64];
    s[lid] = x[at];
    threadgroup_barrier(mem_flags::mem_device);
    y[at] = s[63 - lid]; //!
    """),
    Bug("barrier of no memory", RACE, "no barrier of mem_threadgroup between", """
    threadgroup float s[64];
    s[lid] = x[at];
    threadgroup_barrier(mem_flags::mem_none);
    y[at] = s[63 - lid]; //!
    """),
    Bug("barrier of one SIMD-group", RACE, "race on threadgroup memory s[", """
    threadgroup float s[64];
    s[lid] = x[at];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    y[at] = s[63 - lid]; //!
    """),
    Bug("scratch used again", RACE, "and thread", f"""
    threadgroup float s[2];
    if (lane == 0) s[sg] = x[at];
    {BARRIER}
    const float v = s[0] + s[1];
    if (lane == 0) s[sg] = v; //!
    {BARRIER}
    y[at] = s[1 - sg];
    """),
    Bug("barriers of another SIMD-group", RACE, "race on threadgroup memory s[", """
    threadgroup float s[64];
    s[lid] = x[at];
    y[at] = 0;
    if (sg == 1) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        y[at] = s[63 - lid]; //!
    }
    """),
    Bug("two readers, then a writer", RACE, "read it, with no barrier", f"""
    threadgroup float s[2];
    if (lid == 0) s[0] = 1;
    {BARRIER}
    const float v = s[0];
    if (lid == 63) s[0] = v + 1; //!
    y[at] = v;
    """),
    Bug("device memory after the other barrier", RACE, "no barrier of mem_device", f"""
    y[at] = x[at];
    {BARRIER}
    const float v = y[63 - lid]; //!
    threadgroup_barrier(mem_flags::mem_device);
    y[at] = v;
    """),
    Bug("two threadgroups write one element", RACE, "nothing orders two threadgroups", """
    y[at] = x[lid];
    y[0] = 1; //!
    """, group=1, groups=2),
    Bug("one threadgroup reads what another writes", RACE, "nothing orders two threadgroups", """
    y[at] = x[lid];
    threadgroup_barrier(mem_flags::mem_device);
    if (y[(at + 64) % 128] > 2) y[at] = 0; //!
    """, groups=2),
    Bug("plain access beside atomics", RACE, "race on threadgroup memory n", f"""
    threadgroup atomic_uint n;
    if (lid == 0) atomic_store_explicit(&n, 0u, memory_order_relaxed);
    {BARRIER}
    atomic_fetch_add_explicit(&n, 1u, memory_order_relaxed);
    y[at] = float(*(threadgroup uint*)&n); //!
    """),
    Bug("plain clear, then atomics of two SIMD-groups", RACE, "race on threadgroup memory n", f"""
    threadgroup atomic_uint n;
    if (lid == 0) *(threadgroup uint*)&n = 0;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&n, 1u, memory_order_relaxed); //!
    {BARRIER}
    y[at] = float(atomic_load_explicit(&n, memory_order_relaxed));
    """),
    Bug("bytes of one element", RACE, "race on device memory y[", """
    device uchar* p = (device uchar*)y;
    y[at] = 0;
    p[(lid ^ 1) * 4] = 1; //!
    """),
    # Synchronisation
    Bug("a thread returns before the barrier", SYNC, "reached by 63 of 64 threads; thread 5", f"""
    y[at] = x[at];
    if (lid == 5) return;
    {BARRIER} //!
    """),
    Bug("two barriers", SYNC, "waits at this barrier and thread", f"""
    y[at] = x[at];
    if (lid < 32) {{
        {BARRIER} //!
    }} else {{
        {BARRIER}
    }}
    """),
    Bug("uneven loop", SYNC, "threadgroup_barrier reached by 32 of 64 threads", f"""
    y[at] = x[at];
    for (uint i = 0; i < 1 + sg; i++)
        {BARRIER} //!
    """),
    Bug("half a SIMD-group at its barrier", SYNC, "simdgroup_barrier reached by 16 of 32", """
    y[at] = x[at];
    if (lane < 16)
        simdgroup_barrier(mem_flags::mem_threadgroup); //!
    """),
    Bug("value of an inactive lane", SYNC, "taken from lane 20, which is not active", """
    float v = x[at];
    if (lane < 16)
        v = simd_shuffle(v, 20); //!
    y[at] = v;
    """),
    Bug("matrix of half a SIMD-group", SYNC, "reached by 16 of 32 lanes", """
    y[at] = x[at];
    simdgroup_matrix<float, 8, 8> m;
    if (lane < 16)
        simdgroup_load(m, x, 8); //!
    """),
    Bug("endless loop with accesses", SYNC, "no end after", """
    float v = x[at];
    while (v >= 0)
        y[at] = v += c[0]; //!
    """),
    Bug("endless loop without accesses", SYNC, "no end after", """
    volatile int n = 1;
    while (n) {}
    y[at] = 0;
    """),
    # Limits and arithmetic
    Bug("36 KiB of threadgroup memory", MEMORY, "36000 bytes of threadgroup memory with s", """
    threadgroup float s[9000]; //!
    s[lid] = x[at];
    y[at] = s[lid];
    """),
    Bug("a product overflows", MEMORY, "product overflows", """
    const int big = 65536 + int(lid);
    y[at] =
        float(big * big); //!
    """),
    Bug("a sum overflows", MEMORY, "sum overflows", """
    const int big = 2147483600;
    y[at] = float(big + int(lid)); //!
    """),
    Bug("division by zero", MEMORY, "division of an integer by zero", """
    y[at] = float(64 / (int(lid) - 3)); //!
    """),
    Bug("float outside int", MEMORY, "outside the range of the integer", """
    y[at] = float(int(x[at] + 1e12f)); //!
    """),
    Bug("wild pointer", MEMORY, "an address far from every buffer", """
    y[at] = *(const device float*)(ulong(at) + 123456789012ul); //!
    """),
    Bug("address near zero", MEMORY, "an address far from every buffer", """
    y[at] = *(const device float*)(ulong(at) * 4 + 4); //!
    """),
    Bug("fault in a helper", MEMORY, "outside device memory x", """
    y[at] = second(x + at);
    """, header="""
float second(const device float* p) {
    return p[120]; //!
}
"""),
]  # fmt: skip

CLEAN = {
    "scratch of one SIMD-group": """
    threadgroup float s[64];
    s[lid] = x[at];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const float v = s[sg * 32] + s[sg * 32 + 31 - lane];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    s[lid] = v;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    y[at] = s[lid ^ 1];
    """,
    "many readers, then a writer": f"""
    threadgroup float s[64];
    s[lid] = x[at];
    {BARRIER}
    const float v = s[0] + s[40];
    {BARRIER}
    if (lid == 0) s[0] = v;
    {BARRIER}
    y[at] = s[0];
    """,
    "histogram of atomics": f"""
    threadgroup atomic_uint n[4];
    if (lid < 4) atomic_store_explicit(&n[lid], 0u, memory_order_relaxed);
    {BARRIER}
    atomic_fetch_add_explicit(&n[lid & 3], 1u, memory_order_relaxed);
    {BARRIER}
    y[at] = float(atomic_load_explicit(&n[lid & 3], memory_order_relaxed));
    """,
    "divergent sums of active lanes": """
    float v = x[at];
    if (lane < 7) v = simd_sum(v);
    else v = simd_max(v);
    y[at] = v;
    """,
    "swizzles and as_type": """
    float4 v = float4(x[at], 1, float2(2, 3));
    v.xy = v.wz;
    auto f = [&](float t) { return t * v.x; };
    y[at] = f(as_type<float>(as_type<uint>(v.y)));
    """,
    "a value of an absent lane that nobody uses": """
    float v = x[at];
    if (lane < 27) {
        const float other = simd_shuffle_down(v, 5);
        v += lane < 22 ? other : 0.0f;
    }
    y[at] = v;
    """,
    "16-bit arithmetic": """
    half h = half(x[at]) * half(2) + half(1);
    bfloat b = bfloat(x[at]) * bfloat(2);
    y[at] = float(h) + float(b) + float(max(h, half(0)));
    """,
    "uniform barrier in a loop": f"""
    threadgroup float s[64];
    float v = x[at];
    for (uint step = 32; step > 0; step /= 2) {{
        s[lid] = v;
        {BARRIER}
        v += lid < step ? s[lid + step] : 0.0f;
        {BARRIER}
    }}
    y[at] = v;
    """,
    "bytes of one thread's own element": """
    y[at] = 0;
    device uchar* p = (device uchar*)(y + at);
    p[1] = 1;
    p[2] = 2;
    """,
    "unsigned numbers wrap": """
    const uint v = 4294967295u - lid + 64u;
    y[at] = float(v);
    """,
    "prefix sums and votes": """
    const uint before = simd_prefix_exclusive_sum(lane % 2);
    y[at] = float(before + popcount(uint(ulong(simd_ballot(lane < 5))))) + c[lid & 1];
    """,
}
