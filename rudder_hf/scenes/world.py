"""The small world of the synthetic scenes: COCO categories, places, and which objects go together.

Category ids and names are COCO's own. A place lists its objects from most to least popular; partners are
pairs that often occur together. Both make the language priors that the captions carry.
"""

from __future__ import annotations

from dataclasses import dataclass

# COCO category id, COCO name, COCO supercategory, glyphs of the category seen in training, glyphs held out of it.
_CATEGORY_ROWS: tuple[tuple[int, str, str, str, str], ...] = (
    (1, "person", "person", "🧍🚶👩👨🏃👧", "👦"),
    (2, "bicycle", "vehicle", "🚲", ""),
    (3, "car", "vehicle", "🚗🚙", "🚕"),
    (4, "motorcycle", "vehicle", "🏍🛵", ""),
    (5, "airplane", "vehicle", "✈🛩🛫", "🛬"),
    (7, "train", "vehicle", "🚆🚂🚄", "🚅"),
    (8, "truck", "vehicle", "🚚🚛🛻", ""),
    (9, "boat", "vehicle", "⛵🚤⛴", "🛥"),
    (10, "traffic light", "outdoor", "🚦🚥", ""),
    (13, "stop sign", "outdoor", "🛑", ""),
    (16, "bird", "animal", "🐦🦅🦆🕊", "🦜"),
    (17, "cat", "animal", "🐈🐱😺", "😸"),
    (18, "dog", "animal", "🐕🐶🐩", "🦮"),
    (19, "horse", "animal", "🐎🐴", ""),
    (20, "sheep", "animal", "🐑🐏", ""),
    (21, "cow", "animal", "🐄🐮", "🐂"),
    (22, "elephant", "animal", "🐘", ""),
    (23, "bear", "animal", "🐻", ""),
    (24, "zebra", "animal", "🦓", ""),
    (25, "giraffe", "animal", "🦒", ""),
    (27, "backpack", "accessory", "🎒", ""),
    (28, "umbrella", "accessory", "☂☔⛱", "🌂"),
    (31, "handbag", "accessory", "👜👛", ""),
    (32, "tie", "accessory", "👔", ""),
    (33, "suitcase", "accessory", "🧳💼", ""),
    (34, "frisbee", "sports", "🥏", ""),
    (37, "sports ball", "sports", "⚽🏀🏐", "🏈"),
    (38, "kite", "sports", "🪁", ""),
    (41, "skateboard", "sports", "🛹", ""),
    (44, "bottle", "kitchen", "🍾🍼", "🧴"),
    (46, "wine glass", "kitchen", "🍷🍸", "🥂"),
    (47, "cup", "kitchen", "☕🥤", "🍵"),
    (49, "knife", "kitchen", "🔪", ""),
    (50, "spoon", "kitchen", "🥄", ""),
    (51, "bowl", "kitchen", "🥣🍜", "🍲"),
    (52, "banana", "food", "🍌", ""),
    (53, "apple", "food", "🍎🍏", ""),
    (54, "sandwich", "food", "🥪", ""),
    (55, "orange", "food", "🍊", ""),
    (56, "broccoli", "food", "🥦", ""),
    (57, "carrot", "food", "🥕", ""),
    (59, "pizza", "food", "🍕", ""),
    (60, "donut", "food", "🍩", ""),
    (61, "cake", "food", "🎂🍰", ""),
    (62, "chair", "furniture", "🪑💺", ""),
    (63, "couch", "furniture", "🛋", ""),
    (64, "potted plant", "furniture", "🪴", ""),
    (65, "bed", "furniture", "🛏", ""),
    (72, "tv", "electronic", "📺", ""),
    (73, "laptop", "electronic", "💻", ""),
    (74, "mouse", "electronic", "🖱", ""),
    (76, "keyboard", "electronic", "⌨", ""),
    (77, "cell phone", "electronic", "📱📲", ""),
    (84, "book", "indoor", "📕📗📘📖", "📙"),
    (85, "clock", "indoor", "🕐⏰🕓", "🕗"),
    (86, "vase", "indoor", "🏺⚱", ""),
    (88, "teddy bear", "indoor", "🧸", ""),
)


