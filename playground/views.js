// Shows the work of a program, from --trace (docs/trace.md), as accessible tables and lists. Bars in the background of
// the numbers serve as pictures. A view without an event is hidden.
"use strict";

const makeElement = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

/// Returns probabilities [vocab_size].
function softmax(logits) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const weights = Float64Array.from(logits, (logit) => Math.exp(logit - most));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / sum);
}

/// Returns the token ids, the most likely first. Of equally likely ones, the lowest comes first.
const byProbability = (probabilities) => [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a] || a - b);

/// The stages of common/decoding/row.h, in order: [option, the value that changes nothing, the function that changes
/// the logits].
const STAGES = [
  ["--min-new-tokens", 0, (logits, value, text, { eos, prompted }) => { if (text.length - prompted < value) logits[eos] = -Infinity; }],
  ["--presence-penalty", 0, (logits, value, text, { uncounted = 0 }) => { for (const token of new Set(text.slice(uncounted))) logits[token] -= value; }],
  ["--frequency-penalty", 0, (logits, value, text, { uncounted = 0 }) => { for (const token of text.slice(uncounted)) logits[token] -= value; }],
  ["--repetition-penalty", 1, (logits, value, text) => {
    for (const token of new Set(text)) logits[token] = logits[token] < 0 ? logits[token] * value : logits[token] / value;
  }],
  ["--temperature", 1, (logits, value) => {
    const most = logits.reduce((a, b) => Math.max(a, b), -Infinity), best = logits.indexOf(most);
    logits.forEach((logit, i) => { logits[i] = value >= 1e-5 ? (logit - most) / value : i === best ? 0 : -Infinity; });
  }],
  ["--top-k", Infinity, (logits, value) => {
    const smallest = Float64Array.from(logits).sort().at(-value);
    logits.forEach((logit, i) => { if (logit < smallest) logits[i] = -Infinity; });
  }],
  ["--top-p", 1, (logits, value) => {
    const probabilities = softmax(logits);
    let sum = 0;
    for (const token of byProbability(probabilities)) {
      if (sum >= value) logits[token] = -Infinity;
      sum += probabilities[token];
    }
  }],
];

/// The rules for choosing the tokens of a text, from the events `start` and `text`. Its first `prompted` tokens are the
/// prompt. Programs with rows or beams leave the prompt `uncounted` in two penalties (step 31).
const textRules = (start, text) => {
  const options = { ...start.options, ...text.options }, prompted = start.prompts[text.prompt].length;
  const skips = "--max-batch-size" in options || "--num-beams" in options;
  return { options, eos: start.eos_token_id, prompted, uncounted: skips ? prompted : 0 };
};

/// Returns [[name, probabilities]] after the text, from the model's own to the final ones, from which a token is
/// chosen. A mask leaves only the allowed tokens.
function stages(logits, text, rules, mask) {
  const now = Float64Array.from(logits), found = [["model", softmax(now)]];
  if (mask) {
    now.fill(-Infinity);
    for (const token of mask.allowed) now[token] = logits[token];
    found.push(["allowed", softmax(now)]);
  }
  for (const [option, neutral, apply] of STAGES) {
    const value = rules.options[option] ? Number(rules.options[option]) : neutral;
    if (value === neutral || (option === "--top-k" && value >= now.length)) continue;
    apply(now, value, text, rules);
    found.push([option.slice(2), softmax(now)]);
  }
  return found;
}

