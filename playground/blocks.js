// The blocks of a paged cache, from the events of docs/trace.md: the pool, and the blocks of each row.
"use strict";

/// Follows the pool through the passes. A pass is {pool, size, rows, before}: the number of blocks, the positions per
/// block, the blocks of each row in order, and the blocks of each row after the previous pass.
class BlockPasses {
  passes = [];
  skipped = 0; // passes before the first event

  pass() {
    const last = this.passes.at(-1);
    if (last) this.passes.push({ ...last, before: last.rows });
    else ++this.skipped;
  }

  /// Takes an event, which follows its pass. After a pass without an event, the blocks stay the same.
  blocks({ pool, size, rows }) {
    if (!this.passes.length) {
      this.passes.push({ before: [] });
      --this.skipped;
    }
    Object.assign(this.passes.at(-1), { pool, size, rows });
  }

  /// The text of a row in a pass. A row that was not fed has the text of the row that had its blocks before.
  textOf(pass, row, { passes: fed }) {
    const cell = fed[pass + this.skipped]?.cells.get(row);
    if (cell) return cell.stay.text;
    const own = String(this.passes[pass]?.rows[row] ?? []);
    const same = own ? this.passes[pass].before.findIndex((blocks) => String(blocks) === own) : -1;
    return same < 0 || pass === 0 ? undefined : this.textOf(pass - 1, same, { passes: fed });
  }

  /// The rows that use each block, by the block's number.
  users(pass) {
    const users = new Map();
    this.passes[pass].rows.forEach((blocks, row) => blocks.forEach((block) => users.set(block, [...(users.get(block) ?? []), row])));
    return users;
  }

  /// The texts that lost all their blocks in this pass: {text, blocks, why}, where `blocks` are the lost ones.
  lost(pass, batch) {
    if (pass === 0) return [];
    const { rows, before } = this.passes[pass], texts = (at, of) => of.map((blocks, row) => [this.textOf(at, row, batch), blocks]);
    const has = ([text, blocks]) => text !== undefined && blocks.length > 0;
    const now = new Set(texts(pass, rows).filter(has).map(([text]) => text));
    const later = batch.passes.slice(pass + this.skipped + 1).flatMap(({ cells }) => [...cells.values()].map(({ stay }) => stay.text));
    return texts(pass - 1, before).filter(has).filter(([text]) => !now.has(text)).map(([text, blocks]) => ({ text, blocks,
      why: later.includes(text) ? "preempted" : batch.ended.has(text) ? "ended" : "gone" }));
  }
}

/// Draws the pool after a pass as a grid, and the blocks of each row as a table. `batch` has the text of each row.
function drawBlocks(known, pass, batch, which, table) {
  const { pool, size, rows, before } = known.passes[pass], users = known.users(pass);
  const textOf = (row) => known.textOf(pass, row, batch) ?? "?";
  const had = new Set(before.flat()), free = pool - users.size;
  const say = (words) => makeElement("p", {}, words);

  const cells = [...Array(pool).keys()].map((block) => {
    const texts = (users.get(block) ?? []).map(textOf), isNew = texts.length && pass > 0 && !had.has(block);
    const sign = texts.length > 1 ? ` ×${texts.length}` : isNew ? " ▸" : !texts.length && had.has(block) ? " ◂" : "";
    const cell = makeElement("li", { className: texts.length > 1 ? "fed many" : texts.length ? "fed" : "rests" },
      makeElement("small", {}, String(block)), " ", makeElement("b", {}, texts.length ? texts.join("+") : "·"), sign);
    cell.title = `block ${block}: ${texts.length > 1 ? `shared by texts ${texts.join(", ")}` : texts.length ? `text ${texts[0]}` : "free"}`;
    if (texts.length && texts[0] !== "?") cell.style.setProperty("--hue", (texts[0] * 137.5) % 360);
    return cell;
  });
  const grid = makeElement("ol", { className: "pool" }, ...cells);
  grid.setAttribute("role", "list"); // some screen readers do not announce a list without numbers

  const name = (block) => `${block}${users.get(block).length > 1 ? ` ×${users.get(block).length}` : ""}`;
  const own = rows.flatMap((blocks, row) => (blocks.length ? [[String(row), ...[textOf(row), blocks.map(name).join(", "), blocks.length * size]
    .map((words) => makeElement("td", {}, String(words)))]] : []));
  const WHY = { preempted: "is preempted and has to wait", ended: "has ended", gone: "has ended or has to wait" };
  return makeElement("div", {},
    say(`${which}: ${users.size} of ${pool} blocks are in use, and ${free} ${free === 1 ? "is" : "are"} free. A block has ${size} positions.`),
    grid,
    say("A block shows its number, then the text that holds it. ▸ marks a newly allocated block, ◂ a newly released one, and a dot a free one. ×2 marks a block that two rows share. A prefix cache may still find the contents of a free block."),
    ...known.lost(pass, batch).map(({ text, blocks, why }) => say(`Text ${text} ${WHY[why]}: it releases its blocks ${blocks.join(", ")}.`)),
    scrolling(table("The block table: each row's blocks, in the order of its positions.", ["row", "text", "blocks", "positions"], own), "block table"));
}
