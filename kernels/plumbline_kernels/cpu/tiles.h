// Products on the tiles of AMX, where a processor has them: sixteen rows by sixteen columns, of 64 bytes each.
//
// Tiles add products of bf16 in another order than vectors do. So all rows are computed on tiles, even a single one: its
// bits must not depend on the number of rows. Sums of bytes are exact, so vectors may take the last few rows.
#pragma once
#include <type_traits>

#include "product.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__) && defined(__AVX512VNNI__) && defined(__linux__)
#define HAS_TILES 1
#include <sys/syscall.h>
#include <unistd.h>

namespace tiles {

constexpr int ROWS = 16, WORDS = 16;  // Of a tile.

// Whether this process may use tiles. Linux must be asked, because their state takes eight kilobytes of each thread.
inline bool allowed() {
  static const bool granted = [] {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  }();
  return granted;
}

// Tiles 0 to 3 are sums of `rows` rows, 4 is these rows with `words` words of four bytes, and 5 to 7 are columns.
inline void configure(int rows, int words = WORDS) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes;
  for (int tile = 0; tile < 8; tile++) shapes.bytes[tile] = 64, shapes.rows[tile] = tile < 5 ? rows : words;
  shapes.bytes[4] = 4 * words;
  // GCC's intrinsic says that it reads the first eight bytes only; those of tiles say of no memory that they read it.
  __asm__ volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
}

// The compiler accepts only literal numbers of tiles, hence macros: T is the tile of sums, C that of columns.
#define EACH_GROUP(N, DO) \
  DO(0, 5)                \
  if constexpr (N > 1) DO(1, 6) if constexpr (N > 2) DO(2, 7) if constexpr (N > 3) DO(3, 5)
#define BEGIN(T, C)                                           \
  {                                                           \
    if (add) _tile_loadd(T, out + T * LANES, out_stride);     \
    else _tile_zero(T);                                       \
  }
#define LOAD(T, C) _tile_loadd(C, words + T * LANES * sizeof(float), column_stride);
#define PAIRS(T, C) { LOAD(T, C) _tile_dpbf16ps(T, 4, C); }
#define END(T, C) _tile_stored(T, out + T * LANES, out_stride);

// `::product` for up to ROWS rows, N groups of columns, and `steps` times WORDS words.
template <int N>
inline void product(const bf16* rows, long row_stride, const bf16* columns, long column_stride, long steps, float* out,
                    long out_stride, bool add) {
  row_stride *= sizeof(bf16), column_stride *= sizeof(bf16), out_stride *= sizeof(float);
  EACH_GROUP(N, BEGIN)
  for (long step = 0; step < steps; step++) {
    _tile_loadd(4, rows + step * 2 * WORDS, row_stride);
    const char* words = (const char*)columns + step * WORDS * column_stride;
    EACH_GROUP(N, PAIRS)
  }
  EACH_GROUP(N, END)
}

// out[r][0 .. LANES) = the products of signed bytes of ROWS rows and of LANES columns, signed as well or not, `steps` times
// `depth` words of four.
template <bool SIGNED_COLUMNS>
inline void product(const int8_t* rows, long row_stride, const uint8_t* columns, long column_stride, long steps, long depth,
                    int32_t* out) {
  _tile_zero(0);
  for (long step = 0; step < steps; step++) {
    _tile_loadd(4, rows + step * depth * 4, row_stride);
    _tile_loadd(5, columns + step * depth * column_stride, column_stride);
    if constexpr (SIGNED_COLUMNS) _tile_dpbssd(0, 4, 5);
    else _tile_dpbsud(0, 4, 5);
  }
  _tile_stored(0, out, LANES * sizeof(int32_t));
}
#undef EACH_GROUP
#undef BEGIN
#undef LOAD
#undef PAIRS
#undef END

}  // namespace tiles
#endif

// Whether `multiply` uses tiles, for single rows as well.
template <typename A>
inline bool on_tiles() {
#if defined(HAS_TILES)
  if constexpr (std::is_same_v<A, Pairs>) return tiles::allowed();
#endif
  return false;
}

// `products` on tiles where there are any; vectors multiply the last words, which do not fill a tile.
template <typename A, int N>
inline void multiply(long count, const typename A::Row* rows, long row_stride, const typename A::Element* columns,
                     long column_stride, long words, float* out, long out_stride, bool add) {
#if defined(HAS_TILES)
  if constexpr (std::is_same_v<A, Pairs>)
    if (long steps = words / tiles::WORDS; steps && tiles::allowed()) {
      for (long first = 0; first < count; first += tiles::ROWS) {
        int height = count - first < tiles::ROWS ? count - first : tiles::ROWS;
        if (first == 0 || height < tiles::ROWS) tiles::configure(height);
        tiles::product<N>(rows + first * row_stride, row_stride, columns, column_stride, steps, out + first * out_stride,
                          out_stride, add);
      }
      _tile_release();
      long deep = steps * tiles::WORDS;
      rows += 2 * deep, columns += deep * column_stride, words -= deep, add = true;
      if (!words) return;
    }
#endif
  products<A, N>(count, rows, row_stride, columns, column_stride, words, out, out_stride, add);
}
