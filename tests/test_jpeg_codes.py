"""JPEGs with Huffman codes of our own choosing: libjpeg-turbo reads the same, however many are looked up."""

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.prepare.decode import jpeg_box
from rekindle.prepare.decode.baseline_jpeg.unstuff import unstuff
from rekindle.prepare.decode.jpeg import read_frame

Symbol = tuple[int, int]  # its byte, and its value
END, ZEROS = (0x00, 0), (0xF0, 0)  # of a block; sixteen
DC_LENGTHS = {0: 2, 1: 3, 2: 3, 3: 3}


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    jpeg_box.compile_box()


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def table(kind: int, lengths: dict[int, int]) -> tuple[bytes, dict[int, str]]:
    """The segment of codes of these lengths, and the codes."""
    symbols = sorted(lengths, key=lambda symbol: lengths[symbol])
    codes, code, length = {}, 0, 0
    for symbol in symbols:
        code <<= lengths[symbol] - length
        length = lengths[symbol]
        codes[symbol] = f"{code:0{length}b}"
        code += 1
    counts = bytes([[*lengths.values()].count(length) for length in range(1, 17)])
    return segment(0xC4, bytes([kind]) + counts + bytes(symbols)), codes


def value_bits(value: int, count: int) -> str:
    return f"{value if value > 0 else value + (1 << count) - 1:0{count}b}" if count else ""


def grey(blocks: list[list[Symbol]], lengths: dict[int, int]) -> bytes:
    """A grey JPEG of these blocks side by side: the DC difference and the AC coefficients of each."""
    dc_segment, dc_codes = table(0x00, DC_LENGTHS)
    ac_segment, ac_codes = table(0x10, lengths)
    bits = ""
    for (size, difference), *others in blocks:
        bits += dc_codes[size] + value_bits(difference, size)
        for symbol, value in others:
            bits += ac_codes[symbol] + value_bits(value, symbol & 15)
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    frame = b"\x08\0\x08" + (8 * len(blocks)).to_bytes(2, "big") + b"\1\1\x11\0"
    return (
        b"\xff\xd8"
        + segment(0xDB, bytes([0, *[3] * 64]))
        + segment(0xC0, frame)
        + dc_segment
        + ac_segment
        + segment(0xDA, b"\1\1\0\0\x3f\0")
        + coded
        + b"\xff\xd9"
    )


def decoded(data: bytes, left: int = 0) -> np.ndarray | None:
    frame = read_frame(data)
    return jpeg_box.decode_jpeg_box(frame, data, (0, left, 8, frame.width - left), scratch=False)


def check(blocks: list[list[Symbol]], lengths: dict[int, int]) -> None:
    """Both read the same, also where some blocks are passed over."""
    data = grey(blocks, lengths)
    expected = simplejpeg.decode_jpeg(data)
    np.testing.assert_array_equal(decoded(data), expected)
    for left in range(8, 8 * len(blocks), 8):
        np.testing.assert_array_equal(decoded(data, left), expected[:, left:])


