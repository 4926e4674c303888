// FlashAttention 3 as FlashInfer ships it, for heads of 128, one document a launch, behind two C
// functions. Kernels come from FlashInfer's headers (Apache-2.0 and BSD-3-Clause); nothing is copied.
//
// A document's length bounds the tensor maps, so rows behind it are never read, whatever they hold.
#include <cstdint>

#include <flashinfer/attention/hopper/attention_updater.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/quantization/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variant_helper.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

namespace {

constexpr int kHeadDim = 128;

struct Bf16Extras {
  float sm_scale;
};

struct E4m3Extras {
  float sm_scale;
  // One factor for each head, on the device; the scalars stand in for absent pointers.
  const float* maybe_scale_q;
  const float* maybe_scale_k;
  const float* maybe_scale_v;
  float scale_q_scalar;
  float scale_k_scalar;
  float scale_v_scalar;
};

template <typename Element, typename Extras>
struct Document {
  using DTypeQ = Element;
  using DTypeKV = Element;
  using DTypeO = cutlass::bfloat16_t;
  using IdType = int32_t;
  using AdditionalParams = Extras;

  DTypeQ* q_ptr;
  DTypeKV* k_ptr;
  DTypeKV* v_ptr;
  DTypeO* o_ptr;
  float* lse_ptr;
  Extras additional_params;
  int64_t q_stride_n, k_stride_n, v_stride_n, o_stride_n;
  int64_t q_stride_h, k_stride_h, v_stride_h, o_stride_h;
  int qo_len, kv_len, head_dim, num_qo_heads, num_kv_heads, group_size, window_left;
  bool causal;
};

// strides: rows and heads of q, k, v and o, in elements.
template <typename Element, typename Extras>
Document<Element, Extras> document(void* q, void* k, void* v, void* o, const int64_t* strides,
                                   int rows, int heads, Extras extras) {
  Document<Element, Extras> params{};
  params.q_ptr = static_cast<Element*>(q);
  params.k_ptr = static_cast<Element*>(k);
  params.v_ptr = static_cast<Element*>(v);
  params.o_ptr = static_cast<cutlass::bfloat16_t*>(o);
  params.q_stride_n = strides[0];
  params.q_stride_h = strides[1];
  params.k_stride_n = strides[2];
  params.k_stride_h = strides[3];
  params.v_stride_n = strides[4];
  params.v_stride_h = strides[5];
  params.o_stride_n = strides[6];
  params.o_stride_h = strides[7];
  params.additional_params = extras;
  params.qo_len = params.kv_len = rows;
  params.head_dim = kHeadDim;
  params.num_qo_heads = params.num_kv_heads = heads;
  params.group_size = 1;
  params.window_left = -1;
  return params;
}

}  // namespace

extern "C" {

int h3_fa3_bf16(void* q, void* k, void* v, void* o, const int64_t* strides, int rows, int heads,
                float sm_scale, void* stream) {
  auto params = document<cutlass::bfloat16_t>(q, k, v, o, strides, rows, heads,
                                              Bf16Extras{sm_scale});
  return flashinfer::SinglePrefillWithKVCacheDispatched<
      kHeadDim, kHeadDim, flashinfer::MaskMode::kNone, false, flashinfer::StandardAttention>(
      params, static_cast<cudaStream_t>(stream));
}

// scales: fp32 [3, heads] on the device, what q, k and v were divided by.
int h3_fa3_e4m3(void* q, void* k, void* v, void* o, const int64_t* strides, int rows, int heads,
                float sm_scale, const float* scales, void* stream) {
  auto params = document<cutlass::float_e4m3_t>(
      q, k, v, o, strides, rows, heads,
      E4m3Extras{sm_scale, scales, scales + heads, scales + 2 * heads, 1.f, 1.f, 1.f});
  return flashinfer::SingleFP8PrefillWithKVCacheDispatched<
      kHeadDim, flashinfer::MaskMode::kNone, false, flashinfer::StandardFP8Attention>(
      params, static_cast<cudaStream_t>(stream));
}

const char* h3_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

}  // extern "C"
