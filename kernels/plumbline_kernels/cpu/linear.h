// Linear layers over packed weights (see product.h).
#pragma once
#include "product.h"
#include "threads.h"

constexpr long WORTH = 1 << 16;  // Multiplications that are worth a thread.

constexpr long ROW_BLOCK = 96;  // Rows whose inputs stay in the second-level cache with a panel.

// Add the bias to sums [count, PANEL] and write those of the panel's outputs, from `column` on.
template <typename T, typename Out>
void write_panel(const float* sums, const T* bias, Out* out, long count, long outputs, long column) {
  long width = outputs - column < PANEL ? outputs - column : PANEL;
  for (long r = 0; r < count; r++) {
    Out* to = out + r * outputs + column;
    long n = 0;
    for (; n + LANES <= width; n += LANES) {
      F y = load(sums + r * PANEL + n);
      store(to + n, bias ? y + load(bias + column + n) : y);
    }
    for (; n < width; n++) {
      Out lanes[LANES];
      store(lanes, splat(sums[r * PANEL + n] + (bias ? number(bias[column + n]) : 0.0f)));
      to[n] = lanes[0];
    }
  }
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
    write_panel(sums, bias, out + first * outputs, count, outputs, column);
  };
  pool().run(panels * blocks, threads, rows * outputs * inputs, WORTH, task);
}

// out[m][n] = sum over k of x[m][k] * weight[n][k], + bias[n].
template <typename T, typename Out>
void linear(const T* x, const T* packed, const T* bias, Out* out, long rows, long outputs, long inputs, int threads) {
  using A = Arithmetic<T>;
  each_panel(bias, out, rows, outputs, inputs, threads, [&](long first, long count, long column, float* sums) {
    products<A, GROUPS>(count, x + first * inputs, inputs, packed + column * inputs, PANEL * A::PER_WORD,
                        inputs / A::PER_WORD, sums, PANEL, false);
  });
}
