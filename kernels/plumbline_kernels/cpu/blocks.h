// Unpacks the blocks of a GGUF file to levels, scales and shifts, as the engine's `models/gguf/blocks.py` defines them.
#pragma once
#include "quantized.h"

// The number of a type in the format.
enum { Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14 };

// The fp16 number at two bytes, exactly.
inline float half_at(const uint8_t* from) {
  const uint32_t half = load_as<uint16_t>(from), size = half & 0x7fff;
  // The exponent of fp32 is 112 larger, which the factor adds also to numbers without one.
  uint32_t bits = size << 13, special = size >= 0x7c00 ? 0x7f800000u : 0;
  float number;
  std::memcpy(&number, &bits, sizeof number);
  number *= 0x1p112f;
  std::memcpy(&bits, &number, sizeof bits);
  bits |= special | (half & 0x8000) << 16;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

typedef uint8_t B16 __attribute__((vector_size(16)));

// 16 where a bit of a word is 1, for bits FIRST to FIRST + 15.
template <int FIRST>
inline B16 fifth_bits(uint32_t word) {
  constexpr int A = FIRST / 8, B = A + 1;
  B16 bytes = {};
  std::memcpy(&bytes, &word, sizeof word);
  bytes = __builtin_shuffle(bytes, B16{A, A, A, A, A, A, A, A, B, B, B, B, B, B, B, B});
  return (B16)((bytes & B16{1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128}) != 0) & 16;
}

// 32 levels: the low halves of 16 bytes, then the high ones, with a fifth bit from the bits of a word.
inline void levels_of_32(const uint8_t* from, uint32_t fifth, uint8_t zero, int8_t* levels) {
  const B16 halves = load_as<B16>(from);
  store_as(levels, (halves & 15 | fifth_bits<0>(fifth)) - zero);
  store_as(levels + 16, (halves >> 4 | fifth_bits<16>(fifth)) - zero);
}

// The scales and shifts of eight groups: of 6 bits each, times two fp16 numbers; `zero` is the level of the minimum.
inline void factors_of_8(const uint8_t* block, int zero, float* scales, float* shifts) {
  const uint8_t *first = block + 4, *second = block + 8, *rest = block + 12;
  const float scale = half_at(block), minimum = half_at(block + 2);
  for (int i = 0; i < 8; i++) {
    int at = i % 4;
    scales[i] = scale * (i < 4 ? first[at] & 63 : rest[at] & 15 | first[at] >> 6 << 4);
    shifts[i] = zero * scales[i] - minimum * (i < 4 ? second[at] & 63 : rest[at] >> 4 | second[at] >> 6 << 4);
  }
}

// A type of blocks: its inputs, its bytes, and the groups of inputs that share a scale.
template <int KIND>
struct Block {
  static constexpr bool IS_LONG = KIND == Q4_K || KIND == Q5_K || KIND == Q6_K;
  static constexpr long INPUTS = IS_LONG ? 256 : 32, GROUPS = KIND == Q6_K ? 16 : IS_LONG ? 8 : 1;
  static constexpr long SIZE = KIND == Q4_0 ? 18 : KIND == Q4_1 ? 20 : KIND == Q5_0 ? 22 : KIND == Q5_1 ? 24
                             : KIND == Q8_0 ? 34 : KIND == Q4_K ? 144 : KIND == Q5_K ? 176 : 210;

  static void unpack(const uint8_t* __restrict block, int8_t* __restrict levels, float* __restrict scales,
                     float* __restrict shifts) {
    if constexpr (KIND == Q8_0) {
      scales[0] = half_at(block);
      std::memcpy(levels, block + 2, 32);
    } else if constexpr (!IS_LONG) {
      constexpr bool HAS_SHIFTS = KIND == Q4_1 || KIND == Q5_1, HAS_FIFTH = KIND == Q5_0 || KIND == Q5_1;
      constexpr int AT = HAS_SHIFTS ? 4 : 2, ZERO = HAS_FIFTH ? 16 : 8;
      scales[0] = half_at(block);
      if constexpr (HAS_SHIFTS) shifts[0] = half_at(block + 2) + ZERO * scales[0];
      levels_of_32(block + (HAS_FIFTH ? AT + 4 : AT), HAS_FIFTH ? load_as<uint32_t>(block + AT) : 0, ZERO, levels);
    } else if constexpr (KIND == Q6_K) {
      const float scale = half_at(block + 208);
      for (int i = 0; i < 16; i++) scales[i] = scale * (int8_t)block[192 + i];
      for (int part = 0; part < 8; part++) {  // Of 32 levels each: halves of 64 bytes, and two bits of 32 further ones.
        const uint8_t *low = block + part / 4 * 64 + part % 2 * 32, *high = block + 128 + part / 4 * 32;
        const int half = part / 2 % 2 * 4, at = part % 4 * 2;
        for (int i = 0; i < 32; i++)
          levels[part * 32 + i] = (uint8_t)(low[i] >> half & 15 | (high[i] >> at & 3) << 4) - 32;
      }
    } else {
      constexpr int ZERO = KIND == Q5_K ? 16 : 8;
      const uint8_t* from = block + (KIND == Q5_K ? 48 : 16);
      factors_of_8(block, ZERO, scales, shifts);
      for (int group = 0; group < 8; group++)
        for (int i = 0; i < 32; i++) {
          const int low = from[group / 2 * 32 + i] >> group % 2 * 4 & 15;
          const int high = KIND == Q5_K ? block[16 + i] >> group & 1 : 0;
          levels[group * 32 + i] = (low | high << 4) - ZERO;
        }
    }
  }
};

// Unpack `count` blocks: levels [count, INPUTS], scales and, of types that have them, shifts [count, GROUPS].
template <int KIND>
void unpack_blocks(const uint8_t* data, long count, int8_t* levels, float* scales, float* shifts, int threads) {
  using B = Block<KIND>;
  constexpr long AT_ONCE = 65536 / B::INPUTS;
  auto part = [&](uint32_t number) {
    const long first = number * AT_ONCE, end = first + AT_ONCE < count ? first + AT_ONCE : count;
    for (long i = first; i < end; i++)
      B::unpack(data + i * B::SIZE, levels + i * B::INPUTS, scales + i * B::GROUPS, shifts + i * B::GROUPS);
  };
  pool().run((count + AT_ONCE - 1) / AT_ONCE, threads, count * B::INPUTS, WORTH, part);
}