def symbols_of(coefficients: list[int]) -> list[Symbol]:
    """What stands for coefficients 1 to 63."""
    found: list[Symbol] = []
    zeros = 0
    for value in coefficients:
        if value == 0:
            zeros += 1
            continue
        found += [ZEROS] * (zeros // 16)
        size = abs(value).bit_length()
        found.append((zeros % 16 << 4 | size, value))
        zeros = 0
    return [*found, END] if zeros else found


@st.composite
def images(draw: st.DrawFn) -> tuple[list[list[Symbol]], dict[int, int]]:
    """Some blocks, and codes for all their symbols: some as short as can be, and some as long."""
    blocks = []
    for _ in range(draw(st.integers(1, 4))):
        coefficients = [0] * 63
        for place in draw(st.sets(st.integers(0, 62), max_size=draw(st.sampled_from([0, 3, 15, 63])))):
            bits = draw(st.sampled_from([1, 1, 1, 2, 3, 5, 7, 8]))
            coefficients[place] = draw(st.sampled_from([-1, 1])) * draw(
                st.integers(1 << bits >> 1, (1 << bits) - 1)
            )
        size = draw(st.integers(0, 3))
        difference = draw(st.sampled_from([-1, 1])) * ((1 << size) - 1)
        blocks.append([(size, difference), *symbols_of(coefficients)])
    symbols = draw(st.permutations(sorted({symbol for block in blocks for symbol, _ in block[1:]})))
    lengths, room = {}, (1 << 16) - 1  # of all codes; none has ones alone
    for left in range(len(symbols), 0, -1):
        least = next(length for length in range(1, 17) if (left - 1) + (1 << 16 - length) <= room)
        lengths[symbols[left - 1]] = draw(st.sampled_from([least, least, min(least + 1, 16), 16]))
        room -= 1 << 16 - lengths[symbols[left - 1]]
    return blocks, lengths


@settings(max_examples=600, deadline=None)
@given(images())
def test_codes_of_any_lengths_are_read_as_libjpeg_reads_them(
    image: tuple[list[list[Symbol]], dict[int, int]],
) -> None:
    check(*image)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_value_of_any_length_can_come_first_or_last_in_a_lookup(bits: int, sign: int) -> None:
    value = sign * ((1 << bits) - 1)
    first, small = (bits, value), (0x11, -1)
    lengths = {bits: 1, 0x11: 2, 0x00: 3}
    for others in ([first, END], [small, first, END], [first, small, END], [first, first, small, small, END]):
        check([[(2, 3), *others], [(0, 0), *others]], lengths)


@pytest.mark.parametrize("place", range(1, 64))
@pytest.mark.parametrize("value", [-200, 3])
def test_one_coefficient_alone_has_its_place(place: int, value: int) -> None:
    coefficients = [0] * 63
    coefficients[place - 1] = value
    block = [(0, 0), *symbols_of(coefficients)]
    lengths = {symbol: 3 for symbol, _ in block[1:]} | {0x00: 2}
    check([block, block], lengths)


SHORT = {0x01: 2, 0xE1: 2, 0xF0: 2, 0x00: 3}
TO_62 = [ZEROS, ZEROS, ZEROS, (0xD1, 1)]
TO_63 = [ZEROS, ZEROS, ZEROS, (0xE1, -1)]


@pytest.mark.parametrize("difference", range(-7, 8))
def test_a_lookup_does_not_take_what_the_next_block_begins_with(difference: int) -> None:
    """Behind the last coefficient, there is no end of block."""
    following = [(abs(difference).bit_length(), difference), (0x01, 1), END]
    check([[(0, 0), *TO_63], following], SHORT)
    lengths = {0x01: 2, 0xD1: 2, 0xF0: 2, 0x00: 3}
    check([[(0, 0), *TO_62, (0x01, -1)], following], lengths)


@pytest.mark.parametrize("left", [0, 8])
@pytest.mark.parametrize(
    "others",
    [
        [ZEROS, ZEROS, ZEROS, ZEROS],
        [ZEROS, ZEROS, ZEROS, (0x01, 1), (0xE1, 1)],
        [ZEROS, ZEROS, ZEROS, (0x01, 1), ZEROS],
        [*[(0x01, 1)] * 62, ZEROS],
        [*[(0x01, 1)] * 61, ZEROS],
        [*[(0x01, 1)] * 62, (0xE1, 1)],
        [*[(0x01, 1)] * 61, (0xE1, 1)],
        [*[(0x01, 1)] * 48, ZEROS],
    ],
)
def test_zeros_past_the_last_coefficient_are_left_to_libjpeg(others: list[Symbol], left: int) -> None:
    """Such a block ends with them for libjpeg, without a warning; but no encoder writes one."""
    following = [(0, 0), (0x01, 1), END]
    data = grey([[(0, 0), *others], following], SHORT)
    assert decoded(data, left) is None
    check([[(0, 0), *others[:-1], END], following], SHORT)


def test_a_block_that_its_data_ends_within_is_left_to_libjpeg() -> None:
    """What fills the last byte is no code: all its bits are ones."""
    for count in range(9):
        block = [(0, 0), *[(0x01, 1)] * count]
        assert decoded(grey([block], {0x01: 2, 0x00: 3})) is None
        check([[*block, END]], {0x01: 2, 0x00: 3})


def test_a_code_that_is_in_no_table_is_left_to_libjpeg() -> None:
    """Short or long, first in a lookup or behind another symbol."""
    for lengths in ({0x01: 2, 0x00: 3}, {0x01: 2, 0x00: 12}):
        for before in range(5):
            data = grey([[(0, 0), *[(0x01, 1)] * before, (0x03, 7), END]], lengths | {0x03: 16})
            assert decoded(data) is not None
            without = table(0x10, lengths)[0]
            begin = data.index(b"\xff\xc4", data.index(b"\xff\xc4") + 2)
            end = begin + 2 + int.from_bytes(data[begin + 2 : begin + 4], "big")
            assert decoded(data[:begin] + without + data[end:]) is None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([b"\x12", b"\xff\0", b"\xfe", b"\0", b"\x7f" * 30]), max_size=60), st.data())
def test_stuffed_bytes_are_left_out(parts: list[bytes], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 3))
    coded = b"".join(parts)
    for ending in (b"\xff\xd9", b"\xff\xd0\1\2\3" + bytes(40)):
        given = np.frombuffer(bytes(start) + coded + ending, dtype=np.uint8)
        out = np.zeros(given.size, dtype=np.uint8)
        expected = coded.replace(b"\xff\0", b"\xff")
        assert unstuff(given, start, out) == (len(expected), start + len(coded))
        assert out[: len(expected)].tobytes() == expected
