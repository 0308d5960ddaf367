"""Which model types of the installed transformers RUDDER steers, as the table of the README.

python -m tools.support_table
"""

from __future__ import annotations

from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from rudder_hf.core.families import REFUSED, support


def support_by_status() -> dict[str, list[str]]:
    """Model types of `AutoModelForImageTextToText`, sorted into "supported", "refused" and "unknown"."""
    found: dict[str, list[str]] = {"supported": [], "refused": [], "unknown": []}
    for model_type in sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        found[support(model_type)].append(model_type)
    return found


def support_table() -> str:
    """The support matrix as Markdown."""
    found = support_by_status()
    reasons: dict[str, list[str]] = {}
    for model_type in found["refused"]:
        reasons.setdefault(REFUSED[model_type], []).append(model_type)

    def names(model_types: list[str]) -> str:
        return ", ".join(f"`{model_type}`" for model_type in model_types)

    rows = ["| | model types |", "|---|---|"]
    rows.append(f"| supported and tested ({len(found['supported'])}) | {names(found['supported'])} |")
    for reason, model_types in reasons.items():
        rows.append(f"| refused: {reason} | {names(model_types)} |")
    unknown = "not tested here: the general rule is tried, with a warning, and an unsteered forward is an error"
    rows.append(f"| {unknown} ({len(found['unknown'])}) | {names(found['unknown'])} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(support_table())
