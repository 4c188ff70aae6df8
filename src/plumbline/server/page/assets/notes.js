// Footnotes: `[^1]` becomes a link where `[^1]: text` is defined, which may come much later.

const LABEL = /^\[\^([^\]\s[]{1,40})\]/;

function reference(state, silent) {
  const match = state.src[state.pos] === "[" && LABEL.exec(state.src.slice(state.pos, state.pos + 48));
  if (!match || !state.env.notes?.has(match[1])) return false;
  if (!silent) state.push("note_reference", "sup", 0).content = match[1];
  state.pos += match[0].length;
  return true;
}

function definition(state, start, end, silent) {
  const from = state.bMarks[start] + state.tShift[start];
  const match = LABEL.exec(state.src.slice(from, from + 48));
  if (!match || state.src[from + match[0].length] !== ":" || state.sCount[start] - state.blkIndent >= 4) return false;
  if (silent) return true;
  state.env.notes?.add(match[1]);
  let next = start + 1; // The text goes on in lines with an indent.
  while (next < end && (state.isEmpty(next) ? next + 1 < end && state.sCount[next + 1] >= 2 : state.sCount[next] >= 2)) next++;
  const { parentType, blkIndent } = state;
  const [mark, shift, count] = [state.bMarks[start], state.tShift[start], state.sCount[start]];
  state.bMarks[start] = from + match[0].length + 1;
  state.tShift[start] = state.src.slice(state.bMarks[start], state.eMarks[start]).search(/\S|$/);
  state.sCount[start] = state.blkIndent = 2;
  state.parentType = "footnote";
  const opened = state.push("note_open", "div", 1);
  Object.assign(opened, { content: match[1], block: true, map: [start, next] });
  state.md.block.tokenize(state, start, next);
  state.push("note_close", "div", -1).block = true;
  Object.assign(state, { parentType, blkIndent, line: next });
  [state.bMarks[start], state.tShift[start], state.sCount[start]] = [mark, shift, count];
  return true;
}

export function noteRules(markdown) {
  markdown.inline.ruler.before("link", "note", reference);
  markdown.block.ruler.before("reference", "note", definition, { alt: ["paragraph", "reference"] });
  const escape = markdown.utils.escapeHtml;
  const name = (env, label) => `note-${env.name}-${escape(encodeURIComponent(label))}`;
  markdown.renderer.rules.note_reference = (tokens, place, _, env) => {
    const { content } = tokens[place];
    return `<sup><a href="#${name(env, content)}" id="${name(env, content)}-back">${escape(content)}</a></sup>`;
  };
  markdown.renderer.rules.note_open = (tokens, place, _, env) => {
    const { content } = tokens[place];
    return `<div class="note" dir="auto" id="${name(env, content)}"><a href="#${name(env, content)}-back">${escape(content)}</a><div>`;
  };
  markdown.renderer.rules.note_close = () => "</div></div>";
}