@dataclass(frozen=True)
class Category:
    """A COCO category and the emoji glyphs that stand for it."""

    id: int
    name: str
    supercategory: str
    glyphs: str
    held_out_glyphs: str


CATEGORIES: tuple[Category, ...] = tuple(Category(*row) for row in _CATEGORY_ROWS)
NAMES: tuple[str, ...] = tuple(category.name for category in CATEGORIES)
BY_NAME: dict[str, Category] = {category.name: category for category in CATEGORIES}

PLACES: dict[str, tuple[str, ...]] = {
    "street": ("car", "person", "traffic light", "bicycle", "truck", "motorcycle", "stop sign", "train", "handbag",
               "backpack", "dog", "umbrella"),
    "kitchen": ("cup", "spoon", "knife", "bowl", "bottle", "apple", "banana", "cake", "pizza", "carrot", "broccoli",
                "sandwich", "orange", "wine glass", "donut"),
    "office": ("laptop", "keyboard", "mouse", "book", "chair", "cell phone", "clock", "cup", "tie", "potted plant",
               "suitcase"),
    "living room": ("couch", "tv", "book", "clock", "cat", "potted plant", "vase", "teddy bear", "chair", "wine glass",
                    "dog"),
    "park": ("person", "dog", "bird", "bicycle", "frisbee", "kite", "sports ball", "skateboard", "horse", "backpack"),
    "beach": ("umbrella", "boat", "person", "bird", "kite", "sports ball", "bottle", "suitcase", "dog", "airplane",
              "handbag"),
    "savanna": ("elephant", "giraffe", "zebra", "bird", "bear", "truck", "person", "airplane"),
    "farm": ("cow", "sheep", "horse", "dog", "truck", "cat", "person", "bird", "apple", "carrot"),
}  # fmt: skip

_PARTNERS: tuple[tuple[str, str], ...] = (
    ("knife", "spoon"), ("cup", "spoon"), ("bowl", "spoon"), ("laptop", "mouse"), ("keyboard", "mouse"),
    ("car", "traffic light"), ("bicycle", "person"), ("couch", "tv"), ("elephant", "giraffe"), ("zebra", "giraffe"),
    ("cow", "sheep"), ("boat", "person"), ("dog", "frisbee"), ("bottle", "wine glass"), ("horse", "person"),
    ("sandwich", "cup"), ("tie", "laptop"), ("truck", "stop sign"), ("potted plant", "vase"), ("book", "clock"),
    ("umbrella", "handbag"), ("suitcase", "backpack"), ("banana", "apple"), ("carrot", "broccoli"),
    ("pizza", "bottle"), ("cat", "couch"), ("kite", "person"), ("bed", "teddy bear"), ("motorcycle", "car"),
    ("cell phone", "laptop"), ("cake", "cup"), ("donut", "cup"), ("orange", "apple"), ("skateboard", "person"),
    ("sports ball", "person"), ("train", "person"), ("airplane", "suitcase"), ("bear", "bird"), ("chair", "couch"),
)  # fmt: skip

PARTNERS: dict[str, frozenset[str]] = {
    name: frozenset({b for a, b in _PARTNERS if a == name} | {a for a, b in _PARTNERS if b == name}) for name in NAMES
}
PARTNER_FACTOR = 5.0


def prior_weight(place: str, name: str, present: frozenset[str] | set[str]) -> float:
    """How likely `name` seems in `place` beside `present`: Zipf popularity, times five for a partner."""
    objects = PLACES[place]
    weight = 1.0 / (objects.index(name) + 1.5) if name in objects else 0.01
    return weight * (PARTNER_FACTOR if PARTNERS[name] & present else 1.0)


def article(name: str) -> str:
    """The article, "a" or "an", of a category or place."""
    return "an" if name[0] in "aeiou" else "a"
