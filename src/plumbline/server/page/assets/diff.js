// The tokens of two answers that differ: those outside a longest common subsequence.

const MOST = 4_000_000; // Pairs of tokens that are compared; beyond it, everything between the common ends differs.

export const pieces = (answer) =>
  answer.tokens.length && answer.tokens.map(({ text }) => text).join("") === answer.text
    ? answer.tokens.map(({ text }) => text) : answer.text.match(/\s*\S+|\s+$/g) || [];

// Return for each token of both lists whether it is in both.
export function common(one, other) {
  const found = [one.map(() => false), other.map(() => false)];
  let start = 0;
  while (start < one.length && start < other.length && one[start] === other[start]) start++;
  let [left, right] = [one.length, other.length];
  while (left > start && right > start && one[left - 1] === other[right - 1]) [left, right] = [left - 1, right - 1];
  found[0].fill(true, 0, start).fill(true, left);
  found[1].fill(true, 0, start).fill(true, right);
  const [rows, columns] = [left - start, right - start];
  if (rows * columns > MOST) return found;
  const longest = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
  for (let row = rows - 1; row >= 0; row--) {
    for (let column = columns - 1; column >= 0; column--) {
      longest[row][column] = one[start + row] === other[start + column] ? longest[row + 1][column + 1] + 1
        : Math.max(longest[row + 1][column], longest[row][column + 1]);
    }
  }
  for (let row = 0, column = 0; row < rows && column < columns; ) {
    if (one[start + row] === other[start + column]) found[0][start + row++] = found[1][start + column++] = true;
    else if (longest[row + 1][column] >= longest[row][column + 1]) row++;
    else column++;
  }
  return found;
}
