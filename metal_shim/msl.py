"""Helpers in Metal source that several kernels share; they go before the body as `header`.

A helper cannot declare threadgroup memory, so it takes a pointer to `NSG` floats of the caller's.
`load4` exists for both address spaces in which MLX puts an input.
"""

# Reductions over a threadgroup of NSG SIMD-groups. Each ends with a barrier, so that the same
# scratch can be used again.
_REDUCE = """
template <int NSG> float block_OP(float v, threadgroup float* part, uint lane, uint sg) {
    v = simd_OP(v);
    if (NSG == 1) return v;
    if (lane == 0) part[sg] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    v = simd_OP(lane < NSG ? part[lane] : NEUTRAL);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return v;
}
"""
_SUM = _REDUCE.replace("OP", "sum").replace("NEUTRAL", "0.0f")
BLOCK_REDUCE = _SUM + _REDUCE.replace("OP", "max").replace("NEUTRAL", "-INFINITY")

# Four neighbours at once; the address must be a multiple of their size. `part4` takes the first
# `left` of them one by one, and zeros for the others.
LOAD4 = """
template <typename T> vec<T, 4> load4(const device T* p) { return *(const device vec<T, 4>*)p; }
template <typename T> vec<T, 4> load4(const constant T* p) { return *(const constant vec<T, 4>*)p; }
template <typename P> float4 part4(P p, uint left) {
    float4 v = float4(0);
    for (uint j = 0; j < min(left, 4u); j++) v[j] = float(p[j]);
    return v;
}
template <typename T> float4 widened(vec<T, 4> v) {
    return float4(float(v.x), float(v.y), float(v.z), float(v.w));
}
"""

# Products of 8x8 blocks. `stage_rows` brings ROWS x WIDTH of a matrix to threadgroup memory, with
# zeros past its edges; P is a pointer into `device` or `constant`. `add_products` adds TM x TN
# blocks over a depth of BK to sums in fp32; the right operand lies row by row of the result's
# columns if BY_COLUMN, else of the depth. `store_blocks` goes through 64 floats of threadgroup
# memory for each SIMD-group, since simdgroup_store neither converts nor stops at an edge.
BLOCK_PRODUCT = """
template <int ROWS, int WIDTH, int NT, typename T, typename P>
void stage_rows(threadgroup T* to, P from, uint row, uint rows, uint column, uint width, uint lid) {
    for (uint i = lid; i < ROWS * WIDTH; i += NT) {
        const uint r = row + i / WIDTH, c = column + i % WIDTH;
        to[i] = r < rows && c < width ? T(from[size_t(r) * width + c]) : T(0);
    }
}
template <int TM, int TN, int BK, bool BY_COLUMN, typename T>
void add_products(thread simdgroup_matrix<float, 8, 8>* sum, const threadgroup T* left,
                  uint left_width, const threadgroup T* right, uint right_width) {
    for (int k = 0; k < BK; k += 8) {
        simdgroup_matrix<T, 8, 8> a, b[TN];
        for (int j = 0; j < TN; j++) {
            const uint at = BY_COLUMN ? j * 8 * right_width + k : k * right_width + j * 8;
            simdgroup_load(b[j], right + at, right_width, ulong2(0), BY_COLUMN);
        }
        for (int i = 0; i < TM; i++) {
            simdgroup_load(a, left + i * 8 * left_width + k, left_width);
            for (int j = 0; j < TN; j++)
                simdgroup_multiply_accumulate(sum[i * TN + j], a, b[j], sum[i * TN + j]);
        }
    }
}
template <int TM, int TN, typename T>
void store_blocks(device T* to, thread simdgroup_matrix<float, 8, 8>* sum, threadgroup float* out,
                  uint row, uint rows, uint column, uint width, uint lane) {
    for (int i = 0; i < TM * TN; i++) {
        simdgroup_store(sum[i], out, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = lane; e < 64; e += 32) {
            const uint r = row + i / TN * 8 + e / 8, c = column + i % TN * 8 + e % 8;
            if (r < rows && c < width) to[size_t(r) * width + c] = T(out[e]);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}
"""

# How a body begins whose SIMD-groups share a block of BM x BN: where each has its TM x TN sums.
BLOCK_PLACE = """
    constexpr int NT = SM * SN * 32;
    constexpr int TM = BM / (8 * SM), TN = BN / (8 * SN);
    threadgroup float out[SM * SN * 64];
    const uint lid = thread_index_in_threadgroup, lane = thread_index_in_simdgroup;
    const uint sg = simdgroup_index_in_threadgroup;
    const uint row0 = threadgroup_position_in_grid.y * BM;
    const uint column0 = threadgroup_position_in_grid.x * BN;
    const uint m0 = (sg / SN) * TM * 8, n0 = (sg % SN) * TN * 8;
    simdgroup_matrix<float, 8, 8> sum[TM * TN];
    for (int i = 0; i < TM * TN; i++) sum[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);"""

# How a body begins that gives a threadgroup of TG threads to each row.
ROW_PLACE = """
    constexpr int NSG = TG / 32;
    threadgroup float part[NSG];
    const uint lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
    const uint lid = thread_index_in_threadgroup, n = x_shape[1];
    const size_t row = size_t(threadgroup_position_in_grid.x) * n;"""

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
