// Set the chosen theme before the page is drawn, so that it does not flash.
document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";
