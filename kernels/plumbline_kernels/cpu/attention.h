// Attention over the paged cache, with online softmax (FlashAttention-2, arXiv 2307.08691).
//
// The work is cut into parts: a tile of a sequence's queries, and one key head. The query heads that share the key head
// are rows of one matrix. A tile walks over blocks of keys that begin at multiples of KEYS, so the bits of a row depend
// on its query and on the keys up to its position alone: not on the batch, nor on how a prompt is cut. Scores and sums
// are fp32; where pairs of bf16 are multiplied, the weights are rounded to bf16 for the second product.
#pragma once
#include <cmath>
#include <memory>
#include <type_traits>
#include <vector>

#include "layout.h"
#include "threads.h"
#include "tiles.h"

constexpr int NARROW_DIM = 256;  // Most heads; wider ones, up to WIDE_DIM, need more of the cache.
constexpr int KEYS = 64;
// More rows reuse a packed block of keys, and fewer wide heads fit the cache: as many as have the numbers of FEW_ROWS
// heads of the widest kind.
constexpr int TILE_ROWS = 256;
constexpr int SCORED_ROWS = 8 * MOST_ROWS;  // Their scores of a block and its keys fit the first-level cache.
constexpr float LOWEST = -1e30f;  // Finite, so that a row without a key so far has no NaN.

template <typename T>
struct Attention {
  const T *q, *k_cache, *v_cache;
  T* out;
  const int32_t *query_start, *seq_lens, *tables;
  const int64_t* reach;  // The last position that each query attends to, never less than before; null for its own.
  long sequences, table_width, block_size, heads, kv_heads, dim;
  long window;  // 0 for none
  bool tiled;   // Whether windows are side by side.
  float scale, softcap;  // softcap: 0 for none
  const float* sinks;    // [heads], scores of one more key without a value; or null
  int threads;
};

// Transpose LANES rows of as many words in place.
inline void transpose(U (&m)[LANES]) {
  const U lanes = (U)numbers();
#pragma GCC unroll 4
  for (uint32_t step = LANES / 2; step > 0; step /= 2) {
    // Exchange the off-diagonal squares of size `step`.
    U from_low = (lanes & step) ? (lanes ^ step) + LANES : lanes;
    U from_high = (lanes & step) ? lanes + LANES : lanes ^ step;
#pragma GCC unroll 16
    for (uint32_t i = 0; i < LANES; i++)
      if (!(i & step)) {
        U low = m[i], high = m[i + step];
        m[i] = __builtin_shuffle(low, high, from_low);
        m[i + step] = __builtin_shuffle(low, high, from_high);
      }
  }
}

template <typename T, int MAX_DIM>
class Tile {
  // Without products of pairs, a tile is widened to fp32 once, where it is packed.
  using E = std::conditional_t<Arithmetic<T>::PER_WORD == 1, float, T>;
  using A = Arithmetic<E>;
  static constexpr int PER = A::PER_WORD;

  alignas(64) E q_[FEW_ROWS * MAX_DIM];
  alignas(64) E k_[MAX_DIM * KEYS];  // Panels of keys.
  alignas(64) E v_[KEYS * MAX_DIM];  // The values of a block side by side.
  alignas(64) E p_[SCORED_ROWS * KEYS];
  alignas(64) float s_[SCORED_ROWS * KEYS];
  alignas(64) float o_[FEW_ROWS * MAX_DIM];
  alignas(64) F total_[TILE_ROWS];
  float top_[TILE_ROWS];
  const T *keys_[KEYS], *values_[KEYS];  // Of the next block, by key; null past the sequence.

  static U words(const T* from) {
    if constexpr (PER == 1) return (U)load(from);
    else return load_as<U>(from);
  }
  static void put(E* to, U words) {
    if constexpr (PER == 1) store(to, (F)words);
    else store_as(to, words);
  }

  static void take(E* to, const T* from, long count) {
    if constexpr (std::is_same_v<E, T>) std::memcpy(to, from, count * sizeof(T));
    else
      for (long i = 0; i < count; i += LANES) store(to + i, load(from + i));
  }

  void pack_keys(const T* const* rows, long dim) {
    for (int key = 0; key < KEYS; key += LANES)
      for (long word = 0; word < dim / PER; word += LANES) {
        U m[LANES];
        for (int i = 0; i < LANES; i++) m[i] = rows[key + i] ? words(rows[key + i] + word * PER) : U{};
        transpose(m);
        E* to = k_ + key / PANEL * PANEL * dim + key % PANEL * PER;
        for (int i = 0; i < LANES; i++) put(to + (word + i) * PANEL * PER, m[i]);
      }
  }

