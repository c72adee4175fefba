// Measures the pages in the frames of this document and leaves the result as JSON in it.
"use strict";

const VISIBLE = "h1, h2, h3, p, table, th, td, small, summary, img, .legend, .name, .settings, .word, .label, .bar, .band";

function channels(color) {
  const parts = color.match(/[\d.]+/g).map(Number);
  return parts.length < 4 ? [...parts, 1] : parts;
}

function over(front, back) {
  const alpha = front[3];
  return [0, 1, 2].map((i) => alpha * front[i] + (1 - alpha) * back[i]).concat(1);
}

function luminance(color) {
  const linear = color.slice(0, 3).map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

// The contrast ratio of an element's text, by the Web Content Accessibility Guidelines.
function contrast(element, view) {
  const layers = [];
  for (let each = element; each; each = each.parentElement) layers.push(view.getComputedStyle(each).backgroundColor);
  const band = element.classList.contains("label") && element.parentElement.querySelector(".band");
  if (band) layers.unshift(view.getComputedStyle(band).backgroundColor);
  const back = layers.reverse().map(channels).reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  const [one, other] = [luminance(back), luminance(channels(view.getComputedStyle(element).color))];
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}

function words(element) {
  return `${element.tagName} ${element.className} ${element.textContent.trim().slice(0, 60)}`;
}

function hasText(element) {
  return [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
}

function measure(frame) {
  const [view, page] = [frame.contentWindow, frame.contentDocument];
  page.querySelectorAll("details").forEach((each) => { each.open = true; });
  const width = view.innerWidth;
  const clipped = [], faint = [];
  for (const each of page.querySelectorAll(VISIBLE)) {
    const box = each.getBoundingClientRect();
    if (width < 800 && each.closest(".scroll")) continue; // in a narrow window, a table scrolls
    if (box.left < -0.5 || box.right > width + 0.5) clipped.push(`outside the page: ${words(each)}`);
    if (each.clientWidth && each.scrollWidth > each.clientWidth + 1) clipped.push(`wider than its box: ${words(each)}`);
    if (width === 1200 && hasText(each) && each.namespaceURI.endsWith("xhtml") && contrast(each, view) < 4.5) faint.push(words(each));
  }
  const panels = [...page.querySelectorAll(".panel")].map((panel) => {
    const frame = panel.getBoundingClientRect();
    return [...panel.querySelectorAll(".line")].map((line) => {
      const [bar, label] = [line.querySelector(".bar"), line.querySelector(".label")];
      const zero = line.parentElement.querySelector(".zero").getBoundingClientRect().left;
      const name = line.closest(".row").querySelector(".name").getBoundingClientRect();
      const at = label.getBoundingClientRect();
      const beside = name.bottom > at.top && at.left < name.right - 0.5; // in a narrow window, the name is above the bar
      if (beside || at.right > frame.right + 0.5 || at.left < frame.left - 0.5) clipped.push(`label over its panel: ${words(label)}`);
      const found = { text: label.textContent, value: Number(label.dataset.value) };
      if (bar) {
        const box = bar.getBoundingClientRect();
        Object.assign(found, { from: box.left - zero, to: box.right - zero, labelFrom: at.left - zero, labelTo: at.right - zero });
      }
      return found;
    });
  });
  return { name: frame.title, width, scrolls: page.documentElement.scrollWidth, clipped, faint, panels,
    elements: page.querySelectorAll(VISIBLE).length };
}

window.onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(measure);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.body.innerHTML = '<pre id="result"></pre>';
  document.getElementById("result").textContent = JSON.stringify({ dark, found });
};
