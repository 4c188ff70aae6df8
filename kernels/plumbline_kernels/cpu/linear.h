// Linear layers over packed weights (see product.h).
#pragma once
#include <type_traits>

#include "product.h"
#include "threads.h"
#include "tiles.h"

constexpr long WORTH = 1 << 18;  // Multiplications that are worth a thread.

constexpr long ROW_BLOCK = 96;  // Rows whose inputs stay in the second-level cache with a panel.

// Add the bias to sums [count, PANEL], `stride` from row to row, and write those of the panel's outputs, from `column` on.
template <typename T, typename Out>
void write_panel(const float* sums, long stride, const T* bias, Out* out, long count, long outputs, long column) {
  long width = outputs - column < PANEL ? outputs - column : PANEL;
  for (long r = 0; r < count; r++) {
    Out* to = out + r * outputs + column;
    long n = 0;
    for (; n + LANES <= width; n += LANES) {
      F y = load(sums + r * stride + n);
      store(to + n, bias ? y + load(bias + column + n) : y);
    }
    for (; n < width; n++) {
      Out lanes[LANES];
      store(lanes, splat(sums[r * stride + n] + (bias ? number(bias[column + n]) : 0.0f)));
      to[n] = lanes[0];
    }
  }
}

// One or two rows have enough sums to hide how long an addition takes in several panels only, which are also read as
// several streams from memory.
constexpr int CHAINS = 8;

// Multiply R rows with panels: as many as CHAINS allows at a time, and single ones at the end.
template <int R, typename A, typename T, typename Out>
void few_rows(const typename A::Row* x, const T* packed, const T* bias, Out* out, long outputs, long inputs, int threads) {
  constexpr int TOGETHER = CHAINS / (R * GROUPS) > 1 ? CHAINS / (R * GROUPS) : 1, WIDTH = TOGETHER * PANEL;
  auto task = [&](uint32_t index) {
    long column = index * WIDTH;
    alignas(64) float sums[R * WIDTH];
    auto multiply = [&](auto number, long at) {
      constexpr int P = decltype(number)::value;
      product<A, R, P * GROUPS>(x, inputs, packed + at * inputs, PANEL * A::PER_WORD, inputs / A::PER_WORD, sums, P * PANEL,
                                false, PANEL * inputs);
      for (int p = 0; p < P; p++) write_panel(sums + p * PANEL, P * PANEL, bias, out, R, outputs, at + p * PANEL);
    };
    if (column + WIDTH <= outputs) multiply(std::integral_constant<int, TOGETHER>(), column);
    else
      for (; column < outputs; column += PANEL) multiply(std::integral_constant<int, 1>(), column);
  };
  pool().run((outputs + WIDTH - 1) / WIDTH, threads, R * outputs * inputs, WORTH, task);
}

// Call part(first row, rows, first output, sums) for blocks of rows and panels of outputs, and write the sums.
template <typename T, typename Out, typename Part>
void each_panel(const T* bias, Out* out, long rows, long outputs, long inputs, int threads, const Part& part) {
  long panels = (outputs + PANEL - 1) / PANEL, blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
  auto task = [&](uint32_t index) {
    long column = index / blocks * PANEL, first = index % blocks * ROW_BLOCK;
    long count = rows - first < ROW_BLOCK ? rows - first : ROW_BLOCK;
    alignas(64) float sums[ROW_BLOCK * PANEL];
    part(first, count, column, sums);
    write_panel(sums, PANEL, bias, out + first * outputs, count, outputs, column);
  };
  pool().run(panels * blocks, threads, rows * outputs * inputs, WORTH, task);
}

// Rows as the arithmetic takes them: as they are, or widened to fp32.
template <typename Row, typename T>
const Row* as_rows(const T* x, long rows, long inputs, int threads) {
  if constexpr (std::is_same_v<Row, T>) return x;
  else {
    thread_local Scratch<float> wide;
    if ((long)wide.size() < rows * inputs) wide.resize(rows * inputs);
    float* to = wide.data();
    auto part = [&](uint32_t row) {
      for (long i = 0; i < inputs; i += LANES) store(to + row * inputs + i, load(x + row * inputs + i));
    };
    pool().run(rows, threads, rows * inputs, WORTH, part);
    return to;
  }
}

// out[m][n] = sum over k of x[m][k] * weight[n][k], + bias[n].
template <typename T, typename Out>
void linear(const T* x, const T* packed, const T* bias, Out* out, long rows, long outputs, long inputs, int threads) {
  using A = Arithmetic<T>;
  const typename A::Row* values = as_rows<typename A::Row>(x, rows, inputs, threads);
  if (rows == 1 && !on_tiles<A>()) return few_rows<1, A>(values, packed, bias, out, outputs, inputs, threads);
  if (rows == 2 && !on_tiles<A>()) return few_rows<2, A>(values, packed, bias, out, outputs, inputs, threads);
  each_panel(bias, out, rows, outputs, inputs, threads, [&](long first, long count, long column, float* sums) {
    multiply<A, GROUPS>(count, values + first * inputs, inputs, packed + column * inputs, PANEL * A::PER_WORD,
                        inputs / A::PER_WORD, sums, PANEL, false);
  });
}
