// Which text is in which row of the batch, from the events of docs/trace.md, with a picture in which passes go to the
// right.
"use strict";

/// Follows the texts through the rows. A stay is the content of a row: {text, tokens}. `text` is the text's number once
/// it is known, and `tokens` are the tokens in the cache; undefined ones came from elsewhere. A cell is the input of a
/// row in a pass: {row, start, tokens, stay}.
class BatchRows {
  passes = []; // {batch, cells}, by row
  stays = new Map(); // the stays, by row
  texts = new Map(); // the tokens of each text
  ended = new Set();
  fed = []; // the cells of the newest pass
  alike = []; // the cells that no token distinguishes
  copied = undefined; // the copy since the newest token

  /// `positions` is the length of the context. Without a cache, an ended text is fed until all texts have ended.
  constructor(positions, hasCache = true) {
    Object.assign(this, { positions, hasCache });
  }

  begin(number, prompt) {
    this.texts.set(number, [...prompt]);
  }

  pass({ batch, rows }) {
    this.recognize();
    const cells = new Map(rows.map((fed) => [fed.row, { ...fed, stay: this.stayOf(fed, rows) }]));
    for (const { row, start, tokens, stay } of cells.values()) {
      this.stays.set(row, stay);
      stay.tokens.length = start;
      stay.tokens.push(...tokens);
    }
    this.passes.push({ batch: batch ?? Math.max(...rows.map(({ row }) => row)) + 1, cells });
    Object.assign(this, { fed: [...cells.values()], alike: [], copied: undefined });
  }

  /// The stay that the fed tokens continue.
  stayOf(fed, rows) {
    const fits = (stay) => stay && stay.tokens.length >= fed.start && (stay.text === undefined || this.isEnd(fed, stay.text));
    if (fed.start === 0) return { tokens: [] };
    const here = this.stays.get(fed.row);
    if (fits(here)) return here;
    // A cache of blocks moves a row without a copy. Find the moved row if only one unidentified stay has this length.
    const goesOn = (row, length) => rows.some((one) => one.row === row && one.start === length);
    const others = new Set([...this.stays].filter(([row, { text, tokens }]) =>
      text === undefined && tokens.length === fed.start && !goesOn(row, fed.start)).map(([, stay]) => stay));
    return others.size === 1 ? [...others][0] : { tokens: Array(fed.start) };
  }

  /// Whether the fed tokens are the last tokens of a text.
  isEnd({ start, tokens }, number) {
    const text = this.texts.get(number);
    return (start + tokens.length === text.length || text.length > this.positions) && tokens.length <= text.length &&
      tokens.every((token, i) => token === text[text.length - tokens.length + i]);
  }

  copy({ from, first, positions, to }) {
    const stay = this.stays.get(from);
    if (!stay) return;
    const tokens = stay.tokens.slice(first, first + positions);
    if (from === to) stay.tokens = tokens;
    else this.stays.set(to, stay.text === undefined ? stay : { text: stay.text, tokens });
    this.copied = { from, to };
  }

  /// Takes a text's new token, and finds the fed row whose logits it comes from. Tokens arrive in the order of the
  /// rows, so of two rows that look alike, the first is the right one. After a copy, the token belongs to the copy: a
  /// prompt that several texts share.
  token(number, token) {
    if (this.copied !== undefined) {
      const { from, to } = this.copied;
      this.stays.set(to, { text: number, tokens: this.stays.get(to).tokens });
      this.copied = undefined;
      this.texts.get(number).push(token);
      return from;
    }
    const cells = this.fed.filter((cell) => !cell.chosen && this.isEnd(cell, number));
    const unknown = cells.filter(({ stay }) => stay.text === undefined);
    const cell = cells.find(({ stay }) => stay.text === number) ?? unknown[0] ?? cells[0];
    if (cell) this.claim(cell, number);
    else for (const { stay } of this.alike) stay.text = undefined; // one of these rows shares a prompt, but it is unknown which
    if (unknown.length > 1) this.alike.push(...unknown);
    this.texts.get(number).push(token);
    return cell?.row;
  }

  claim(cell, number) {
    const text = this.texts.get(number), { stay } = cell;
    const fits = text.length > this.positions || stay.tokens.every((token, i) => token === text[i]);
    if (stay.text !== number && (stay.text !== undefined || !fits)) this.stays.set(cell.row, cell.stay = { tokens: [...stay.tokens] });
    cell.stay.text = number;
    cell.chosen = true;
  }