  void pack_values(const T* const* rows, long dim) {
    if constexpr (PER == 1) {
      for (int key = 0; key < KEYS; key++)
        for (long i = 0; i < dim; i += LANES) store(v_ + key * dim + i, rows[key] ? load(rows[key] + i) : splat(0.0f));
    }
#if defined(__AVX512BF16__)
    else {
      const HH order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
      for (int key = 0; key < KEYS; key += 2)
        for (long i = 0; i < dim; i += LANES) {
          struct {
            H even, odd;
          } both = {};
          if (rows[key]) both.even = load_as<H>(rows[key] + i);
          if (rows[key + 1]) both.odd = load_as<H>(rows[key + 1] + i);
          store_as(v_ + key * dim + 2 * i, __builtin_shuffle(load_as<HH>(&both), order));
        }
    }
#endif
  }

  // Find the keys and values of a block, and have them fetched while the block before is computed.
  void find(const Attention<T>& a, const int32_t* table, long head, long first, long stop) {
    for (int i = 0; i < KEYS; i++) {
      long position = first + i;
      keys_[i] = values_[i] = nullptr;
      if (position >= stop) continue;  // What is past the sequence may be NaN, so it is not read.
      long slot = table[position / a.block_size] * a.block_size + position % a.block_size;
      keys_[i] = a.k_cache + (slot * a.kv_heads + head) * a.dim;
      values_[i] = a.v_cache + (slot * a.kv_heads + head) * a.dim;
      for (long at = 0; at < a.dim; at += 64 / sizeof(T)) {
        __builtin_prefetch(keys_[i] + at, 0, 2);
        __builtin_prefetch(values_[i] + at, 0, 2);
      }
    }
  }

  // Turn the scores of a block, in row `at` of the buffers, into weights. If the row's maximum grows, rescale what it has
  // so far.
  void weigh(int row, int at, float scale, float softcap, long lowest, long highest, long dim) {
    const I lanes = numbers();
    constexpr int VECTORS = KEYS / LANES;
    bool partly = lowest > 0 || highest < KEYS - 1;
    F x[VECTORS], top = splat(LOWEST);
    for (int i = 0; i < VECTORS; i++) {
      x[i] = load(s_ + at * KEYS + i * LANES) * scale;
      if (softcap) x[i] = tanh(x[i] / (softcap * LOG2E)) * (softcap * LOG2E);
      if (partly) {
        I index = lanes + i * LANES;
        x[i] = ((index >= (int)lowest) & (index <= (int)highest)) ? x[i] : splat(-INFINITY);
      }
      top = maximum(top, x[i]);
    }
    float now = largest(top);
    if (now > top_[row]) {
      float shrink = exp2(splat(top_[row] - now))[0];
      total_[row] *= shrink;
      for (long i = 0; i < dim; i += LANES) store(o_ + row * dim + i, load(o_ + row * dim + i) * shrink);
      top_[row] = now;
    }
    for (int i = 0; i < VECTORS; i++) {
      F weight = exp2(x[i] - top_[row]);
      total_[row] += weight;
      store(p_ + at * KEYS + i * LANES, weight);
    }
  }

