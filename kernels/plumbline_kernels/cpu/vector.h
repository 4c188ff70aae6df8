// As many floats as a register of this processor has, and conversions from and to the element types of tensors.
//
// The vector extensions of GCC and Clang compile to AVX-512, AVX or NEON, so each kernel is written once. Only the
// products of bf16 are intrinsics.
#pragma once
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float F __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
typedef uint32_t U __attribute__((vector_size(4 * LANES)));
typedef uint16_t H __attribute__((vector_size(2 * LANES)));   // bf16
typedef uint16_t HH __attribute__((vector_size(4 * LANES)));  // twice as many bf16

struct bf16 {
  uint16_t bits;
};

// An allocator whose memory begins at a line of the cache: tiles load rows that cross lines at a sixth of the speed.
template <typename T>
struct AtLine {
  using value_type = T;
  static constexpr std::align_val_t LINE{64};
  AtLine() = default;
  template <typename Other>
  AtLine(const AtLine<Other>&) {}
  T* allocate(size_t count) { return (T*)::operator new(count * sizeof(T), LINE); }
  void deallocate(T* at, size_t) { ::operator delete(at, LINE); }
  bool operator==(const AtLine&) const { return true; }
  bool operator!=(const AtLine&) const { return false; }
};
template <typename T>
using Scratch = std::vector<T, AtLine<T>>;

template <typename V, typename P>
inline V load_as(const P* at) {
  V v;
  std::memcpy(&v, at, sizeof v);
  return v;
}
template <typename V, typename P>
inline void store_as(P* at, V v) {
  std::memcpy(at, &v, sizeof v);
}

// 0, 1, 2, …
inline I numbers() {
  I lanes{};
  for (int i = 0; i < LANES; i++) lanes[i] = i;
  return lanes;
}
inline F splat(float x) { return F{} + x; }
inline F load(const float* at) { return load_as<F>(at); }
inline F load(const bf16* at) {
  return (F)(__builtin_convertvector(load_as<H>(at), U) << 16);
}
inline void store(float* at, F x) { store_as(at, x); }
inline float number(float x) { return x; }
inline float number(bf16 x) {
  uint32_t bits = (uint32_t)x.bits << 16;
  return load_as<float>(&bits);
}
inline H to_bf16(F x) {
#if defined(__AVX512BF16__)
  return (H)_mm512_cvtneps_pbh((__m512)x);
#else
  U bits = (U)x;
  U rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  U quiet = (bits >> 16) | 0x40;  // Rounding may turn a NaN into a number.
  return __builtin_convertvector((U)((x == x) ? (I)rounded : (I)quiet), H);
#endif
}
inline void store(bf16* at, F x) { store_as(at, to_bf16(x)); }

inline F maximum(F a, F b) { return a > b ? a : b; }
inline float sum(F x) {
  // Halves are added in a fixed order, so that a sum has the same bits wherever it is computed.
  const I lanes = numbers();
  for (int step = LANES / 2; step > 0; step /= 2) x += __builtin_shuffle(x, lanes ^ step);
  return x[0];
}
inline float largest(F x) {
  const I lanes = numbers();
  for (int step = LANES / 2; step > 0; step /= 2) x = maximum(x, __builtin_shuffle(x, lanes ^ step));
  return x[0];
}

// Adding it rounds a number to an integer in the low bits of the mantissa: 1.5 * 2^23, and its bits.
constexpr float ROUNDING = 12582912.0f;
constexpr int32_t ROUNDING_BITS = 0x4b400000;

// 2^x for x <= 127; below -126 it is 0. The polynomial's relative error is below 2e-7 on [-0.5, 0.5].
inline F exp2(F x) {
  const F shift = splat(ROUNDING);
  F clamped = x < -127.0f ? splat(-127.0f) : x;  // NaN stays NaN.
  F t = clamped + shift;
  F f = clamped - (t - shift);
  F p = splat(1.535336188319500e-4f);
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.0f;
  F result = (F)((I)p + ((I)t << 23));
  return x < -126.0f ? splat(0.0f) : result;
}

constexpr float LOG2E = 1.4426950408889634f;

// 1 / (1 + e^-x)
inline F sigmoid(F x) {
  F power = x * -LOG2E;
  return 1.0f / (1.0f + exp2(power > 120.0f ? splat(120.0f) : power));
}
inline F tanh(F x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }
