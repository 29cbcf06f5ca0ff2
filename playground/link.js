// A run in the address of its page: #run=1&step=…&line=…&input=…&inside=yes&head=0,1&sum=… Browsers do not send the
// part after #, so a server never sees a prompt.
"use strict";

const LINK_VERSION = "1";
const LINK_LIMIT = 8000; // characters; longer ones get lost in chats and mails

/// The FNV-1a hash of the characters: enough to notice that some are missing.
function linkSum(text) {
  let sum = 0x811c9dc5;
  for (const character of text) sum = Math.imul(sum ^ character.codePointAt(0), 0x01000193) >>> 0;
  return sum.toString(36);
}

/// Writes {line, input, inside, head} of a step as the part of an address from its # on. `head` is "LAYER,HEAD" or "".
function linkTo(step, { line, input, inside, head }) {
  const fields = new URLSearchParams({ run: LINK_VERSION, step, line, ...(input && { input }), ...(inside && { inside: "yes" }), ...(head && { head }) });
  return `#${fields}&sum=${linkSum(String(fields))}`;
}

/// The sentence for a link that is too long, or "" for a link that is not.
const linkIsLong = (link) => (link.length > LINK_LIMIT
  ? `The link to this run would have ${link.length.toLocaleString("en")} characters, and more than ${LINK_LIMIT.toLocaleString("en")} get lost on the way`
  : "");

/// Reads the arguments of linkTo from an address. Returns null if the address has no run, and throws a sentence if this
/// page cannot use the run.
function runOfLink(hash, step) {
  const part = hash.slice(1);
  if (!/^run(=|&|$)/.test(part)) return null;
  if (hash.length > LINK_LIMIT) throw `it has ${hash.length.toLocaleString("en")} characters, and a link has at most ${LINK_LIMIT.toLocaleString("en")}`;
  const fields = new URLSearchParams(part), version = fields.get("run");
  if (/^\d+$/.test(version) && version !== LINK_VERSION)
    throw `it is of version ${version}, and this page reads version ${LINK_VERSION}; copy it again from a page of today`;
  const found = part.match(/^(.*)&sum=(\w+)$/s);
  if (!found || linkSum(found[1]) !== found[2]) throw "it is broken: a part of it is missing or has changed";
  if (fields.get("step") !== step) throw `its run is for step ${fields.get("step")}, but this page runs ${step}`;
  return { line: fields.get("line") ?? "", input: fields.get("input") ?? "", inside: fields.get("inside") === "yes", head: fields.get("head") ?? "" };
}
