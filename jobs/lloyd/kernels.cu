// Lloyd's iteration in CUDA. __init__.py compiles this file with these macros (its function "shape" chooses them):
//   D features; K clusters; KP: K and the empty rows behind them, a multiple of KC
//   V: floats of one copy (4, 2 or 1; it divides D); DC, DS: floats of a row of centres, of a row in shared memory
//   THREADS of a block; R rows of a thread at once; KC clusters of a thread at once
//   LANES: threads of a warp that add a row, four features each; a power of 2
// half[j] is half the squared length of centre j, so the nearest centre of x has the least half[j] - x . c[j].
// The rows of centres behind K have an infinite half.

#define FAR 3.402823466e38f

typedef long long whole;

// Sum over a block of threads, the same in every thread. All threads of the block must call it.
__device__ double sum_of_block(double value, double* place)
{
    __syncthreads();
    place[threadIdx.x] = value;
    for (int apart = blockDim.x / 2; apart; apart /= 2) {
        __syncthreads();
        if (threadIdx.x < apart) place[threadIdx.x] += place[threadIdx.x + apart];
    }
    __syncthreads();
    return place[0];
}

#ifdef FUSED
#define TILE (THREADS * R)
#define WARPS (THREADS / 32)
#define MINE ((K + WARPS - 1) / WARPS)   // clusters of a warp
#define EACH ((DC / 4 + LANES - 1) / LANES)  // fours of features of a lane

__device__ __forceinline__ void add(float4& to, const float4& more)
{
    to.x += more.x, to.y += more.y, to.z += more.z, to.w += more.w;
}

