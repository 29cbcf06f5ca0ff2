// The beams of a search, from the events of docs/trace.md: the beam that each one continues, the beams that ended, and
// a picture.
"use strict";

/// The indices of the largest values, the largest first. Of equal values, the lowest index comes first.
function highest(values, count) {
  const best = [];
  values.forEach((value, i) => {
    if (best.length === count && !(value > values[best.at(-1)])) return;
    let at = best.length;
    while (at > 0 && values[best[at - 1]] < value) --at;
    best.splice(at, 0, i);
    if (best.length > count) best.pop();
  });
  return best;
}

/// The texts of a search as a tree. A node is {token, parent, length, sum, text} and, if it ended, also {ended: why,
/// score}. `text` has all tokens including the prompt, `length` counts the new tokens, and `sum` adds up their
/// log-probabilities.
class BeamSearch {
  levels = []; // the nodes by length: growing ones, the best first, and ended ones
  told = new Map(); // the texts that the program has shown, with their nodes
  rows = new Map(); // the node that each row of the cache holds
  scores = new Map(); // the scores of the tokens after each growing node
  wrong = ""; // why the search cannot be followed further
  doubtful = new Set(); // lengths at which the program continued other texts than the sums predict
  finished = false;

  /// `rules` are the rules of the searched text, and `positions` is the length of the context.
  constructor(prompt, rules, positions) {
    const { options, eos } = rules;
    Object.assign(this, { prompt, rules, options, eos, positions, beams: Number(options["--num-beams"]) });
    this.penalty = Number(options["--length-penalty"] || 1);
  }

  get growing() {
    return this.levels.at(-1).filter(({ ended, left }) => !ended && !left);
  }

  /// Takes the rows of a pass. Returns true if the texts are longer now.
  pass(rows) {
    if (this.wrong || this.finished) return false;
    if (!this.levels.length) {
      const root = { length: 0, sum: 0, text: this.prompt };
      if (rows.length !== 1 || !this.endsWith(root, rows[0].tokens)) return this.fail("its first pass is not that of the prompt");
      this.levels.push([root]);
      this.rows.set(rows[0].row, root);
      return false;
    }
    const parents = rows.map((row) => this.parent(row));
    if (parents.includes(undefined)) return this.fail("two texts look alike to the model, or a pass belongs to none");
    const grown = rows.map(({ tokens }, i) => this.child(parents[i], tokens.at(-1)));
    this.choose(grown);
    this.rows = new Map(rows.map(({ row }, i) => [row, grown[i]]));
    return true;
  }

  fail(wrong) {
    this.wrong = wrong;
    return true;
  }

  /// Whether these are the tokens of a text that the model sees: all of them, or the last ones once the text fills the
  /// context.
  endsWith({ text }, tokens) {
    return (tokens.length === text.length || text.length >= this.positions) && tokens.length <= text.length &&
      tokens.every((token, i) => token === text[text.length - tokens.length + i]);
  }

  /// The node that a row continues: with a cache, the node that the row holds; without one, the node whose text the row
  /// repeats.
  parent({ row, start, tokens }) {
    const held = this.rows.get(row), before = tokens.slice(0, -1);
    if (start > 0) return before.length || held?.length !== this.levels.length - 1 ? undefined : held;
    const found = this.growing.filter((node) => this.endsWith(node, before));
    return found.length > 1 ? found.find((node) => this.copied && node === held) : found[0];
  }

  copy({ from, to }) {
    this.copied = true;
    if (from !== to) this.rows.set(to, this.rows.get(from));
  }

