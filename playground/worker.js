// Runs one step once. It receives a message {step, glue, models, arguments, input, talks, files, inputs, disk}, and
// replies with {state}, {note}, {output}, {event}, {status, memory} and {error}. `models` is the version of the models.
// A program that `talks` reads its input as from a terminal. `files` holds, by name, files that need not be loaded.
// `inputs` are the files of the repository that a command may name; `disk` holds the files of the reader's own model.
// --trace /trace sends events. Ending this worker releases its memory.
"use strict";

const MODELS = ["tales-6m", "tales-1m"];
// Models that are loaded only if the command line names them. Each differs from another by one change.
const NAMED_MODELS = ["tales-gpt2-1m", "tales-neox-1m", "tales-olmo-1m", "tales-llama-1m", "tales-gqa-1m", "tales-qwen-1m",
  "tales-window-1m", "tales-moe-1m", "tales-gemma-1m"];
const FILES = ["config.json", "generation_config.json", "merges.txt", "model.safetensors", "tokenizer_config.json", "vocab.json"];
const PATIENCE = 30; // milliseconds that output may wait for more output

let files = {};
let kept; // the name of the browser's storage for models, which all pages share

/// Returns the bytes of a file of the page or the site. Throws an error that a person understands.
async function load(name) {
  if (files[name]) return new Uint8Array(await files[name].arrayBuffer());
  if (location.protocol === "blob:") throw new Error(`${name} is not in this page, which may have been cut off`);
  let answer;
  try {
    answer = await fetch(name);
    if (answer.ok) return new Uint8Array(await answer.arrayBuffer());
  } catch {
    throw new Error(`${name} cannot be loaded: ${answer ? "it was cut off" : "the server of this page does not answer"}; try again`);
  }
  throw new Error(`${name} cannot be loaded: the server returned status ${answer.status}`);
}

/// Loads a file that never changes, and stores it. A browser that stores nothing loads it again each time.
async function loadOnce(name) {
  if (files[name]) return load(name);
  const complain = ({ name: why }) => {
    const words = { QuotaExceededError: "has no more storage for this page", SecurityError: "forbids this page to store anything" };
    postMessage({ note: `This browser ${words[why] ?? "stores nothing for this page"}, so each run loads the models again.` });
  };
  const open = async () => caches.open(kept); // throws on pages without TLS, which have no storage
  const storage = await open().catch(complain);
  const found = await storage?.match(name).catch(complain);
  if (found) return new Uint8Array(await found.arrayBuffer());
  const bytes = await load(name);
  await storage?.put(name, new Response(bytes)).catch(complain);
  return bytes;
}

/// Deletes models of older versions of the site.
async function forgetOthers() {
  for (const name of await caches.keys()) {
    if (name.startsWith("staircase-models-") && name !== kept) await caches.delete(name);
  }
}

/// Collects the program's output in its order. A character may arrive in several pieces.
class Output {
  decoders = { 1: new TextDecoder(), 2: new TextDecoder() };
  bytes = [];
  descriptor = 1;
  since = 0;

  /// Returns the function that writes a byte of one of the program's streams.
  writer(descriptor) {
    return (byte) => {
      if (byte === null) return;
      if (descriptor !== this.descriptor) this.flush();
      if (!this.bytes.length) this.since = performance.now();
      this.descriptor = descriptor;
      this.bytes.push(byte);
      if (performance.now() - this.since > PATIENCE) this.flush();
    };
  }

  flush() {
    if (!this.bytes.length) return;
    postMessage({ output: this.decoders[this.descriptor].decode(Uint8Array.from(this.bytes), { stream: true }) });
    this.bytes = [];
  }
}

