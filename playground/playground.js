// The terminal on a step's page: its command line can be changed, and runs in this browser. Several runs
// appear side by side.
"use strict";

(() => {
  const place = document.querySelector(".playground");
  if (!place) return;
  const { step, base, glue, models, line: example, trace, talks, dtypes } = place.dataset;
  const inputs = JSON.parse(place.dataset.files); // files of the repository that the page's commands name

  const make = makeElement;

  /// The words of a command line, as a shell takes them apart; throws a sentence.
  function words(line) {
    const found = [];
    let word = null, quote = "";
    for (let i = 0; i < line.length; ++i) {
      const c = line[i];
      if (quote) {
        if (c === quote) quote = "";
        else if (c === "\\" && quote === '"' && '"\\$`'.includes(line[i + 1] || " ")) word += line[++i];
        else word += c;
      } else if (c === "'" || c === '"') {
        quote = c;
        word ??= "";
      } else if (/\s/.test(c)) {
        if (word !== null) found.push(word);
        word = null;
      } else {
        word = (word ?? "") + (c === "\\" && i + 1 < line.length ? line[++i] : c);
      }
    }
    if (quote) throw `in the command line a quotation mark ${quote} is open; close it`;
    if (word !== null) found.push(word);
    return found;
  }

  /// The command lines of a text: each that begins with tools/run is one, and any text before the first.
  function split(text) {
    const parts = text.replace(/\\\n/g, " ").trim().split(/(?:^|\n)\s*tools\/run\s+\S+/);
    return parts.map((part) => part.trim()).filter((part, i) => part || i || parts.length === 1);
  }

  const CLASSES = { 1: "bold", 2: "dim", 7: "reverse", 31: "red", 32: "green", 33: "yellow", 36: "cyan" };

  /// Shows what a program writes to a terminal: colours, and lines that are written again.
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
      const open = last.search(/\x1b[^A-Za-z]*$/); // an escape sequence of which more will come
      this.rest = open < 0 ? "" : last.slice(open);
      for (const piece of [...pieces, open < 0 ? last : last.slice(0, open)]) {
        if (piece === "\r") this.toLineStart();
        else if (piece.startsWith("\x1b[")) this.style(piece);
        else if (piece) this.element.append(this.classes ? make("span", { className: this.classes }, piece) : piece);
      }
      if (following) this.element.scrollTop = this.element.scrollHeight;
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

  /// A promise of {name: Blob}: the files in the page itself, which tools/book --single-file put there.
  const unpack = () => unpacked ??= Promise.all(packed().map(async (element) => {
    try {
      const { body } = await fetch(`data:;base64,${element.textContent}`);
      return [element.dataset.file, await new Response(body.pipeThrough(new DecompressionStream("gzip"))).blob()];
    } catch {
      throw `${element.dataset.file} in this page is damaged; it may have been cut off`;
    }
  })).then(Object.fromEntries);

  /// Why nothing can run here, or nothing.
  function whyNot() {
    if (location.protocol === "file:" && !packed().length)
      return "This page was opened from a file, and browsers let such pages start no programs. `python3 -m http.server` in the folder of the site serves it.";
    if (typeof Worker === "undefined") return "This browser has no workers, in which the programs run.";
    // A function that gives back a vector, and one that throws: Chrome 95, Firefox 100, Safari 16.4.
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
  const inside = make("input", { type: "checkbox", checked: Boolean(trace) && !/--(benchmark|drift)\b/.test(example) });
  const layer = make("input", { type: "number", min: 0 }), head = make("input", { type: "number", min: 0 });
  const looks = make("p", { className: "looks", hidden: !inside.checked }, make("label", {}, "and the attention of one head: layer ", layer), make("label", {}, " head ", head),
    ", counted from 0 (", make("code", {}, "--trace-attention LAYER,HEAD"), ")");
  inside.onchange = () => { looks.hidden = !inside.checked; };
  const reads = talks
    ? ["A question a line. The program reads them where its command line has no ", make("code", {}, "--prompt"), "; each run begins the conversation again. ", make("code", {}, "/help"), " is a line, too."]
    : ["What the program reads where it is asked to, as by ", make("code", {}, "--requests -")];
  const start = make("button", { type: "submit" }, "Run");
  const [problem, wrongModel] = ["problem", "problem-of-model"].map((className) => {
    const sentence = make("p", { className });
    sentence.setAttribute("role", "alert");
    return sentence;
  });

  let disk = null; // the reader's own model
  const told = make("p", { className: "told" });
  told.setAttribute("role", "status");
  const forget = make("button", { type: "button", hidden: true }, "Use the embedded model");

  /// The command lines without a model and a type, or with those of the reader's model.
  function rewrite(model) {
    const option = (name) => new RegExp(`(^|\\s)${name}[=\\s]\\s*('[^']*'|"[^"]*"|\\\\.|[^\\s'"\\\\])+`, "g");
    const lines = split(line.value).map((command) => {
      let rest = command.replace(option("--model"), "");
      if (dtypes) rest = rest.replace(option("--dtype"), "");
      if (model) rest = rest.replace(option("--draft-model"), ""); // an embedded draft has another vocabulary
      if (model?.hasTemplate) rest = rest.replace(option("--chat-template"), "");
      const own = model ? ` --model ${quoted(`disk/${model.name}`)}${dtypes ? ` --dtype ${model.dtype}` : ""}` : "";
      return (rest.trim() + own).trim();
    });
    line.value = lines.join(`\ntools/run ${step.slice(0, 2)} `);
  }

  const quoted = (word) => (/^[\w./:+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

  /// Takes what a picker returned. A model that is refused leaves everything as it was.
  async function choose(picker, isFolder) {
    const chosen = [...picker.files];
    picker.value = ""; // so that the same file can be chosen again
    if (!chosen.length) return; // cancelled
    const turn = ++choices;
    wrongModel.textContent = "";
    try {
      const model = await readDiskModel(chosen, isFolder);
      if (turn !== choices) return; // another one was chosen meanwhile
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

  let choices = 0, before = ""; // the command line of the embedded model
  forget.onclick = () => {
    disk = null;
    line.value = before;
    told.textContent = wrongModel.textContent = "";
    forget.hidden = true;
    line.focus();
  };

  /// A button that opens a picker.
  function picker(words, properties, isFolder) {
    const input = make("input", { type: "file", hidden: true, ...properties });
    input.setAttribute("aria-label", words);
    input.onchange = () => choose(input, isFolder);
    const button = make("button", { type: "button" }, words);
    button.onclick = () => input.click();
    return [button, input, " "];
  }
  const folders = "webkitdirectory" in HTMLInputElement.prototype; // most phones have no picker for them
  const fromDisk = make("details", { open: Boolean(talks) }, make("summary", {}, "Use a model from your disk"),
    make("p", {}, "A ", make("code", {}, ".gguf"), " file, or a folder with ", make("code", {}, "config.json"), ", the tokenizer and ",
      make("code", {}, "safetensors"), ". Nothing is uploaded: the program reads it on your machine."),
    make("p", {}, ...picker("Choose a .gguf file", { accept: ".gguf" }, false),
      ...(folders ? picker("Choose a folder", { webkitdirectory: true }, true) : []), forget),
    wrongModel, told);

  const runs = make("div", { className: "runs" });
  const form = make("form", {},
    make("label", { htmlFor: line.id }, make("code", {}, `tools/run ${step.slice(0, 2)}`)), line,
    make("details", { open: Boolean(talks) }, make("summary", {}, talks ? "Your side of the conversation" : "Standard input"), make("label", { htmlFor: input.id }, ...reads), input),
    fromDisk,
    ...(trace ? [make("label", {}, inside, " Show what happens inside, which takes longer"), looks] : []),
    make("p", {}, start, " It runs on your machine: this page sends nothing to anyone."));
  place.append(form, problem, runs);

  /// A command line short enough to identify a run; the middle of a long one is left out, since options are
  /// at both ends.
  const short = (words) => (words.length > 300 ? `${words.slice(0, 150)} … ${words.slice(-150)}` : words || "(no options)");

  /// A run with its output, and the buttons to stop and to remove it.
  function launch(files, arguments_, title, own) {
    const state = make("span", { className: "state" }, "starting");
    state.setAttribute("role", "status");
    // Two buttons: a press of Stop that comes too late must not take the output away.
    const stop = make("button", { type: "button", className: "stop" }, "Stop");
    const remove = make("button", { type: "button", className: "remove" }, "Remove");
    const text = make("pre", { tabIndex: 0 });
    text.setAttribute("role", "log");
    text.setAttribute("aria-label", `output of ${title}`);
    const panel = make("section", { className: "run" }, make("header", {}, make("code", {}, title), state, stop, remove), text);
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
      else if (data.state) state.textContent = data.state;
      else if (data.error) end(`cannot run: ${data.error}`);
      else {
        const used = own.length ? `; the program had ${inBytes(data.memory)} of memory` : "";
        end(`${data.status ? `ended with status ${data.status}` : "done"} after ${((performance.now() - begun) / 1000).toFixed(1)} s${used}`);
      }
    };
    worker.postMessage({ step, glue, models, arguments: arguments_, input: input.value, talks: Boolean(talks), files, inputs, disk: own });
  }

  /// The files of the reader's model for a command that names it. Throws a sentence where it does not fit, or none is chosen.
  function filesOfModel(words) {
    const value = (option) => {
      const at = words.map((word) => word === option || word.startsWith(`${option}=`)).lastIndexOf(true);
      return at < 0 ? undefined : words[at] === option ? words[at + 1] : words[at].slice(option.length + 1);
    };
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
      const commands = split(line.value).map((command) => [words(command), short(command)]);
      const files = await unpack();
      for (const [arguments_, title] of commands.reverse()) { // the newest run is on top
        const has = (option) => arguments_.some((word) => word === option || word.startsWith(`${option}=`));
        if (inside.checked && (layer.value || head.value) && !has("--trace-attention")) arguments_.push("--trace-attention", `${layer.value},${head.value}`);
        if ((inside.checked || has("--trace-attention")) && !has("--trace")) arguments_.push("--trace", "/trace");
        launch(files, arguments_, title, filesOfModel(arguments_));
      }
    } catch (sentence) {
      if (typeof sentence !== "string") throw sentence;
      problem.textContent = `This cannot run: ${sentence}.`;
    }
  }
  form.addEventListener("submit", submit);
  line.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event); });

  // The page's own commands are at hand.
  for (const shown of document.querySelectorAll(`details.terminal[data-command]`)) {
    // Nothing but a program with its words: what a shell would do with | or > between them, a page cannot.
    const command = (shown.dataset.run ?? shown.dataset.command).match(/^tools\/run (\S+)\s+((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^|<>;&"'])*?)\s*(2>&1)?$/s);
    if (!command || !step.startsWith(command[1])) continue;
    const button = make("button", { type: "button", className: "try" }, "Run it here");
    button.onclick = () => {
      line.value = command[2].replace(/\\\n\s*/g, "");
      if (shown.dataset.input !== undefined) input.value = shown.dataset.input;
      if (/--(benchmark|drift)\b/.test(line.value)) inside.checked = false;
      place.scrollIntoView();
      line.focus({ preventScroll: true });
      submit();
    };
    shown.append(button);
  }
})();
