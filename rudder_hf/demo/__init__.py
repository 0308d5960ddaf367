"""`rudder demo`: a page to try RUDDER with an image of your own.

`view` has pure functions (settings, the page's HTML), `engine` runs the model, `page` is the Gradio page
around them and the only file that needs gradio, `serve` starts it. Tokens are shown as in the report of
`rudder analyze`.
"""
