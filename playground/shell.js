// Reads command lines as a shell does, as far as one program with its options needs that.
"use strict";

const SHELL_SIGNS = { "|": "a pipe", "<": "a file as input", ">": "a file as output", ";": "a second command", "&": "a command in the background",
  "(": "a group of commands", ")": "a group of commands", "`": "the output of a command" };

/// Returns the words of a text: [{text, from, to, bare, first}]. A `bare` word has no quotation marks, and a `first`
/// word begins a line. Throws a sentence about anything that needs a shell.
function shellWords(line) {
  const found = [];
  let word = null, first = true, at = 0;
  const begin = () => { word ??= { text: "", from: at, bare: true, first }; };
  const end = () => {
    const isPrompt = word?.first && word.bare && word.text === "$"; // the prompt of a copied terminal session
    if (word && !isPrompt) {
      found.push({ ...word, to: at });
      first = false;
    }
    word = null;
  };
  const refuseVariable = () => {
    const name = line.slice(at).match(/^\$(\w+|\{[^}]*\}?|\(|')/)?.[0];
    if (name) throw `${name} in the command line is for a shell, and a page has none; for these very characters write \\${name}`;
    if (line[at] === "`") throw `the command line has \`, for a shell ${SHELL_SIGNS["`"]}, and a page has no shell; for the character itself write \\\``;
  };
  const quotation = () => {
    const mark = line[at];
    word.bare = false;
    for (++at; at < line.length && line[at] !== mark; ++at) {
      if (mark === '"') refuseVariable();
      if (mark === '"' && line[at] === "\\" && '"\\$`\n'.includes(line[at + 1] ?? " ")) {
        if (line[++at] === "\n") continue;
      }
      word.text += line[at];
    }
    if (at >= line.length) throw `in the command line a quotation mark ${mark} is open; close it`;
  };
  for (; at < line.length; ++at) {
    const sign = line[at];
    if (/\s/.test(sign)) {
      end();
      first ||= sign === "\n";
    } else if (sign === "\\" && line[at + 1] === "\n") {
      ++at; // the line continues
    } else if (!word && sign === "#") {
      while (at + 1 < line.length && line[at + 1] !== "\n") ++at;
    } else if (!word && /^2>&1(?!\S)/.test(line.slice(at, at + 5))) {
      at += 3; // both are shown anyway
    } else if (!word && /[“”„‘’‚«»]/.test(sign)) {
      throw `the command line has ${sign}, and a shell's quotation marks are " and '`;
    } else if (!word && /[–—]/.test(sign)) {
      throw `the command line has a long dash in ${line.slice(at).match(/^\S+/)[0]}; an option begins with --`;
    } else {
      begin();
      refuseVariable();
      if (sign === "'" || sign === '"') quotation();
      else if (sign in SHELL_SIGNS)
        throw `the command line has ${sign}, for a shell ${SHELL_SIGNS[sign]}, and a page has no shell; put text with ${sign} in quotation marks`;
      else if (sign === "\\") {
        word.bare = false;
        word.text += line[++at] ?? "\\";
      } else word.text += sign;
    }
  }
  at = line.length;
  end();
  return found;
}

/// Returns the commands of a text: [{step, words, text, from, to}]. Each begins with tools/run and `step`, which the
/// first command may omit. `words` are the words that follow, {text, from, to}, and `text` is the same part as typed.
function commandLines(text) {
  const commands = [];
  for (const word of shellWords(text)) {
    const last = commands.at(-1);
    if (word.first && word.bare && /^(\.\/)?tools\/run$/.test(word.text)) commands.push({ named: true, words: [], from: word.to, to: word.to });
    else if (last?.named && last.step === undefined) Object.assign(last, { step: word.text, from: word.to, to: word.to });
    else if (last) {
      last.words.push(word);
      last.to = word.to;
    } else commands.push({ words: [word], from: word.from, to: word.to });
  }
  if (!commands.length) commands.push({ words: [], from: 0, to: 0 });
  if (commands.some(({ named, step }) => named && step === undefined)) throw "the command line has tools/run without the number of a step";
  return commands.map((command) => ({ ...command, text: text.slice(command.from, command.to).replace(/\\\n/g, " ").trim() }));
}

/// The number of a step: "03" for "03-context-window".
const numberOf = (step) => step.split("-")[0];

/// Whether tools/run would choose this step for this word: its number, its name, or a part of the name.
function meansStep(word, step) {
  const number = numberOf(step);
  if (/^\d+$/.test(word)) return word.padStart(2, "0") === number;
  return word === step || (word.length > 2 && step.slice(number.length + 1).includes(word));
}

const shellQuoted = (word) => (/^[\w./:+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/// The value of an option in the words of a command: a text, true for a flag, or undefined. If the option occurs
/// several times, the last one counts.
function optionOf(words, option) {
  const at = words.findLastIndex(({ text }) => text === option || text.startsWith(`${option}=`));
  if (at < 0) return undefined;
  const { text } = words[at];
  return text === option ? words[at + 1]?.text ?? true : text.slice(option.length + 1);
}

/// Returns the text with an option set in each of its commands: to a value, to true for a flag, or to null to remove
/// it. Other words stay as they are.
function withOption(text, option, value) {
  for (const { words, to } of commandLines(text).reverse()) {
    const isFlag = value === true || value === false, wanted = value === true ? option : value === null || value === false ? "" : `${option} ${shellQuoted(value)}`;
    const places = words.flatMap((word, i) => {
      const joined = word.text.startsWith(`${option}=`);
      if (word.text !== option && !joined) return [];
      return [{ from: word.from, to: joined || isFlag ? word.to : words[i + 1]?.to ?? word.to }];
    });
    if (!places.length && wanted) text = `${text.slice(0, to)} ${wanted}${text.slice(to)}`;
    for (const [i, place] of [...places.entries()].reverse()) {
      const kept = i === places.length - 1 ? wanted : ""; // if the option occurs several times, the last one counts
      text = (kept ? text.slice(0, place.from) + kept : text.slice(0, place.from).replace(/[^\S\n]+$/, "")) + text.slice(place.to);
    }
  }
  return text.trim();
}
