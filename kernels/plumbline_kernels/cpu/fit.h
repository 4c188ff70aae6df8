// Rounds weights to few bits: levels, a scale and a shift for each group of inputs, with a small squared error.
#pragma once
#include <cmath>

#include "quantized.h"

// As bf16 has it.
inline float rounded(float x) {
  bf16 lanes[LANES];
  store(lanes, splat(x));
  return number(lanes[0]);
}

// Levels -half .. half - 1 of numbers less a shift, for the inverse of a scale.
inline F levels_of(F x, float half, float shift, float inverse) {
  F level = ((x - shift) * inverse + ROUNDING) - ROUNDING;
  level = level < -half ? splat(-half) : level;
  return level > half - 1.0f ? splat(half - 1.0f) : level;
}

// Fit the levels of a group to x, with weights that large numbers have more of: the lines through several ways to round
// are compared (as llama.cpp does it). The result is level * scale + shift, of which both are bf16.
inline void fit_group(const float* x, long count, float half, int8_t* levels, float& scale, float& shift) {
  const float steps = 2.0f * half - 1.0f;
  F low = load(x), high = low, squares = splat(0.0f);
  for (long i = 0; i < count; i += LANES) {
    F v = load(x + i);
    low = low < v ? low : v, high = maximum(high, v), squares += v * v;
  }
  const float least = -largest(-low), most = largest(high), spread = most - least, typical = std::sqrt(sum(squares) / count);
  scale = rounded(spread / steps), shift = rounded(least + half * scale);
  float best = INFINITY;
  for (int step = -3; spread > 0.0f && step < 12; step++) {
    const float inverse = (steps + 0.1f * step) / spread, middle = least + half / inverse;
    F w = splat(0.0f), wl = w, wl2 = w, wx = w, wlx = w;
    for (long i = 0; i < count; i += LANES) {
      F v = load(x + i), weight = typical + maximum(v, -v), l = levels_of(v, half, middle, inverse);
      w += weight, wl += weight * l, wl2 += weight * l * l, wx += weight * v, wlx += weight * l * v;
    }
    const float n = sum(w), sl = sum(wl), sl2 = sum(wl2), sx = sum(wx), slx = sum(wlx), part = n * sl2 - sl * sl;
    if (!(part > 0.0f)) continue;
    const float s = rounded((n * slx - sl * sx) / part), b = rounded((sx - sl * s) / n);
    if (s == 0.0f) continue;
    F error = splat(0.0f);
    for (long i = 0; i < count; i += LANES) {
      F v = load(x + i), off = levels_of(v, half, b, 1.0f / s) * s + b - v;
      error += (typical + maximum(v, -v)) * off * off;
    }
    if (float total = sum(error); total < best) best = total, scale = s, shift = b;
  }
  for (long i = 0; i < count; i += LANES)
    store_as(levels + i, __builtin_convertvector(levels_of(load(x + i), half, shift, scale ? 1.0f / scale : 0.0f), B));
}

// Fit rows [rows, inputs]; scales and shifts are [rows, inputs / group].
inline void fit(const float* x, long rows, long inputs, long group, int bits, int8_t* levels, float* scales,
                float* shifts, int threads) {
  auto part = [&](uint32_t row) {
    for (long g = 0; g < inputs / group; g++) {
      long at = row * inputs + g * group, place = row * (inputs / group) + g;
      fit_group(x + at, group, 1 << (bits - 1), levels + at, scales[place], shifts[place]);
    }
  };
  pool().run(rows, threads, rows * inputs * 64, WORTH, part);
}
