"""The small world of the synthetic scenes: COCO categories, places, and which objects go together.

Category ids and names are COCO's. A place lists its objects from most to least popular; partners are pairs that often
occur together. Both make the language priors that the captions carry.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Category:
    """A COCO category and the emoji glyphs that stand for it: those seen in training, and those held out of it."""

    id: int
    name: str
    supercategory: str
    glyphs: str
    held_out_glyphs: str = ""


CATEGORIES: tuple[Category, ...] = (
    Category(1, "person", "person", "🧍🚶👩👨🏃👧", "👦"),
    Category(2, "bicycle", "vehicle", "🚲"),
    Category(3, "car", "vehicle", "🚗🚙", "🚕"),
    Category(4, "motorcycle", "vehicle", "🏍🛵"),
    Category(5, "airplane", "vehicle", "✈🛩🛫", "🛬"),
    Category(7, "train", "vehicle", "🚆🚂🚄", "🚅"),
    Category(8, "truck", "vehicle", "🚚🚛🛻"),
    Category(9, "boat", "vehicle", "⛵🚤⛴", "🛥"),
    Category(10, "traffic light", "outdoor", "🚦🚥"),
    Category(13, "stop sign", "outdoor", "🛑"),
    Category(16, "bird", "animal", "🐦🦅🦆🕊", "🦜"),
    Category(17, "cat", "animal", "🐈🐱😺", "😸"),
    Category(18, "dog", "animal", "🐕🐶🐩", "🦮"),
    Category(19, "horse", "animal", "🐎🐴"),
    Category(20, "sheep", "animal", "🐑🐏"),
    Category(21, "cow", "animal", "🐄🐮", "🐂"),
    Category(22, "elephant", "animal", "🐘"),
    Category(23, "bear", "animal", "🐻"),
    Category(24, "zebra", "animal", "🦓"),
    Category(25, "giraffe", "animal", "🦒"),
    Category(27, "backpack", "accessory", "🎒"),
    Category(28, "umbrella", "accessory", "☂☔⛱", "🌂"),
    Category(31, "handbag", "accessory", "👜👛"),
    Category(32, "tie", "accessory", "👔"),
    Category(33, "suitcase", "accessory", "🧳💼"),
    Category(34, "frisbee", "sports", "🥏"),
    Category(37, "sports ball", "sports", "⚽🏀🏐", "🏈"),
    Category(38, "kite", "sports", "🪁"),
    Category(41, "skateboard", "sports", "🛹"),
    Category(44, "bottle", "kitchen", "🍾🍼", "🧴"),
    Category(46, "wine glass", "kitchen", "🍷🍸", "🥂"),
    Category(47, "cup", "kitchen", "☕🥤", "🍵"),
    Category(49, "knife", "kitchen", "🔪"),
    Category(50, "spoon", "kitchen", "🥄"),
    Category(51, "bowl", "kitchen", "🥣🍜", "🍲"),
    Category(52, "banana", "food", "🍌"),
    Category(53, "apple", "food", "🍎🍏"),
    Category(54, "sandwich", "food", "🥪"),
    Category(55, "orange", "food", "🍊"),
    Category(56, "broccoli", "food", "🥦"),
    Category(57, "carrot", "food", "🥕"),
    Category(59, "pizza", "food", "🍕"),
    Category(60, "donut", "food", "🍩"),
    Category(61, "cake", "food", "🎂🍰"),
    Category(62, "chair", "furniture", "🪑💺"),
    Category(63, "couch", "furniture", "🛋"),
    Category(64, "potted plant", "furniture", "🪴"),
    Category(65, "bed", "furniture", "🛏"),
    Category(72, "tv", "electronic", "📺"),
    Category(73, "laptop", "electronic", "💻"),
    Category(74, "mouse", "electronic", "🖱"),
    Category(76, "keyboard", "electronic", "⌨"),
    Category(77, "cell phone", "electronic", "📱📲"),
    Category(84, "book", "indoor", "📕📗📘📖", "📙"),
    Category(85, "clock", "indoor", "🕐⏰🕓", "🕗"),
    Category(86, "vase", "indoor", "🏺⚱"),
    Category(88, "teddy bear", "indoor", "🧸"),
)
OBJECT_NAMES: tuple[str, ...] = tuple(category.name for category in CATEGORIES)

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
    "savanna": ("elephant", "giraffe", "zebra", "bird", "bear", "truck", "person", "airplane", "backpack",
                "umbrella"),
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
    name: frozenset({b for a, b in _PARTNERS if a == name} | {a for a, b in _PARTNERS if b == name})
    for name in OBJECT_NAMES
}
PARTNER_FACTOR = 5.0
