// Linear layers over packed weights (see product.h).
#pragma once
#include "product.h"
#include "threads.h"

constexpr long WORTH_THREADS = 1 << 17;  // Multiplications below which waking a helper costs more than it saves.

// out[m][n] = sum over k of x[m][k] * weight[n][k], + bias[n].
template <typename T, typename Out>
void linear(const T* x, const T* packed, const T* bias, Out* out, long rows, long outputs, long inputs, int threads) {
  using A = Arithmetic<T>;
  constexpr long BLOCK = 96;  // Rows whose inputs stay in the second-level cache with the panel.
  long panels = (outputs + PANEL - 1) / PANEL, blocks = (rows + BLOCK - 1) / BLOCK;
  auto part = [&](uint32_t index) {
    long panel = index / blocks, first = index % blocks * BLOCK;
    long count = rows - first < BLOCK ? rows - first : BLOCK;
    long column = panel * PANEL, width = outputs - column < PANEL ? outputs - column : PANEL;
    alignas(64) float sums[BLOCK * PANEL];
    products<A, GROUPS>(count, x + first * inputs, inputs, packed + panel * inputs * PANEL, PANEL * A::PER_WORD,
                        inputs / A::PER_WORD, sums, PANEL, false);
    for (long r = 0; r < count; r++) {
      Out* to = out + (first + r) * outputs + column;
      long n = 0;
      for (; n + LANES <= width; n += LANES) {
        F y = load(sums + r * PANEL + n);
        store(to + n, bias ? y + load(bias + column + n) : y);
      }
      for (; n < width; n++) {
        F y = splat(sums[r * PANEL + n] + (bias ? number(bias[column + n]) : 0.0f));
        Out lanes[LANES];
        store(lanes, y);
        to[n] = lanes[0];
      }
    }
  };
  pool().run(panels * blocks, rows * outputs * inputs > WORTH_THREADS ? threads : 1, part);
}
