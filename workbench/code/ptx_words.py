"""Find instructions by words of PTX, by opcode or by group of the mix."""

import re

from workbench.code.listing import Instruction, Listing

# Words of PTX, and the opcodes that ptxas makes of them. The longest fitting word wins.
WORDS = {
    "tcgen05.mma": r"UTC\w*MMA",
    "tcgen05.ld": r"LDTM",
    "tcgen05.st": r"STTM",
    "tcgen05.cp": r"UTCCP",
    "tcgen05.commit": r"UTCBAR",
    "tcgen05.alloc": r"UTCATOMSWS",
    "tcgen05": r"UTC\w*|LDTM|STTM",
    "wgmma": r"\w*GMMA|WARPGROUP",
    "mma.sync": r"[HIDQ]MMA",
    "mma": r"\w*MMA",
    "cp.async.bulk.tensor": r"UTMALDG|UTMASTG|UTMAREDG",
    "cp.async.bulk.commit_group": r"UTMACMDFLUSH",
    "cp.async.bulk": r"UBLKCP|UTMALDG|UTMASTG|UTMACMDFLUSH",
    "cp.async.wait_group": r"DEPBAR|LDGDEPBAR",
    "cp.async.commit_group": r"LDGDEPBAR",
    "cp.async": r"LDGSTS",
    "wait_group": r"DEPBAR",
    "mbarrier": r"SYNCS",
    "fence.proxy.async": r"FENCE\.VIEW\.ASYNC",
    "bar.sync": r"U?BAR",
    "barrier": r"U?BAR",
    "ldmatrix": r"LDSM",
    "stmatrix": r"STSM",
    "setmaxnreg": r"USETMAXREG",
    "elect": r"ELECT",
    "ld.global": r"LDG|LDGSTS",
    "st.global": r"STG",
    "ld.shared": r"LDS|LDSM",
    "st.shared": r"STS|STSM",
    "ld.local": r"LDL",
    "st.local": r"STL",
    "ex2": r"MUFU\.EX2",
    "cvt": r"[FI]2[FIP]\w*",
}


def opcodes_of(word: str) -> re.Pattern[str]:
    """Return the pattern of opcodes that a word of PTX, an opcode or a part of one stands for."""
    plain = word.strip().lower()
    known = [w for w in WORDS if plain == w or plain.startswith(w + ".")]
    if known:
        return re.compile(f"(?:{WORDS[max(known, key=len)]})(?![A-Za-z0-9_])")
    return re.compile(f".*{re.escape(plain)}", re.IGNORECASE)


# Words of PTX that exist on some targets only, in words, and by the number of the target
ONLY = {
    "tcgen05": ("Blackwell (sm_100, sm_103)", {100, 101, 103}, "b200"),
    "wgmma": ("Hopper (sm_90)", {90}, "h200"),
}


def elsewhere(word: str, arch: str) -> str | None:
    """Return a sentence on the devices that have the instructions of a word of PTX, where the
    target of a code is none of them."""
    known = ONLY.get(word.strip().lower().split(".")[0])
    number = arch.removeprefix("sm_").rstrip("af")
    if known is None or not number.isdigit() or int(number) in known[1]:
        return None
    return f"Only {known[0]} has {word}, and this code is for {arch}; add --device {known[2]}."


def matching(listing: Listing, word: str) -> list[tuple[int, Instruction]]:
    """Return the instructions that a word stands for, each with its place in the listing."""
    known = opcodes_of(word)
    return [(i, op) for i, op in enumerate(listing.instructions) if known.match(op.opcode)]