/// Makes the views of one run inside `place`. Returns a function that takes the run's events.
function stepViews(place) {
  const percent = (share) => (share > 0 ? `${(100 * share).toFixed(1)} %` : "–");
  const bar = (words, ...shares) => {
    const cell = makeElement("td", { className: "share" }, words);
    shares.forEach((share, i) => cell.style.setProperty(`--share-${i}`, `${100 * share}%`));
    return cell;
  };
  const plain = (words) => makeElement("td", {}, String(words));
  const quoted = (token) => `"${vocabulary[token] ?? "�"}"`;

  function table(caption, columns, rows) {
    const heading = (words, scope) => makeElement("th", { scope }, words);
    const body = rows.map(([first, ...cells]) => makeElement("tr", {}, heading(first, "row"), ...cells));
    return makeElement("table", {}, makeElement("caption", {}, caption),
      makeElement("thead", {}, makeElement("tr", {}, ...columns.map((name) => heading(name, "col")))), makeElement("tbody", {}, ...body));
  }

  // The terminal of the first page has no heading, so the views have larger ones.
  const heading = place.closest("section:has(> h2)") ? "h3" : "h2";

  /// Makes a view of one item of many, which a slider selects. The slider follows the newest item until a reader moves
  /// it.
  function view(title, what, draw) {
    const things = [];
    const slider = makeElement("input", { type: "range", min: 1, max: 1 });
    const shown = makeElement("div", { className: "shown", tabIndex: 0 });
    const section = makeElement("section", { className: "inside", hidden: true }, makeElement(heading, {}, title), makeElement("label", {}, what, slider), shown);
    section.setAttribute("aria-label", title);
    shown.setAttribute("role", "region");
    shown.setAttribute("aria-label", `${title}: table`);
    place.append(section);
    let following = true, waiting = false;
    const redraw = () => {
      waiting = false;
      slider.max = things.length;
      if (following) slider.value = things.length;
      slider.setAttribute("aria-valuetext", `${slider.value} of ${things.length}`);
      shown.replaceChildren(draw(things[slider.value - 1], `${what} ${slider.value} of ${things.length}`));
      for (const wide of shown.querySelectorAll(".wide")) wide.scrollLeft = wide.scrollWidth; // the newest item is on the right
    };
    slider.oninput = () => { following = Number(slider.value) === things.length; redraw(); };
    // Adds new items and redraws the view.
    return (...more) => {
      things.push(...more);
      section.hidden = !things.length;
      if (!waiting && things.length) requestAnimationFrame(redraw);
      waiting = things.length > 0;
    };
  }

  let options = {}, vocabulary = [], prompts = [], positions = 0, beginning = {};
  const texts = new Map(); // the tokens of each text
  const rules = new Map(); // the rules for choosing the tokens of each text
  const held = new Map(); // the positions in the cache, by model and row
  let search = null; // the search for the newest prompt, if --num-beams is set
  let batch = null, rowsShown = 0; // the rows of the target model, and how many passes of them are shown
  const pool = new BlockPasses(); // the blocks of a paged cache
  let blocksShown = 0; // how many of the pool's passes are shown
  let mask = null; // the mask of the next token, if a constraint sets one
  let passes = [], round = null; // the passes since the last token, and the draft that is being verified

  const addChoice = view("What each token was chosen from", "Token", ({ number, token, text, logits, mask }, which) => {
    const steps = stages(logits, text, rules.get(number), mask), last = steps.at(-1)[1];
    const kept = mask ? byProbability(last).slice(0, 5).filter((id) => last[id] > 0) : []; // the model's most likely tokens may all be forbidden
    const shown = [...new Set([...byProbability(steps[0][1]).slice(0, 10), ...kept, token])];
    const state = mask ? ` In state ${mask.state}, ${mask.allowed.length} of ${vocabulary.length} tokens are allowed.` : "";
    return table(`${which}: ${quoted(token)}, of text ${number}.${state} A dash marks a token that a stage excludes.`, ["token", ...steps.map(([name]) => name)],
      shown.map((id) => [(id === token ? "▸ " : "") + quoted(id), ...steps.map(([, shares]) => bar(percent(shares[id]), shares[id]))]));
  });

  const addRound = view("What became of each draft", "Round", ({ drafted, results }, which) => {
    const accepted = results.filter(({ origin }) => origin === "accepted").length;
    const next = results.find(({ origin }) => origin !== "accepted");
    const verdict = (i) => (i < accepted ? "accepted" : i === accepted && next ? `rejected: ${quoted(next.token)} instead` : "not verified");
    const bonus = next?.origin === "bonus" ? `, and ${quoted(next.token)} as a bonus` : "";
    return table(`${which}: ${accepted} of ${drafted.length} accepted${bonus}. p is the target's probability, q the draft's.`,
      ["drafted", "q", "p", "min(1, p/q)", "verdict"],
      drafted.map(({ token, p, q }, i) => [quoted(token), bar(percent(q), q), bar(percent(p), p), plain(Math.min(1, p / q).toFixed(2)), plain(verdict(i))]));
  });

  const addGrown = view("How the beams of a search grew", "Step", ({ search, length }, which) => drawBeams(search, length, vocabulary, which, table));
  const addRows = view("Which text is in which row of the batch", "Pass", (pass, which) => drawRows(batch, pass, which, table));
  const addBlocks = view("Which blocks of the pool each row has", "Pass", (pass, which) => drawBlocks(pool, pass, batch, which, table));

  const addPass = view("What each pass computed, and what the cache kept", "Pass", ({ model, rows }, which) =>
    table(`${which}, through ${model}. The bar shows the context of ${positions} positions: cached ones first, then new ones.`,
      ["row", "held before", "kept", "new", "context", "new text"],
      rows.map(({ row, before, start, tokens }) => [String(row), plain(before), plain(start), plain(tokens.length),
        bar(percent((start + tokens.length) / positions), (start + tokens.length) / positions, start / positions),
        plain(tokens.slice(-12).map((token) => vocabulary[token]).join(""))])));

  const addLook = view("What each token looked at", "Token", ({ row, tokens, shares }, which) => {
    const [layer, head] = (options["--trace-attention"] ?? "").split(","), at = shares.length - 1;
    const { n_head: heads, n_kv_head: shared } = beginning;
    const keys = shared < heads ? `, with the keys of head ${Math.floor(head / (heads / shared))}` : ""; // neighbouring heads share keys
    const words = `${which}: ${quoted(tokens[at])}, at position ${at} of row ${row}. Its share of attention to each position, by head ${head} of layer ${layer}${keys}:`;
    const looked = shares.map((share, position) => {
      const item = makeElement("li", {}, makeElement("span", {}, quoted(tokens[position])), " ", makeElement("small", {}, percent(share)));
      item.style.setProperty("--share", `${100 * share}%`);
      return item;
    });
    const list = makeElement("ol", { className: "looked" }, ...looked);
    list.setAttribute("role", "list"); // some screen readers do not announce a list without numbers
    return makeElement("div", {}, makeElement("p", {}, words), list);
  });

  const headWords = () => {
    const [layer, head] = (options["--trace-attention"] ?? "").split(",");
    return `head ${head} of layer ${layer}`;
  };
  const matrix = new AttentionMatrix();
  const addMatrix = view("The attention of one head as a matrix", "Pass", (known, which) => drawAttention(known, which, headWords(), quoted));

  const searches = () => Number(options["--num-beams"] ?? 1) > 1;

  /// Shows the newest step of the search if there is one, or why the search cannot be followed.
  function showSearch() {
    if (!search) return;
    const length = search.levels.length - 1, isNew = length > (search.shown ?? 0) || (search.wrong && search.shown === undefined);
    if (isNew) search.shown = length;
    addGrown(...(isNew ? [{ search, length }] : []));
  }

  /// Shows the passes of a batch, once a pass has had more than one row.
  function showRows() {
    if (!batch?.passes.some(({ batch: size }) => size > 1)) return;
    addRows(...[...batch.passes.keys()].slice(rowsShown));
    rowsShown = batch.passes.length;
  }

  /// Shows the passes of a paged cache. The newest pass already has its event.
  function showBlocks() {
    addBlocks(...[...pool.passes.keys()].slice(blocksShown));
    blocksShown = pool.passes.length;
  }

  /// The logits from which the token after `length` tokens was chosen: those of the last pass at this position.
  function logitsBehind(length, row) {
    const found = (passes.at(-1)?.logits ?? []).filter((one) => row === undefined || one.row === row), fitting = found.filter(({ position }) => position + 1 === length);
    const one = fitting.find(({ used }) => !used) ?? fitting.at(-1) ?? found.find(({ used }) => !used) ?? found.at(-1);
    if (one) one.used = true;
    return one?.logits;
  }

  /// The drafted tokens of the last pass with p and q. A prompt lookup proposes only its own token, so q = 1.
  function judged(text, rules) {
    const target = passes.at(-1), proposed = passes.slice(0, -1).flatMap(({ logits }) => logits);
    return target.rows[0].tokens.slice(1 - target.logits.length || Infinity).map((token, i, tokens) => {
      const { position, logits } = target.logits[i], behind = [...text, ...tokens.slice(0, i)];
      const share = (of) => {
        const shares = stages(of, behind, rules).at(-1)[1];
        return rules.options["--do-sample"] === "true" ? shares[token] : Number(byProbability(shares)[0] === token); // without sampling, the most likely token has all the probability
      };
      const draft = proposed.filter((one) => one.position === position).at(-1);
      return { token, p: share(logits), q: draft ? share(draft.logits) : 1 };
    });
  }

  const on = {
    start(event) {
      ({ options, vocabulary, prompts, n_positions: positions } = beginning = event);
      if (!searches()) batch = new BatchRows(positions, options["--use-cache"] !== "false");
    },
    text(event) {
      const { text, prompt } = event, prompted = prompts[prompt];
      texts.set(text, [...prompted]);
      rules.set(text, textRules(beginning, event));
      batch?.begin(text, prompted);
      if (searches() && search?.prompt !== prompted) search = new BeamSearch(prompted, rules.get(text), positions);
    },
    pass({ model, batch: size, rows }) {
      if (texts.size && model === (options["--model"] ?? model)) {
        search?.pass(rows);
        showSearch();
        batch?.pass({ batch: size, rows });
        showRows();
        pool.pass();
        showBlocks();
      }
      if (passes.at(-1)?.chosen) passes = [];
      round = null;
      for (const one of rows) {
        const place = `${model} ${one.row}`;
        one.before = held.get(place) ?? 0;
        held.set(place, one.start + one.tokens.length);
      }
      passes.push({ rows, logits: [] });
      addPass({ model, rows });
    },
    blocks(event) {
      if (!batch || !batch.passes.length || event.model !== (options["--model"] ?? event.model)) return;
      pool.blocks(event);
      showBlocks();
    },
    copy(event) {
      if (event.model !== (options["--model"] ?? event.model)) return;
      search?.copy(event);
      batch?.copy(event);
    },
    logits(event) {
      search?.logits(event);
      passes.at(-1).logits.push(event);
    },
    attention({ row, tokens, weights }) {
      addMatrix(matrix.add({ row, tokens, weights }));
      for (const shares of weights) addLook({ row, tokens, shares });
    },
    mask(event) {
      mask = event;
    },
    token({ text: number, token, origin }) {
      const text = texts.get(number);
      if (origin !== "model" && !round) {
        round = { drafted: judged(text, rules.get(number)), results: [] };
        if (round.drafted.length) addRound(round);
      }
      round?.results.push({ token, origin });
      if (passes.length) passes.at(-1).chosen = true;
      search?.finish(); // a search is reported at its end
      const logits = search ? null : logitsBehind(text.length, batch.token(number, token));
      if (logits) addChoice({ number, token, logits, text: [...text], mask });
      mask = null;
      text.push(token);
      showSearch();
      showRows();
      showBlocks();
    },
    end({ text: number, finish_reason: why, score }) {
      search?.finish();
      search?.tell(number, texts.get(number).slice(search.prompt.length), why, score);
      batch?.end(number);
      showSearch();
      showRows();
      showBlocks();
    },
  };
  return (event) => on[event.event]?.(event);
}
