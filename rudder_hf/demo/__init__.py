"""`rudder demo`: a page to try RUDDER with an image of your own.

`view` has pure functions (settings, the page's HTML), `page` is the Gradio page around them and the only file that
needs gradio, `serve` runs the model and serves the page. Tokens are shown as in the report of `rudder analyze`.
"""
