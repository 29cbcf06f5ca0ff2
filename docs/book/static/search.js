"use strict";
// Looks for all words in every section; searchIndex has [address, page, section, text] for each.

(() => {
  const input = document.querySelector(".search-form input");
  const results = document.getElementById("search-results");
  const count = document.getElementById("search-count");
  const most = 60;

  const found = (words) => {
    const hits = [];
    for (const [address, page, section, text] of searchIndex) {
      const title = `${page} ${section}`.toLowerCase();
      const body = text.toLowerCase();
      let score = 0;
      for (const word of words) {
        const inTitle = title.includes(word);
        const times = body.split(word).length - 1;
        if (!inTitle && !times) {
          score = 0;
          break;
        }
        score += (inTitle ? 20 : 0) + Math.min(times, 5) + (` ${body}`.includes(` ${word}`) ? 3 : 0);
      }
      if (score) hits.push({ score, address, page, section, text });
    }
    return hits.sort((a, b) => b.score - a.score);
  };

  // The text around the first word, with all of them marked.
  const snippet = (text, words) => {
    const body = text.toLowerCase();
    const at = Math.min(...words.map((word) => body.indexOf(word)).filter((place) => place >= 0));
    const begin = Number.isFinite(at) ? Math.max(0, text.lastIndexOf(" ", Math.max(0, at - 70)) + 1) : 0;
    const piece = text.slice(begin, begin + 220);
    const part = book.make("p", "", begin ? "… " : "");
    const lower = piece.toLowerCase();
    let position = 0;
    while (position < piece.length) {
      const next = words.map((word) => [lower.indexOf(word, position), word.length]).filter(([place]) => place >= 0).sort((a, b) => a[0] - b[0])[0];
      if (!next) break;
      part.append(piece.slice(position, next[0]), book.make("mark", "", piece.slice(next[0], next[0] + next[1])));
      position = next[0] + next[1];
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
    const hits = found(words);
    count.textContent = hits.length ? `${hits.length === 1 ? "One section" : `${hits.length} sections`}${hits.length > most ? `; the first ${most}` : ""}` : `Nothing here has “${query}”.`;
    for (const hit of hits.slice(0, most)) {
      const link = book.make("a", "", hit.page + (hit.section ? ` – ${hit.section}` : ""));
      link.href = hit.address;
      results.append(book.make("li", "", link, snippet(hit.text, words)));
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