  /// Takes the logits of a row, and computes the log-probabilities that the search adds up, after penalties and the
  /// minimum length.
  logits({ row, logits }) {
    const node = this.rows.get(row);
    if (!node || this.wrong || this.finished) return;
    const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    const log = most + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0));
    const scores = Float64Array.from(logits, (logit) => logit - log);
    for (const [option, neutral, apply] of STAGES.filter(([name]) => /-penalty$|^--min/.test(name))) {
      const value = Number(this.options[option] || neutral);
      if (value !== neutral) apply(scores, value, node.text, this.rules);
    }
    this.scores.set(node, scores);
  }

  child(parent, token) {
    const sum = parent.sum + (this.scores.get(parent)?.[token] ?? NaN);
    return { token, parent, length: parent.length + 1, sum, text: [...parent.text, token] };
  }

  /// Adds a level: the nodes of `grown`, or none at the end, and the finished ones. The search takes the 2 n best
  /// continuations. Those that end are set aside if they are among the first n; the first n of the others go on.
  choose(grown) {
    const { options, beams } = this, length = this.levels.length, ended = [], left = [];
    const best = this.growing.flatMap((parent) => {
      const scores = this.scores.get(parent) ?? [];
      return highest(scores, 2 * beams).map((token) => ({ parent, token, sum: parent.sum + scores[token] }));
    }).filter(({ sum }) => sum > -Infinity).sort((a, b) => b.sum - a.sum).slice(0, 2 * beams);
    const wanted = grown?.length ?? beams;
    let found = 0;
    best.forEach(({ parent, token }, rank) => {
      const isGrown = grown?.some((node) => node.parent === parent && node.token === token);
      const isEos = token === this.eos && options["--ignore-eos"] !== "true";
      const why = isEos ? "eos" : !grown && length === Number(options["--max-new-tokens"]) ? "length" : options["--stop"] && grown ? "stop" : "";
      if (isGrown) ++found;
      else if (isEos && rank < beams) ended.push(this.end(this.child(parent, token), why)); // in step 40 even after the last growing one
      else if (found === wanted) return;
      else if (why && rank < beams) ended.push(this.end(this.child(parent, token), why));
      else if (!why && grown) this.doubtful.add(length);
      else if (!why && !options["--stop"] && ++found) left.push(Object.assign(this.child(parent, token), { left: true }));
    });
    if (grown && found < grown.length) this.doubtful.add(length);
    const bySum = (a, b) => b.sum - a.sum;
    this.levels.push([...[...(grown ?? left)].sort(bySum), ...(this.doubtful.has(length) ? [] : ended.sort(bySum))]);
    this.scores.clear();
  }

  end(node, ended) {
    return Object.assign(node, { ended, score: node.sum / node.length ** this.penalty });
  }

  /// Call when no pass follows: adds the level that the last pass led to.
  finish() {
    if (this.finished || this.wrong || !this.levels.length) return;
    this.finished = true;
    if (this.scores.size) this.choose(null);
    if (!this.levels.at(-1).length) this.levels.pop();
  }

  /// Takes a text that the program shows: its new tokens, why it ended, and its score if it has one.
  tell(number, tokens, why, score) {
    if (this.wrong || !this.levels.length || !tokens.length) return;
    let node = this.levels[0][0];
    for (const token of tokens) {
      const parent = node, length = parent.length + 1;
      node = this.levels[length]?.find((one) => one.parent === parent && one.token === token);
      const grew = node && !node.ended && !node.left;
      if (length < tokens.length ? !grew : grew) return this.fail("the program shows a text that is not among these");
      if (node) continue;
      node = this.child(parent, token); // a stop sequence has ended it
      if (score !== undefined) node.sum = score * length ** this.penalty;
      (this.levels[length] ??= []).push(node);
    }
    delete node.left;
    this.end(node, why);
    const isScore = (value) => score === undefined || Math.abs(score - value) <= 1e-3 * Math.max(1, Math.abs(score));
    if (!isScore(node.score)) {
      if (!isScore(node.sum)) return this.fail("the program has other scores");
      this.penalty = 0; // step 40 ranks by the sum alone
      for (const one of this.levels.flat()) if (one.ended) this.end(one, one.ended);
    }
    this.told.set(number, node);
  }
}

/// Creates an element of a picture.
const makeShape = (tag, attributes, ...children) => {
  const shape = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, value);
  shape.append(...children);
  return shape;
};

/// Puts content that may be wider than the page into its own scrolling box.
function scrolling(content, name) {
  const box = makeElement("div", { className: "wide", tabIndex: 0 }, content);
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", name);
  return box;
}

/// The visible part of a search when its texts have `length` new tokens: {levels, kept, told}. `levels` go up to this
/// length, ordered so that no lines cross. `kept` has the nodes that lead to a growing or finished text, and `told` the
/// nodes that lead to shown texts.
function beamTree({ levels, told }, length) {
  const behind = (nodes) => new Set(nodes.flatMap((node) => {
    const path = [];
    for (let at = node; at; at = at.parent) path.push(at);
    return path;
  }));
  const shown = levels.slice(0, length + 1);
  const ordered = [shown[0]];
  for (const level of shown.slice(1)) {
    const places = new Map(ordered.at(-1).map((node, place) => [node, place]));
    ordered.push([...level].sort((a, b) => places.get(a.parent) - places.get(b.parent) || b.sum - a.sum));
  }
  const kept = behind(shown.flat().filter((node) => node.ended || (node.length === length && !node.left)));
  return { levels: ordered, kept, told: behind([...told.values()]) };
}

