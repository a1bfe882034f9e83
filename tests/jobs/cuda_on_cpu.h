// What kernels.cu needs of CUDA, on CPUs: a thread for each thread of a block, the blocks one after the other.
#include <algorithm>
#include <barrier>
#include <thread>
#include <vector>

#define ON_CPU
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static

struct float4 {
    float x, y, z, w;
};
struct Place {
    unsigned x, y, z;
};
static thread_local Place threadIdx, blockIdx;
static Place blockDim, gridDim;
static std::barrier<>* gate;
alignas(16) float4 memory[1 << 16];
static char passed[1024][8];

static inline void __syncthreads() { gate->arrive_and_wait(); }
template <class T> T __shfl_xor_sync(unsigned, T value, int apart) // all threads of the block call it
{
    *(T*)passed[threadIdx.x] = value;
    __syncthreads();
    T other = *(T*)passed[threadIdx.x ^ apart];
    __syncthreads();
    return other;
}
static inline unsigned __ballot_sync(unsigned, bool value) // so here
{
    *(bool*)passed[threadIdx.x] = value;
    __syncthreads();
    unsigned all = 0;
    for (int i = 0; i < 32; i++) all |= (unsigned)*(bool*)passed[threadIdx.x / 32 * 32 + i] << i;
    __syncthreads();
    return all;
}
static inline int __popc(unsigned value) { return __builtin_popcount(value); }
static inline int __ffs(unsigned value) { return __builtin_ffs(value); }
static inline void copy_later(float* to, const float* from) { std::copy(from, from + V, to); }
static inline void wait_for_copies() {}

template <class Kernel> void launch(unsigned across, unsigned down, unsigned threads, Kernel kernel)
{
    std::barrier<> own(threads);
    std::vector<std::thread> team;
    gate = &own, blockDim = {threads, 1, 1}, gridDim = {across, down, 1};
    for (unsigned t = 0; t < threads; t++)
        team.emplace_back([=] {
            threadIdx = {t, 0, 0};
            for (unsigned b = 0; b < across * down; b++) {
                blockIdx = {b % across, b / across, 0};
                __syncthreads();
                kernel();
                __syncthreads();
            }
        });
    for (auto& one : team) one.join();
}
