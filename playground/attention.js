// The attention of one head as a matrix: a line for each token, and a column for each position that it may look at.
"use strict";

/// Collects the shares of attention by row of the batch, from the events of docs/trace.md.
class AttentionMatrix {
  rows = new Map();

  /// Adds an event and returns {row, tokens, lines}. lines[i] has the shares of token i, one for each position up to
  /// its own. It is undefined if no pass has shown them, for example for tokens that moved when a window slid.
  add({ row, tokens, weights }) {
    const before = this.rows.get(row) ?? { tokens: [], lines: [] }, first = tokens.length - weights.length;
    let same = 0; // a token sees only earlier tokens: as long as these are the same, so are its shares
    while (same < first && before.tokens[same] === tokens[same]) ++same;
    const lines = [...before.lines.slice(0, same), ...Array(first - same), ...weights], known = { row, tokens, lines };
    this.rows.set(row, known);
    return known;
  }
}

/// The mean shares that go to the first position, to the token itself and to the previous token, over all tokens that
/// see at least three positions.
function attentionHabits(lines) {
  const counted = lines.filter((shares) => shares?.length > 2);
  const mean = (of) => counted.reduce((sum, shares) => sum + of(shares), 0) / counted.length;
  if (!counted.length) return null;
  return { first: mean((shares) => shares[0]), itself: mean((shares) => shares.at(-1)), before: mean((shares) => shares.at(-2)) };
}

/// Draws the matrix as a picture in which a pointer or the arrow keys select a cell. `quoted` returns a token in
/// quotation marks, and `words` names the head.
function drawAttention({ row, tokens, lines }, which, words, quoted) {
  const count = tokens.length, cell = Math.max(2, Math.min(16, Math.floor(560 / count))), margin = cell < 11 ? 0 : 84;
  const canvas = makeElement("canvas", { className: "matrix", tabIndex: 0, width: margin + count * cell, height: margin + count * cell });
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const shown = (i) => quoted(tokens[i]).replaceAll("\n", "↵");
  const label = (i) => (shown(i).length > 11 ? `${shown(i).slice(0, 10)}…` : shown(i));
  const says = makeElement("p", { className: "cell" });
  says.setAttribute("role", "status");
  let chosen = [count - 1, 0];

  function draw() {
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = getComputedStyle(document.body).color;
    for (let i = 0; margin && i < count; ++i) {
      pen.textAlign = "right";
      pen.fillText(label(i), margin - 4, margin + i * cell + cell * 0.75);
      pen.save();
      pen.translate(margin + i * cell + cell * 0.75, margin - 4);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(label(i), 0, 0);
      pen.restore();
    }
    for (let i = 0; i < count; ++i) {
      for (let j = 0; j <= i; ++j) { // square roots make small shares visible
        pen.fillStyle = lines[i] ? `hsl(210 85% 50% / ${Math.sqrt(lines[i][j])})` : "hsl(0 0% 50% / 0.25)";
        pen.fillRect(margin + j * cell, margin + i * cell, cell, cell);
      }
    }
    pen.lineWidth = 2;
    pen.strokeStyle = "hsl(30 95% 50%)";
    pen.strokeRect(margin + chosen[1] * cell, margin + chosen[0] * cell, cell, cell);
  }

  function choose(line, column) {
    line = Math.max(0, Math.min(count - 1, line));
    column = Math.max(0, Math.min(line, column));
    chosen = [line, column];
    const place = (i) => `${shown(i)} at position ${i}`;
    says.textContent = lines[line] ? `${place(line)} looks at ${place(column)} with a share of ${percent(lines[line][column])}.`
      : `No pass of this run has shown what ${place(line)} looks at.`;
    draw();
  }
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  canvas.onkeydown = (event) => {
    const move = MOVES[event.key];
    if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    choose(chosen[0] + move[0], chosen[1] + move[1]);
  };
  canvas.onpointermove = canvas.onpointerdown = (event) => {
    const scale = canvas.width / canvas.clientWidth; // a narrow page shrinks the canvas
    const [line, column] = [event.offsetY, event.offsetX].map((at) => Math.floor((at * scale - margin) / cell));
    if (line >= 0 && column >= 0) choose(line, column);
  };
  choose(...chosen);

  const habits = attentionHabits(lines), unknown = count - lines.filter(Boolean).length;
  const caption = `${which}: ${count} tokens of row ${row}, by ${words}. A line shows what its token looks at, and a column shows which tokens look at its position.` +
    (habits ? ` On average ${percent(habits.first)} goes to the first position, ${percent(habits.before)} to the token before, ` +
      `and ${percent(habits.itself)} to the token itself.` : "") +
    (unknown ? ` ${unknown === 1 ? "One line is" : `${unknown} lines are`} grey, because no pass of this run has shown ${unknown === 1 ? "its token" : "their tokens"}.` : "");
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", `attention matrix of ${count} tokens; the arrow keys select a cell, and its share is below`);
  return makeElement("div", {}, makeElement("p", {}, caption), canvas, says);
}
