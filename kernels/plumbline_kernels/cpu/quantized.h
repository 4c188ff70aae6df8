// Linear layers with weights of 8, 6, 5 or 4 bits, and inputs that are rounded to 8 bits on the way.
//
// Weights and inputs have a scale for each group of consecutive inputs. Products of a group are summed in int32, exactly;
// groups are summed in fp32 in their order, so a result has the same bits in any batch. Weights are unsigned, with a zero
// point in the middle, as the instruction that multiplies four pairs of bytes (`vpdpbusd`) takes them; older processors
// multiply pairs of bytes.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "layout.h"
#include "linear.h"

typedef int8_t B __attribute__((vector_size(LANES)));

struct Quantized {
  const uint8_t* data;  // [panels][words][PANEL][4] of 8 bits; of fewer see CHUNK.
  const bf16* scales;   // [panels][groups][PANEL]
  const bf16* shifts;   // What is added to the numbers of a group, as the scales; or null.
  int64_t group;        // Inputs that share a scale; a multiple of 16.
  int32_t bits;         // 8, 6, 5 or 4
};

// Words of fewer than 8 bits are stored in chunks of so many, which a group has a whole number of: their low halves of a
// byte, of two consecutive words together, [CHUNK / 2][PANEL][4], and then the bits above, of all words together,
// [PANEL][4].
template <int BITS>
constexpr int CHUNK = BITS == 8 ? 1 : BITS == 6 ? 4 : BITS == 5 ? 8 : 2;

// The bits above the low half of a word of a chunk, at their place.
template <int BITS>
inline U upper(U rest, int word) {
  int shift = 4 - word * (BITS - 4);
  return (shift > 0 ? rest << shift : rest >> -shift) & (BITS == 5 ? 0x10101010 : 0x30303030);
}

// Two consecutive words of a chunk, for the columns from n * LANES on.
template <int BITS>
inline void take_pair(const uint8_t* chunk, int word, int n, U& first, U& second) {
  U both = load_as<U>(chunk + (word / 2 * PANEL + n * LANES) * WORD);
  first = both & 0x0f0f0f0f;
  second = (both >> 4) & 0x0f0f0f0f;
  if constexpr (BITS > 4) {
    U rest = load_as<U>(chunk + (CHUNK<BITS> / 2 * PANEL + n * LANES) * WORD);
    first |= upper<BITS>(rest, word);
    second |= upper<BITS>(rest, word + 1);
  }
}

