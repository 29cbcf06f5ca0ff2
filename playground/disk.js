// A model from the reader's disk, before it is loaded: its sizes from its files, and the memory that it needs. This
// page reads only headers. The program gets the files themselves, and reports any other fault in them.
"use strict";

/// The maximum memory of a program in a page: its linker's MAXIMUM_MEMORY.
const MEMORY_LIMIT = 2 ** 31;
/// The memory of the program, its tokenizer and the results of a pass, whatever the model.
const MEMORY_OF_PROGRAM = 75e6;
/// A longer context is used only if --context requests it, as in common/program/program.cpp.
const USUAL_CONTEXT = 4096;

/// A size in words, such as "98 MB" or "1.2 GB", in powers of 1000 bytes.
const inBytes = (bytes) => (bytes < 999.5e6 ? `${Math.max(1, Math.round(bytes / 1e6))} MB` : `${(bytes / 1e9).toFixed(1)} GB`);

/// Reads the beginning of a file with `parse`, which throws `MORE` if it needs more bytes.
const MORE = Symbol("more");
async function parseBeginning(file, what, parse) {
  for (let size = 1 << 22; ; size *= 4) {
    let bytes;
    try {
      bytes = await file.slice(0, size).arrayBuffer();
    } catch {
      throw `${file.name} cannot be read; if it has changed or moved, choose it again`;
    }
    try {
      return parse(new DataView(bytes));
    } catch (thrown) {
      if (thrown instanceof RangeError || thrown instanceof TypeError) throw `the header of ${file.name} is broken: it is not ${what}`;
      if (thrown !== MORE) throw thrown;
      if (size >= file.size) throw `${file.name} ends inside its header after ${file.size} bytes; it is broken or was cut off`;
      if (size >= 1 << 28) throw `the header of ${file.name} is longer than 256 MB, so it is not ${what}`;
    }
  }
}

/// The bytes of a metadata value, by type. Strings and lists have no fixed size.
const GGUF_SIZES = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
const GGUF_WHOLE = new Set([0, 1, 30]); // F32, F16, BF16

/// Returns {metadata, tensors: [{name, shape, whole}]} of a GGUF file. `whole` is true for a tensor whose numbers are
/// not packed in blocks. Lists in the metadata are left out.
function parseGguf(view, name) {
  let at = 0;
  const take = (bytes) => {
    if (at + bytes > view.byteLength) throw MORE;
    return (at += bytes) - bytes;
  };
  const long = () => Number(view.getBigUint64(take(8), true));
  const number = () => view.getUint32(take(4), true);
  const text = () => {
    const size = long();
    return new TextDecoder().decode(new Uint8Array(view.buffer, take(size), size));
  };
  const sizeOf = (type) => {
    if (!(type in GGUF_SIZES)) throw new RangeError(`type ${type}`);
    return GGUF_SIZES[type];
  };
  const value = (type) => {
    if (type === 8) return text();
    if (type === 9) {
      const of = number(), size = long();
      if (of === 8) for (let i = 0; i < size; ++i) take(long());
      else take(size * sizeOf(of));
      return undefined;
    }
    const size = sizeOf(type);
    const place = take(size);
    if (type === 6) return view.getFloat32(place, true);
    return size === 8 ? Number(view.getBigUint64(place, true)) : size === 4 ? view.getUint32(place, true) : view.getUint8(place);
  };
  if (view.byteLength < 4 || view.getUint32(0, false) !== 0x47475546) throw `${name} does not begin with the letters GGUF, so it is not a GGUF file`;
  take(8);
  const count = long(), pairs = long(), metadata = {}, tensors = [];
  for (let i = 0; i < pairs; ++i) {
    const key = text();
    metadata[key] = value(number());
  }
  for (let i = 0; i < count; ++i) {
    const tensor = { name: text(), shape: [] }, dimensions = number();
    for (let j = 0; j < dimensions; ++j) tensor.shape.push(long());
    tensor.whole = GGUF_WHOLE.has(number());
    take(8);
    tensors.push(tensor);
  }
  return { metadata, tensors };
}

