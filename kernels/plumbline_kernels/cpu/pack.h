// Lays the levels of rounded weights out as quantized.h reads them, and reads rows of packed matrices.
#pragma once
#include "layout.h"
#include "quantized.h"

// Write the chunk of one column: `levels` has its signed bytes, and `to` points to the column in the chunk.
template <int BITS>
inline void pack_chunk(const int8_t* levels, uint8_t* to) {
  uint32_t words[CHUNK<BITS>], rest = 0;
  for (int at = 0; at < CHUNK<BITS>; at++) {
    // The lowest bits, with the sign turned: a level plus the zero point.
    words[at] = load_as<uint32_t>(levels + at * WORD) & ((1u << BITS) - 1) * 0x01010101u;
    words[at] ^= (1u << (BITS - 1)) * 0x01010101u;
  }
  if constexpr (BITS == 8) store_as(to, words[0]);
  else {
    for (int at = 0; at < CHUNK<BITS>; at += 2) {
      uint32_t low = words[at] & 0x0f0f0f0f, high = words[at + 1] & 0x0f0f0f0f;
      store_as(to + at / 2 * PANEL * WORD, low | high << 4);
    }
    if constexpr (BITS > 4) {
      for (int at = 0; at < CHUNK<BITS>; at++) rest |= (words[at] >> 4 & 0x0f0f0f0f) << at * (BITS - 4);
      store_as(to + CHUNK<BITS> / 2 * PANEL * WORD, rest);
    }
  }
}

// Pack levels [outputs, inputs]; the columns of the last panel that are no outputs are zeros.
template <int BITS>
void pack(const int8_t* levels, long outputs, long inputs, uint8_t* to, int threads) {
  constexpr long CHUNK_INPUTS = CHUNK<BITS> * WORD, SIZE = CHUNK_INPUTS * PANEL * BITS / 8;
  const int8_t none[CHUNK_INPUTS] = {};
  auto part = [&](uint32_t panel) {
    uint8_t* chunk = to + panel * PANEL * inputs * BITS / 8;
    for (long k = 0; k < inputs; k += CHUNK_INPUTS, chunk += SIZE)
      for (long column = 0; column < PANEL; column++) {
        long output = panel * PANEL + column;
        pack_chunk<BITS>(output < outputs ? levels + output * inputs + k : none, chunk + column * WORD);
      }
  };
  pool().run((outputs + PANEL - 1) / PANEL, threads, outputs * inputs, WORTH, part);
}

// Pack rows of words that the arithmetic of a type takes as they are, [outputs, words]; see product.h.
template <typename Word>
void pack_words(const Word* from, long outputs, long words, Word* to, int threads) {
  constexpr long LINE = 64 / sizeof(Word);
  auto part = [&](uint32_t panel) {
    for (long first = 0; first < words; first += LINE)
      for (long column = 0, output = panel * PANEL; column < PANEL; column++, output++)
        for (long word = first; word < words && word < first + LINE; word++)
          to[(panel * words + word) * PANEL + column] = output < outputs ? from[output * words + word] : 0;
  };
  pool().run((outputs + PANEL - 1) / PANEL, threads, outputs * words, WORTH, part);
}

// A level of a column of a panel.
template <int BITS>
inline int level(const uint8_t* panel, long column, long input) {
  long word = input / WORD, at = word % CHUNK<BITS>, byte = column * WORD + input % WORD;
  const uint8_t* chunk = panel + word / CHUNK<BITS> * CHUNK<BITS> * PANEL * WORD * BITS / 8;
  if constexpr (BITS == 8) return chunk[byte] - 128;
  int low = chunk[at / 2 * PANEL * WORD + byte] >> 4 * (at % 2) & 15;
  int high = BITS > 4 ? chunk[CHUNK<BITS> / 2 * PANEL * WORD + byte] >> at * (BITS - 4) & ((1 << (BITS - 4)) - 1) : 0;
  return (low | high << 4) - (1 << (BITS - 1));
}

template <int BITS, typename T>
void unpack_levels(const Matrix& m, long panel, long column, T* to) {
  const uint8_t* levels = (const uint8_t*)m.weight + panel * PANEL * m.inputs * BITS / 8;
  for (long k = 0; k < m.inputs; k += LANES) {
    float lanes[LANES];
    long group = (panel * (m.inputs / m.group) + k / m.group) * PANEL + column;
    float scale = number(((const bf16*)m.scales)[group]), shift = m.shifts ? number(((const bf16*)m.shifts)[group]) : 0.0f;
    for (int i = 0; i < LANES; i++) lanes[i] = level<BITS>(levels, column, k + i) * scale + shift;
    store(to + k, load(lanes));
  }
}

// Write a row of a packed matrix [outputs, inputs].
template <typename T>
void unpack_row(const Matrix& m, long row, T* to) {
  constexpr int PER = Arithmetic<T>::PER_WORD;
  long panel = row / PANEL, column = row % PANEL;
  switch (m.bits) {
    case 8: return unpack_levels<8>(m, panel, column, to);
    case 6: return unpack_levels<6>(m, panel, column, to);
    case 5: return unpack_levels<5>(m, panel, column, to);
    case 4: return unpack_levels<4>(m, panel, column, to);
  }
  const T* from = (const T*)m.weight + panel * PANEL * m.inputs + column * PER;
  for (long k = 0; k < m.inputs; k++) to[k] = from[k / PER * PANEL * PER + k % PER];
}
