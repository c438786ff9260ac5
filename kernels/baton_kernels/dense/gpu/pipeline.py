"""The weight pipeline of streamed products on Hopper, in Gluon: one warp keeps a ring of tiles in shared memory full.

A tile is one step of a program: some columns of its weights and the same columns of x. Each stage of the ring has two
barriers. `ready` completes when all bytes of a tile have arrived, `free` when every warpgroup has multiplied it.

A kernel brings two functions of its own, which start the copies of a step's weights and of its x. They are called as
`copy(step, stage, bar, *source)`, where `source` is a tuple of what the kernel has for them. The one for weights
also announces to the barrier how many bytes the step has.

Nothing writes weights while a model runs. So the ring is filled with weights before the program waits for the kernel
that makes x, and the memory stays busy while small kernels run between two products.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_wait

SHARED_BYTES = 220 * 1024
"""Shared memory of a multiprocessor that tiles may take."""
PANEL = gl.constexpr(64)
"""Columns of 16 bits in a TMA box: 128 bytes, as wide as the swizzle."""
LINE = gl.constexpr(128)
"""Bytes of a box of weights of 8 or 4 bits: as wide as the swizzle."""


def boxes(tensor: Tensor, height: int, width: int, swizzle: int = 128) -> TensorDescriptor:
    """Describe a matrix for copies of boxes [height, width]."""
    layout = gl.NVMMASharedLayout(swizzle, 8 * tensor.element_size(), 2)
    rows, columns = tensor.shape
    # A tensor of one row may have any stride, a descriptor may not.
    return TensorDescriptor(tensor, [rows, columns], [columns, 1], [height, width], layout)


@gluon.jit
def make_barriers(STAGES: gl.constexpr, READERS: gl.constexpr):
    """Allocate the barriers `ready` and `free` of a ring that `READERS` warpgroups read."""
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=READERS)
    fence_async_shared()
    return ready, free


@gluon.jit
def copy_panels(source, row, step, targets, first, bar, PANELS: gl.constexpr):
    """Start the copies of a step's boxes, which lie side by side in `source` from `row` on, to `targets`."""
    for panel in gl.static_range(PANELS):
        place = [row, (step * PANELS + panel) * source.block_shape[1]]
        tma.async_copy_global_to_shared(source, place, bar, targets.index(first + panel))


@gluon.jit
def fill_ring(copy_weight, weight, copy_rows, x, ready, free, steps, AHEAD: gl.constexpr):
    """Copy all steps of a program, each as soon as its stage is free. AHEAD: the first weights are copied before the
    wait for the kernel that makes x; otherwise that kernel has been waited for already."""
    STAGES: gl.constexpr = free.shape[0]
    ahead = gl.minimum(steps, STAGES)
    for step in range(ahead):
        copy_weight(step, step % STAGES, ready.index(step % STAGES), *weight)
    if AHEAD:
        gdc_wait()
    for step in range(ahead):
        copy_rows(step, step % STAGES, ready.index(step % STAGES), *x)
    # A stage is found from its step: with counters, MXFP4 experts of 512 tokens took 5 % longer.
    for step in range(ahead, steps):
        stage = step % STAGES
        mbarrier.wait(free.index(stage), ((step // STAGES) & 1) ^ 1)
        copy_weight(step, stage, ready.index(stage), *weight)
        copy_rows(step, stage, ready.index(stage), *x)