/// Returns the tensors of a safetensors file.
function parseSafetensors(view, name) {
  if (view.byteLength < 8) throw MORE;
  const size = Number(view.getBigUint64(0, true));
  if (size > 1e8) throw `${name} does not begin with the length of its header, so it is not a safetensors file`;
  if (8 + size > view.byteLength) throw MORE;
  let header;
  try {
    header = JSON.parse(new TextDecoder().decode(new Uint8Array(view.buffer, 8, size)));
  } catch {
    throw `the header of ${name} is not JSON, so it is not a safetensors file`;
  }
  const tensors = Object.entries(header).filter(([tensor]) => tensor !== "__metadata__")
    .map(([tensor, { shape }]) => ({ name: tensor, shape, whole: true }));
  if (!tensors.every(({ shape }) => Array.isArray(shape))) throw new TypeError("a tensor without a shape");
  return tensors;
}

async function readJson(file, within) {
  try {
    const found = JSON.parse(await file.text());
    if (found && typeof found === "object") return found;
  } catch {
    // broken JSON gets the same sentence as other JSON
  }
  throw `${within}/${file.name} is not a JSON object`;
}

/// The sizes that determine the memory, counted in numbers: of matrices, embeddings and all other tensors, of a
/// position in the cache, and of the largest matrix that is unpacked from blocks.
function sizesOf(tensors, layers, keyWidth, context) {
  const sizes = { matrices: 0, embeddings: 0, others: 0, unpacked: 0, position: 2 * layers * keyWidth, context };
  for (const { name, shape, whole } of tensors) {
    const count = shape.reduce((product, size) => product * size, 1);
    if (shape.length > 2) continue; // buffers: the program leaves them out
    if (shape.length < 2 || /^(position_embd|(transformer\.)?wpe)\./.test(name)) sizes.others += count;
    else if (/(^|\.)(token_embd|output|embed_tokens|lm_head|wte|embed_in|embed_out)\.weight$/.test(name)) sizes.embeddings += count;
    else sizes.matrices += count;
    if (!whole) sizes.unpacked = Math.max(sizes.unpacked, count);
  }
  if (!Object.values(sizes).every((size) => Number.isFinite(size))) throw "its files state no sizes from which its memory can be computed";
  return sizes;
}

async function readGguf(file) {
  const { metadata, tensors } = await parseBeginning(file, "a GGUF file", (view) => parseGguf(view, file.name));
  const of = (key) => metadata[`${metadata["general.architecture"]}.${key}`];
  const heads = of("attention.head_count"), head = of("attention.key_length") ?? of("embedding_length") / heads;
  return {
    heads: [of("block_count") ?? 0, heads ?? 0],
    hasTemplate: "tokenizer.chat_template" in metadata || "tokenizer.chat_template.default" in metadata,
    sizes: sizesOf(tensors, of("block_count") ?? 0, (of("attention.head_count_kv") ?? heads ?? 0) * (head || 0),
      of("context_length") ?? USUAL_CONTEXT),
  };
}

async function readFolder(files, name) {
  const config = await readJson(files.get("config.json"), name);
  const single = files.get("model.safetensors"), index = files.get("model.safetensors.index.json");
  if (!single && !index) throw `${name} has no model.safetensors, which holds the weights`;
  const shards = single ? [single] : [...new Set(Object.values((await readJson(index, name)).weight_map ?? {}))].map((shard) => {
    if (!files.get(shard)) throw `${name} has no ${shard}, which its index names`;
    return files.get(shard);
  });
  if (!files.get("tokenizer.json") && !files.get("vocab.json"))
    throw `${name} has no tokenizer: neither tokenizer.json nor vocab.json is there`;
  const tensors = [];
  for (const shard of shards) tensors.push(...await parseBeginning(shard, "a safetensors file", (view) => parseSafetensors(view, shard.name)));
  const heads = config.num_attention_heads ?? config.n_head, head = config.head_dim ?? (config.hidden_size ?? config.n_embd) / heads;
  const settings = files.get("tokenizer_config.json");
  return {
    heads: [config.num_hidden_layers ?? config.n_layer ?? 0, heads ?? 0],
    hasTemplate: Boolean(files.get("chat_template.jinja")) || Boolean(settings && (await readJson(settings, name)).chat_template),
    sizes: sizesOf(tensors, config.num_hidden_layers ?? config.n_layer ?? 0, (config.num_key_value_heads ?? heads ?? 0) * (head || 0),
      config.max_position_embeddings ?? config.n_positions ?? USUAL_CONTEXT),
  };
}

