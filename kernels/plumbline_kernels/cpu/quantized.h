// Linear layers with weights of 8 or 4 bits, and inputs that are rounded to 8 bits on the way.
//
// Weights and inputs have a scale for each group of consecutive inputs. Products of a group are summed in int32, exactly;
// groups are summed in fp32 in their order, so a result has the same bits in any batch. Weights are unsigned, with a zero
// point in the middle, as the instruction that multiplies four pairs of bytes (`vpdpbusd`) takes them; older processors
// multiply pairs of bytes.
#pragma once
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "layout.h"
#include "linear.h"

typedef int8_t B __attribute__((vector_size(LANES)));

struct Quantized {
  const uint8_t* data;  // [panels][groups][words][PANEL][4]; of 4 bits, a byte has those of two consecutive words.
  const bf16* scales;   // [panels][groups][PANEL]
  const bf16* shifts;   // What is added to the numbers of a group, as the scales; or null.
  int64_t group;        // Inputs that share a scale; a multiple of 16.
  int32_t bits;         // 8 or 4
};

// dot_bytes: sum[i] + the products of four bytes of columns[i] and four signed ones of row[i]. Columns are unsigned, and
// taken less 128 where SIGNED. dot_halves: the same of two words of 4 bits, as they are.
#if defined(__AVX512VNNI__)
constexpr bool SIGNED = false;
inline I dot_bytes(I sum, U columns, U row) {
  return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)columns, (__m512i)row);
}
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
constexpr bool SIGNED = false;
inline I dot_bytes(I sum, U columns, U row) {
  return (I)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)columns, (__m256i)row);
}
#elif defined(__AVX2__) && !defined(__AVX512F__)
// `vpmaddubsw` adds two products to 16 bits: 128 * 127 + 128 * 127 fits, 255 * 127 + 255 * 127 would not.
constexpr bool SIGNED = true;
inline I widened(__m256i sums) { return (I)_mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
inline I dot_bytes(I sum, U columns, U row) {
  __m256i bytes = _mm256_xor_si256((__m256i)columns, _mm256_set1_epi8(-128));
  return sum + widened(_mm256_maddubs_epi16(_mm256_abs_epi8(bytes), _mm256_sign_epi8((__m256i)row, bytes)));
}
inline I dot_halves(I sum, U low, U high, U first, U second) {
  // Four products of 15 * 127 fit, too.
  __m256i sums = _mm256_maddubs_epi16((__m256i)low, (__m256i)first);
  return sum + widened(_mm256_add_epi16(sums, _mm256_maddubs_epi16((__m256i)high, (__m256i)second)));
}
#else
constexpr bool SIGNED = false;
inline I dot_bytes(I sum, U columns, U row) {
  for (int shift = 0; shift < 32; shift += 8)
    sum += (I)((columns >> shift) & 0xff) * ((I)(row << (24 - shift)) >> 24);
  return sum;
}
#endif
#if !defined(__AVX2__) || defined(__AVX512F__) || defined(__AVXVNNI__)
// The sum of the products of two words, of 4 bits each.
inline I dot_halves(I sum, U low, U high, U first, U second) {
  return dot_bytes(dot_bytes(sum, low, first), high, second);
}
#endif

// Rows of inputs as bytes, with a scale and the sum of the bytes for each group.
struct Bytes {
  std::vector<int8_t> values;
  std::vector<float> scales;
  std::vector<int32_t> sums;

  template <typename T>
  void take(const T* x, long rows, long inputs, long group, int threads) {
    long groups = inputs / group;
    values.resize(rows * inputs);
    scales.resize(rows * groups);
    sums.resize(rows * groups);
    auto part = [&](uint32_t row) {
      for (long g = 0; g < groups; g++) {
        long at = row * inputs + g * group;
        take_group(x + at, group, at, row * groups + g);
      }
    };
    pool().run(rows, threads, rows * inputs, WORTH, part);
  }

 private:
  template <typename T>
  void take_group(const T* x, long count, long at, long group) {
    F top = splat(0.0f), finite = top;
    for (long i = 0; i < count; i += LANES) {
      F v = load(x + i);
      top = maximum(top, v < 0.0f ? -v : v);
      finite += v * 0.0f;  // NaN if v is not finite: then the scale is NaN, and so are all results.
    }
    float most = largest(top);
    for (int i = 0; i < LANES; i++) most += finite[i];
    float inverse = most > 0 ? 127.0f / most : 0.0f;
    I total{};
    for (long i = 0; i < count; i += LANES) {
      I rounded = (I)(load(x + i) * inverse + ROUNDING) - ROUNDING_BITS;
      total += (I)((U)rounded << 24) >> 24;  // The byte: numbers that are not finite would overflow the sum.
      store_as(values.data() + at + i, __builtin_convertvector(rounded, B));
    }
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += total[i];
    sums[group] = sum;
    scales[group] = most / 127.0f;
  }
};

// Add the sum of a group, times its scales and the input's, to what is there, if it is not the first one.
template <bool SHIFTED>
inline void add_group(float* to, bool is_first, I total, F scales, F shifts, float scale, int32_t sum) {
  // One multiply-add for every group, the first one included, so that compilers round all cases the same way.
  F before = is_first ? splat(0.0f) : load(to);
  if constexpr (SHIFTED) before = before + shifts * (scale * (float)sum);
  store(to, before + __builtin_convertvector(total, F) * (scales * scale));
}

inline int zero_of(const Quantized& w) { return w.bits == 4 ? 8 : SIGNED ? 0 : 128; }

// sums [R, PANEL] of R rows and one panel.
template <int R, bool SHIFTED>
void bytes_product(const Bytes& x, long row, long inputs, const Quantized& w, const uint8_t* columns,
                   const bf16* scales, const bf16* shifts, float* sums) {
  long groups = inputs / w.group;
  int zero = zero_of(w);
  const int8_t* values = x.values.data() + row * inputs;
  for (long g = 0; g < groups; g++, scales += PANEL) {
    I total[R][GROUPS];
    for (int r = 0; r < R; r++)
      for (int n = 0; n < GROUPS; n++) total[r][n] = I{} - zero * x.sums[(row + r) * groups + g];
    auto word = [&](int r, long at) { return U{} + load_as<uint32_t>(values + r * inputs + at); };
    if (w.bits == 8)
      for (long k = g * w.group; k < (g + 1) * w.group; k += WORD, columns += PANEL * WORD) {
        U column[GROUPS];
        for (int n = 0; n < GROUPS; n++) column[n] = load_as<U>(columns + n * LANES * WORD);
        for (int r = 0; r < R; r++) {
          U value = word(r, k);
          for (int n = 0; n < GROUPS; n++) total[r][n] = dot_bytes(total[r][n], column[n], value);
        }
      }
    else
      for (long k = g * w.group; k < (g + 1) * w.group; k += 2 * WORD, columns += PANEL * WORD) {
        U low[GROUPS], high[GROUPS];
        for (int n = 0; n < GROUPS; n++) {
          U both = load_as<U>(columns + n * LANES * WORD);
          low[n] = both & 0x0f0f0f0f;
          high[n] = (both >> 4) & 0x0f0f0f0f;
        }
        for (int r = 0; r < R; r++) {
          U first = word(r, k), second = word(r, k + WORD);
          for (int n = 0; n < GROUPS; n++) total[r][n] = dot_halves(total[r][n], low[n], high[n], first, second);
        }
      }
    for (int r = 0; r < R; r++)
      for (int n = 0; n < GROUPS; n++) {
        long at = (row + r) * groups + g;
        add_group<SHIFTED>(sums + r * PANEL + n * LANES, g == 0, total[r][n], load(scales + n * LANES),
                           SHIFTED ? load(shifts + g * PANEL + n * LANES) : F{}, x.scales[at], x.sums[at]);
      }
  }
}

#if defined(HAS_TILES)
// The same for rows of one height on tiles, group by group; the sums have the same bits.
template <bool SHIFTED>
void bytes_on_tiles(long count, int height, const Bytes& x, long row, long inputs, const Quantized& w, const uint8_t* columns,
                    const bf16* scales, const bf16* shifts, float* sums) {
  constexpr long MOST_GROUP = 128;
  alignas(64) uint8_t whole[MOST_GROUP * PANEL];
  alignas(64) int32_t totals[tiles::ROWS * PANEL];
  long groups = inputs / w.group, words = w.group / WORD, depth = words < tiles::WORDS ? words : tiles::WORDS;
  long size = w.group * PANEL * w.bits / 8;
  tiles::configure(height, depth);
  for (long g = 0; g < groups; g++, columns += size, scales += PANEL) {
    const uint8_t* bytes = columns;
    if (w.bits == 4) {
      for (long i = 0; i < size; i += 4 * LANES) {
        U both = load_as<U>(columns + i);
        uint8_t* to = whole + i / (PANEL * WORD) * 2 * PANEL * WORD + i % (PANEL * WORD);
        store_as(to, both & 0x0f0f0f0f);
        store_as(to + PANEL * WORD, (both >> 4) & 0x0f0f0f0f);
      }
      bytes = whole;
    }
    for (long first = 0; first < count; first += height) {
      tiles::product(x.values.data() + (row + first) * inputs + g * w.group, inputs, bytes, words / depth, depth, totals);
      for (int n = 0; n < GROUPS; n++) {
        F scale = load(scales + n * LANES), shift = SHIFTED ? load(shifts + g * PANEL + n * LANES) : F{};
        for (int r = 0; r < height; r++) {
          long at = (row + first + r) * groups + g;
          I total = load_as<I>(totals + r * PANEL + n * LANES) - zero_of(w) * x.sums[at];
          add_group<SHIFTED>(sums + (first + r) * PANEL + n * LANES, g == 0, total, scale, shift, x.scales[at], x.sums[at]);
        }
      }
    }
  }
  _tile_release();
}
#endif

template <bool SHIFTED, int R = SIGNED ? 4 : MOST_ROWS>  // Signs need registers, too.
void bytes_products(long count, const Bytes& x, long row, long inputs, const Quantized& w, const uint8_t* columns,
                    const bf16* scales, const bf16* shifts, float* sums) {
#if defined(HAS_TILES)
  if (long tiled = count / tiles::ROWS * tiles::ROWS; R == MOST_ROWS && tiled && tiles::allowed()) {
    bytes_on_tiles<SHIFTED>(tiled, tiles::ROWS, x, row, inputs, w, columns, scales, shifts, sums);
    count -= tiled, row += tiled, sums += tiled * PANEL;
    if (count > MOST_ROWS) {
      bytes_on_tiles<SHIFTED>(count, count, x, row, inputs, w, columns, scales, shifts, sums);
      return;
    }
  }
#endif
  for (; count >= R; count -= R, row += R, sums += R * PANEL)
    bytes_product<R, SHIFTED>(x, row, inputs, w, columns, scales, shifts, sums);
  if constexpr (R > 1)
    if (count) bytes_products<SHIFTED, R - 1>(count, x, row, inputs, w, columns, scales, shifts, sums);
}

template <typename T, typename Out>
void linear(const T* x, const Quantized& w, const T* bias, Out* out, long rows, long outputs, long inputs, int threads) {
  thread_local Bytes bytes;
  const Bytes& shared = bytes;  // A lambda on another thread would name that thread's own.
  bytes.take(x, rows, inputs, w.group, threads);
  each_panel(bias, out, rows, outputs, inputs, threads, [&](long first, long count, long column, float* sums) {
    long bytes_of_panels = column * inputs * w.bits / 8;
    long groups = column * (inputs / w.group);
    const uint8_t* data = w.data + bytes_of_panels;
    if (w.shifts)
      bytes_products<true>(count, shared, first, inputs, w, data, w.scales + groups, w.shifts + groups, sums);
    else
      bytes_products<false>(count, shared, first, inputs, w, data, w.scales + groups, nullptr, sums);
  });
}
