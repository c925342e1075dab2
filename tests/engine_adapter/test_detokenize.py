from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine_adapter.engine.detokenize import Detokenizer, StopStrings, TextStream

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def byte_level() -> Tokenizer:
    """Every byte is a token, as in GPT-2, Llama 3, Qwen and SmolLM; token 256 is special."""
    alphabet = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Whole words, and bytes as a last resort, as in Llama 2; the text's first space is stripped."""
    words = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "\u2581Hello",
        "\u2581you",
        "you",
        "!",
    ]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={word: i for i, word in enumerate(words)}, merges=[], byte_fallback=True, unk_token="<unk>"
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


BYTE_LEVEL = byte_level()
BYTE_FALLBACK = byte_fallback()


def detokenizer(tokenizer: Tokenizer) -> Detokenizer:
    fallback = {tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return Detokenizer(
        lambda tokens: tokenizer.decode(list(tokens)), fallback.__contains__, special.__contains__
    )


def token(tokenizer: Tokenizer, text: str) -> int:
    number = tokenizer.token_to_id(text)
    assert number is not None
    return number


def stream(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    text = detokenizer(tokenizer)
    return [*(text.add(number) for number in tokens), text.flush()]


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "caf\u00e9",
        "\u6f22\u5b57\u304b\u306a",
        "\U0001f469\u200d\U0001f469\u200d\U0001f467",
        "\u0627\u0644\u0639",
        "a\u0301",
    ],
)
def test_no_delta_has_half_a_character(text: str) -> None:
    deltas = stream(BYTE_LEVEL, BYTE_LEVEL.encode(text).ids)

    assert "".join(deltas) == text
    assert not any(REPLACEMENT in delta for delta in deltas)
    assert deltas[-1] == ""


def test_a_character_comes_with_its_last_byte() -> None:
    assert stream(BYTE_LEVEL, BYTE_LEVEL.encode("a\u00e9b").ids) == ["a", "", "\u00e9", "b", ""]


def test_a_character_unfinished_at_the_end_is_left_out() -> None:
    tokens = BYTE_LEVEL.encode("ok \U0001f642").ids[:-1]

    assert stream(BYTE_LEVEL, tokens) == ["o", "k", " ", "", "", "", ""]


def test_a_special_token_has_no_text_and_leaves_the_spaces_alone() -> None:
    hello, special = token(BYTE_FALLBACK, "\u2581Hello"), token(BYTE_FALLBACK, "<s>")

    assert stream(BYTE_FALLBACK, [special, hello, special, hello]) == ["", "Hello", "", " Hello", ""]


def test_a_word_behind_byte_tokens_completes_them() -> None:
    bytes_of_e = [token(BYTE_FALLBACK, "<0xC3>"), token(BYTE_FALLBACK, "<0xA9>")]
    you = token(BYTE_FALLBACK, "you")

    assert stream(BYTE_FALLBACK, [*bytes_of_e, you]) == ["", "", "\u00e9you", ""]
    assert stream(BYTE_FALLBACK, bytes_of_e) == ["", "", "\u00e9"]


@given(st.sampled_from([BYTE_LEVEL, BYTE_FALLBACK]), st.data())
def test_deltas_add_up_to_the_text_of_all_tokens(tokenizer: Tokenizer, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=40))
    whole = tokenizer.decode(tokens)

    assert "".join(stream(tokenizer, tokens)) in {whole, whole.rstrip(REPLACEMENT)}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[REPLACEMENT]), max_size=60))
def test_any_text_comes_whole(text: str) -> None:
    tokens = BYTE_LEVEL.encode(text).ids

    assert "".join(stream(BYTE_LEVEL, tokens)) == text


def test_a_stop_string_is_cut_with_all_that_follows() -> None:
    stops = StopStrings(["\n\n", "END"])

    assert stops.add("one\n") == ("one", False)
    assert stops.add("two E") == ("\ntwo ", False)
    assert stops.add("N") == ("", False)
    assert stops.add("D and more") == ("", True)


def test_the_first_complete_stop_string_wins() -> None:
    assert StopStrings(["bc", "ab"]).add("xabc") == ("x", True)
    assert StopStrings(["b", "aba"]).add("xaba") == ("xa", True)
    assert StopStrings(["b", "ab"]).add("xab") == ("x", True)


def test_what_was_held_back_comes_out_when_it_leads_to_nothing() -> None:
    stops = StopStrings(["aab"])

    assert stops.add("xaa") == ("x", False)
    assert stops.add("a") == ("a", False)
    assert stops.flush() == "aa"


@given(
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
    st.text(alphabet="abc", max_size=30),
    st.data(),
)
def test_the_text_ends_before_the_first_stop_string_however_it_comes(
    stops: list[str], text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    matcher, shown, stopped = StopStrings(stops), "", False
    for piece in pieces:
        safe, stopped = matcher.add(piece)
        shown += safe
        assert not any(stop in shown for stop in stops)
        if stopped:
            break
    if not stopped:
        shown += matcher.flush()

    matches = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert stopped == bool(matches)
    assert shown == (text[: min(matches)[1]] if matches else text)


def test_a_stop_string_may_end_in_a_character_of_several_tokens() -> None:
    text = TextStream(detokenizer(BYTE_LEVEL), ["\u00e9"])
    answers = [text.add(number) for number in BYTE_LEVEL.encode("a\u00e9").ids]

    assert answers == [("a", False), ("", False), ("", True)]
    assert text.flush() == ""