/// Makes the file /trace, and sends each of its lines to the page as an event.
function makeTrace(FS) {
  const decoder = new TextDecoder(), device = FS.makedev(64, 0);
  let rest = "";
  FS.registerDevice(device, {
    write(_, bytes, offset, length) {
      const lines = (rest + decoder.decode(bytes.subarray(offset, offset + length), { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const event = JSON.parse(line);
        if (event.logits) event.logits = Float32Array.from(event.logits);
        postMessage({ event });
      }
      return length;
    },
  });
  FS.mkdev("/trace", device);
}

/// Makes standard input a terminal, at which `typed` is typed. The program receives a line when it reads one, and
/// `show` receives the line's bytes.
function makeKeyboard(FS, typed, show) {
  const stream = FS.streams[0];
  let at = 0;
  stream.tty = true;
  stream.stream_ops = {
    ...stream.stream_ops,
    read(_, bytes, offset, length) {
      const end = typed.indexOf(10, at) + 1 || typed.length;
      const line = typed.subarray(at, Math.min(end, at + length));
      bytes.set(line, offset);
      line.forEach(show);
      at += line.length;
      return line.length;
    },
  };
}

const PART = 1 << 20; // how many bytes of a reader's file are in JavaScript's memory at a time
const IO_ERROR = 29, NO_MEMORY = 48; // as emscripten numbers them

/// Adds a file of the reader's to the program's files. Its bytes stay on the disk until the program reads them. The
/// program maps a model several times but never writes it, so the bytes are kept in its memory once.
function mount(program, path, file) {
  const { FS } = program, reader = new FileReaderSync();
  const read = (position, length) => {
    try {
      return new Uint8Array(reader.readAsArrayBuffer(file.slice(position, position + length)));
    } catch {
      throw new FS.ErrnoError(IO_ERROR); // changed or removed since it was chosen
    }
  };
  let mapped = 0;
  FS.mkdirTree(`/${path.slice(0, path.lastIndexOf("/"))}`);
  FS.writeFile(`/${path}`, "");
  const { node } = FS.lookupPath(`/${path}`);
  node.usedBytes = file.size;
  node.stream_ops = {
    ...node.stream_ops,
    read(_, bytes, offset, length, position) {
      const part = read(position, length);
      bytes.set(part, offset);
      return part.length;
    },
    mmap(_, address, length) {
      if (!mapped) {
        const memory = program._emscripten_builtin_memalign(64, length);
        if (!memory) throw new FS.ErrnoError(NO_MEMORY);
        for (let at = 0; at < length; at += PART) program.HEAPU8.set(read(at, Math.min(PART, length - at)), memory + at);
        mapped = memory;
      }
      return { ptr: mapped, allocated: false };
    },
  };
}

async function run({ step, glue, models, arguments: words, input, talks, files: given, inputs, disk }) {
  if (disk.length && typeof FileReaderSync === "undefined") throw new Error("this browser does not let a worker read a file from the disk");
  postMessage({ state: "loading the program and the models" });
  files = given;
  kept = `staircase-models-${models}`;
  const ours = words.filter((word) => !/^(--[\w-]+=)?disk\//.test(word)); // a reader's folder may have the name of one of our models
  const needed = [...MODELS, ...NAMED_MODELS.filter((model) => ours.some((word) => word.endsWith(model)))];
  const ofModels = needed.flatMap((model) => FILES.map((file) => `models/${model}/${file}`));
  const folder = (name) => name.slice(0, name.lastIndexOf("/"));
  const wanted = inputs.filter((name) => ours.some((word) => word.endsWith(name) || word.endsWith(folder(name))));
  const names = [...ofModels, ...wanted];
  const [script, binary, ...contents] = await Promise.all([load(glue), load(`steps/${step}.wasm`), ...ofModels.map(loadOnce),
    ...wanted.map((name) => load(`files/${name}`))]);
  importScripts(URL.createObjectURL(new Blob([script])));
  forgetOthers().catch(() => {});
  const output = new Output();
  const typed = new TextEncoder().encode(input);
  let at = 0;
  const program = await Staircase({
    wasmBinary: binary,
    thisProgram: step,
    quit: (_, end) => { throw end; },
    preRun: [({ FS, ENV }) => {
      FS.init(() => (at < typed.length ? typed[at++] : null), output.writer(1), output.writer(2));
      for (const descriptor of [1, 2]) FS.streams[descriptor].tty = true; // so the program writes colours, and text without delay
      if (talks) makeKeyboard(FS, new TextEncoder().encode(input && !input.endsWith("\n") ? `${input}\n` : input), output.writer(1));
      ENV.STAIRCASE_MODELS = "/models";
      ENV.TERM = "xterm-256color"; // without this, programs write no colours
    }],
  });
  names.forEach((name, i) => {
    program.FS.mkdirTree(`/${folder(name)}`);
    program.FS.writeFile(`/${name}`, contents[i], { canOwn: true });
  });
  for (const [path, file] of disk) mount(program, path, file);
  makeTrace(program.FS);
  postMessage({ state: "running" });
  const status = program.callMain(words);
  output.flush();
  if (status === 1 && !disk.length) await globalThis.caches?.delete(kept).catch(() => {}); // a stored model may be broken: load it again
  postMessage({ status, memory: program.HEAPU8.length });
}

onmessage = ({ data }) => run(data).catch((error) => postMessage({ error: String(error && error.message || error) }));
