// What belongs to the whole page: the data set that is shown, and light or dark.

function enhancePage() {
  const root = document.documentElement;
  const theme = document.getElementById("theme-switch");
  const wished = matchMedia("(prefers-color-scheme: dark)");
  const show = () => theme.setAttribute("aria-pressed", String((root.dataset.theme ?? (wished.matches ? "dark" : "light")) === "dark"));
  theme.addEventListener("click", () => {
    root.dataset.theme = theme.getAttribute("aria-pressed") === "true" ? "light" : "dark";
    show();
  });
  wished.addEventListener("change", show);
  show();

  const parts = [...document.querySelectorAll("main.part")];
  const chosen = document.getElementById("part-switch");
  const open = (anchor) => {
    for (const part of parts) part.hidden = part.id !== anchor;
    if (chosen) chosen.value = anchor;
  };
  chosen?.addEventListener("input", () => {
    open(chosen.value);
    scrollTo(0, 0);
  });
  /** A link into a data set that is not shown shows it. */
  const follow = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const part = target?.closest("main.part");
    if (!part) return;
    open(part.id);
    target.closest("details")?.setAttribute("open", "");
    target.scrollIntoView();
  };
  addEventListener("hashchange", follow);
  follow();
}

document.querySelectorAll("table").forEach(enhanceTable);
document.querySelectorAll(".chart").forEach(enhanceChart);
enhancePage();
document.documentElement.dataset.ready = "true";
