// matrix: products of halves with sums in float, on matrix units alone.
//
// UNITS  80: mma, of a warp's registers; 90: wgmma, a warp group's, of local memory
// and those of mma.h (fragments.h) or wgmma.h; PTX as given by the device
#if !defined(UNITS) || !defined(PTX) || PTX < UNITS
#error "matrix.cl needs UNITS, at most PTX"
#endif
#if UNITS == 90
#include "tensor_core/wgmma.h"
#else
#include "tensor_core/fragments.h"
#define ITEMS 512
#define ROWS 2     // fragments of rows of a warp: enough sums to hide the latency
#define COLUMNS 4  // of columns, each of two products
#endif

// Two halves between 1 and 2 that differ from item to item: zeros would take less power.
#define HALVES(i) (0x3c003c00u | ((i) * 2654435761u & 0x03ff03ffu))

// sums [work-items]
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void matrix(const int steps, __global float *sums)
{
    const uint id = get_local_id(0);
#if UNITS == 90
    __local uint4 operands[STAGE] __attribute__((aligned(128)));
    for (uint i = id; i < STAGE; i += ITEMS)
        operands[i] = (uint4)(HALVES(i), HALVES(i + 1), HALVES(i + 2), HALVES(i + 3));
    barrier(CLK_LOCAL_MEM_FENCE);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    float found[TILE_N / 8][4];
UNROLLED
    for (int j = 0; j < TILE_N / 8; ++j)
UNROLLED
        for (int e = 0; e < 4; ++e) found[j][e] = 0;
    for (int step = 0; step < steps; ++step) {
        mma_stage(found, found, (uint)(size_t)operands, 0, TILE_N);
        WGMMA_WAIT(0);
        WGMMA_FENCE_OPERAND(TILE_N, found);
    }
    float sum = 0;
UNROLLED
    for (int j = 0; j < TILE_N / 8; ++j) sum += found[j][0] + found[j][3];
#else
    Fragment rows[ROWS], columns[COLUMNS];
    float found[ROWS][2 * COLUMNS][4];
UNROLLED
    for (int i = 0; i < ROWS; ++i)
        rows[i] = (uint4)(HALVES(id + i), HALVES(id + 7), HALVES(id + 9), HALVES(id));
UNROLLED
    for (int j = 0; j < COLUMNS; ++j)
        columns[j] = (uint4)(HALVES(id + j), HALVES(id + 3), HALVES(id), HALVES(id + 5));
UNROLLED
    for (int i = 0; i < ROWS; ++i)
UNROLLED
        for (int j = 0; j < 2 * COLUMNS; ++j)
UNROLLED
            for (int e = 0; e < 4; ++e) found[i][j][e] = 0;
    for (int step = 0; step < steps; ++step) {
UNROLLED
        for (int i = 0; i < ROWS; ++i)
UNROLLED
            for (int j = 0; j < 2 * COLUMNS; ++j)
                mma_m16n8k16(found[i][j], rows[i], columns[j / 2], j % 2);
    }
    float sum = 0;
UNROLLED
    for (int i = 0; i < ROWS; ++i)
UNROLLED
        for (int j = 0; j < 2 * COLUMNS; ++j) sum += found[i][j][0] + found[i][j][3];
#endif
    sums[get_global_id(0)] = sum;
}
