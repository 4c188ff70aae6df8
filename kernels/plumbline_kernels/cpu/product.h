// Products of a few rows with packed columns, the one loop of linear layers and of attention.
//
// A matrix is packed in panels of columns: for each word of the summed dimension the columns of a panel lie side by
// side. A word is one number, or two bf16 where `vdpbf16ps` multiplies pairs. One accumulator sums each result in the
// order of the words, so its bits do not depend on how many rows are computed together.
#pragma once
#include "vector.h"

#if defined(__AVX512F__)
constexpr int GROUPS = 4, MOST_ROWS = 6;  // 24 accumulators and 4 columns fit 32 registers.
#elif defined(__AVX__)
constexpr int GROUPS = 2, MOST_ROWS = 6;  // 12 accumulators and 2 columns fit 16 registers.
#else
constexpr int GROUPS = 4, MOST_ROWS = 4;
#endif
constexpr int PANEL = GROUPS * LANES;

// One number per word; sums are fp32. Rows are fp32, because converting a number of a row for each panel takes longer
// than multiplying with it.
template <typename T>
struct Singles {
  using Element = T;
  using Row = float;
  using Column = F;
  using Value = float;
  static constexpr int PER_WORD = 1;
  static Column column(const T* at) { return load(at); }
  static Value value(const float* at) { return *at; }
  static F dot(F sum, Column column, Value value) { return sum + column * value; }
};

#if defined(__AVX512BF16__)
struct Pairs {
  using Element = bf16;
  using Row = bf16;
  using Column = U;
  using Value = U;
  static constexpr int PER_WORD = 2;
  static Column column(const bf16* at) { return load_as<U>(at); }
  static Value value(const bf16* at) { return U{} + load_as<uint32_t>(at); }
  static F dot(F sum, Column column, Value value) {
    return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)column, (__m512bh)value);
  }
};
#endif

template <typename T>
struct ArithmeticOf {
  using type = Singles<T>;
};
#if defined(__AVX512BF16__)
template <>
struct ArithmeticOf<bf16> {
  using type = Pairs;
};
#endif
template <typename T>
using Arithmetic = typename ArithmeticOf<T>::type;

// out[r][0 .. N * LANES) = sum over words of rows[r][word] * columns[word], added to what is there if `add`. The columns
// may be in several panels of GROUPS, `panel_stride` numbers from each other.
template <typename A, int R, int N>
inline void product(const typename A::Row* rows, long row_stride, const typename A::Element* columns,
                    long column_stride, long words, float* out, long out_stride, bool add, long panel_stride = 0) {
  F sums[R][N];
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++) sums[r][n] = add ? load(out + r * out_stride + n * LANES) : splat(0.0f);
  for (long word = 0; word < words; word++) {
    typename A::Column column[N];
    for (int n = 0; n < N; n++)
      column[n] = A::column(columns + word * column_stride + n / GROUPS * panel_stride + n % GROUPS * LANES * A::PER_WORD);
    for (int r = 0; r < R; r++) {
      typename A::Value value = A::value(rows + r * row_stride + word * A::PER_WORD);
      for (int n = 0; n < N; n++) sums[r][n] = A::dot(sums[r][n], column[n], value);
    }
  }
  for (int r = 0; r < R; r++)
    for (int n = 0; n < N; n++) store(out + r * out_stride + n * LANES, sums[r][n]);
}

template <typename A, int N, int R = MOST_ROWS>
inline void products(long count, const typename A::Row* rows, long row_stride,
                     const typename A::Element* columns, long column_stride, long words, float* out, long out_stride,
                     bool add) {
  for (; count >= R; count -= R, rows += R * row_stride, out += R * out_stride)
    product<A, R, N>(rows, row_stride, columns, column_stride, words, out, out_stride, add);
  if constexpr (R > 1)
    if (count) products<A, N, R - 1>(count, rows, row_stride, columns, column_stride, words, out, out_stride, add);
}
