// node run.js PROGRAM.js [ARGUMENT...]: runs a step's WebAssembly with this machine's standard streams and the embedded
// models. Its exit status is the program's.
"use strict";
const fs = require("fs");
const path = require("path");
const tty = require("tty");

const file = path.resolve(process.argv[2]);
const models = path.resolve(__dirname, "../models");

/// Collects bytes for standard output and standard error, and writes them at the end of each line, in the order of
/// their arrival.
const waiting = { descriptor: 1, bytes: [] };

function flush() {
  for (let rest = Buffer.from(waiting.bytes); rest.length; ) rest = rest.subarray(fs.writeSync(waiting.descriptor, rest));
  waiting.bytes = [];
}

function output(descriptor) {
  return (byte) => {
    if (byte === null) return;
    if (descriptor !== waiting.descriptor) flush();
    waiting.descriptor = descriptor;
    waiting.bytes.push(byte);
    if (byte === 10) flush();
  };
}

/// The next byte of standard input, or null at its end.
function input() {
  const buffer = Buffer.alloc(1 << 16);
  let length = 0, at = 0;
  return () => {
    if (at === length) [length, at] = [fs.readSync(0, buffer), 0];
    return length ? buffer[at++] : null;
  };
}

/// Copies a folder of this machine into the program's files.
function copy(FS, from, to) {
  FS.mkdirTree(to);
  for (const entry of fs.readdirSync(from, { withFileTypes: true })) {
    if (entry.isDirectory()) copy(FS, `${from}/${entry.name}`, `${to}/${entry.name}`);
    else FS.writeFile(`${to}/${entry.name}`, fs.readFileSync(`${from}/${entry.name}`), { canOwn: true });
  }
}

async function main() {
  const program = await require(file)({
    wasmBinary: fs.readFileSync(file.replace(/\.js$/, ".wasm")), // the JavaScript of an older emscripten would try to fetch this file
    thisProgram: path.basename(file, ".js"),
    quit: (_, end) => { throw end; }, // otherwise this process would end before all output is written
    preRun: [({ FS, ENV }) => {
      Object.assign(ENV, process.env.TERM && { TERM: process.env.TERM });
      FS.init(input(), output(1), output(2));
      for (const descriptor of [0, 1, 2]) FS.streams[descriptor].tty = tty.isatty(descriptor);
    }],
  });
  const project = path.dirname(models); // commands name files from there
  copy(program.FS, models, models);
  const named = process.argv.slice(3).map((word) => path.resolve(project, word));
  for (const folder of named.filter((name) => fs.existsSync(path.join(name, "config.json")))) copy(program.FS, folder, folder);
  for (const name of named.filter((name) => fs.statSync(name, { throwIfNoEntry: false })?.isFile())) {
    program.FS.mkdirTree(path.dirname(name));
    program.FS.writeFile(name, fs.readFileSync(name), { canOwn: true });
  }
  program.FS.chdir(project);
  const status = program.callMain(process.argv.slice(3));
  flush();
  return status;
}

main().then((status) => { process.exitCode = status; }, (error) => {
  console.error(`${path.basename(file)}: ${error && error.message || error}`);
  process.exitCode = 99;
});
