// The terminal on a step's page: a reader can edit its command line and run it in the browser. Several runs appear side
// by side.
"use strict";

(() => {
  const place = document.querySelector(".playground");
  if (!place) return;
  const { step, base, glue, models, line: example, trace, talks, dtypes } = place.dataset;
  const inputs = JSON.parse(place.dataset.files); // files of the repository that the page's commands use
  const { options, presets, heads } = JSON.parse(place.dataset.offered);

  const make = makeElement;

  const CLASSES = { 1: "bold", 2: "dim", 7: "reverse", 31: "red", 32: "green", 33: "yellow", 36: "cyan" };
  // The origin of a token, by its colour. book.css has a line for each.
  const ORIGINS = {
    "t-green": ["accepted", "drafted, and kept"],
    "t-red": ["corrected", "the model's own, after it rejected a drafted one"],
    "t-cyan": ["bonus", "the model's own, after all drafted ones were accepted"],
  };

  /// Makes the legend of the tokens' colours and underlines.
  const makeLegend = () => {
    const list = make("ul", { className: "legend" }, ...Object.entries(ORIGINS).map(([className, [name, words]]) =>
      make("li", {}, make("span", { className }, name), `: ${words}`)));
    list.setAttribute("aria-label", "colours and lines of the tokens");
    return list;
  };

  /// Shows a program's output as a terminal does, with colours and lines that are overwritten.
  class Screen {
    classes = "";
    rest = "";

    constructor(element) {
      this.element = element;
    }

    write(text) {
      const following = this.element.scrollHeight - this.element.scrollTop - this.element.clientHeight < 30;
      const pieces = (this.rest + text).split(/(\x1b\[[0-9;]*[A-Za-z]|\r(?!\n))/);
      const last = pieces.pop();
      const open = last.search(/\x1b[^A-Za-z]*$/); // an incomplete escape sequence
      this.rest = open < 0 ? "" : last.slice(open);
      for (const piece of [...pieces, open < 0 ? last : last.slice(0, open)]) {
        if (piece === "\r") this.toLineStart();
        else if (piece.startsWith("\x1b[")) this.style(piece);
        else if (piece) this.append(piece);
      }
      if (following) this.element.scrollTop = this.element.scrollHeight;
    }

    append(text) {
      const { classes, element } = this, last = element.lastChild;
      if (ORIGINS[classes] && last?.className === classes) return last.append(text); // neighbouring tokens share one name
      const piece = classes ? make("span", { className: classes }, text) : text;
      if (ORIGINS[classes]) {
        piece.setAttribute("role", "group");
        piece.setAttribute("aria-label", ORIGINS[classes][0]);
        if (!element.nextElementSibling?.matches(".legend")) element.after(makeLegend());
      }
      element.append(piece);
    }

    style(sequence) {
      if (!sequence.endsWith("m")) return;
      const names = sequence.slice(2, -1).split(";").map((code) => CLASSES[code]).filter(Boolean);
      this.classes = names.map((name) => `t-${name}`).join(" ");
    }

    toLineStart() {
      for (let node; (node = this.element.lastChild); node.remove()) {
        const end = node.textContent.lastIndexOf("\n");
        if (end < 0) continue;
        node.textContent = node.textContent.slice(0, end + 1);
        break;
      }
    }
  }

  const packed = () => [...document.querySelectorAll("script[data-file]")];
  let unpacked;

  /// Returns a promise of {name: Blob} with the files that tools/book --single-file has put into the page.
  const unpack = () => unpacked ??= Promise.all(packed().map(async (element) => {
    try {
      const { body } = await fetch(`data:;base64,${element.textContent}`);
      return [element.dataset.file, await new Response(body.pipeThrough(new DecompressionStream("gzip"))).blob()];
    } catch {
      throw `${element.dataset.file} in this page is damaged; it may have been cut off`;
    }
  })).then(Object.fromEntries);

  /// Returns why this page cannot run programs, or nothing if it can.
  function whyNot() {
    if (location.protocol === "file:" && !packed().length)
      return "This page was opened from a file, and browsers do not let such pages start programs. Run `python3 -m http.server` in the folder of the site to serve it.";
    if (typeof Worker === "undefined") return "The programs run in workers, which this browser lacks.";
    // Two programs: one returns a vector, the other throws. They need Chrome 95, Firefox 100 or Safari 16.4.
    const vectors = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11];
    const exceptions = [0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 8, 1, 6, 0, 6, 64, 25, 11, 11];
    if (typeof WebAssembly === "undefined" || ![vectors, exceptions].every((code) => WebAssembly.validate(Uint8Array.from(code))))
      return "This browser is too old: the programs need WebAssembly with vectors and exceptions (Chrome 95, Firefox 100, Safari 16.4).";
    return "";
  }

  const line = make("textarea", { rows: Math.max(2, 2 * example.split("\n").length), spellcheck: false, id: "playground-line", value: example });
  line.setAttribute("autocapitalize", "off");
  const input = make("textarea", { rows: 3, spellcheck: false, id: "playground-input" });
  // A benchmark would only measure how long it takes to write its trace.
  const inside = make("input", { type: "checkbox", className: "watch", checked: Boolean(trace) && !/--(benchmark|drift)\b/.test(example) });
  const layer = make("select"), head = make("select");
  const looks = make("p", { className: "looks", hidden: !inside.checked },
    make("label", {}, "and the attention of one head: layer ", layer), make("label", {}, " head ", head),
    ", counted from 0 (", make("code", {}, "--trace-attention LAYER,HEAD"), ")");
  const menus = [layer, head];
  for (const menu of menus) {
    menu.onchange = () => { // both menus have a value, or neither
      for (const other of menus) other.value = menu.value === "" ? "" : other.value || "0";
    };
  }

  /// Fills the menus of layers and heads for the model of the first command. For an unknown model they offer some
  /// numbers.
  function fillMenus(wanted = menus.map((menu) => menu.value)) {
    let name;
    try {
      name = optionOf(commandLines(line.value)[0].words, "--model");
    } catch {
      return; // half typed
    }
    const known = disk && name === `disk/${disk.name}` ? disk.heads : heads[name ?? "tales-6m"] ?? heads[String(name).replace(/^.*models\//, "")];
    const counts = known ?? [32, 32], item = (value) => make("option", { value }, value === "" ? "–" : String(value));
    menus.forEach((menu, i) => {
      if (menu.length !== counts[i] + 1) menu.replaceChildren(...["", ...Array(counts[i]).keys()].map(item));
      menu.value = Number(wanted[i]) < counts[i] ? wanted[i] : "";
    });
    if (menus.some((menu) => menu.value === "")) for (const menu of menus) menu.value = "";
  }
  inside.onchange = () => { looks.hidden = !inside.checked; };
  const reads = talks
    ? ["Write one question per line. The program reads them if its command line has no ", make("code", {}, "--prompt"), "; each run starts a new conversation. A line can also be ", make("code", {}, "/help"), "."]
    : ["The program reads this text as its standard input, for example with ", make("code", {}, "--requests -")];
  const start = make("button", { type: "submit" }, "Run");
  const [problem, wrongModel] = ["problem", "problem-of-model"].map((className) => {
    const sentence = make("p", { className });
    sentence.setAttribute("role", "alert");
    return sentence;
  });

  const note = make("p", { className: "note" });
  note.setAttribute("role", "status");

  let disk = null; // the reader's own model
  const told = make("p", { className: "told" });
  told.setAttribute("role", "status");
  const forget = make("button", { type: "button", hidden: true }, "Use the embedded model");

  /// Rewrites the command lines to use the reader's model and its type or, without an argument, no model and type.
  function rewrite(model) {
    let lines = line.value;
    const set = (option, value) => { lines = withOption(lines, option, value); };
    if (model) set("--draft-model", null); // an embedded draft has another vocabulary
    if (model?.hasTemplate) set("--chat-template", null);
    for (const option of ["--model", ...(dtypes ? ["--dtype"] : [])]) set(option, null);
    if (model) set("--model", `disk/${model.name}`);
    if (model && dtypes) set("--dtype", model.dtype);
    line.value = lines;
    changed();
  }

  /// Uses the files from a picker. If they are refused, nothing changes.
  async function choose(picker, isFolder) {
    const chosen = [...picker.files];
    picker.value = ""; // so that the same file can be chosen again
    if (!chosen.length) return; // cancelled
    const turn = ++choices;
    wrongModel.textContent = "";
    try {
      commandLines(line.value); // throws if it cannot be read, because the model is added to it
      const model = await readDiskModel(chosen, isFolder);
      if (turn !== choices) return; // another model was chosen meanwhile
      const fits = (dtype) => diskMemory(model, dtype).all <= MEMORY_LIMIT;
      model.dtype = dtypes ? ["bfloat16", "int8", "int4"].find(fits) ?? "int4" : "float32";
      const memory = diskMemory(model, model.dtype);
      checkMemory(model.name, memory);
      if (!disk) before = line.value;
      disk = model;
      rewrite(model);
      told.textContent = `${tellMemory(model.name, memory)}. Press Run: it is read from your disk, and nothing is uploaded.`;
      forget.hidden = false;
    } catch (sentence) {
      const why = typeof sentence === "string" ? sentence : `its header is broken (${sentence.message})`;
      wrongModel.textContent = `This model cannot run here: ${why}.`;
    }
  }

  let choices = 0, before = ""; // the command line before a model from the disk was chosen
  forget.onclick = () => {
    disk = null;
    line.value = before;
    changed();
    told.textContent = wrongModel.textContent = "";
    forget.hidden = true;
    line.focus();
  };

  /// Makes a button that opens a picker.
  function picker(words, properties, isFolder) {
    const input = make("input", { type: "file", hidden: true, ...properties });
    input.setAttribute("aria-label", words);
    input.onchange = () => choose(input, isFolder);
    const button = make("button", { type: "button" }, words);
    button.onclick = () => input.click();
    return [button, input, " "];
  }
  const folders = "webkitdirectory" in HTMLInputElement.prototype; // most phones have no picker for folders
  const fromDisk = make("details", { open: Boolean(talks) }, make("summary", {}, "Use a model from your disk"),
    make("p", {}, "A ", make("code", {}, ".gguf"), " file, or a folder with ", make("code", {}, "config.json"), ", the tokenizer and ",
      make("code", {}, "safetensors"), ". Nothing is uploaded: the program reads it on your machine."),
    make("p", {}, ...picker("Choose a .gguf file", { accept: ".gguf" }, false),
      ...(folders ? picker("Choose a folder", { webkitdirectory: true }, true) : []), forget),
    wrongModel, told);

  const runs = make("div", { className: "runs" });
  const form = make("form", {},
    make("label", { htmlFor: line.id }, make("code", {}, `tools/run ${numberOf(step)}`)), line,
    make("details", { open: Boolean(talks) }, make("summary", {}, talks ? "Your side of the conversation" : "Standard input"), make("label", { htmlFor: input.id }, ...reads), input),
    fromDisk,
    ...(trace ? [make("label", {}, inside, " Show what happens inside, which takes longer"), looks] : []),
    make("p", {}, start, " It runs on your machine: this page sends nothing to anyone."));
  place.append(form, problem, note, runs);
  const settings = settingsOf(line, options, presets, () => submit(), (sentence) => {
    problem.textContent = sentence && `This cannot be set: ${sentence}.`;
  });
  line.after(...settings.elements);
  line.addEventListener("input", () => fillMenus());

  /// Call after the command line has changed.
  function changed() {
    settings.show();
    fillMenus();
  }

  /// Shortens a command line that identifies a run. The middle of a long one is left out, because options are at both
  /// ends.
  const short = (words) => (words.length > 300 ? `${words.slice(0, 150)} … ${words.slice(-150)}` : words || "(no options)");

  /// Starts a run, and shows its output and the buttons to stop and to remove it.
  function launch(files, arguments_, title, own, link) {
    const state = make("span", { className: "state" }, "starting");
    state.setAttribute("role", "status");
    // Stop and Remove are two buttons, so pressing Stop too late does not remove the output.
    const stop = make("button", { type: "button", className: "stop" }, "Stop");
    const remove = make("button", { type: "button", className: "remove" }, "Remove");
    const copy = make("button", { type: "button", className: "link" }, "Copy link");
    copy.onclick = () => copyLink(link, copy);
    const text = make("pre", { tabIndex: 0 });
    text.setAttribute("role", "log");
    text.setAttribute("aria-label", `output of ${title}`);
    const panel = make("section", { className: "run" }, make("header", {}, make("code", {}, title), state, copy, stop, remove), text);
    panel.setAttribute("aria-label", title);
    runs.prepend(panel);
    const screen = new Screen(text);
    const views = stepViews(panel);
    const worker = new Worker(files["worker.js"] ? URL.createObjectURL(files["worker.js"]) : `${base}/worker.js`);
    const begun = performance.now();
    const end = (words) => {
      worker.terminate();
      state.textContent = words;
      stop.disabled = true;
    };
    stop.onclick = () => end("stopped");
    remove.onclick = () => {
      worker.terminate();
      panel.remove();
      start.focus();
    };
    worker.onerror = (event) => end(`cannot run: ${event.message || "the program could not be loaded"}`);
    worker.onmessage = ({ data }) => {
      if (data.output !== undefined) screen.write(data.output);
      else if (data.event) views(data.event);
      else if (data.note) note.textContent = data.note;
      else if (data.state) state.textContent = data.state;
      else if (data.error) end(`cannot run: ${data.error}`);
      else {
        const used = own.length ? `; the program had ${inBytes(data.memory)} of memory` : "";
        end(`${data.status ? `ended with status ${data.status}` : "done"} after ${((performance.now() - begun) / 1000).toFixed(1)} s${used}`);
      }
    };
    worker.postMessage({ step, glue, models, arguments: arguments_, input: input.value, talks: Boolean(talks), files, inputs, disk: own });
  }

  /// The address of this page with a run.
  const addressOf = (link) => location.href.split("#")[0] + link;

  /// Copies the address of a run to the clipboard. If the browser forbids that, the page shows the address.
  async function copyLink(link, button) {
    problem.textContent = linkIsLong(link) && `This run cannot be shared: ${linkIsLong(link)}.`;
    if (problem.textContent) return;
    try {
      await navigator.clipboard.writeText(addressOf(link));
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy link"; }, 2000);
    } catch {
      const shown = make("input", { className: "address", readOnly: true, value: addressOf(link) });
      shown.setAttribute("aria-label", "link to this run");
      button.replaceWith(shown);
      shown.select();
    }
  }

  /// The fields of the page that a link contains.
  const fieldsNow = () => ({
    line: line.value, input: input.value, inside: inside.checked && Boolean(trace), head: layer.value && `${layer.value},${head.value}`,
  });

  /// Puts the run into the address of the page, so that it survives a reload.
  function keep(link) {
    const isLong = linkIsLong(link);
    note.textContent = isLong && `${isLong}: a reload of this page forgets this run.`;
    try {
      history.replaceState(history.state, "", isLong ? location.href.split("#")[0] : link);
    } catch {
      // a page in a frame may not do this
    }
  }

  /// If the page's address has a run, fills in its fields and starts it.
  function openLink() {
    let run;
    try {
      run = runOfLink(location.hash, step);
    } catch (sentence) {
      if (typeof sentence !== "string") throw sentence;
      problem.textContent = `The link to a run cannot be used: ${sentence}. The command line stays as it was.`;
    }
    if (!run) return;
    line.value = run.line;
    input.value = run.input;
    inside.checked = run.inside;
    looks.hidden = !run.inside;
    changed();
    fillMenus(run.head.split(","));
    place.scrollIntoView();
    submit();
  }

  /// Returns a link to another step's page with this command, if the sidebar has that page.
  function pageOf(named, command) {
    const found = [...document.querySelectorAll("a[href]")].find((one) => {
      const other = one.getAttribute("href").match(/([0-9]{2,}-[\w-]+)\/index\.html$/)?.[1];
      return other && meansStep(named, other);
    });
    if (!found) return [];
    const other = found.getAttribute("href").match(/([^/]+)\/index\.html$/)[1];
    return [" Run it on ", make("a", { href: found.href + linkTo(other, { line: command }) }, `the page of ${other}`), "."];
  }

  /// Returns the files of the reader's model if a command uses it. Throws a sentence if the model does not fit into
  /// memory, or is not the chosen one.
  function filesOfModel(words) {
    const value = (option) => optionOf(words.map((text) => ({ text })), option);
    const named = words.find((word) => /^(--[\w-]+=)?disk\//.test(word))?.replace(/^.*?disk\//, "");
    if (named === undefined) return [];
    const chosen = disk ? `${disk.name} is the model that you chose` : "no model from your disk is chosen";
    if (named !== disk?.name) throw `the command line names disk/${named}, and ${chosen}`;
    checkMemory(named, diskMemory(disk, dtypes ? value("--dtype") : "float32", Number(value("--context"))));
    return disk.files;
  }

  async function submit(event) {
    event?.preventDefault();
    problem.textContent = whyNot();
    if (problem.textContent) return;
    try {
      const commands = commandLines(line.value);
      const other = commands.find((command) => command.step !== undefined && !meansStep(command.step, step));
      if (other) {
        problem.replaceChildren(`This cannot run here: the command line is for step ${other.step}, and this page runs ${step}.`,
          ...pageOf(other.step, other.text));
        return;
      }
      const fields = fieldsNow(), files = await unpack();
      keep(linkTo(step, fields));
      for (const { words, text } of commands.reverse()) { // the newest run is on top
        const arguments_ = words.map((word) => word.text);
        const has = (option) => arguments_.some((word) => word === option || word.startsWith(`${option}=`));
        const own = filesOfModel(arguments_), watched = fields.inside && fields.head && !has("--trace-attention") ? ["--trace-attention", fields.head] : [];
        arguments_.push(...watched);
        if ((fields.inside || has("--trace-attention")) && !has("--trace")) arguments_.push("--trace", "/trace");
        launch(files, arguments_, [short(text), ...watched].join(" "), own, linkTo(step, { ...fields, line: text }));
      }
    } catch (sentence) {
      if (typeof sentence !== "string") throw sentence;
      problem.textContent = `This cannot run: ${sentence}.`;
    }
  }
  form.addEventListener("submit", submit);
  line.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event); });

  // Each command on the page gets a button that runs it.
  for (const shown of document.querySelectorAll(`details.terminal[data-command]`)) {
    // Only a command that is one program with its options: a page cannot do what a shell does with | or >.
    const command = (shown.dataset.run ?? shown.dataset.command).match(/^tools\/run (\S+)\s+((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^|<>;&"'])*?)\s*(2>&1)?$/s);
    if (!command || !step.startsWith(command[1])) continue;
    const button = make("button", { type: "button", className: "try" }, "Run it here");
    button.onclick = () => {
      line.value = command[2].replace(/\\\n\s*/g, "");
      changed();
      if (shown.dataset.input !== undefined) input.value = shown.dataset.input;
      if (/--(benchmark|drift)\b/.test(line.value)) inside.checked = false;
      place.scrollIntoView();
      line.focus({ preventScroll: true });
      submit();
    };
    shown.append(button);
  }

  problem.textContent = whyNot();
  fillMenus();
  openLink();
  addEventListener("hashchange", openLink); // a link pasted over this page's address
})();
