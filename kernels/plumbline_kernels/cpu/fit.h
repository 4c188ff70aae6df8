// Rounds weights to few bits: levels, a scale and, where asked for, a shift for each group of inputs, with a small error.
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

// A way to round a group: level * scale + shift, of which both are bf16.
struct Line {
  float scale = 0.0f, shift = 0.0f, error = INFINITY;
};

// Take the line if its levels are nearer to x than those of the best one, with weights that large numbers have more of.
inline void compare(const float* x, long count, float half, float typical, Line line, Line& best) {
  if (line.scale == 0.0f) return;
  F error = splat(0.0f);
  for (long i = 0; i < count; i += LANES) {
    F v = load(x + i), off = levels_of(v, half, line.shift, 1.0f / line.scale) * line.scale + line.shift - v;
    error += (typical + maximum(v, -v)) * off * off;
  }
  line.error = sum(error);
  if (line.error < best.error) best = line;
}

// Return the line through the levels of x for the inverse of a scale and a shift; without shifts it is 0.
inline Line through(const float* x, long count, float half, float typical, float inverse, float middle, bool shifted) {
  F w = splat(0.0f), wl = w, wl2 = w, wx = w, wlx = w;
  for (long i = 0; i < count; i += LANES) {
    F v = load(x + i), weight = typical + maximum(v, -v), l = levels_of(v, half, middle, inverse);
    w += weight, wl += weight * l, wl2 += weight * l * l, wx += weight * v, wlx += weight * l * v;
  }
  const float n = sum(w), sl = sum(wl), sl2 = sum(wl2), sx = sum(wx), slx = sum(wlx);
  if (!shifted) return {sl2 > 0.0f ? rounded(slx / sl2) : 0.0f};
  const float part = n * sl2 - sl * sl;
  if (!(part > 0.0f)) return {};
  const float scale = rounded((n * slx - sl * sx) / part);
  return {scale, rounded((sx - sl * scale) / n)};
}

// Fit the levels of a group to x: the lines through several ways to round are compared (as llama.cpp does it).
inline Line fit_group(const float* x, long count, float half, int8_t* levels, bool shifted) {
  const float steps = 2.0f * half - 1.0f;
  F low = load(x), high = low, squares = splat(0.0f);
  for (long i = 0; i < count; i += LANES) {
    F v = load(x + i);
    low = low < v ? low : v, high = maximum(high, v), squares += v * v;
  }
  const float least = -largest(-low), most = largest(high), spread = most - least, typical = std::sqrt(sum(squares) / count);
  // Without shifts the largest number gets the level -half, whose opposite there is not.
  const float top = -least > most ? least : most;
  Line best;
  if (shifted && spread > 0.0f) {
    const float scale = rounded(spread / steps);
    best = {scale, rounded(least + half * scale)};
    for (int step = -3; step < 12; step++) {
      const float inverse = (steps + 0.1f * step) / spread;
      compare(x, count, half, typical, through(x, count, half, typical, inverse, least + half / inverse, true), best);
    }
  } else if (!shifted && top != 0.0f) {
    best = {rounded(top / -half)};
    for (int step = -5; step < 6; step++) {
      const float inverse = (-half + 0.0125f * half * step) / top;
      compare(x, count, half, typical, through(x, count, half, typical, inverse, 0.0f, false), best);
      compare(x, count, half, typical, through(x, count, half, typical, -inverse, 0.0f, false), best);
    }
  } else if (shifted) {
    best.shift = rounded(least);
  }
  const float inverse = best.scale ? 1.0f / best.scale : 0.0f;
  for (long i = 0; i < count; i += LANES)
    store_as(levels + i, __builtin_convertvector(levels_of(load(x + i), half, best.shift, inverse), B));
  return best;
}

// Fit rows [rows, inputs]; scales and shifts are [rows, inputs / group]. Without a place for shifts there are none.
inline void fit(const float* x, long rows, long inputs, long group, int bits, int8_t* levels, float* scales,
                float* shifts, int threads) {
  auto part = [&](uint32_t row) {
    for (long g = 0; g < inputs / group; g++) {
      long at = row * inputs + g * group, place = row * (inputs / group) + g;
      Line found = fit_group(x + at, group, 1 << (bits - 1), levels + at, shifts != nullptr);
      scales[place] = found.scale;
      if (shifts) shifts[place] = found.shift;
    }
  };
  pool().run(rows, threads, rows * inputs * 64, WORTH, part);
}
