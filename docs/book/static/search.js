"use strict";
// Looks for all words in every section; searchIndex has [address, page, section, text] for each, and a 1 for code.
// A word also finds its other forms, and the words one slip away where nothing has it.

(() => {
  const input = document.querySelector(".search-form input");
  const results = document.getElementById("search-results");
  const count = document.getElementById("search-count");
  const most = 60;
  const sections = searchIndex.map(([address, page, section, text, code = 0]) =>
    ({ address, page, section, text, code, title: `${page} ${section}`.toLowerCase(), body: text.toLowerCase() }));

  // What the forms of a word share: sampl for sample, samples, sampled, sampler and sampling.
  const stem = (word) => {
    const single = word.replace(/ie[sd]$/, "y");
    const parts = /^(\w{4,}?)at(?:e[sd]?|ions?|ives?|ing)$/.exec(single) || /^(\w{3,}?)(?:ions?|ings?|e[dr]?|ers|es|ly|ments?|(?<!s)s)$/.exec(single);
    return (parts ? parts[1] : single).replace(/([^aeiou])\1$/, "$1");
  };

  // Whether one letter more, less, other, or swapped with the next makes one word the other.
  const nearly = (a, b) => {
    if (Math.abs(a.length - b.length) > 1) return false;
    let same = 0;
    while (same < a.length && a[same] === b[same]) ++same;
    const rest = (word, skipped) => word.slice(same + skipped);
    return rest(a, 1) === rest(b, 1) || rest(a, 0) === rest(b, 1) || rest(a, 1) === rest(b, 0)
      || (a[same] === b[same + 1] && a[same + 1] === b[same] && rest(a, 2) === rest(b, 2));
  };

  let stems; // [[word, its stem]]
  const vocabulary = () => {
    const words = () => new Set(sections.flatMap(({ title, body }) => `${title} ${body}`.match(/[a-z]{3,}/g) || []));
    stems ??= [...words()].map((word) => [word, stem(word)]);
    return stems;
  };
  const escaped = (word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const whole = (words) => `(?<![a-z])(?:${words.map(escaped).join("|")})(?![a-z])`;

  // {pattern, exact, instead}: what to look for, the words that count most, and whether they replace one that is
  // nowhere.
  const patternOf = (word) => {
    const lookFor = (exact) => {
      const forms = vocabulary().filter(([, other]) => exact.some((one) => other === stem(one))).map(([form]) => form);
      return { exact, pattern: new RegExp([...exact.map(escaped), ...(forms.length ? [whole(forms)] : [])].join("|"), "g") };
    };
    const literal = lookFor([word]);
    if (word.length < 4 || sections.some(({ title, body }) => `${title} ${body}`.search(literal.pattern) >= 0)) return literal;
    const near = vocabulary().map(([other]) => other).filter((other) => nearly(word, other));
    const begun = near.filter((other) => other[0] === word[0]); // few mistype the first letter
    const instead = begun.length ? begun : near;
    return instead.length ? { ...lookFor(instead), instead } : literal;
  };

  const found = (patterns) => {
    const hits = [];
    for (const section of sections) {
      let score = 0;
      for (const { pattern, exact } of patterns) {
        const inTitle = section.title.search(pattern) >= 0;
        const times = (section.body.match(pattern) || []).length;
        if (!inTitle && !times) {
          score = 0;
          break;
        }
        score += (inTitle ? 20 : 0) + Math.min(times, 5) + (exact.some((word) => ` ${section.body}`.includes(` ${word}`)) ? 3 : 0);
      }
      if (score) hits.push({ score, ...section });
    }
    return hits.sort((a, b) => a.code - b.code || b.score - a.score); // first what explains, then what does it
  };

  // The text around the first word, with all of them marked.
  const snippet = (text, patterns) => {
    const places = (piece) => patterns.flatMap(({ pattern }) => [...piece.toLowerCase().matchAll(pattern)]).map((hit) => [hit.index, hit[0].length])
      .sort((a, b) => a[0] - b[0] || b[1] - a[1]);
    const first = places(text)[0];
    const begin = first ? Math.max(0, text.lastIndexOf(" ", Math.max(0, first[0] - 70)) + 1) : 0;
    const piece = text.slice(begin, begin + 220);
    const part = book.make("p", "", begin ? "… " : "");
    let position = 0;
    for (const [place, length] of places(piece)) {
      if (place < position) continue;
      part.append(piece.slice(position, place), book.make("mark", "", piece.slice(place, place + length)));
      position = place + length;
    }
    part.append(piece.slice(position), begin + 220 < text.length ? " …" : "");
    return part;
  };

  function show(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    results.replaceChildren();
    if (!words.length) {
      count.textContent = "";
      return;
    }
    const patterns = words.map(patternOf);
    const hits = found(patterns);
    const slips = patterns.flatMap(({ instead }, index) => instead ? [`Nothing here has “${words[index]}”, so this looks for ${instead.join(", ")}. `] : []);
    count.textContent = hits.length ? `${slips.join("")}${hits.length === 1 ? "One section" : `${hits.length} sections`}${hits.length > most ? `; the first ${most}` : ""}` : `Nothing here has “${query}”.`;
    for (const hit of hits.slice(0, most)) {
      const link = book.make("a", "", hit.page + (hit.section ? ` – ${hit.section}` : ""));
      link.href = hit.address;
      results.append(book.make("li", "", link, snippet(hit.text, patterns)));
    }
  }

  input.value = new URLSearchParams(location.search).get("q") || "";
  input.addEventListener("input", () => show(input.value));
  document.querySelector(".search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    history.replaceState(null, "", `?q=${encodeURIComponent(input.value)}`);
    show(input.value);
  });
  document.addEventListener("DOMContentLoaded", () => show(input.value));
})();
