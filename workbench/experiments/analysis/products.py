"""Choose the workbench's product that replaces a library's where the library cannot be
predicted."""

FEW = 4  # rows up to which a product is one of a matrix with vectors
SOME = 256  # and up to which its tiles are narrow
BUSY = 64  # tiles of 64 x 128 below which K is split


def product_for(M: int, N: int) -> tuple[str, str]:
    """Return kernel and Impl for a result of M rows and N columns."""
    if M <= FEW:
        return "matvec", "rows"
    if -(-M // 64) * -(-N // 128) < BUSY:
        return "matmul", "split_k"
    return "matmul", "narrow" if M <= SOME else "tiles"
