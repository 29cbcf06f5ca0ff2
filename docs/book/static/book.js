"use strict";
// Light and dark, diffs side by side, the folded parts that a link leads to, ticks at finished steps. Without this the
// pages can be read as well.

document.documentElement.classList.remove("no-js");

const book = (() => {
  const make = (tag, className, ...children) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children);
    return element;
  };

  // One line for the other side: without its address, which stays unique.
  const copy = (line, number) => {
    const twin = line.cloneNode(true);
    twin.dataset.line = twin.id;
    twin.removeAttribute("id");
    if (number !== undefined) {
      const link = twin.querySelector("a");
      if (link) link.textContent = number;
    }
    return twin;
  };

  // The lines of a unified diff in two columns. `state.shift` is how many lines the old file is ahead of the new one.
  function sides(unified, state = { shift: 0 }) {
    const grid = make("div", "sides");
    for (const part of unified.children) {
      if (part.tagName === "DETAILS") {
        const twin = make("details", part.className, part.querySelector("summary").cloneNode(true));
        const inside = make("div", "");
        inside.append(...[...part.children].filter((child) => child.tagName !== "SUMMARY").map((child) => child.cloneNode(true)));
        twin.append(sides(inside, state));
        grid.append(twin);
      } else if (part.tagName === "DIV") {
        const removed = [...part.querySelectorAll(":scope > del")];
        const added = [...part.querySelectorAll(":scope > ins")];
        state.shift += removed.length - added.length;
        for (let i = 0; i < Math.max(removed.length, added.length); ++i) {
          grid.append(i < removed.length ? copy(removed[i]) : make("span", "none"));
          grid.append(i < added.length ? copy(added[i]) : make("span", "none"));
        }
      } else {
        const link = part.querySelector("a");
        grid.append(copy(part, link ? Number(link.textContent) + state.shift : undefined), copy(part));
      }
    }
    return grid;
  }

  function showSides(wanted) {
    document.body.classList.toggle("wide", wanted);
    for (const diff of document.querySelectorAll(".diff")) {
      const unified = diff.querySelector(":scope > .code:not(.two)");
      let two = diff.querySelector(":scope > .two");
      if (wanted && !two) {
        two = make("div", "code two", sides(unified));
        diff.append(two);
      }
      unified.hidden = wanted;
      if (two) two.hidden = !wanted;
    }
    for (const button of document.querySelectorAll(".view button")) {
      button.setAttribute("aria-pressed", String((button.dataset.view === "sides") === wanted));
    }
  }

  const remembered = (name, value) => {
    try {
      if (value !== undefined) localStorage.setItem(name, value);
      return localStorage.getItem(name);
    } catch {
      return null; // a browser that keeps nothing
    }
  };

  // As the system has it, light, dark, and round again.
  function addTheme() {
    for (const button of document.querySelectorAll(".theme-toggle")) {
      button.addEventListener("click", () => {
        const order = ["auto", "light", "dark"];
        const next = order[(order.indexOf(document.body.dataset.theme) + 1) % order.length];
        document.body.dataset.theme = next;
        remembered("theme", next);
      });
    }
  }

  // The contents on the right mark the section that is being read.
  function followContents() {
    const links = new Map([...document.querySelectorAll(".toc-tree a")].map((link) => [link.getAttribute("href").slice(1), link]));
    const sections = [...document.querySelectorAll("article section[id]")].filter((section) => links.has(section.id));
    if (!sections.length) return;
    const mark = () => {
      const current = sections.filter((section) => section.getBoundingClientRect().top < 120).pop();
      for (const link of links.values()) link.parentElement.classList.toggle("scroll-current", current !== undefined && link === links.get(current.id));
    };
    addEventListener("scroll", mark, { passive: true });
    mark();
  }

  // The sidebar begins at the page that is being read.
  function showCurrent() {
    const current = document.querySelector(".sidebar-tree .current-page > a");
    const list = document.querySelector(".sidebar-scroll");
    if (!current || !list) return;
    const [link, box] = [current.getBoundingClientRect(), list.getBoundingClientRect()];
    list.scrollBy({ top: (link.top + link.bottom - box.top - box.bottom) / 2, behavior: "instant" });
  }

  // "/" leads to the search, the arrows to the pages before and after. Where you type or scroll, keys keep their
  // meaning.
  function addKeys() {
    const search = document.querySelector(".search-form input, .sidebar-search");
    const pages = { ArrowLeft: document.querySelector("a.prev-page"), ArrowRight: document.querySelector("a.next-page") };
    if (search) search.setAttribute("aria-keyshortcuts", "/");
    for (const [key, link] of Object.entries(pages)) if (link) link.setAttribute("aria-keyshortcuts", key);
    addEventListener("keydown", (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
      if (event.target.closest("input, textarea, select, [contenteditable]")) return;
      if (event.key === "/" && search) {
        event.preventDefault();
        const box = search.getBoundingClientRect();
        if (box.width && box.right > 0 && box.left < innerWidth) search.focus();
        else location.href = search.form.action; // a narrow screen hides the sidebar
      } else if (pages[event.key] && !event.shiftKey && !event.target.closest("[tabindex='0']")) {
        pages[event.key].click();
      }
    });
  }

  // The number of the step that an address shows; "" for other pages.
  const stepOf = (address) => (/(?:^|\/)(\d\d+)-[^/]+\/(?:index\.html)?(?:[?#]|$)/.exec(address) || ["", ""])[1];

  // A reader marks a step as done, and its links in the sidebar, the map and the tables have a tick from then on.
  function addTicks() {
    const done = new Set((remembered("done") || "").match(/\d+/g));
    const own = stepOf(location.pathname);
    const links = [...document.querySelectorAll(".sidebar-tree a, .map a, table.steps td:first-child a, .steps-list a")]
      .map((link) => [link, link.getAttribute("href") === "#" ? own : stepOf(link.getAttribute("href"))]);
    const tick = (svg) => {
      const mark = svg ? document.createElementNS("http://www.w3.org/2000/svg", "tspan") : make("span");
      mark.setAttribute("class", "tick");
      mark.textContent = svg ? "✓ " : " ✓";
      return mark;
    };
    const show = () => {
      for (const [link, number] of links) {
        const before = link.querySelector(".tick");
        if (before) before.remove();
        if (!done.has(number)) continue;
        const name = link.querySelector("text"); // in the map
        if (name) name.prepend(tick(true));
        else link.append(tick(false));
      }
    };
    const line = document.querySelector(".step-line");
    if (own && line && document.querySelector(".neighbours")) {
      const button = make("button", "done");
      button.type = "button";
      const label = () => { button.textContent = done.has(own) ? "✓ done" : "mark as done"; };
      button.addEventListener("click", () => {
        if (!done.delete(own)) done.add(own);
        const kept = [...done].sort().join(" ");
        label();
        if (remembered("done", kept) !== kept) button.textContent += " (this browser forgets it)";
        show();
      });
      label();
      line.append(button);
    }
    show();
  }

  // Furo's labels open the menu and the contents of a narrow page. Buttons do so by keyboard too; what is closed has no
  // tab stops.
  function addDrawers() {
    for (const [name, drawer] of [["__navigation", ".sidebar-drawer"], ["__toc", ".toc-drawer"]]) {
      const box = document.getElementById(name), part = document.querySelector(drawer);
      if (!box || !part) continue; // a page of source
      part.id ||= `${name.slice(2)}-drawer`;
      let opener;
      const buttons = [...document.querySelectorAll(`label[for="${name}"]:not(.overlay)`)].map((label) => {
        const button = make("button", label.className, ...label.childNodes);
        button.type = "button";
        button.setAttribute("aria-controls", part.id);
        button.addEventListener("click", () => {
          opener = button;
          box.click();
        });
        label.replaceWith(button);
        return button;
      });
      const update = () => {
        for (const button of buttons) button.setAttribute("aria-expanded", String(box.checked));
        part.inert = !box.checked && getComputedStyle(part).position === "fixed"; // where it is no drawer, it is shown
      };
      const close = () => {
        box.checked = false;
        update();
      };
      box.addEventListener("change", () => {
        update();
        const next = box.checked ? [...part.querySelectorAll("a[href]")].find((link) => link.getClientRects().length) : opener;
        if (next) next.focus({ preventScroll: true });
      });
      addEventListener("keydown", (event) => { if (event.key === "Escape" && box.checked) box.click(); });
      part.addEventListener("focusout", ({ relatedTarget }) => { if (relatedTarget && !part.contains(relatedTarget)) close(); });
      part.addEventListener("click", (event) => { if (event.target.closest("a[href^='#']")) close(); });
      addEventListener("resize", update);
      update();
    }
  }

  // What scrolls sideways can be reached with the keyboard.
  function reachScrolling() {
    for (const part of document.querySelectorAll("article pre, .table-wrapper, .shown")) {
      if (part.hasAttribute("aria-label")) continue; // the template made it reachable
      if (part.scrollWidth > part.clientWidth || part.scrollHeight > part.clientHeight + 1) part.tabIndex = 0;
      else part.removeAttribute("tabindex");
    }
  }

  // Of a session, the commands without "$ " and without what they print.
  function commandsOf(block) {
    const lines = block.querySelector("pre").textContent.trimEnd().split("\n");
    if (!block.matches(".highlight-console")) return lines.join("\n");
    let continued = false;
    return lines.filter((line) => {
      const taken = continued || line.startsWith("$ ");
      continued = taken && line.endsWith("\\");
      return taken;
    }).map((line) => line.replace(/^\$ /, "")).join("\n");
  }

  function addCopyButtons() {
    for (const block of document.querySelectorAll("article :is(.highlight-bash, .highlight-console)")) {
      const button = make("button", "copy", "copy");
      button.type = "button";
      button.setAttribute("aria-live", "polite");
      button.addEventListener("click", () => navigator.clipboard.writeText(commandsOf(block)).then(() => "copied", () => "not allowed").then((words) => {
        button.textContent = words;
        setTimeout(() => { button.textContent = "copy"; }, 2000);
      }));
      block.append(button);
    }
  }

  function addSwitch(before) {
    const bar = make("div", "view");
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", "how differences are shown");
    for (const [view, words] of [["unified", "one below the other"], ["sides", "side by side"]]) {
      const button = make("button", "", words);
      button.type = "button";
      button.dataset.view = view;
      button.addEventListener("click", () => {
        remembered("diff", view);
        showSides(view === "sides");
      });
      bar.append(button);
    }
    before.before(bar);
  }

  const refresh = () => showSides(remembered("diff") === "sides");

  // A line that is folded, or shown in two columns, is opened when a link leads to it.
  function openTarget() {
    let target;
    try {
      target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    } catch {
      // a link that was cut off
    }
    if (!target || !target.closest("details")) return;
    for (let part = target.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    const twin = target.closest("[hidden]") && document.querySelector(`.two [data-line="${CSS.escape(target.id)}"]`);
    if (twin) for (let part = twin.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    (twin || target).scrollIntoView({ block: "center" });
  }

  function start() {
    addTheme();
    followContents();
    addTicks();
    showCurrent();
    addKeys();
    addDrawers();
    reachScrolling();
    addEventListener("resize", reachScrolling);
    addEventListener("toggle", reachScrolling, true); // it does not bubble
    if (navigator.clipboard) addCopyButtons(); // a browser may allow it to some addresses only
    const first = document.querySelector("details.file, #comparison");
    if (first) {
      addSwitch(document.querySelector(".diff-head") || first);
      refresh();
    }
    if (location.hash) openTarget();
    addEventListener("hashchange", openTarget);
    // The style sheet does this where browsers know how.
    let closed = [];
    addEventListener("beforeprint", () => {
      closed = [...document.querySelectorAll("details:not([open])")];
      for (const part of closed) part.open = true;
    });
    addEventListener("afterprint", () => {
      for (const part of closed) part.open = false;
    });
  }

  document.addEventListener("DOMContentLoaded", start);
  return { make, refresh };
})();
