"use strict";
// The difference of any two steps, from codeLines and codeSteps: each line of code is known by its number.

(() => {
  const form = document.querySelector(".compare-form");
  const place = document.getElementById("comparison");
  const count = document.getElementById("compare-count");
  const context = 3;
  const empty = [[], ""];

  // [[sign, old number, new number, line]] by the longest common subsequence.
  function difference(before, after) {
    const rows = before.length + 1, columns = after.length + 1;
    const longest = new Uint16Array(rows * columns);
    for (let i = rows - 2; i >= 0; --i) {
      for (let j = columns - 2; j >= 0; --j) {
        longest[i * columns + j] = before[i] === after[j] ? longest[(i + 1) * columns + j + 1] + 1
          : Math.max(longest[(i + 1) * columns + j], longest[i * columns + j + 1]);
      }
    }
    const found = [];
    let i = 0, j = 0;
    while (i < before.length || j < after.length) {
      if (i < before.length && j < after.length && before[i] === after[j]) {
        found.push([" ", ++i, ++j, after[j - 1]]);
      } else if (j === after.length || (i < before.length && longest[(i + 1) * columns + j] >= longest[i * columns + j + 1])) {
        found.push(["-", ++i, j, before[i - 1]]);
      } else {
        found.push(["+", i, ++j, after[j - 1]]);
      }
    }
    return found;
  }

  function line(name, [sign, oldNumber, newNumber, code]) {
    const element = book.make(sign === "+" ? "ins" : sign === "-" ? "del" : "span", "");
    const address = `${name}-${sign === "-" ? `old-${oldNumber}` : newNumber}`;
    element.innerHTML = `<a tabindex="-1">${sign === "-" ? oldNumber : newNumber}</a>${codeLines[code]}\n`;
    element.id = address;
    element.firstChild.href = `#${address}`;
    return element;
  }

  function file(name, lines, note) {
    const added = lines.filter(([sign]) => sign === "+").length;
    const removed = lines.filter(([sign]) => sign === "-").length;
    const code = book.make("div", "code");
    for (let begin = 0; begin < lines.length;) {
      const changed = lines[begin][0] !== " ";
      let end = begin;
      while (end < lines.length && (lines[end][0] !== " ") === changed) ++end;
      const run = lines.slice(begin, end);
      if (changed) {
        code.append(book.make("div", "", ...run.filter(([sign]) => sign === "-").map((one) => line(name, one)),
          ...run.filter(([sign]) => sign === "+").map((one) => line(name, one))));
      } else {
        const first = begin === 0 ? 0 : context, last = run.length - (end === lines.length ? 0 : context);
        const fold = last - first > 2;
        for (const one of run.slice(0, fold ? first : run.length)) code.append(line(name, one));
        if (fold) {
          code.append(book.make("details", "same", book.make("summary", "", `${last - first} unchanged lines`),
            ...run.slice(first, last).map((one) => line(name, one))), ...run.slice(last).map((one) => line(name, one)));
        }
      }
      begin = end;
    }
    const diff = book.make("div", "diff", code);
    diff.tabIndex = 0;
    diff.setAttribute("role", "group");
    diff.setAttribute("aria-label", `what changes in ${name}`);
    const summary = book.make("summary", "", book.make("code", "", name), ` ${note}`,
      book.make("span", "counts", `+${added}${removed ? ` −${removed}` : ""}`));
    const part = book.make("details", "file", summary, diff);
    part.open = true;
    return [part, added, removed];
  }

  function show() {
    const [before, after] = ["from", "to"].map((name) => codeSteps.find((step) => step.number === form.elements[name].value));
    place.replaceChildren();
    let added = 0, removed = 0;
    for (const name of Object.keys({ ...before.files, ...after.files }).sort()) {
      const [old, oldOwner] = before.files[name] || empty, [now, owner] = after.files[name] || empty;
      const lines = difference(old, now);
      const landed = owner && !oldOwner ? `in common/decoding, as ${codeSteps.find((step) => step.number === owner).title} left it` : "";
      if (lines.every(([sign]) => sign === " ")) continue;
      const [part, plus, minus] = file(name, lines, landed);
      place.append(part);
      added += plus;
      removed += minus;
    }
    count.textContent = added + removed ? `+${added} −${removed} lines; what has landed in common/decoding counts with the step that stands on it.`
      : "No difference.";
    history.replaceState(null, "", `?from=${before.number}&to=${after.number}${location.hash}`);
    book.refresh();
  }

  const asked = new URLSearchParams(location.search);
  for (const [name, otherwise] of [["from", codeSteps[0].number], ["to", codeSteps[1].number]]) {
    const number = asked.get(name);
    form.elements[name].value = codeSteps.some((step) => step.number === number) ? number : otherwise;
    form.elements[name].addEventListener("change", show);
  }
  document.addEventListener("DOMContentLoaded", show);
})();