#ifndef ON_CPU
__device__ __forceinline__ void copy_later(float* to, const float* from)
{
    unsigned place = (unsigned)__cvta_generic_to_shared(to);
    if (V == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
    else if (V == 2)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(place), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif

// One pass over n rows. A block takes TILE rows to shared memory. Each thread finds the nearest centres of R rows.
// With SUMS each block adds rows and numbers of rows by centre: sums[block][K][D], counts[block][K]. Each warp owns MINE
// clusters and adds their rows in registers: a bit for each of 32 rows says whether it is nearest to a centre.
// Without SUMS: the number of each row's centre, and for each block the sum of the squared distances to these.
template <bool SUMS>
__device__ __forceinline__ void pass(const float* x, whole n, const float* centres, const float* half, double* sums, unsigned* counts,
                                     int* labels, double* squares)
{
    extern __shared__ float4 memory[];
    float* tile = (float*)memory;
    float* c = tile + TILE * DS;                          // the centres
    float* h = c + KP * DC;                               // their halves
    unsigned* bits = (unsigned*)(h + KP);                 // of each 32 rows, by centre
    const int me = threadIdx.x, lane = me % 32, warp = me / 32;
    const int part = lane / LANES, first = lane % LANES;  // a warp adds 32 / LANES rows at once

    for (int e = me; e < KP * DC; e += THREADS) c[e] = e % DC < D ? centres[(e / DC) * D + e % DC] : 0.0f;
    for (int e = me; e < KP; e += THREADS) h[e] = half[e];
    if (DC > D)
        for (int e = me; e < TILE; e += THREADS)
            for (int f = D; f < DC; f++) tile[e * DS + f] = 0.0f;

    float4 sum[MINE][EACH];
    unsigned number[MINE];
#pragma unroll
    for (int m = 0; m < MINE; m++) {
        number[m] = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) sum[m][i] = {0.0f, 0.0f, 0.0f, 0.0f};
    }

    double squared = 0.0;

    for (whole at = blockIdx.x * (whole)TILE; at < n; at += gridDim.x * (whole)TILE) {
        const int rows = (int)(n - at < TILE ? n - at : TILE);
        const float* from = x + at * D;
        for (int e = me; e < rows * (D / V); e += THREADS)
            copy_later(tile + (e / (D / V)) * DS + (e % (D / V)) * V, from + e * V);
        wait_for_copies();
        __syncthreads();

        float best[R];
        int who[R];
#pragma unroll
        for (int r = 0; r < R; r++) best[r] = FAR, who[r] = 0;
#pragma unroll 1
        for (int j = 0; j < KP; j += KC) {
            float dot[R][KC];
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int i = 0; i < KC; i++) dot[r][i] = 0.0f;
#pragma unroll 2
            for (int f = 0; f < DC; f += 4) {
                float4 a[R];
#pragma unroll
                for (int r = 0; r < R; r++) a[r] = *(const float4*)(tile + (me + r * THREADS) * DS + f);
#pragma unroll
                for (int i = 0; i < KC; i++) {
                    const float4 b = *(const float4*)(c + (j + i) * DC + f);
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        dot[r][i] += a[r].x * b.x;
                        dot[r][i] += a[r].y * b.y;
                        dot[r][i] += a[r].z * b.z;
                        dot[r][i] += a[r].w * b.w;
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < KC; i++)
#pragma unroll
                for (int r = 0; r < R; r++) {
                    const float far = h[j + i] - dot[r][i];
                    if (far < best[r]) best[r] = far, who[r] = j + i;
                }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int row = me + r * THREADS;
            if (row >= rows) who[r] = -1;
            if (!SUMS && row < rows) {
                float apart = 0.0f;
                for (int f = 0; f < DC; f += 4) {
                    const float4 a = *(const float4*)(tile + row * DS + f), b = *(const float4*)(c + who[r] * DC + f);
                    apart += (a.x - b.x) * (a.x - b.x) + (a.y - b.y) * (a.y - b.y) + (a.z - b.z) * (a.z - b.z) + (a.w - b.w) * (a.w - b.w);
                }
                squared += apart;
                labels[at + row] = who[r];
            }
            if (SUMS) {
                unsigned own = 0;
                for (int j = 0; j < K; j++) {
                    const unsigned all = __ballot_sync(0xffffffffu, who[r] == j);
                    if (j % 32 == lane) own = all;
                    if (j % 32 == 31 || j == K - 1)
                        if (j / 32 * 32 + lane < K) bits[(warp + r * WARPS) * K + j / 32 * 32 + lane] = own;
                }
            }
        }
        __syncthreads();
        if (SUMS) {
#pragma unroll
            for (int m = 0; m < MINE; m++) {
                const int j = warp + m * WARPS;
                if (j >= K) continue;
                float4 now[EACH];  // of this tile: sums of sums keep what sums of rows would lose
#pragma unroll
                for (int i = 0; i < EACH; i++) now[i] = {0.0f, 0.0f, 0.0f, 0.0f};
                for (int group = part; group < TILE / 32; group += 32 / LANES) {
                    unsigned left = bits[group * K + j];
                    number[m] += __popc(left);
                    for (; left; left &= left - 1) {
                        const float4* row = (const float4*)(tile + (group * 32 + __ffs(left) - 1) * DS);
#pragma unroll
                        for (int i = 0; i < EACH; i++)
                            if (first + i * LANES < DC / 4) add(now[i], row[first + i * LANES]);
                    }
                }
#pragma unroll
                for (int i = 0; i < EACH; i++) add(sum[m][i], now[i]);
            }
            __syncthreads();
        }
    }
    if (!SUMS) {
        squared = sum_of_block(squared, (double*)memory);
        if (me == 0) squares[blockIdx.x] = squared;
        return;
    }
    // The parts of each warp, one after the other: K rows of DC sums and a number.
    for (int e = me; e < K * (DC + 4); e += THREADS) tile[e] = 0.0f;
    for (int p = 0; p < 32 / LANES; p++) {
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MINE; m++) {
            const int j = warp + m * WARPS;
            if (j < K && part == p) {
                float4* to = (float4*)(tile + j * (DC + 4));
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    if (first + i * LANES < DC / 4) add(to[first + i * LANES], sum[m][i]);
                if (first == 0) *(unsigned*)(tile + j * (DC + 4) + DC) += number[m];
            }
        }
    }
    __syncthreads();
    for (int e = me; e < K * D; e += THREADS) sums[(whole)blockIdx.x * K * D + e] = tile[e / D * (DC + 4) + e % D];
    for (int e = me; e < K; e += THREADS) counts[(whole)blockIdx.x * K + e] = *(unsigned*)(tile + e * (DC + 4) + DC);
}

