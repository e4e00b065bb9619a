"""HTML by hand: nothing that is put into an element can leave it, and tables say what names what."""

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.markup import Html, as_data, bar, card, element, html, html_table


class Reader(HTMLParser):
    """The elements and the text of a page, as a browser sees them."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.found, self.words = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


@given(st.text())
def test_text_comes_back_as_it_was_put_in(text):
    reader = Reader(element("p", text, title=text))
    tag, attributes = reader.found[0]
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    assert (len(reader.found), tag) == (1, "p")
    assert "".join(reader.words) == shown
    assert attributes["title"] == shown.replace("\n", "\\n")


def test_html_is_not_escaped_twice():
    inside = element("b", "a & b")
    assert element("p", inside, " < c") == "<p><b>a &amp; b</b> &lt; c</p>"
    assert html(["x", [Html("<br>"), "&"]]) == "x<br>&amp;"


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, ""), (False, ""), (True, " hidden"), (0, ' hidden="0"'), (1.5, ' hidden="1.5"'), (2.004, ' hidden="2"')],
)
def test_attributes(value, written):
    assert element("div", hidden=value) == f"<div{written}></div>"


def test_names_of_attributes():
    assert element("a", aria_label="x", class_="y") == '<a aria-label="x" class="y"></a>'


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())))
def test_data_is_json_that_ends_no_element(values):
    text = as_data(values)
    assert json.loads(text) == values
    assert not set("<>&") & set(text)


def test_a_table_names_its_rows_and_columns():
    table = html_table(["layer", "kept"], [["<a>", "3"]], caption="Layers")
    head, name = (f'<th scope="{scope}">' for scope in ("col", "row"))
    assert f"{head}layer</th>" in table
    assert f"{name}&lt;a&gt;</th>" in table
    assert '<td class="number">3</td>' in table
    assert "<caption>Layers</caption>" in table


@pytest.mark.parametrize(("share", "width"), [(0.5, "50.0%"), (-1, "0.0%"), (7, "100.0%")])
def test_a_bar_is_filled_up_to_its_share(share, width):
    assert f"width:{width}" in bar(share)


def test_a_card_escapes_its_lines():
    assert "<script>" not in card("<script>", "<script>", "<script>")
