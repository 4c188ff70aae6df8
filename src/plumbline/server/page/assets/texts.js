// The texts of the page in the language of the browser, or in the one chosen in the settings. Each language is one file.

export const LANGUAGES = { en: "English", de: "Deutsch", ar: "العربية" };
const RIGHT_TO_LEFT = new Set(["ar"]);

export const chosen = () => localStorage.getItem("language") || "";
const asked = [chosen(), ...navigator.languages].map((each) => each.slice(0, 2).toLowerCase());
export const language = asked.find((each) => each in LANGUAGES) || "en";
const { texts } = await import(`./texts-${language}.js`);

document.documentElement.lang = language;
document.documentElement.dir = RIGHT_TO_LEFT.has(language) ? "rtl" : "ltr";

// Return a text with its values; `{name}` marks the place of one.
export const t = (key, values = {}) => texts[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);

// Put the texts into the elements of a page that name them.
export function translate(root) {
  for (const each of root.querySelectorAll("[data-text]")) each.textContent = t(each.dataset.text);
  for (const each of root.querySelectorAll("[data-label]")) each.ariaLabel = t(each.dataset.label);
  for (const each of root.querySelectorAll("[data-hint]")) each.placeholder = t(each.dataset.hint);
}

export function useLanguage(name) {
  if (name) localStorage.setItem("language", name);
  else localStorage.removeItem("language");
  location.reload();
}
