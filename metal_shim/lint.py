from metal_shim.signature import MetalSource
def faults(source: MetalSource) -> list[str]:
    return []