extern "C" __global__ void __launch_bounds__(THREADS)
one_pass(const float* x, whole n, const float* centres, const float* half, double* sums, unsigned* counts)
{
    pass<true>(x, n, centres, half, sums, counts, 0, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS)
last_pass(const float* x, whole n, const float* centres, const float* half, int* labels, double* squares)
{
    pass<false>(x, n, centres, half, 0, 0, labels, squares);
}

// Add what the blocks of one_pass left, in their order: a block of 32 x 8 threads for 32 of the K * D sums and K counts.
extern "C" __global__ void fold(int blocks, const double* sums, const unsigned* counts, double* total)
{
    __shared__ double part[8][32];
    const int lane = threadIdx.x % 32, turn = threadIdx.x / 32, e = blockIdx.x * 32 + lane;
    double sum = 0.0;
    if (e < K * D)
        for (int b = turn; b < blocks; b += 8) sum += sums[(whole)b * K * D + e];
    else if (e < K * D + K)
        for (int b = turn; b < blocks; b += 8) sum += counts[(whole)b * K + e - K * D];
    part[turn][lane] = sum;
    __syncthreads();
    if (turn == 0 && e < K * D + K) {
        for (int t = 1; t < 8; t++) sum += part[t][lane];
        total[e] += sum;
    }
}
#endif

// The nearest centre of each of m rows from their products with all centres, dots[m][KP]: a warp for a row.
extern "C" __global__ void nearest(int m, const float* dots, const float* half, int* labels)
{
    const int lane = threadIdx.x % 32, row = (int)((blockIdx.x * (whole)blockDim.x + threadIdx.x) / 32);
    float best = FAR;
    int who = 0;
    if (row < m)
        for (int j = 4 * lane; j < KP; j += 128) {
            const float4 dot = *(const float4*)(dots + (whole)row * KP + j), h = *(const float4*)(half + j);
            if (h.x - dot.x < best) best = h.x - dot.x, who = j;
            if (h.y - dot.y < best) best = h.y - dot.y, who = j + 1;
            if (h.z - dot.z < best) best = h.z - dot.z, who = j + 2;
            if (h.w - dot.w < best) best = h.w - dot.w, who = j + 3;
        }
    for (int apart = 16; apart; apart /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, apart);
        const int its = __shfl_xor_sync(0xffffffffu, who, apart);
        if (other < best || (other == best && its < who)) best = other, who = its;
    }
    if (row < m && lane == 0) labels[row] = who;
}

// Sum rows that are near the same centre: piece p is rows order[first[p]] ... order[first[p + 1] - 1].
// A block of 32 x 8 threads for a piece and 32 features.
extern "C" __global__ void sum_pieces(const float* x, const whole* order, const whole* first, double* pieces)
{
    __shared__ double part[8][32];
    const int lane = threadIdx.x % 32, turn = threadIdx.x / 32, f = blockIdx.y * 32 + lane;
    const whole end = first[blockIdx.x + 1];
    float sum = 0.0f;
    if (f < D)
#pragma unroll 8
        for (whole place = first[blockIdx.x] + turn; place < end; place += 8) sum += x[order[place] * D + f];
    part[turn][lane] = sum;
    __syncthreads();
    if (turn == 0 && f < D) {
        double all = 0.0;
        for (int t = 0; t < 8; t++) all += part[t][lane];
        pieces[(whole)blockIdx.x * D + f] = all;
    }
}

// Add the pieces of each centre, in their order, and its number of rows; a block for a centre. Centre j has pieces
// begin[j] to begin[j + 1], and rows edge[j] to edge[j + 1] of the order.
extern "C" __global__ void fold_pieces(const int* begin, const whole* edge, const double* pieces, double* total)
{
    const int j = blockIdx.x;
    for (int f = threadIdx.x; f < D; f += blockDim.x) {
        double sum = 0.0;
        for (int p = begin[j]; p < begin[j + 1]; p++) sum += pieces[(whole)p * D + f];
        total[j * (whole)D + f] += sum;
    }
    if (threadIdx.x == 0) total[K * (whole)D + j] += (double)(edge[j + 1] - edge[j]);
}

// Move each centre to the mean of its rows (total: K * D sums, K numbers); one without rows stays. A block of 128 threads
// for a centre; moved[j] is the square of how far it moved.
extern "C" __global__ void move(const double* total, float* centres, float* half, double* moved)
{
    __shared__ double place[128];
    const int j = blockIdx.x;
    const double rows = total[K * (whole)D + j];
    double length = 0.0, far = 0.0;
    for (int f = threadIdx.x; f < D; f += blockDim.x) {
        const float old = centres[j * (whole)D + f];
        const float mean = rows > 0.0 ? (float)(total[j * (whole)D + f] / rows) : old;
        centres[j * (whole)D + f] = mean;
        length += (double)mean * mean;
        far += ((double)mean - old) * ((double)mean - old);
    }
    length = sum_of_block(length, place);
    far = sum_of_block(far, place);
    if (threadIdx.x == 0) half[j] = (float)(0.5 * length), moved[j] = far;
}

// The sum of squared distances of n rows to their centres, for each block of 128 threads; a warp for a row.
extern "C" __global__ void squares(const float* x, whole n, const float* centres, const int* labels, double* sums)
{
    __shared__ double place[128];
    const int lane = threadIdx.x % 32;
    double sum = 0.0;
    for (whole row = (blockIdx.x * (whole)blockDim.x + threadIdx.x) / 32; row < n; row += gridDim.x * (whole)blockDim.x / 32) {
        const float* c = centres + labels[row] * (whole)D;
        float far = 0.0f;
        for (int f = lane; f < D; f += 32) {
            const float apart = x[row * D + f] - c[f];
            far += apart * apart;
        }
        sum += far;
    }
    sum = sum_of_block(sum, place);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