// dot_bytes: sum[i] + the products of four bytes of columns[i] and four signed ones of row[i]. Columns are unsigned, and
// taken less 128 where SIGNED. dot_pair: the same of two words of 6 bits at most, as they are.
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
inline I dot_pair(I sum, U low, U high, U first, U second) {
  // Four products of 63 * 127 fit, too.
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
inline I dot_pair(I sum, U low, U high, U first, U second) {
  return dot_bytes(dot_bytes(sum, low, first), high, second);
}
#endif

// Rows of inputs as bytes, and of each group, [groups][rows]: a scale, the sum of the rounded inputs, and what its products
// with weights begin with: the sum of the bytes times the zero point, less than nothing.
struct Bytes {
  long rows;
  Scratch<int8_t> values;
  Scratch<float> scales, sums;
  Scratch<int32_t> starts;

  template <typename T>
  void take(const T* x, long count, long inputs, long group, int zero, int threads) {
    long groups = inputs / group;
    rows = count;
    values.resize(rows * inputs);
    scales.resize(rows * groups);
    sums.resize(rows * groups);
    starts.resize(rows * groups);
    auto part = [&](uint32_t row) {
      for (long g = 0; g < groups; g++) {
        long at = row * inputs + g * group;
        take_group(x + at, group, at, g * rows + row, zero);
      }
    };
    pool().run(rows, threads, rows * inputs, WORTH, part);
  }

 private:
  template <typename T>
  void take_group(const T* x, long count, long at, long group, int zero) {
    // Sizes are compared as their bits, in whose order NaN and infinity are above all numbers: then the scale is NaN, and so
    // are all results. Integers of a register are also added and compared across it at once; floats have an order.
    I top{};
    for (long i = 0; i < count; i += LANES) {
      I size = (I)load(x + i) & 0x7fffffff;
      top = top > size ? top : size;
    }
    int32_t largest_bits = 0;
    for (int i = 0; i < LANES; i++) largest_bits = top[i] > largest_bits ? top[i] : largest_bits;
    if (largest_bits >= 0x7f800000) largest_bits = 0x7fc00000;
    const float most = load_as<float>(&largest_bits);
    float inverse = most > 0 ? 127.0f / most : 0.0f;
    I total{};
    for (long i = 0; i < count; i += LANES) {
      I rounded = (I)(load(x + i) * inverse + ROUNDING) - ROUNDING_BITS;
      total += (I)((U)rounded << 24) >> 24;  // The byte: numbers that are not finite would overflow the sum.
      store_as(values.data() + at + i, __builtin_convertvector(rounded, B));
    }
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += total[i];
    starts[group] = -zero * sum;
    scales[group] = most / 127.0f;
    sums[group] = scales[group] * (float)sum;
  }
};

// Add the sum of a group, times its scales and the input's, to those before; and what its shifts add.
inline void add_group(F& sums, I total, const bf16* scales, float scale) {
  sums = sums + __builtin_convertvector(total, F) * (load(scales) * scale);
}
inline void add_shift(F& sums, const bf16* shifts, float sum) { sums = sums + load(shifts) * sum; }

// The zero point of weights, which `dot_bytes` takes off already where SIGNED.
inline int zero_of(int bits) { return bits < 8 ? 1 << (bits - 1) : SIGNED ? 0 : 128; }

// Add the products of R rows of inputs, `stride` from each other, with a group of weights of N registers of columns.
template <int R, int BITS, int N>
inline void add_products(const int8_t* rows, long stride, long group, const uint8_t* columns, I (&total)[R][N]) {
  auto word = [&](int r, long at) { return U{} + load_as<uint32_t>(rows + r * stride + at); };
  for (long k = 0; k < group; k += CHUNK<BITS> * WORD, columns += CHUNK<BITS> * PANEL * WORD * BITS / 8)
    if constexpr (BITS == 8) {
      U column[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) column[n] = load_as<U>(columns + n * LANES * WORD);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        U value = word(r, k);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) total[r][n] = dot_bytes(total[r][n], column[n], value);
      }
    } else {
#pragma GCC unroll 4
      for (int at = 0; at < CHUNK<BITS>; at += 2) {
        U low[N], high[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) take_pair<BITS>(columns, at, n, low[n], high[n]);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          U first = word(r, k + at * WORD), second = word(r, k + (at + 1) * WORD);
#pragma GCC unroll 4
          for (int n = 0; n < N; n++) total[r][n] = dot_pair(total[r][n], low[n], high[n], first, second);
        }
      }
    }
}

// sums [R, N * LANES] of R rows and some columns of a panel.
template <int R, int BITS, int N>
void bytes_product(const Bytes& x, long row, long inputs, long group, const uint8_t* columns, const bf16* scales,
                   const bf16* shifts, float* sums) {
  const long groups = inputs / group, size = group * PANEL * BITS / 8;
  F done[R][N] = {};
  for (long g = 0; g < groups; g++, columns += size, scales += PANEL) {
    const long at = g * x.rows + row;
    // Unrolled, or the compiler keeps the totals in memory.
    I total[R][N];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) total[r][n] = I{} + x.starts[at + r];
    add_products<R, BITS, N>(x.values.data() + row * inputs + g * group, inputs, group, columns, total);
    if (shifts)
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        float sum = x.sums[at + r];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) add_shift(done[r][n], shifts + g * PANEL + n * LANES, sum);
      }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) add_group(done[r][n], total[r][n], scales + n * LANES, x.scales[at + r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) store(sums + r * PANEL + n * LANES, done[r][n]);
}

// Write the weights of a panel as those of 8 bits.
template <int BITS>
void widen(const uint8_t* columns, long inputs, uint8_t* to) {
  const U zero = U{} + (128u - (1 << (BITS - 1))) * 0x01010101u;
  for (long k = 0; k < inputs; k += CHUNK<BITS> * WORD, columns += CHUNK<BITS> * PANEL * WORD * BITS / 8)
#pragma GCC unroll 4
    for (int at = 0; at < CHUNK<BITS>; at += 2, to += 2 * PANEL * WORD)
      for (int n = 0; n < GROUPS; n++) {
        U first, second;
        take_pair<BITS>(columns, at, n, first, second);
        store_as(to + n * LANES * WORD, first + zero);
        store_as(to + (PANEL + n * LANES) * WORD, second + zero);
      }
}

