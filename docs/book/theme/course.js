// In terminals the marks ‹ › around what differs from run to run become underlines.
"use strict";
for (const block of document.querySelectorAll("pre code")) {
    if (block.textContent.includes("‹")) {
        block.innerHTML = block.innerHTML.replace(/‹([^›<]*)›/g, '<var class="varies">$1</var>');
    }
}