/// Draws a search when its texts have `length` new tokens: a picture of the last steps, and a table. `table` is the
/// function that the other views also use.
function drawBeams(search, length, vocabulary, which, table) {
  const COLUMNS = 12, WIDTH = 88, HEIGHT = 42;
  const say = (words) => makeElement("p", {}, words);
  const number = (value, digits) => (Number.isNaN(value) ? "?" : value.toFixed(digits).replace("-", "−"));
  const words = (tokens) => tokens.map((token) => vocabulary[token]).join("").replaceAll("\n", "↵");
  const wrong = search.wrong && `The picture ends here, because this page cannot follow the search any further: ${search.wrong}.`;
  if (!search.levels.length) return makeElement("div", {}, say(`${which}. ${wrong}`));

  const { levels, kept, told } = beamTree(search, length);
  const isLast = length === search.levels.length - 1;
  const ended = levels.flat().filter((node) => node.ended).sort((a, b) => b.score - a.score);
  const growing = levels[length].filter((node) => !node.ended && !node.left).sort((a, b) => b.sum - a.sum);
  const numbers = [...search.told].filter(([, node]) => node.length <= length);
  const caption = `${which}, token ${length} after the prompt "${words(search.prompt.slice(-12))}". ` +
    (growing.length ? `${growing.length} of ${search.beams} texts grow, the best with a sum of ${number(growing[0].sum, 2)}. ` : "No text grows any more. ") +
    (ended.length ? `${ended.length} ${ended.length === 1 ? "has" : "have"} ended, the best with a score of ${number(ended[0].score, 3)}. ` : "None has ended. ") +
    numbers.map(([text, node]) => `Shown as text ${text}: the one with ${number(node.score, 3)}. `).join("");

  const first = Math.max(0, length + 1 - COLUMNS), places = new Map();
  const lines = [], boxes = [];
  levels.slice(first).forEach((level, column) => level.forEach((node, place) => {
    const x = column * WIDTH + 8, y = place * HEIGHT + 6;
    places.set(node, { x, y });
    const state = [told.has(node) && "told", !kept.has(node) && "out", node.ended && "ended"].filter(Boolean).join(" ");
    const from = places.get(node.parent);
    if (node.parent) {
      const [x0, y0] = from ? [from.x + WIDTH - 16, from.y + 15] : [x - 8, y + 15];
      lines.push(makeShape("path", { class: state, d: `M${x0} ${y0}C${x0 + 8} ${y0} ${x - 8} ${y + 15} ${x} ${y + 15}` }));
    }
    const name = node.parent ? `"${words([node.token])}"` : "prompt";
    const goesOn = node.length < length && levels[node.length + 1].some(({ parent }) => parent === node);
    const mark = node.ended ? `■ ${number(node.score, 3)}` : `${goesOn || (node.length === length && !node.left) ? "" : "× "}${node.parent ? number(node.sum, 2) : ""}`;
    boxes.push(makeShape("g", { class: state },
      makeShape("title", {}, `${name}: ${node.ended ? `ended, score ${number(node.score, 4)}, ` : ""}sum ${number(node.sum, 4)}`),
      makeShape("rect", { x, y, width: WIDTH - 16, height: 31, rx: 4 }),
      makeShape("text", { x: x + 5, y: y + 13 }, name.length > 10 ? `${name.slice(0, 9)}…` : name),
      makeShape("text", { x: x + 5, y: y + 26, class: "sum" }, mark)));
  }));
  const width = Math.min(COLUMNS, length + 1) * WIDTH, height = Math.max(...levels.slice(first).map((level) => level.length)) * HEIGHT;
  const picture = makeShape("svg", { role: "img", width, height, viewBox: `0 0 ${width} ${height}` }, ...lines, ...boxes);
  picture.setAttribute("aria-label", `${caption}The table below shows the same.`);

  const plain = (text) => makeElement("td", {}, text);
  const row = (name, node, state) => [name, plain(words(node.text.slice(search.prompt.length).slice(-16))), plain(number(node.sum, 4)),
    plain(node.ended ? number(node.score, 4) : ""), plain(state)];
  const before = length ? levels[length - 1].filter((node) => !node.ended && !node.left) : [];
  before.sort((a, b) => b.sum - a.sum);
  const text = new Map(numbers.map(([text, node]) => [node, text]));
  const rows = [
    ...growing.map((node, i) => row(`beam ${i + 1}`, node, length > 1 ? `continues beam ${before.indexOf(node.parent) + 1} of the step before` : "")),
    ...ended.map((node, i) => row(`ended ${i + 1}`, node, (text.has(node) ? `shown as text ${text.get(node)}` : i < search.beams ? "one of the best so far" : "others are better") +
      `; token ${node.length}: ${node.ended}`)),
    ...levels[length].filter((node) => node.left).map((node) => row("given up", node, "the search has stopped")),
    ...before.filter((node) => !levels[length].some(({ parent }) => parent === node)).map((node) => row("driven out", node, "no continuation is among the best")),
  ];
  return makeElement("div", { className: "beams" }, say(caption), ...(wrong && isLast ? [say(wrong)] : []),
    ...(search.doubtful.has(length) ? [say("The program continued other texts than these sums predict, so it is not known which texts ended in this step.")] : []),
    scrolling(picture, "picture of the beams"),
    say("Below each token is the sum of the log-probabilities up to it. × marks a text that others drove out. ■ marks a text that has ended, with its score, which is sum / length^penalty. A thick line leads to a text that is shown."),
    table("The same as a table: the texts that grow, that have ended, and that were driven out in this step", ["text", "its end", "sum", "score", "state"], rows));
}
