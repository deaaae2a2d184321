// The page Now: follows the feed, and draws once a frame whatever came since the last one. There are never more than 40 rows, and
// they are used again, so that nothing is made or thrown away while it runs.
"use strict";
(() => {
  const MOST = 40;
  const COLUMNS = ["Ended", "Account", "Model", "Channel", "Outcome", "First byte", "Duration", "Charge"];
  const NUMBERS = new Set(["First byte", "Duration", "Charge"]);
  const FINE = { completed: "ok", refused: "warn", caller_gone: "none" };
  const CHANNEL = ["Channel", "Condition", "Calls", "Success", "429", "First event, 95 %"];
  const SVG = "http://www.w3.org/2000/svg";
  const at = (id) => document.getElementById(id);
  const body = document.querySelector("#live tbody");
  const state = at("state");
  const pause = at("pause");
  const rows = [];
  let shown = [];
  let waiting = [];
  let snapshot = null;
  let paused = false;
  let pointed = false;
  let due = false;

  const set = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };
  const note = (id, text) => set(at(id).parentElement.querySelector(".note"), text);
  const tone = (id, name) => {
    at(id).parentElement.className = `card figure ${name}`;
  };
  const span = (ms) => (ms === null ? "" : ms < 1000 ? `${ms} ms` : ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : `${(ms / 60000).toFixed(1)} min`);

  const bars = [];
  for (let second = 0; second < 60; second += 1) {
    for (const kind of ["all", "part"]) {
      const bar = document.createElementNS(SVG, "rect");
      bar.setAttribute("x", String(second * 10 + 1));
      bar.setAttribute("width", "8");
      bar.setAttribute("class", kind);
      at("bars").append(bar);
      bars.push(bar);
    }
  }

  const channels = at("channels-now");
  const drawChannels = (lines) => {
    const table = channels.querySelector("tbody");
    channels.hidden = !lines.length;
    while (table.rows.length > lines.length) table.deleteRow(-1);
    lines.forEach((line, number) => {
      const row = table.rows[number] || table.insertRow();
      row.setAttribute("role", "row");
      const texts = [line.channel, line.condition, line.calls, line.success || "–", line.rate_limited, line.first_event || "–"];
      texts.forEach((text, index) => {
        let cell = row.cells[index];
        if (!cell) {
          cell = row.insertCell();
          cell.setAttribute("role", "cell");
          cell.dataset.label = CHANNEL[index];
          if (index > 1) cell.className = "num";
          cell.append(document.createElement(index ? "span" : "a"));
        }
        const inner = cell.firstChild;
        set(inner, text);
        if (index === 0) inner.href = "/channels";
        if (index === 1) inner.className = `badge ${line.tone}`;
      });
    });
  };

  const newRow = () => {
    const row = document.createElement("tr");
    row.setAttribute("role", "row");
    for (const name of COLUMNS) {
      const cell = document.createElement("td");
      cell.setAttribute("role", "cell");
      cell.dataset.label = name;
      if (NUMBERS.has(name)) cell.className = "num";
      const inner = document.createElement(name === COLUMNS[0] ? "a" : "span");
      if (name === "Charge") {
        // Zeros that take room unseen, so that the decimal points are below each other.
        inner.className = "money";
        inner.append(document.createElement("span"), document.createElement("i"));
        inner.lastChild.setAttribute("aria-hidden", "true");
      }
      cell.append(inner);
      row.append(cell);
    }
    body.append(row);
    rows.push(row);
  };

  const fill = (row, entry, today) => {
    const [ended, account, model, channel, outcome, first, duration, charge] = Array.from(row.cells, (cell) => cell.firstChild);
    // Of another day, the day is what matters: the last requests of a quiet gateway may be old.
    set(ended, entry.ended.slice(0, 10) === today ? entry.ended.slice(11) : entry.ended.slice(5, 16));
    ended.href = `/requests/${encodeURIComponent(entry.id)}`;
    ended.title = entry.id;
    set(account, entry.account || "–");
    set(model, entry.model || "–");
    set(channel, entry.channel || "–");
    set(outcome, entry.code && entry.outcome !== "completed" ? entry.code : entry.outcome);
    outcome.className = `badge ${FINE[entry.outcome] || "bad"}`;
    set(first, span(entry.first_byte_ms));
    set(duration, span(entry.duration_ms));
    set(charge.firstChild, entry.charge);
    set(charge.lastChild, "0".repeat(7 - entry.charge.length + entry.charge.indexOf(".")));
  };

  const draw = () => {
    due = false;
    if (snapshot) {
      const { figures, health } = snapshot;
      for (const id of ["rate", "failed", "first_byte", "money"]) set(at(id), figures[id]);
      note("rate", figures.requests);
      note("failed", figures.failures);
      note("first_byte", figures.slow);
      tone("failed", figures.trouble ? "bad" : "");
      set(at("open"), health.open);
      note("open", health.workers);
      set(at("store"), health.store);
      note("store", health.store_well ? "for a round trip" : "requests are refused with 503");
      tone("store", health.store_well ? "" : "bad");
      drawChannels(snapshot.channels);
      const top = Math.max(1, ...figures.rates);
      set(at("most"), `at most ${Math.max(...figures.rates)} a second`);
      figures.rates.forEach((rate, second) => {
        [rate, figures.troubles[second]].forEach((value, kind) => {
          const height = (86 * value) / top;
          const bar = bars[2 * second + kind];
          bar.setAttribute("y", String(88 - height));
          bar.setAttribute("height", String(height + (kind === 0 ? 2 : 0)));
        });
      });
      snapshot = null;
    }
    if (waiting.length && !paused && !pointed) {
      shown = waiting.concat(shown).slice(0, MOST);
      waiting = [];
      at("live").hidden = false;
      at("quiet").hidden = true;
      while (rows.length < shown.length) newRow();
      const today = shown[0].ended.slice(0, 10);
      shown.forEach((entry, index) => fill(rows[index], entry, today));
    }
  };
  const soon = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(draw);
  };

  const say = (text, name) => {
    set(state, text);
    state.className = `badge ${name}`;
  };
  const standing = () => (paused ? say("paused", "warn") : say("live", "ok"));

  const source = new EventSource(`/now/feed${location.search}`);
  source.addEventListener("open", standing);
  source.addEventListener("message", (event) => {
    snapshot = JSON.parse(event.data);
    waiting = snapshot.rows.concat(waiting).slice(0, MOST);
    soon();
  });
  source.addEventListener("left", () => {
    source.close();
    say("your session has ended", "bad");
  });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) say("ended: load the page again", "bad");
    else say("connecting again", "warn");
  });

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    standing();
    soon();
  });
  // Rows stand still while somebody points at them or has the focus in them, so that what is clicked is what was meant.
  const live = at("live");
  const hold = (on) => () => {
    pointed = on;
    soon();
  };
  live.addEventListener("pointerenter", hold(true));
  live.addEventListener("pointerleave", hold(false));
  live.addEventListener("focusin", hold(true));
  live.addEventListener("focusout", hold(false));
})();
