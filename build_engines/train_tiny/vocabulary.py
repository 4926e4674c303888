"""What a clip can hold: the words of captions and the numbers behind them."""

SHAPES = ("circle", "square", "triangle", "star", "cross")
# Fourths apart, so that neither two shapes together nor their octaves come close to one another.
PITCHES_HZ = (220.00, 293.66, 392.00, 523.25, 698.46)

COLOURS = (
    ("red", (220, 40, 45)),
    ("orange", (240, 140, 30)),
    ("yellow", (240, 225, 60)),
    ("green", (45, 165, 70)),
    ("cyan", (70, 205, 220)),
    ("blue", (40, 75, 205)),
    ("purple", (150, 60, 190)),
    ("white", (240, 240, 240)),
    ("black", (20, 20, 22)),
    ("grey", (125, 125, 125)),
)
COLOUR_NAMES = tuple(name for name, _ in COLOURS)
COLOUR_VALUES = tuple(value for _, value in COLOURS)
OBJECT_COLOURS = COLOUR_NAMES[:8]
MIN_CONTRAST = 120.0  # Euclidean distance of object and ground in RGB levels
COLOUR_JITTER = 8  # levels; each clip has its own shade of a named colour

SIZES = ("small", "medium", "large")
# Radius in pixels at a height of 128; the ranges leave gaps wider than a measurement's error.
SIZE_RADII = ((10.0, 12.0), (15.0, 17.0), (23.0, 26.0))

DRIFT, BOUNCE, ORBIT, GROW, BLINK = range(5)
MOTIONS = ("drift", "bounce", "orbit", "grow", "blink")
DIRECTIONS = (
    ("left", "right", "up", "down"),
    ("in place", "left", "right"),
    ("clockwise", "counterclockwise"),
    ("bigger", "smaller"),
    ("on and off",),
)
SPEEDS = ("slow", "fast")

CANVASES = ((128, 128), (192, 128))  # width, height
LENGTHS = (107, 124, 141)  # frames, 17 n + 5: 4.5, 5.2 and 5.9 s
REFERENCE_HEIGHT = 128

TONE_LEVEL = 0.28  # amplitude of the largest object's tone
OVERTONE = 0.2  # amplitude of the octave, relative
CLICK_LEVEL = 0.35
CLICK_HZ = 2500.0
CLICK_DECAY_S = 0.004


def contrast(first: int, second: int) -> float:
    """Distance of two palette colours in RGB levels."""
    pairs = zip(COLOUR_VALUES[first], COLOUR_VALUES[second], strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)
