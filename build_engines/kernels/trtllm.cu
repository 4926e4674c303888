// TensorRT-LLM's FMHA v2 as FlashInfer ships it: warp-specialised Hopper kernels for heads of 128, one
// document a launch, behind one C function. Kernels come from FlashInfer's sources; nothing is copied.
//
// q, k and v lie side by side in each row, [rows, 3, heads, 128]. A document's length bounds the
// tensor maps, so rows behind it are never read, whatever they hold.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include <cuda_runtime.h>

#include <fused_multihead_attention.h>
#include <fmha/hopper/gmma_descriptor.h>
#include <fmha/hopper/smem_tile.h>
#include <fmha/utils.h>
#include <fmha/hopper/compute_tile.h>
#include <fmha/warpspec/kernel_traits.h>
#include <fmha/warpspec/dma.h>
#include <fmha/warpspec/compute.h>

namespace {

constexpr int kHeadDim = 128;
constexpr int kQueryStep = 64;
constexpr int kComputeGroups = 2;
constexpr float kLog2e = 1.44269504088896340736f;

using Params = bert::Fused_multihead_attention_params_v2;

// Tile sizes as FlashInfer's generator chooses them for SM90 and this head width.
using Bf16Traits =
    fmha::ws::Kernel_traits<fmha::Hopper_hgmma_bf16_traits, kQueryStep, 128, kHeadDim, 0, 1, 2,
                            kComputeGroups, 1, 0, false, false, false, 1, 0, false, false, false,
                            false, fmha::bf16_t>;
using E4m3Traits =
    fmha::ws::Kernel_traits_Hopper_qgmma_e4m3_fp32<kQueryStep, 256, kHeadDim, 0, 1, 2,
                                                   kComputeGroups, 1, 0, false, false, true, 1, 0,
                                                   false, false, false, false, fmha::bf16_t>;

template <typename Traits, template <int, int, int, bool, bool> class Instruction>
__global__ __launch_bounds__(Traits::THREADS, 1) void attend(const __grid_constant__ Params params) {
  extern __shared__ char storage[];
  auto* shared = reinterpret_cast<typename Traits::Shared*>(fmha::align_1024(storage));
  shared->init(threadIdx.x == 0);
  __syncthreads();
  const int group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const int thread = threadIdx.x % 128;
  if (group == kComputeGroups) {  // the last group moves the tiles
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    typename fmha::ws::DMA<Traits>::Device mover(thread == 0);
    if (Traits::DMA_GROUP_TRANSPOSE_V || thread < 32) mover.run_packed_qkv(params, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    fmha::ws::Compute<Instruction, Traits> compute;
    compute.run(group, thread, shared, params);
  }
}

uint32_t bits(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

template <typename Traits, template <int, int, int, bool, bool> class Instruction>
cudaError_t launch(void* qkv, void* o, int rows, int heads, float qk_scale,
                   const float* qk_factor, int* bounds, uint32_t* counter, cudaStream_t stream) {
  int device, processors;
  if (cudaError_t code = cudaGetDevice(&device)) return code;
  if (cudaError_t code =
          cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device))
    return code;

  Params params;
  std::memset(&params, 0, sizeof params);
  const int64_t width = int64_t(heads) * kHeadDim;
  params.qkv_ptr = qkv;
  params.o_ptr = o;
  params.o_stride_in_bytes = width * sizeof(fmha::bf16_t);
  params.q_stride_in_bytes = params.k_stride_in_bytes = params.v_stride_in_bytes =
      3 * width * Traits::ELEMENT_BYTES;
  params.b = 1;
  params.h = params.h_kv = heads;
  params.h_q_per_kv = params.num_grouped_heads = 1;
  params.s = rows;
  params.d = params.dv = kHeadDim;
  params.sliding_window_size = INT_MAX;
  params.cu_q_seqlens = params.cu_kv_seqlens = bounds;
  params.scale_bmm1 = bits(qk_scale * kLog2e);  // these kernels work in powers of two
  params.scale_softmax = bits(1.f);
  params.scale_bmm1_d = reinterpret_cast<uint32_t*>(const_cast<float*>(qk_factor));
  params.scale_bmm2 = bits(1.f);
  params.is_uniform_q = true;
  params.tile_id_counter_ptr = counter;
  const int tiles = (rows + kQueryStep * kComputeGroups - 1) / (kQueryStep * kComputeGroups);
  params.num_tiles_per_head = tiles;
  params.num_tiles = tiles * heads;

  bert::Fused_multihead_attention_launch_params launching;
  launching.total_q_seqlen = launching.total_kv_seqlen = rows;
  typename fmha::ws::DMA<Traits>::Host().init_params(params, launching, stream);

  const auto kernel = attend<Traits, Instruction>;
  if (cudaError_t code = cudaMemsetAsync(counter, 0, sizeof *counter, stream)) return code;
  if (cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              Traits::BYTES_PER_SMEM))
    return code;
  const dim3 grid(1, std::min(tiles * heads, processors));
  kernel<<<grid, Traits::THREADS, Traits::BYTES_PER_SMEM, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

extern "C" {

// qk_factor: one float on the device that takes the place of qk_scale, log2(e) included, or null.
// bounds: int32 [2] on the device, 0 and rows. counter: one word of scratch on the device.
// e4m3: qkv are e4m3 instead of bf16; the output is bf16 either way.
int h3_trtllm(void* qkv, void* o, int rows, int heads, float qk_scale, const float* qk_factor,
              int* bounds, uint32_t* counter, int e4m3, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  return e4m3 ? launch<E4m3Traits, fmha::Hopper_qgmma_e4m3_fp32_traits>(
                    qkv, o, rows, heads, qk_scale, qk_factor, bounds, counter, on)
              : launch<Bf16Traits, fmha::Hopper_hgmma_bf16_traits>(
                    qkv, o, rows, heads, qk_scale, qk_factor, bounds, counter, on);
}

const char* h3_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

}  // extern "C"
