"""Helpers in Metal source that several kernels share; they go before the body as `header`.

A helper cannot declare threadgroup memory, so it takes a pointer to `NSG` floats of the caller's.
`load4` exists for both address spaces in which MLX puts an input.
"""

# Reductions over a threadgroup of NSG SIMD-groups. Each ends with a barrier, so that the same
# scratch can be used again.
BLOCK_REDUCE = """
template <int NSG> float block_sum(float v, threadgroup float* part, uint lane, uint sg) {
    v = simd_sum(v);
    if (NSG == 1) return v;
    if (lane == 0) part[sg] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    v = simd_sum(lane < NSG ? part[lane] : 0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return v;
}
template <int NSG> float block_max(float v, threadgroup float* part, uint lane, uint sg) {
    v = simd_max(v);
    if (NSG == 1) return v;
    if (lane == 0) part[sg] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    v = simd_max(lane < NSG ? part[lane] : -INFINITY);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return v;
}
"""

# Four neighbours at once; the address must be a multiple of their size. `part4` takes the first
# `left` of them one by one, and zeros for the others.
LOAD4 = """
template <typename T> vec<T, 4> load4(const device T* p) { return *(const device vec<T, 4>*)p; }
template <typename T> vec<T, 4> load4(const constant T* p) { return *(const constant vec<T, 4>*)p; }
template <typename T> float4 part4(const device T* p, uint left) {
    float4 v = float4(0);
    for (uint j = 0; j < min(left, 4u); j++) v[j] = float(p[j]);
    return v;
}
template <typename T> float4 part4(const constant T* p, uint left) {
    float4 v = float4(0);
    for (uint j = 0; j < min(left, 4u); j++) v[j] = float(p[j]);
    return v;
}
template <typename T> float4 widened(vec<T, 4> v) {
    return float4(float(v.x), float(v.y), float(v.z), float(v.w));
}
"""

# Products x w^T of 8x8 blocks, both operands row by row. `stage_rows` brings ROWS x BK of a matrix
# with K columns to threadgroup memory, with zeros past its edges; P is a pointer into `device` or
# `constant`. `add_products` adds TM x TN blocks over a depth of BK to sums in fp32.
ROW_PRODUCT = """
template <int ROWS, int BK, int NT, typename T, typename P>
void stage_rows(threadgroup T* to, P from, uint row, uint rows, uint k, uint K, uint lid) {
    for (uint i = lid; i < ROWS * BK; i += NT) {
        const uint r = row + i / BK, c = k + i % BK;
        to[i] = r < rows && c < K ? T(from[size_t(r) * K + c]) : T(0);
    }
}
template <int TM, int TN, int BK, typename T>
void add_products(thread simdgroup_matrix<float, 8, 8>* sum, const threadgroup T* left,
                  uint left_width, const threadgroup T* right, uint right_width) {
    for (int k = 0; k < BK; k += 8) {
        simdgroup_matrix<T, 8, 8> a, b[TN];
        for (int j = 0; j < TN; j++)
            simdgroup_load(b[j], right + j * 8 * right_width + k, right_width, ulong2(0), true);
        for (int i = 0; i < TM; i++) {
            simdgroup_load(a, left + i * 8 * left_width + k, left_width);
            for (int j = 0; j < TN; j++)
                simdgroup_multiply_accumulate(sum[i * TN + j], a, b[j], sum[i * TN + j]);
        }
    }
}
"""

# One sub-block of 32 weights of a GGUF Q4_K block: 16 bytes of numbers, then 128 of nibbles, where
# low nibbles are of sub-block 2g and high ones of 2g + 1. (scale, minimum) of sub-block j.
Q4_K = """
float2 q4_k_numbers(const device uchar* block, uint j) {
    const float d = float(as_type<half>(ushort(block[0] | block[1] << 8)));
    const float dmin = float(as_type<half>(ushort(block[2] | block[3] << 8)));
    uint scale, minimum;
    if (j < 4) {
        scale = block[4 + j] & 63;
        minimum = block[8 + j] & 63;
    } else {
        scale = (block[8 + j] & 15) | (block[j] >> 6) << 4;
        minimum = block[8 + j] >> 4 | (block[4 + j] >> 6) << 4;
    }
    return float2(d * float(scale), dmin * float(minimum));
}
"""