#if defined(HAS_TILES)
// Write the weights of a panel as signed bytes, [GROUPS][words][LANES][4]: the columns of a register together, or their
// lines would share too few sets of the first-level cache.
template <int BITS>
void lay_out(const uint8_t* columns, long inputs, uint8_t* to) {
  const U half = U{} + (1u << (BITS - 1)) * 0x01010101u, high = U{} + 0x80808080u;
  // Bytes less the zero point: their high bits are clear, so that no byte borrows from the next one.
  auto put = [&](uint8_t* at, U x) { store_as(at, ((x | high) - half) ^ high); };
  for (long k = 0; k < inputs; k += CHUNK<BITS> * WORD, columns += CHUNK<BITS> * PANEL * WORD * BITS / 8)
    for (int n = 0; n < GROUPS; n++)
#pragma GCC unroll 4
      for (int at = 0; at < CHUNK<BITS>; at += 2) {
        U first, second;
        take_pair<BITS>(columns, at, n, first, second);
        put(to + (n * inputs + k + at * WORD) * LANES, first);
        put(to + (n * inputs + k + (at + 1) * WORD) * LANES, second);
      }
}

// The sums of sixteen rows and a register of columns, whose words are `stride` from each other. Tiles multiply group by
// group; the bits are those of `bytes_product`. Groups are small, so most of the time is that of scaling their sums, which
// therefore stay in registers.
template <bool SIGNED_COLUMNS, bool SHIFTED>
void bytes_on_tiles(const Bytes& x, long row, long inputs, long group, const uint8_t* columns, long stride,
                    const bf16* scales, const bf16* shifts, float* sums) {
  alignas(64) int32_t totals[2][tiles::ROWS * LANES];
  const long groups = inputs / group, words = group / WORD, depth = words < tiles::WORDS ? words : tiles::WORDS;
  auto multiply = [&](long g) {
    tiles::product<SIGNED_COLUMNS>(x.values.data() + row * inputs + g * group, inputs, columns + g * words * stride, stride,
                                   words / depth, depth, totals[g % 2]);
  };
  F done[tiles::ROWS] = {};
  multiply(0);
  for (long g = 0; g < groups; g++, scales += PANEL) {
    if (g + 1 < groups) multiply(g + 1);  // Ahead, because what a tile has stored cannot be loaded at once.
    const int32_t* total = totals[g % 2];
    const long at = g * x.rows + row;
#pragma GCC unroll 16
    for (int r = 0; r < tiles::ROWS; r++) {
      I products = load_as<I>(total + r * LANES);
      if constexpr (!SIGNED_COLUMNS) products += x.starts[at + r];
      if constexpr (SHIFTED) add_shift(done[r], shifts + g * PANEL, x.sums[at + r]);
      add_group(done[r], products, scales, x.scales[at + r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < tiles::ROWS; r++) store(sums + r * PANEL, done[r]);
}

// `bytes_products` on tiles, of a panel as `lay_out` writes it, or of one of 8 bits as it is. The last rows are computed
// together with some before them.
template <int BITS>
void products_on_tiles(long count, const Bytes& x, long row, long inputs, long group, const uint8_t* columns,
                       const bf16* scales, const bf16* shifts, float* sums) {
  constexpr bool LAID_OUT = BITS < 8;
  const long next_columns = LANES * (LAID_OUT ? inputs : WORD), stride = WORD * (LAID_OUT ? LANES : PANEL);
  auto part = shifts ? bytes_on_tiles<LAID_OUT, true> : bytes_on_tiles<LAID_OUT, false>;
  tiles::configure(tiles::ROWS, group / WORD < tiles::WORDS ? group / WORD : tiles::WORDS);
  for (long next = 0; next < count; next += tiles::ROWS) {
    const long first = next + tiles::ROWS <= count ? next : count - tiles::ROWS;
    for (int n = 0; n < GROUPS; n++)
      part(x, row + first, inputs, group, columns + n * next_columns, stride, scales + n * LANES,
           shifts ? shifts + n * LANES : nullptr, sums + first * PANEL + n * LANES);
  }
  _tile_release();
}

// Whether tiles are faster than vectors: not where many of their rows would be computed twice, nor with groups so small
// that they fill a quarter of a tile.
inline bool worth_tiles(long count, long group) {
  const long computed = (count + tiles::ROWS - 1) / tiles::ROWS * tiles::ROWS;
  return count >= tiles::ROWS && group >= 32 && 4 * count >= 3 * computed && tiles::allowed();
}
#endif

// Call run(N) with a number up to MOST as a constant.
template <int MOST, typename Run>
inline void call_with(int number, const Run& run) {
  if (number == MOST) return run(std::integral_constant<int, MOST>());
  if constexpr (MOST > 1) call_with<MOST - 1>(number, run);
}

// Call run(R, first) for all of `count` rows with heights R of at most MOST, as even as they can be: a low one
// multiplies less for each word that it reads.
template <int MOST, typename Run>
inline void in_heights(long count, const Run& run) {
  for (long passes = (count + MOST - 1) / MOST, first = 0; passes; passes--) {
    const int rows = (count - first + passes - 1) / passes;
    call_with<MOST>(rows, [&](auto height) { run(height, first); });
    first += rows;
  }
}

constexpr int MOST_BYTE_ROWS = SIGNED ? 4 : MOST_ROWS;  // Signs need registers, too.

// Multiply rows with a panel, N registers of its columns at a time. With all GROUPS a panel is read once and in order, as
// memory likes it; with half of them totals and sums of six rows fit the registers, which is faster with a panel in a cache.
template <int BITS, int N>
void bytes_products(long count, const Bytes& x, long row, long inputs, long group, const uint8_t* columns,
                    const bf16* scales, const bf16* shifts, float* sums) {
  in_heights<MOST_BYTE_ROWS>(count, [&](auto height, long first) {
    for (int n = 0; n < PANEL; n += N * LANES)
      bytes_product<decltype(height)::value, BITS, N>(x, row + first, inputs, group, columns + n * WORD, scales + n,
                                                      shifts ? shifts + n : nullptr, sums + first * PANEL + n);
  });
}

template <int BITS, typename T, typename Out>
void bytes_linear(const T* x, const Quantized& w, const T* bias, Out* out, long rows, long outputs, long inputs,
                  int threads) {
  thread_local Bytes bytes;
  const Bytes& shared = bytes;  // A lambda on another thread would name that thread's own.
  // Three passes and more are worth widening a panel once.
  const bool wide = BITS == 8 || rows > 2 * MOST_BYTE_ROWS;
  // A widened panel is in a cache, one of 8 bits after the first pass.
  const bool cached = BITS < 8 ? wide : rows > 8 * MOST_BYTE_ROWS;
  const long group = w.group, groups = inputs / group;
  bytes.take(x, rows, inputs, group, zero_of(wide ? 8 : BITS), threads);
  each_panel(bias, out, rows, outputs, inputs, threads, [&](long first, long count, long column, float* sums) {
    const uint8_t* columns = w.data + column * inputs * BITS / 8;
    const bf16* scales = w.scales + column * groups;
    const bf16* shifts = w.shifts ? w.shifts + column * groups : nullptr;
    thread_local Scratch<uint8_t> panel;
    if (wide && (long)panel.size() < inputs * PANEL) panel.resize(inputs * PANEL);
#if defined(HAS_TILES)
    if (worth_tiles(count, group)) {
      if constexpr (BITS < 8) {
        lay_out<BITS>(columns, inputs, panel.data());
        columns = panel.data();
      }
      return products_on_tiles<BITS>(count, shared, first, inputs, group, columns, scales, shifts, sums);
    }
#endif
    if constexpr (BITS < 8) {
      if (!wide)
        return bytes_products<BITS, GROUPS>(count, shared, first, inputs, group, columns, scales, shifts, sums);
      widen<BITS>(columns, inputs, panel.data());
      columns = panel.data();
    }
    if (cached)
      bytes_products<8, GROUPS / 2>(count, shared, first, inputs, group, columns, scales, shifts, sums);
    else bytes_products<8, GROUPS>(count, shared, first, inputs, group, columns, scales, shifts, sums);
  });
}

template <typename T, typename Out>
void linear(const T* x, const Quantized& w, const T* bias, Out* out, long rows, long outputs, long inputs, int threads) {
  switch (w.bits) {
    case 4: return bytes_linear<4>(x, w, bias, out, rows, outputs, inputs, threads);
    case 5: return bytes_linear<5>(x, w, bias, out, rows, outputs, inputs, threads);
    case 6: return bytes_linear<6>(x, w, bias, out, rows, outputs, inputs, threads);
    default: return bytes_linear<8>(x, w, bias, out, rows, outputs, inputs, threads);
  }
}
