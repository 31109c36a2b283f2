"use strict";
(() => {
  // The records of the page, decoded from columns.
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const RECORDS = DATA.numbers.seqlen.map((_, index) => ({ index }));
  for (const [name, { values, codes }] of Object.entries(DATA.texts))
    RECORDS.forEach((record, i) => (record[name] = values[codes[i]]));
  for (const [name, column] of Object.entries(DATA.numbers))
    RECORDS.forEach((record, i) => (record[name] = column[i]));
  const PAGE = 100;
  const FIELDS = {
    mask: "Mask", kernel: "Kernel", strategy: "Strategy", seqlen: "Tokens", shape: "Shape",
    direction: "Direction", device: "Device", run: "Run",
  };
  const STYLE = {
    background: null,
    view: { stroke: null },
    font: "system-ui, sans-serif",
    axis: {
      labelColor: "var(--quiet)", titleColor: "var(--quiet)", gridColor: "var(--rule)", domainColor: "var(--rule)",
      tickColor: "var(--rule)", titleFontWeight: "normal",
    },
    header: { labelColor: "var(--ink)", labelFontWeight: "bold", labelLimit: 260 },
  };

  // Elements. A text of a record becomes a text node and never markup.
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value);
    }
    node.append(...children.flat());
    return node;
  }

  function three(value) {
    if (value === null || !Number.isFinite(value)) return "–";
    if (value === 0) return "0";
    const digits = 2 - Math.floor(Math.log10(Math.abs(value)) + 1e-9);
    return value.toFixed(Math.min(Math.max(digits, 0), 8));
  }

  function tokens(count) {
    if (count % 1048576 === 0) return `${count / 1048576} M`;
    return count % 1024 === 0 ? `${count / 1024} K` : String(count);
  }

  function distinct(records, field) {
    return [...new Set(records.map((record) => record[field]))];
  }

  function percent(share) {
    return share === null ? "" : `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
  }

  for (const record of RECORDS) {
    record.time = record.median === null ? "" : `${three(record.median * 1e3)} ms${record.busy && "~"}`;
    record.tip = `${record.who} on ${record.mask}, ${tokens(record.seqlen)} tokens: ${record.time}`;
  }

  // Filters: one value of each field, or all.
  const chosen = {};
  const form = document.getElementById("filters");

  function selected() {
    return RECORDS.filter((record) => Object.entries(chosen).every(([field, value]) => String(record[field]) === value));
  }

  function buildFilters() {
    for (const [field, title] of Object.entries(FIELDS)) {
      const values = distinct(RECORDS, field);
      if (values.length < 2) continue;
      if (field === "seqlen") values.sort((a, b) => a - b);
      const change = (event) => {
        if (event.target.selectedIndex) chosen[field] = event.target.value;
        else delete chosen[field];
        drawAll();
      };
      const word = (value) => (field === "seqlen" ? tokens(value) : value || "one device");
      const options = values.map((value) => el("option", { value }, word(value)));
      form.append(el("label", {}, title, el("select", { name: field, onchange: change }, el("option", {}, "all"), options)));
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = !form.childElementCount;
  }

  // Charts: Vega-Lite specifications that Python made, each with the records of one direction and device.
  async function embed(box, title, name, values, columns) {
    if (!values.length) return;
    const spec = structuredClone(DATA.charts[name]);
    const narrow = Math.min(box.clientWidth || 900, innerWidth - 24);
    if (spec.facet) {
      spec.columns = Math.max(1, Math.min(columns, Math.floor(narrow / 330)));
      spec.spec.width = Math.min(270, narrow - 70);
    } else {
      const room = name === "masks" ? 180 : 70;
      spec.width = Math.max(120, Math.min(spec.width ?? 400, narrow - room));
    }
    const place = el("div", { role: "img", "aria-label": `${title}. The section “Every case” has the numbers.` });
    box.append(el("figure", {}, el("figcaption", {}, values.some((r) => r.busy) ? `${title}; hollow points: the machine was busy` : title), place));
    spec.datasets = { ...spec.datasets, records: values };
    await vegaEmbed(place, spec, { actions: false, renderer: "svg", ast: true, config: STYLE });
  }

  function drawCharts(records) {
    const devices = distinct(RECORDS, "device").length > 1;
    const ok = records.filter((record) => record.ok);
    const [groups, all] = [grouped(ok, devices), grouped(records, devices)];
    for (const box of document.querySelectorAll("[data-chart]")) {
      box.replaceChildren();
      const kind = box.dataset.chart;
      for (const [title, of] of groups) {
        const masks = distinct(of, "mask").length;
        if (kind === "throughput") {
          const lines = distinct(of, "seqlen").length > 1;
          embed(box, title, lines ? "lengths" : "masks", of.filter((r) => r.speed > 0), masks);
        } else if (kind === "profile") {
          const solved = new Set(of.filter((r) => r.ranked).map((r) => r.problem));
          embed(box, title, "profile", all.get(title).filter((r) => solved.has(r.problem)).map(timed), 1);
        } else {
          embed(box, title, "memory", of.filter((r) => r.peak !== null), masks);
        }
      }
      const none = kind === "profile" ? "is ranked beside another" : "has a time";
      if (!box.childElementCount) box.append(el("p", { class: "quiet" }, `No case of this selection ${none}.`));
    }
  }

  // A case without a time of its own is within no factor of the fastest.
  function timed(record) {
    return record.ok ? record : { ...record, median: null };
  }

  function grouped(records, devices) {
    const found = new Map();
    for (const record of records) {
      const key = `${record.direction}${devices ? `, ${record.device}` : ""}`;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(record);
    }
    return found;
  }

  function drawKey(records) {
    const scale = DATA.charts.profile.encoding.color.scale;
    const names = new Set(distinct(records, "who"));
    const colours = new Map(scale.domain.map((name, place) => [name, scale.range[place]]));
    const items = scale.domain.filter((name) => names.has(name)).map((name) => {
      const mark = el("span", { "aria-hidden": "true" }, "● ");
      mark.style.color = colours.get(name);
      return el("li", {}, mark, el("bdi", {}, name));
    });
    document.getElementById("key").replaceChildren(...items);
  }

  // Every case: a row for each record, problem by problem, the fastest first.
  const head = document.querySelector("#cases thead");
  const body = document.querySelector("#cases tbody");
  const more = document.getElementById("more");
  let waiting = [];

  function drawCases(records) {
    const varying = ["shape", "seed", "device", "run"].filter((field) => distinct(RECORDS, field).length > 1);
    const columns = ["mask", "tokens", "direction", ...varying, "kernel or strategy", "time", "interval, ms", DATA.unit, DATA.memory, "visible"];
    head.replaceChildren(el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name))));
    document.getElementById("count").textContent = `${records.length} of ${RECORDS.length} cases. A time opens its samples, interval and environment.`;
    waiting = [...records].sort((a, b) => a.problem - b.problem || (a.ok ? a.median : Infinity) - (b.ok ? b.median : Infinity));
    body.replaceChildren();
    showMore(varying);
    more.onclick = () => showMore(varying);
  }

  function showMore(varying) {
    for (const record of waiting.splice(0, PAGE)) {
      const label = record.ok ? record.time : record.status;
      const interval = record.low_ms === null ? "" : `${three(record.low_ms)}–${three(record.high_ms)}`;
      body.append(
        el("tr", {},
          [record.mask, tokens(record.seqlen), record.direction, ...varying.map((field) => record[field]), record.who].map((text) =>
            el("td", {}, el("bdi", {}, String(text)))),
          el("td", { class: record.best ? "number best" : "number" }, el("button", { type: "button", onclick: () => openCase(record) }, label)),
          [interval, three(record.speed), three(record.peak), percent(record.density)].map((text) => el("td", { class: "number" }, text))));
    }
    more.hidden = !waiting.length;
    more.textContent = `Show more of ${waiting.length}`;
  }

  // One case in a dialog: samples, interval, what else was measured, and environment.
  function facts(pairs) {
    const shown = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
    return el("dl", { class: "facts" }, shown.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, el("bdi", {}, String(value)))]));
  }

  function openCase(record) {
    const dialog = document.getElementById("case");
    const samples = DATA.samples[record.index];
    const chart = el("div", { class: "charts" });
    const interval = record.low_ms === null ? "too few samples for an interval" : `${three(record.low_ms)} to ${three(record.high_ms)} ms`;
    dialog.replaceChildren(
      el("button", { type: "button", onclick: () => dialog.close() }, "Close"),
      el("h2", { id: "case-title" }, el("bdi", {}, `${record.who} on ${record.mask}`)),
      el("p", { class: "quiet" }, `${tokens(record.seqlen)} tokens, ${record.direction}, ${record.shape}, ${record.device}`),
      ...(record.message ? [el("p", { class: "notice" }, `${record.message} ${record.advice}`)] : []),
      facts([
        ["status", record.status], ["median", record.time], ["interval", record.time && interval],
        ["throughput", record.speed === null ? "" : `${three(record.speed)} ${DATA.unit}`],
        ["of one device alone", percent(record.of_alone)], ["of all devices abreast", percent(record.of_abreast)],
        ["communication hidden", percent(record.hidden_share)],
        ["visible pairs", `${percent(record.density)}; 128 × 128 tiles ${percent(record.tile_efficiency)} full`],
        ["planning", record.plan_ms === null ? "" : `${three(record.plan_ms)} ms`],
        ["first call", record.first_seconds === null ? "" : `${three(record.first_seconds)} s`],
        ["peak memory", record.peak === null ? "" : `${three(record.peak)} ${DATA.memory}`],
        ["plan of the mask", record.mask_mib === null ? "" : `${three(record.mask_mib)} MiB`],
        ["largest error", record.error], ["placement", record.placed || record.placement], ["mesh", record.mesh],
        ["form of the mask", record.form], ["backend", record.backend], ["package", record.version],
        ["busy machine", record.busy], ["seed", record.seed], ["suite", record.suite_words],
        ["run", record.run], ["finished", record.finished],
      ]),
      chart,
      samples.length
        ? el("details", {}, el("summary", {}, `${samples.length} samples in ms`), el("p", {}, samples.map(three).join(", ")))
        : el("p", { class: "quiet" }, "It has no samples."),
      el("details", {}, el("summary", {}, "Environment of the run"), facts(DATA.environments[record.run_number])));
    dialog.showModal();
    if (samples.length) embed(chart, "Samples in the order of the calls", "samples", samples.map((ms, i) => ({ call: i + 1, ms })), 1);
  }

  function drawAll() {
    const records = selected();
    drawKey(records);
    drawCharts(records);
    drawCases(records);
  }

  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
  buildFilters();
  drawAll();
  document.documentElement.dataset.ready = "1";
})();
