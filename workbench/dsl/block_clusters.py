"""Parts of a kernel in Gluon whose programs are clusters of blocks on neighbouring cores.

A block writes numbers of 32 bits into the shared memory of the others, and each of them waits until
all that it is sent has come. No barrier of the cluster orders memory here: one that does makes each
warp wait until everything that its core has written has arrived.

A launch says `num_ctas`. Row i of a tensor's first axis lies in block i: see `blocks_apart`. Triton
3.6 neither reduces nor moves anything across blocks, hence the assembly. ptxas places `words` and
`arrived` beside the shared memory that Triton allocates, 48 KB in all at most.
"""

from __future__ import annotations

from workbench.dsl.gluon import gl, gluon


@gluon.constexpr_function
def blocks_apart(ctas, rank):
    """Return the bases by which a layout of so many axes has each row of the first in a block of
    its own."""
    return [[1 << i] + [0] * (rank - 1) for i in range(ctas.bit_length() - 1)]


@gluon.constexpr_function
def _number(ctas):
    return f"mov.u32 $0, %ctaid.x; shr.u32 $0, $0, {ctas.bit_length() - 1};"


@gluon.jit
def cluster_number(CTAS: gl.constexpr):
    """Return the number of this cluster along the grid's first axis. `gl.program_id` reads
    %clusterid, which ptxas 12.8 divides in fp32: it is wrong from 2^23 clusters on."""
    return gl.inline_asm_elementwise(
        _number(CTAS), "=r", [], dtype=gl.int32, is_pure=True, pack=1
    )  # fmt: skip


@gluon.constexpr_function
def _begin(sent, kept):
    return f"""
        .shared .align 16 .b32 words[{sent + kept}];
        .shared .align 8 .b64 arrived;
        {{
            .reg .pred first;
            .reg .b32 at;
            mov.u32 at, %tid.x;
            setp.eq.u32 first, at, 0;
            mov.u32 at, arrived;
            @first mbarrier.init.shared::cta.b64 [at], 1;
            @first fence.mbarrier_init.release.cluster;
            @first mbarrier.arrive.expect_tx.shared::cta.b64 _, [at], {4 * sent};
            barrier.cluster.arrive.relaxed.aligned; // $0
        }}
    """


@gluon.jit
def begin_cluster(SENT: gl.constexpr, KEPT: gl.constexpr = 0):
    """Report to the cluster that this block is ready for so many words in all. Once in a kernel.
    Behind them there is room for KEPT words of the block's own."""
    gl.inline_asm_elementwise(
        _begin(SENT, KEPT), "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def await_cluster():
    """Wait until all blocks of the cluster have begun. None may be sent anything before."""
    gl.inline_asm_elementwise(
        "barrier.cluster.wait.acquire.aligned; // $0", "=r", [], dtype=gl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


@gluon.constexpr_function
def _send(ctas, numbers, threads=None):
    """Return the assembly that sends so many numbers to words in a row; operands behind them are
    the block and the first word."""
    block, word = f"${numbers + 1}", f"${numbers + 2}"
    each = ", ".join(f"${i + 1}" for i in range(numbers))
    width, sent = (".v4.b32", f"{{{each}}}") if numbers == 4 else (".b32", each)
    if threads is None:
        receiver = f"setp.lt.u32 one, {block}, {ctas};"
    else:
        receiver = f"""mov.u32 at, %tid.x;
        setp.lt.u32 one, at, {threads};
        setp.lt.and.u32 one, {block}, {ctas}, one;"""
    return f"""{{
        .reg .b32 at, bar;
        .reg .pred one;
        {receiver}
        mov.u32 at, words;
        mad.lo.u32 at, {word}, 4, at;
        mov.u32 bar, arrived;
        @one mapa.shared::cluster.u32 at, at, {block};
        @one mapa.shared::cluster.u32 bar, bar, {block};
        @one st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{width}
            [at], {sent}, [bar];
        mov.b32 $0, 0;
    }}"""


@gluon.jit
def send(x, block, word, CTAS: gl.constexpr, THREADS: gl.constexpr):
    """Write fp32 numbers into these blocks, at these words: the first THREADS threads, and where
    there are such blocks. No number may lie in two of these threads: the receiver counts them."""
    gl.inline_asm_elementwise(
        _send(CTAS, 1, THREADS), "=r,f,r,r", [x, block, word], dtype=gl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


@gluon.jit
def send_fours(a, b, c, d, block, word, CTAS: gl.constexpr):
    """Write four numbers to words in a row, from a multiple of four on. As `send`, but from all
    threads."""
    gl.inline_asm_elementwise(
        _send(CTAS, 4), "=r,f,f,f,f,r,r", [a, b, c, d, block, word], dtype=gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


RECEIVED = gl.constexpr("""{
    .reg .pred done;
    .reg .b32 bar;
    mov.u32 bar, arrived;
    waiting:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [bar], 0;
    @!done bra waiting;
    mov.b32 $0, 0;
}""")


@gluon.jit
def await_sent():
    """Wait until this block has all that it is sent. Nobody writes into it any more, so that it may
    end."""
    gl.inline_asm_elementwise(RECEIVED, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def load_words(word):
    """Return the fp32 numbers at these words of this block."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 at; mov.u32 at, words; mad.lo.u32 at, $1, 4, at; ld.shared.f32 $0, [at]; }",
        "=f,r", [word], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def load_fours(word):
    """Return the same where four neighbours lie in a thread and are words in a row."""
    return gl.inline_asm_elementwise(
        """{
            .reg .b32 at;
            mov.u32 at, words;
            mad.lo.u32 at, $4, 4, at;
            ld.shared.v4.f32 {$0, $1, $2, $3}, [at];
        }""",
        "=f,=f,=f,=f,r,r,r,r", [word], dtype=gl.float32, is_pure=False, pack=4,
    )  # fmt: skip


@gluon.jit
def store_words(x, word):
    """Write fp32 numbers to these words of this block; `group_barrier` before they are read."""
    gl.inline_asm_elementwise(
        "{ .reg .b32 at; mov.u32 at, words; mad.lo.u32 at, $2, 4, at; st.shared.f32 [at], $1;"
        " mov.b32 $0, 0; }",
        "=r,f,r", [x, word], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
