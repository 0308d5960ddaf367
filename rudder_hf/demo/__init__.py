"""`rudder demo`: a page to try RUDDER with a picture of your own.

`tokens` and `view` are pure functions (HTML of a caption, settings and links), `pictures` knows the annotated examples,
`engine` runs the model, `page` is the Gradio page around them and the only file that needs gradio.
"""