  /// Identifies the rows of the newest pass that produced no token: without a cache they repeat ended texts.
  recognize() {
    for (const { stay } of this.hasCache ? [] : this.fed.filter((cell) => cell.stay.text === undefined)) {
      const found = [...this.texts].filter(([number, text]) => !this.fed.some((cell) => cell.stay.text === number) &&
        text.length === stay.tokens.length && text.every((token, i) => token === stay.tokens[i]));
      if (found.length === 1) stay.text = found[0][0];
    }
  }

  end(number) {
    this.recognize();
    this.ended.add(number);
  }
}

/// Draws the last passes up to pass `last`, with a line for each row.
function drawRows({ passes, ended }, last, which, table) {
  const COLUMNS = 16, first = Math.max(0, last + 1 - COLUMNS);
  const rowOf = (pass, text) => [...(passes[pass]?.cells ?? [])].find(([, { stay }]) => stay.text === text)?.[0];
  const seen = new Map(); // the first and the last pass of each text
  passes.forEach(({ cells }, pass) => cells.forEach(({ stay: { text } }) => seen.set(text, [seen.get(text)?.[0] ?? pass, pass])));

  /// [sign, words] for what happens to the text in a cell.
  function signs(pass, row, text) {
    if (text === undefined) return [];
    const [begins, ends] = seen.get(text), found = [], before = rowOf(pass - 1, text);
    if (pass === begins) found.push(["▸", "begins"]);
    else if (before === undefined) found.push(["↻", "begins again"]);
    else if (before !== row) found.push(["⇄", `comes from row ${before}`]);
    if (pass === ends && ended.has(text)) found.push(["■", "ends"]);
    else if (pass === ends && pass < passes.length - 1) found.push(["□", "ends or has to wait"]); // the end of the run shows which
    else if (pass < passes.length - 1 && rowOf(pass + 1, text) === undefined) found.push(["‖", "has to wait"]);
    return found;
  }

  function cell(pass, row) {
    const { batch, cells } = passes[pass], fed = cells.get(row);
    if (!fed) return makeElement("td", { className: row < batch ? "rests" : "" }, row < batch ? "·" : "");
    const { text } = fed.stay, happens = signs(pass, row, text);
    const shown = makeElement("td", { className: fed.tokens.length > 1 ? "fed many" : "fed" }, makeElement("b", {}, text ?? "?"), ` +${fed.tokens.length}`);
    if (happens.length) {
      const sign = makeElement("span", {}, happens.map(([one]) => one).join(""));
      sign.setAttribute("role", "img");
      sign.setAttribute("aria-label", happens.map(([, words]) => words).join(", "));
      shown.append(" ", sign);
    }
    shown.title = `pass ${pass + 1}, row ${row}: text ${text ?? "not known"}, ${fed.tokens.length} tokens${happens.map(([, words]) => `, ${words}`).join("")}`;
    if (text !== undefined) shown.style.setProperty("--hue", (text * 137.5) % 360);
    return shown;
  }

  const rows = [...new Set(passes.flatMap(({ cells }) => [...cells.keys()]))].sort((a, b) => a - b);
  const columns = [...Array(last + 1 - first).keys()].map((i) => first + i);
  const now = passes[last], tokens = [...now.cells.values()].reduce((sum, fed) => sum + fed.tokens.length, 0);
  const unknown = columns.some((pass) => [...passes[pass].cells.values()].some(({ stay }) => stay.text === undefined));
  const say = (words) => makeElement("p", {}, words);
  const drawn = table("Lines are the rows of the batch, and columns are passes.", ["row", ...columns.map((pass) => String(pass + 1))],
    rows.map((row) => [String(row), ...columns.map((pass) => cell(pass, row))]));
  drawn.className = "rows";
  return makeElement("div", {},
    say(`${which}: ${tokens} ${tokens === 1 ? "token" : "tokens"} in ${now.cells.size} of ${now.batch} ${now.batch === 1 ? "row" : "rows"}.`),
    scrolling(drawn, "rows of the batch"),
    say("A cell shows the number of the text and how many of its tokens the row was fed. ▸ begins, ⇄ comes from another row, ‖ has to wait, ↻ begins again, " +
      `■ ends, □ ends or has to wait, which the end of the run shows. A dot marks a row that was fed nothing, because its text has ended or waits.${unknown ? " A ? marks something that is not known, or not known yet." : ""}`));
}