/// Turns the files from a picker into a model: {name, files: [[path, File]], bytes, heads, hasTemplate, sizes}, or null
/// if nothing was chosen. The program finds it as disk/NAME. Throws a sentence for files that are not a model.
async function readDiskModel(chosen, isFolder) {
  if (!chosen.length) return null;
  if (!isFolder) {
    const [file] = chosen;
    if (!file.size) throw `${file.name} is empty: a file of 0 bytes`;
    if (!file.name.endsWith(".gguf")) throw `${file.name} is not a .gguf file; for a model in other files choose its folder`;
    return { name: file.name, files: [[`disk/${file.name}`, file]], bytes: file.size, ...await readGguf(file) };
  }
  // The folder's own files: NAME/file. A picker also lists the files of its subfolders.
  const places = chosen.map((file) => [(file.webkitRelativePath || file.name).split("/"), file]);
  const name = places[0][0].length > 1 ? places[0][0][0] : "folder";
  const files = new Map(places.filter(([path]) => path.length < 3).map(([path, file]) => [path.at(-1), file]));
  const packed = [...files.values()].filter((file) => file.name.endsWith(".gguf"));
  if (!files.get("config.json") && packed.length === 1) return readDiskModel(packed, false);
  if (!files.get("config.json")) {
    const others = packed.length ? `${packed.length} .gguf files where one is needed` : "no .gguf file";
    throw `${name} is not the folder of a model: it has no config.json, and ${others}`;
  }
  const empty = [...files.values()].find((file) => !file.size && /\.(json|safetensors)$/.test(file.name));
  if (empty) throw `${name}/${empty.name} is empty: a file of 0 bytes`;
  const found = await readFolder(files, name);
  const wanted = [...files.values()].filter((file) => /\.(json|txt|jinja|safetensors|model)$/.test(file.name));
  const bytes = wanted.filter((file) => file.name.endsWith(".safetensors")).reduce((sum, file) => sum + file.size, 0);
  return { name, files: wanted.map((file) => [`disk/${name}/${file.name}`, file]), bytes, ...found };
}

/// The bytes of weights of type `dtype`, as common/decoding/memory_estimate.h counts them.
function matrixBytes(dtype, count) {
  return count * { float32: 4, float16: 2, bfloat16: 2, int8: 1 + 4 / 64, int4: 0.5 + 2 / 32 }[dtype];
}

/// Returns {file, weights, cache, all} in bytes, for one text of `context` tokens. A type that is not a type of weights
/// counts as float32; the program refuses it later.
function diskMemory({ bytes, sizes }, dtype, context) {
  const type = ["float32", "float16", "bfloat16", "int8", "int4"].includes(dtype) ? dtype : "float32";
  const positions = Math.min(sizes.context, context || USUAL_CONTEXT);
  const weights = matrixBytes(type, sizes.matrices) + matrixBytes(type === "int4" ? "int8" : type, sizes.embeddings) + 4 * sizes.others;
  const cache = sizes.position * positions * (type === "float32" ? 4 : 2);
  // A pass needs some rows of the model's width, and one of logits. Unpacked numbers are freed before the cache is
  // allocated.
  const unpacked = sizes.unpacked * (type === "bfloat16" ? 2 : 4);
  return { type, positions, file: bytes, weights, cache, all: MEMORY_OF_PROGRAM + bytes + weights + Math.max(cache, unpacked) };
}

/// Returns one sentence about a model's memory.
function tellMemory(name, memory) {
  return `${name} takes about ${inBytes(memory.all)} of memory: the file ${inBytes(memory.file)}, its weights in ${memory.type} ` +
    `${inBytes(memory.weights)}, the cache of a text of ${memory.positions} tokens ${inBytes(memory.cache)}, and the program ` +
    inBytes(memory.all - memory.file - memory.weights - memory.cache);
}

/// Throws a sentence unless the model fits into memory.
function checkMemory(name, memory) {
  if (memory.all > MEMORY_LIMIT) throw `${tellMemory(name, memory)}; a program in a page can have ${inBytes(MEMORY_LIMIT)}`;
}
