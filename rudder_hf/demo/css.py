"""How the page looks: its style sheet and its first lines. No font, script or picture from elsewhere."""

from __future__ import annotations

from .tokens import escape

# Answers stand on white in the dark theme too, so that a colour always means the same.
STYLE = """
.gradio-container { max-width: 1280px !important; margin: 0 auto !important; }
.rudder-head h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
.rudder-head p { margin: 0; }
.answer { background: #fff; color: #111; border: 1px solid #8a8a8a; border-radius: 8px; padding: .75rem 1rem; }
.answer h3 { margin: 0 0 .5rem; color: #111; font-size: 1rem; }
.answer .caption { position: relative; margin: 0;
  min-height: 9rem; line-height: 2; white-space: pre-wrap; overflow-wrap: anywhere; }
.answer .verdict { margin: .5rem 0 0; min-height: 1.5rem; color: #111; font-size: .9rem; }
.answer .waiting { color: #595959; }
.tok { border-radius: 4px; padding: .1rem .2rem; margin: 0 -.08rem; cursor: help; }
.absent, .absent .tok, .verdict del {
  text-decoration: line-through; text-decoration-thickness: .14em; text-decoration-color: currentColor; }
.absent .tok { outline: 2px dashed #d55e00; outline-offset: -1px; }
.tok:hover { box-shadow: 0 0 0 2px #111; }
/* No top: it hangs from the token's own line; centred in the answer, so that it never leaves the window. */
.tok:hover::after { content: attr(data-tip); position: absolute; left: 0; right: 0; margin: 2rem auto 0; z-index: 20;
  background: #111; color: #fff; padding: .2rem .5rem; border-radius: 4px; font-size: .8rem; line-height: 1.4;
  width: max-content; max-width: 95%; white-space: normal; pointer-events: none; }
.legend { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem; font-size: .9rem; }
.legend .ramp { display: inline-flex; border: 1px solid #8a8a8a; border-radius: 4px; overflow: hidden; }
.legend .ramp span { width: 1rem; height: 1rem; }
.notes { margin: 0; font-size: .9rem; }
.keep { display: flex; flex-wrap: wrap; align-items: center; gap: .75rem; font-size: .95rem; }
.keep a.save { background: #08306b; color: #fff !important; padding: .45rem .9rem; border-radius: 6px;
  text-decoration: none; }
.keep a.link { text-decoration: underline; }
footer { display: none !important; }
@media (max-width: 640px) { #vanilla, #steered { min-width: 100% !important; } }
"""

# Enforced by the browser: the page cannot ask anybody but the server that it came from.
ONLY_THIS_SERVER = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; form-action 'self'; base-uri 'self'"


def head(name: str, note: str | None) -> str:
    """Title and first lines."""
    told = f" {escape(note)}" if note else ""
    return (
        '<div class="rudder-head"><h1>RUDDER, beside the model as it is</h1>'
        f"<p>Model: {escape(name)}.{told} Give it a picture or choose an example: both answers are written at the "
        "same time, and colours show where RUDDER pushed. In examples, objects that are not in the picture are "
        "<del>struck out</del>.</p></div>"
    )


def notes(lines: list[str]) -> str:
    """Remarks below the controls."""
    return "".join(f'<p class="notes">{escape(line)}</p>' for line in lines)
