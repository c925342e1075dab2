"""The suite every ``Codec`` passes.

A plugin's tests subclass it and say how to make one::

    from kvstore.conformance.codec import CodecConformance

    class TestMyCodec(CodecConformance):
        def make_codec(self):
            return MyCodec(item_bytes=2)

It needs pytest, which ``kvstore`` itself does not.
"""

from __future__ import annotations

from random import Random

import pytest

from kvstore.conformance.frames import run_together
from kvstore.errors import FrameError
from kvstore.seams import Codec

SIZES = (1, 2, 3, 4, 255, 4096, 65_536, 70_001)
_GUARD = b"\xa5" * 16


def random_block(seed: int, nbytes: int) -> bytes:
    """Return bytes that no codec makes shorter."""
    return Random(seed).randbytes(nbytes)


def like_numbers(seed: int, nbytes: int) -> bytes:
    """Return bytes of which every second one takes few values, as the exponents of floats do."""
    random = Random(seed)
    block = bytearray(random.randbytes(nbytes))
    block[1::2] = random.choices(b"\x3e\x3f\xbe\xbf", k=nbytes // 2)
    return bytes(block)


class CodecConformance:
    """What ``kvstore.seams.Codec`` promises, as tests. Override ``make_codec``, ``easy_block`` if need be."""

    def make_codec(self) -> Codec:
        """Return a codec as it is used for blocks of numbers of two bytes."""
        raise NotImplementedError

    def easy_block(self) -> bytes:
        """Return a block that the codec does make shorter."""
        return like_numbers(1, 65_536)

    @pytest.fixture
    def codec(self) -> Codec:
        """One codec."""
        return self.make_codec()

    def test_its_number_fits_a_header_and_is_not_that_of_raw_blocks(self, codec: Codec) -> None:
        assert 1 <= codec.number <= 255

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_what_was_encoded_decodes_to_the_same_bytes(self, codec: Codec, nbytes: int) -> None:
        for raw in (bytes(nbytes), b"\x01" * nbytes, random_block(nbytes, nbytes), like_numbers(2, nbytes)):
            stored = encoded(codec, raw)
            if stored is not None:
                assert len(stored) < len(raw)
                assert decoded(codec, stored, nbytes) == raw

    def test_a_block_that_can_be_shorter_becomes_shorter(self, codec: Codec) -> None:
        raw = self.easy_block()
        stored = encoded(codec, raw)
        assert stored is not None
        assert decoded(codec, stored, len(raw)) == raw

    def test_a_block_that_cannot_be_shorter_is_left_as_it_is(self, codec: Codec) -> None:
        assert encoded(codec, random_block(1, 65_536)) is None
        assert encoded(codec, b"") is None

    def test_views_at_any_offset_will_do(self, codec: Codec) -> None:
        raw = self.easy_block()
        source = memoryview(b"xyz" + raw)[3:]
        target = memoryview(bytearray(len(raw) + 5))[5:]
        nbytes = codec.encode(source, target)
        assert nbytes is not None
        out = memoryview(bytearray(len(raw) + 1))[1:]
        codec.decode(target[:nbytes], out)
        assert out == raw

    def test_buffers_are_not_kept(self, codec: Codec) -> None:
        raw = bytearray(self.easy_block())
        size = len(raw)
        stored, out = bytearray(size), bytearray(size)
        nbytes = codec.encode(memoryview(raw), memoryview(stored))
        assert nbytes is not None
        codec.decode(memoryview(stored)[:nbytes], memoryview(out))
        assert out == raw == self.easy_block()
        for buffer in (raw, stored, out):
            buffer.clear()  # raises BufferError if anybody still holds a view

    def test_a_form_cut_short_anywhere_or_too_long_is_refused(self, codec: Codec) -> None:
        raw = self.easy_block()
        stored = encoded(codec, raw)
        assert stored is not None
        cuts = {*range(min(24, len(stored))), *range(0, len(stored), len(stored) // 50 + 1), len(stored) - 1}
        for form in (*(stored[:cut] for cut in cuts), stored + b"\0", stored + stored):
            with pytest.raises(FrameError):
                decoded(codec, form, len(raw))

    def test_a_form_of_a_block_of_another_length_is_refused(self, codec: Codec) -> None:
        raw = self.easy_block()
        stored = encoded(codec, raw)
        assert stored is not None
        for nbytes in (0, 1, len(raw) // 2, len(raw) - 1, len(raw) + 1, len(raw) + 4, 2 * len(raw)):
            with pytest.raises(FrameError):
                decoded(codec, stored, nbytes)

    def test_damage_is_refused_or_changes_nothing_but_the_block(self, codec: Codec) -> None:
        raw, random = self.easy_block(), Random(3)
        stored = encoded(codec, raw)
        assert stored is not None
        places = [*range(min(64, len(stored))), *random.choices(range(len(stored)), k=200)]
        for place in places:
            damaged = bytearray(stored)
            damaged[place] ^= 1 << random.randrange(8)
            decoded_or_refused(codec, bytes(damaged), len(raw))
        for seed in range(50):
            decoded_or_refused(codec, random_block(seed, random.randrange(300)), len(raw))

    def test_threads_do_not_disturb_each_other(self, codec: Codec) -> None:
        def work(worker: int) -> None:
            for step in range(20):
                raw = like_numbers(100 * worker + step, 20_000 + 2 * step)
                stored = encoded(codec, raw)
                assert stored is None or decoded(codec, stored, len(raw)) == raw

        run_together(*(lambda worker=worker: work(worker) for worker in range(4)))


def encoded(codec: Codec, raw: bytes) -> bytes | None:
    """Return the stored form of ``raw``; ``None``: it is stored as it is. Nothing beside it is written to."""
    buffer = bytearray(_GUARD + bytes(len(raw)) + _GUARD)
    nbytes = codec.encode(memoryview(raw), memoryview(buffer)[len(_GUARD) : -len(_GUARD)])
    assert_guarded(buffer)
    return None if nbytes is None else bytes(buffer[len(_GUARD) : len(_GUARD) + nbytes])


def decoded(codec: Codec, stored: bytes, nbytes: int) -> bytes:
    """Return the block of ``nbytes`` that ``stored`` is the form of. Nothing beside it is written to."""
    buffer = bytearray(_GUARD + bytes(nbytes) + _GUARD)
    try:
        codec.decode(memoryview(stored), memoryview(buffer)[len(_GUARD) : len(_GUARD) + nbytes])
    finally:
        assert_guarded(buffer)
    return bytes(buffer[len(_GUARD) : -len(_GUARD)])


def decoded_or_refused(codec: Codec, stored: bytes, nbytes: int) -> None:
    """Decode what is no form of a block: a ``FrameError`` or any bytes will do, which a checksum tells."""
    try:
        decoded(codec, stored, nbytes)
    except FrameError:
        return


def assert_guarded(buffer: bytearray) -> None:
    """Fail when anything was written before or behind the place that was given."""
    assert buffer.startswith(_GUARD), "written in front of the buffer"
    assert buffer.endswith(_GUARD), "written behind the buffer"
