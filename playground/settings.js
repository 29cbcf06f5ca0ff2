// Presets and sliders. Both write options into the command lines, and only the command lines determine the next run.
"use strict";

// [option, least, most, step, usual]: at the usual value the option is left out. If `usual` is null, the right end
// leaves it out.
const SLIDERS = [
  ["--max-new-tokens", 1, 300, 1, 100],
  ["--seed", 0, 30, 1, 0],
  ["--temperature", 0, 2, 0.05, 1],
  ["--top-k", 1, 100, 1, null],
  ["--top-p", 0.05, 1, 0.05, null],
  ["--min-p", 0, 0.5, 0.01, 0],
  ["--presence-penalty", -2, 2, 0.1, 0],
  ["--frequency-penalty", -2, 2, 0.1, 0],
  ["--repetition-penalty", 0.5, 2, 0.05, 1],
  ["--num-return-sequences", 1, 6, 1, 1],
  ["--num-speculative-tokens", 1, 16, 1, 4],
  ["--num-beams", 1, 8, 1, 1],
  ["--length-penalty", -2, 4, 0.1, 1],
  ["--max-batch-size", 1, 32, 1, 32],
  ["--prefill-chunk", 1, 64, 1, null],
  ["--kv-blocks", 1, 64, 1, null],
];

/// Makes a row of presets and a fold of sliders for the text of `line`. `options` are the step's options, and `presets`
/// are [[name, {option: value}]]. A preset keeps the first command and calls `run`; `refuse` shows a sentence.
function settingsOf(line, options, presets, run, refuse) {
  const make = makeElement;
  const attempt = (change) => {
    refuse("");
    try {
      change();
    } catch (sentence) {
      if (typeof sentence !== "string") throw sentence;
      refuse(sentence);
    }
  };
  const buttons = presets.map(([name, settings]) => {
    const button = make("button", { type: "button", className: "preset", title: Object.entries(settings)
      .map(([option, value]) => (value === null || value === false ? `no ${option}` : value === true ? option : `${option} ${value}`)).join(", ") }, name);
    button.onclick = () => attempt(() => {
      line.value = Object.entries(settings).reduce((text, [option, value]) => withOption(text, option, value), commandLines(line.value)[0].text);
      show();
      run();
    });
    return button;
  });

  const controls = [];
  const add = (option, control, read, write) => {
    control.oninput = () => attempt(() => {
      line.value = withOption(line.value, option, read());
      show();
    });
    controls.push([option, write]);
    return make("label", {}, make("code", {}, option), control);
  };
  const rows = SLIDERS.filter(([option]) => options.includes(option)).map(([option, min, max, step, usual]) => {
    const slider = make("input", { type: "range", min, max, step }), shown = make("output");
    const rest = usual ?? max, digits = String(step).split(".")[1]?.length ?? 0;
    const row = add(option, slider, () => (Number(slider.value) === rest ? null : Number(slider.value).toFixed(digits)), (value) => {
      const number = Number(value);
      slider.value = value === undefined || Number.isNaN(number) ? rest : number;
      shown.textContent = value ?? (usual === null ? "off" : usual);
      slider.setAttribute("aria-valuetext", shown.textContent);
    });
    row.append(shown);
    return row;
  });
  if (options.includes("--do-sample")) {
    const box = make("input", { type: "checkbox" });
    rows.unshift(add("--do-sample", box, () => box.checked, (value) => { box.checked = value !== undefined; }));
  }

  /// Sets the controls to the options of the first command. If the command line cannot be read, they keep their values.
  function show() {
    let words;
    try {
      [{ words }] = commandLines(line.value);
    } catch {
      return;
    }
    for (const [option, write] of controls) write(optionOf(words, option));
  }
  line.addEventListener("input", show);
  show();
  const bar = make("p", { className: "presets", hidden: !buttons.length }, "Presets: ", ...buttons.flatMap((button) => [button, " "]));
  const fold = make("details", { className: "sliders", hidden: !rows.length }, make("summary", {}, "Options as sliders"), ...rows);
  return { elements: [bar, fold], show };
}
