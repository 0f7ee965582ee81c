import re

from hypothesis import given
from hypothesis import strategies as st

from salience.views import html
from salience.views.colours import AGAINST, DARK, FOR, LIGHT, MUCH, contrast_ratio, hexadecimal, ink, shade

SCORES = st.floats(-1, 1)
GROUNDS = st.sampled_from([LIGHT, DARK])


@given(SCORES, GROUNDS, st.booleans())
def test_letters_stand_out_on_every_shade(relative: float, ground: tuple[int, int, int], signed: bool):
    back = shade(abs(relative) if not signed else relative, ground, signed)
    assert contrast_ratio(back, ink(back)) >= 4.5


@given(SCORES, GROUNDS)
def test_the_sign_chooses_the_colour_and_the_size_its_strength(relative: float, ground: tuple[int, int, int]):
    back = shade(relative, ground)
    end = FOR if relative > 0 else AGAINST
    way = [abs(b - g) / abs(e - g) for b, g, e in zip(back, ground, end, strict=True) if abs(e - g) > 50]
    assert all(abs(w - abs(relative)) < 0.02 for w in way)


def test_scores_beyond_the_scale_keep_the_full_colour():
    assert shade(1.7, LIGHT) == FOR
    assert shade(-3.0, DARK) == AGAINST
    assert shade(1.7, DARK, signed=False) == MUCH


def test_contrast_is_that_of_wcag():
    assert round(contrast_ratio((0, 0, 0), (255, 255, 255)), 6) == 21
    assert round(contrast_ratio((119, 119, 119), (255, 255, 255)), 2) == 4.48
    assert hexadecimal((1, 171, 255)) == "#01abff"


def test_the_page_is_readable_in_light_and_dark():
    for theme in (html._LIGHT, html._DARK):
        named = {n: tuple(bytes.fromhex(c)) for n, c in re.findall(r"--([a-z-]+): #([0-9a-f]{6})", theme)}
        for ground in ("paper", "for", "against"):
            assert contrast_ratio(named["ink"], named[ground]) >= 4.5, ground
        assert contrast_ratio(named["quiet"], named["paper"]) >= 4.5
        assert contrast_ratio(named["for-line"], named["paper"]) >= 3
        assert contrast_ratio(named["against-line"], named["paper"]) >= 3