 public:
  // Attend with the queries [first, stop) of a sequence's new tokens.
  void run(const Attention<T>& a, long sequence, long head, long first, long stop) {
    long base = a.query_start[sequence], seq_len = a.seq_lens[sequence];
    long context = seq_len - (a.query_start[sequence + 1] - base);
    long shared = a.heads / a.kv_heads, dim = a.dim;
    int rows = (stop - first) * shared;
    for (long i = first; i < stop; i++)
      take(q_ + (i - first) * shared * dim, a.q + ((base + i) * a.heads + head * shared) * dim, shared * dim);
    std::memset(o_, 0, sizeof(float) * rows * dim);
    for (int r = 0; r < rows; r++) top_[r] = LOWEST, total_[r] = splat(0.0f);

    const auto first_key = [&](long query) {
      long position = context + query;
      return !a.window ? 0 : a.tiled ? position / a.window * a.window : position + 1 - a.window;
    };
    long earliest = first_key(first);
    const auto last_key = [&](long query) { return a.reach ? a.reach[base + query] : context + query; };
    long skipped = first;  // Queries before it have no key in a block.
    const int32_t* table = a.tables + sequence * a.table_width;
    long block = earliest > 0 ? earliest / KEYS * KEYS : 0;
    find(a, table, head, block, seq_len);
    for (; block <= last_key(stop - 1); block += KEYS) {
      pack_keys(keys_, dim);
      pack_values(values_, dim);
      if (block + KEYS <= last_key(stop - 1)) find(a, table, head, block + KEYS, seq_len);
      while (last_key(skipped) < block) skipped++;
      for (int from = (skipped - first) * shared; from < rows; from += SCORED_ROWS) {
        int count = rows - from < SCORED_ROWS ? rows - from : SCORED_ROWS;
        for (int key = 0; key < KEYS; key += PANEL)
          multiply<A, GROUPS>(count, q_ + from * dim, dim, k_ + key * dim, PANEL * PER, dim / PER, s_ + key, KEYS, false);
        for (int r = from; r < from + count; r++) {
          long query = first + r / shared;
          weigh(r, r - from, a.scale * LOG2E, a.softcap, first_key(query) - block, last_key(query) - block, dim);
        }
        float* sums = o_ + from * dim;
        long column = 0;
        for (; column + PANEL <= dim; column += PANEL)
          multiply<A, GROUPS>(count, p_, KEYS, v_ + column * PER, dim * PER, KEYS / PER, sums + column, dim, true);
        for (; column < dim; column += LANES)
          multiply<A, 1>(count, p_, KEYS, v_ + column * PER, dim * PER, KEYS / PER, sums + column, dim, true);
      }
    }
    for (int r = 0; r < rows; r++) {
      float total = sum(total_[r]);
      // Without a bound, a sink far above all scores would be infinite, and so would be its share; both give 0.
      if (a.sinks) total += std::exp2(a.sinks[head * shared + r % shared] * LOG2E - top_[r]);
      float share = 1.0f / total;
      T* to = a.out + ((base + first + r / shared) * a.heads + head * shared + r % shared) * dim;
      for (long i = 0; i < dim; i += LANES) store(to + i, load(o_ + r * dim + i) * share);
    }
  }
};

// Fill in how many tiles of so many queries the sequences before each one have.
template <typename T>
void count_tiles(const Attention<T>& a, long queries, std::vector<long>& tiles) {
  for (long s = 0; s < a.sequences; s++)
    tiles[s + 1] = tiles[s] + (a.query_start[s + 1] - a.query_start[s] + queries - 1) / queries;
}

template <typename T, int MAX_DIM>
void attend_tiles(const Attention<T>& a) {
  std::vector<long> tiles(a.sequences + 1, 0);
  long most = FEW_ROWS * MAX_DIM / a.dim, queries = 0, pairs = 0;
  // Enough tiles for all threads, so that none ends late.
  for (long rows = most < TILE_ROWS ? most : TILE_ROWS;; rows /= 2) {
    queries = rows * a.kv_heads / a.heads;
    count_tiles(a, queries, tiles);
    if (rows < 2 * FEW_ROWS || tiles[a.sequences] * a.kv_heads >= 4 * a.threads) break;
  }
  for (long s = 0; s < a.sequences; s++) pairs += (a.query_start[s + 1] - a.query_start[s]) * a.seq_lens[s];
  auto part = [&](uint32_t index) {
    thread_local std::unique_ptr<Tile<T, MAX_DIM>> tile;
    if (!tile) tile = std::make_unique<Tile<T, MAX_DIM>>();
    // The last tiles of a prompt have the most keys; they go first, so that no thread ends late.
    long number = tiles[a.sequences] - 1 - index / a.kv_heads, s = 0, end = a.sequences;
    while (end - s > 1) {
      long middle = (s + end) / 2;
      (tiles[middle] <= number ? s : end) = middle;
    }
    long first = (number - tiles[s]) * queries, count = a.query_start[s + 1] - a.query_start[s];
    tile->run(a, s, index % a.kv_heads, first, first + queries < count ? first + queries : count);
  };
  pool().run(tiles[a.sequences] * a.kv_heads, a.threads, pairs * a.heads * a.dim, 1 << 15, part);
}

template <typename T>
void attend(const Attention<T>& a) {
  a.dim > NARROW_DIM ? attend_tiles<T, WIDE_DIM>(a) : attend_tiles<T, NARROW_DIM>(a);
}
