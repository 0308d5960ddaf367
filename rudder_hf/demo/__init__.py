"""`rudder demo`: a page to try RUDDER with a picture of your own.

`tokens`, `view` and `look` are pure functions (HTML of an answer, settings and links, style), `pictures` knows the
annotated examples, `engine` runs the model, `page` is the Gradio page around them and the only file that needs gradio,
`serve` starts it, for `rudder demo` and for a Hub Space alike.
"""
