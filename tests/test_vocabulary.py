"""Tokenizers out of model files: GGUF metadata and Hugging Face folders."""

import copy
import json
import re
from pathlib import Path

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers, processors
from tokenizers_made import (
    ADDED,
    BOS,
    EOS,
    IM_END,
    IM_START,
    KINDS,
    PIECES,
    SPECIAL,
    alphabet,
    assembled,
    fixed_texts,
    gguf_metadata,
    trained,
    with_special,
    write_folder,
)
from transformers import PreTrainedTokenizerFast

from llambda import gguf
from llambda.errors import FileAccessError, LlambdaError, ModelFileError, UnsupportedError
from llambda.tokenizer import Tokenizer
from llambda.vocabulary import END_TEXTS, from_gguf, from_json, glyphs_to_bytes

WHERE = Path("model.gguf")
GOLDEN = Path(__file__).parent / "golden"
text_with_names = st.lists(st.sampled_from([*SPECIAL, *ADDED, *PIECES])).map("".join)


def read(library: tokenizers.Tokenizer, kind: str, **changes) -> Tokenizer:
    """By way of a GGUF file's metadata."""
    return from_gguf(gguf_metadata(library, kind, **changes), WHERE)


def changed(metadata: dict, key: str, value: object) -> dict:
    return {**metadata, f"tokenizer.{key}": value}


@pytest.fixture
def metadata() -> dict:
    return gguf_metadata(with_special("smollm"), "smollm")


@pytest.fixture
def folder(tmp_path: Path):
    """Writes a folder, reads its tokenizer."""

    def made(tokenizer, **files) -> Tokenizer:
        return from_json(write_folder(tmp_path / "model", tokenizer, **files))

    return made


@pytest.fixture
def data() -> dict:
    """A tokenizer.json to be changed."""
    return json.loads(with_special("smollm").to_str())


# ---------------------------------------------------------------- both ways


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_give_the_same_tokenizer(kind, tmp_path):
    library = with_special(kind)
    library.post_processor = template(f"{BOS} $A")
    names = {"bos_token": BOS, "eos_token": EOS}
    path = write_folder(tmp_path, library, tokenizer_config=names)
    by_json, by_gguf = from_json(path), read(library, kind, add_bos_token=True)
    assert by_json.vocab == by_gguf.vocab
    for name in ("special_ids", "bos_id", "eos_id", "adds_bos", "stop_ids", "chat_template"):
        assert getattr(by_json, name) == getattr(by_gguf, name), name
    assert by_json.bos_id == 900
    assert by_json.special_ids == {900, 901, 902, 903}
    assert by_json.stop_ids == {901, 903}

    @given(text_with_names, st.booleans())
    def same_ids(text, parse_special):
        ids = by_gguf.encode(text, parse_special)
        assert by_json.encode(text, parse_special) == ids
        library.encode_special_tokens = not parse_special
        theirs = library.encode(text, add_special_tokens=False).ids
        assert ids == (theirs if theirs[:1] == [900] else [900, *theirs])

    same_ids()
    library.encode_special_tokens = True
    for text in fixed_texts():
        ids = by_gguf.encode(text)
        assert by_json.encode(text) == ids == library.encode(text).ids
        if kind != "qwen2":  # which brings text into NFC
            assert by_json.decode(ids) == by_gguf.decode(ids) == text
    assert by_gguf.encode("e\u0301") == by_gguf.encode("é") or kind != "qwen2"


def test_ids_are_those_of_transformers(tmp_path):
    library = with_special("llama-bpe")
    library.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template(f"{BOS} $A")]
    )
    config = {
        "bos_token": {"__type": "AddedToken", "content": BOS, "special": True},
        "eos_token": EOS,
        "chat_template": "{{ messages }}",
        "model_max_length": 5,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    path = write_folder(tmp_path, library, tokenizer_config=config)
    ours, theirs = from_json(path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.bos_id == theirs.bos_token_id == 900
    assert ours.eos_id == theirs.eos_token_id == 901
    assert ours.chat_template == theirs.chat_template == "{{ messages }}"
    for text in (*fixed_texts()[:25], "".join(SPECIAL), f"a{IM_START}b{IM_END} ilÖveyou"):
        asked = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text, parse_special=True, add_bos=False) == asked
        plain = theirs(text, split_special_tokens=True).input_ids
        assert ours.encode(text) == plain
        assert ours.decode(asked) == theirs.decode(asked, skip_special_tokens=True) or "Ö" in text
    assert theirs.decode([904]) == "il\ufffdveyou"  # they take its letters for glyphs
    assert ours.decode([904]) == "ilÖveyou"


def test_what_an_entry_of_the_vocabulary_is_in_bytes():
    assert glyphs_to_bytes("\u0120caf\u00c3\u00a9") == " café".encode()
    assert glyphs_to_bytes("\u00e9") == b"\xe9"
    assert glyphs_to_bytes("日本") == "日本".encode()
    assert glyphs_to_bytes("") == b""
    vocab = read(with_special("gpt-2"), "gpt-2").vocab
    assert sorted(vocab[:256]) == [bytes([byte]) for byte in range(256)]
    assert vocab[900] == BOS.encode()
    assert vocab[904:] == ["ilÖveyou".encode(), b"    "]


@pytest.mark.parametrize("way", ["gguf", "json"])
def test_an_added_token_keeps_its_letters(way, folder):
    """The library's own decoder takes Ö for the glyph of byte 0xD6."""
    library = with_special("gpt-2")
    ours = read(library, "gpt-2") if way == "gguf" else folder(library)
    assert ours.encode("ilÖveyou") == [904]
    assert ours.decode([904]) == "ilÖveyou"
    assert library.decode([904]) != "ilÖveyou"


@pytest.mark.parametrize("key", ["add_bos_token", "add_eos_token"])
def test_flags_of_a_folder_are_true_or_false(key, folder):
    for value in (True, False, None):
        assert not folder(with_special("smollm"), tokenizer_config={key: value}).adds_bos
    for value in ("false", 2, 0, [0], {}):
        words = re.escape(f"tokenizer_config.json: {key} = {value!r} is not true or false")
        with pytest.raises(ModelFileError, match=words):
            folder(with_special("smollm"), tokenizer_config={key: value})


# ---------------------------------------------------------------- GGUF


@pytest.mark.parametrize("pre", ["default", "llama3x", "", None, 7, ["smollm"]])
def test_an_unknown_pre_tokenizer_is_refused_by_name(metadata, pre):
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.pre") as error:
        from_gguf(changed(metadata, "ggml.pre", pre), WHERE)
    assert repr(pre) in str(error.value)
    assert "gpt-2, smollm, llama-bpe, qwen2" in str(error.value)
    assert str(error.value).startswith("model.gguf: ")


@pytest.mark.parametrize("model", ["llama", "bert", "t5", "rwkv", "none", None, 1, ["gpt2"]])
def test_sentencepiece_and_others_are_refused_by_name(metadata, model):
    metadata = changed(metadata, "ggml.model", model)
    metadata["tokenizer.ggml.scores"] = [0.0] * len(metadata["tokenizer.ggml.tokens"])
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.model") as error:
        from_gguf(metadata, WHERE)
    assert repr(model) in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokens", None, "tokens is missing"),
        ("tokens", "abc", "tokens = 'abc' is not a list"),
        ("tokens", ["a", 1], "tokens[1] = 1 is not a text"),
        ("merges", None, "merges is missing"),
        ("merges", [1.5], "merges[0] = 1.5 is not a text"),
        ("merges", ["ab"], "'ab' in tokenizer.ggml.merges is not a pair"),
        ("merges", [""], "is not a pair"),
        ("merges", ["a "], "is not a pair"),
        ("merges", [" a"], "is not a pair"),
        ("merges", ["a b c"], "is not a pair"),
        ("merges", ["a  b"], "is not a pair"),
        ("merges", ["q \u0100\u0101"], "out of vocabulary"),
        ("token_type", [1, 1, 3], "token_type does not fit the tokens: 3 entries for 906"),
        ("token_type", 1, "token_type = 1 is not a list"),
        ("token_type", "1", "token_type = '1' is not a list"),
        *(
            ("token_type", [1, bad] * 453, f"token_type[1] = {bad!r} is not a token type")
            for bad in (0, 7, -1, 1.0, "3", True, None, [3])
        ),
        ("scores", [0.0], "scores does not fit the tokens: 1 entries for 906"),
        ("scores", 0.5, "scores = 0.5 is not a list"),
        *(
            ("scores", [0.5, bad] * 453, f"scores[1] = {bad!r} is not a number")
            for bad in ("3", True, None, [3])
        ),
        *(
            (f"add_{which}_token", bad, f"add_{which}_token = {bad!r} is not true or false")
            for which in ("bos", "eos")
            for bad in ("false", "", 0, 2, 1.0, [0], [])
        ),
        ("bos_token_id", 906, "bos_token_id = 906 is no token"),
        ("bos_token_id", -1, "bos_token_id = -1 is no token"),
        ("eos_token_id", 2**32 - 1, "eos_token_id = 4294967295 is no token"),
        ("eos_token_id", 1.0, "eos_token_id = 1.0 is no token"),
        ("eos_token_id", True, "eos_token_id = True is no token"),
        ("eot_token_id", "a", "eot_token_id = 'a' is no token"),
        ("eom_token_id", [901], "eom_token_id"),
    ],
)
def test_metadata_that_contradicts_itself(metadata, key, value, message):
    with pytest.raises(ModelFileError, match=re.escape(message)):
        from_gguf(changed(metadata, f"ggml.{key}", value), WHERE)


def test_every_token_type_and_scores_are_read(metadata):
    metadata["tokenizer.ggml.token_type"][:6] = range(1, 7)
    metadata["tokenizer.ggml.scores"] = [0, -0.5] * 453
    assert len(from_gguf(metadata, WHERE).vocab) == 906


def test_a_merge_whose_result_is_no_token(metadata):
    metadata["tokenizer.ggml.merges"].append("q \u00ff")
    with pytest.raises(ModelFileError, match=r"does not fit together.*out of vocabulary"):
        from_gguf(metadata, WHERE)


def test_a_token_listed_twice(metadata):
    metadata["tokenizer.ggml.tokens"][700] = metadata["tokenizer.ggml.tokens"][701]
    with pytest.raises(ModelFileError, match="names a token twice"):
        from_gguf(metadata, WHERE)


@pytest.mark.parametrize("value", [b"{{ a }}", 1, ["{{ a }}"], False])
def test_a_chat_template_that_is_no_text(metadata, value):
    with pytest.raises(ModelFileError, match="chat template"):
        from_gguf(changed(metadata, "chat_template", value), WHERE)


def test_no_value_of_any_key_ends_in_another_error(metadata):
    odd = [None, 0, -1, 2**63, 1.5, float("nan"), True, "", "a b", [], [0], ["a"], [""], [True]]
    keys = [*metadata, *(f"tokenizer.ggml.{key}" for key in ("add_bos_token", "eot_token_id"))]
    outcomes = set()
    for key in (*keys, "tokenizer.chat_template"):
        for value in odd:
            try:
                from_gguf({**metadata, key: value}, WHERE)
            except LlambdaError as error:
                assert error.fix
                outcomes.add(type(error))
            else:
                outcomes.add(Tokenizer)
    assert outcomes == {Tokenizer, ModelFileError, UnsupportedError}


def test_control_tokens_are_parsed_when_asked_for_and_user_defined_ones_always(metadata):
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    types[tokens.index(IM_END)] = 2  # unknown: a signal too
    ours = from_gguf(metadata, WHERE)
    assert ours.special_ids == {900, 901, 902, 903}
    text = f"{IM_START}ilÖveyou{IM_END}"
    assert ours.encode(text, parse_special=True) == [902, 904, 903]
    assert ours.encode(text).count(904) == 1
    assert not ours.special_ids & set(ours.encode(text))
    types[904] = types[902] = 1  # now nothing but entries that no merge leads to
    ours = from_gguf(metadata, WHERE)
    assert not {902, 904} & set(ours.encode(text, parse_special=True))


def test_without_types_all_tokens_are_normal():
    ours = read(with_special("gpt-2"), "gpt-2", token_type=None)
    assert ours.special_ids == frozenset()
    assert ours.stop_ids == {901}
    assert len(ours.encode(BOS, parse_special=True)) > 1


def test_a_spare_row_with_a_name_stands_for_nothing(metadata):
    metadata["tokenizer.ggml.tokens"] += ["[PAD906]", "[PAD907]"]
    metadata["tokenizer.ggml.token_type"] += [5, 5]
    ours = from_gguf(metadata, WHERE)
    assert len(ours.vocab) == 908
    assert ours.decode([906, *ours.encode("a"), 907, 908, 5000]) == "a"
    assert ours.encode("[PAD906]") == with_special("smollm").encode("[PAD906]").ids


@pytest.mark.parametrize(
    ("kind", "add_bos_token", "bos", "adds_bos"),
    [
        ("smollm", True, BOS, True),
        ("smollm", False, BOS, False),
        ("smollm", None, BOS, False),
        ("gpt-2", None, BOS, False),
        ("qwen2", None, BOS, False),
        ("llama-bpe", None, BOS, True),  # as llama.cpp has it
        ("llama-bpe", True, BOS, True),
        ("llama-bpe", False, BOS, False),
        ("llama-bpe", None, None, False),
        ("smollm", True, None, False),
    ],
)
def test_where_a_prompt_begins(kind, add_bos_token, bos, adds_bos):
    library = with_special(kind)
    bos_id = None if bos is None else library.token_to_id(bos)
    ours = read(library, kind, add_bos_token=add_bos_token, bos_token_id=bos_id)
    assert (ours.bos_id, ours.adds_bos) == (bos_id, adds_bos)
    assert ours.encode("word").count(900) == adds_bos
    assert ours.encode(f"{BOS}word", parse_special=True).count(900) == 1
    assert ours.encode("word", add_bos=False).count(900) == 0


def test_the_ids_that_end_an_answer():
    library = trained("gpt-2")
    library.add_special_tokens([BOS, "<stop>", "<eot>", "<eom>", *END_TEXTS, "<|endless|>"])
    named = {name: library.token_to_id(name) for name in ("<stop>", "<eot>", "<eom>")}
    ours = read(
        library,
        "gpt-2",
        eos_token_id=named["<stop>"],
        eot_token_id=named["<eot>"],
        eom_token_id=named["<eom>"],
    )
    assert ours.eos_id == named["<stop>"]
    assert ours.stop_ids == {*named.values(), *map(library.token_to_id, END_TEXTS)}
    assert len(END_TEXTS) == 7
    library = trained("gpt-2")
    library.add_tokens(["<|im_end|>"])  # plain text, though it looks like an end
    assert read(library, "gpt-2").stop_ids == frozenset()


def test_the_chat_template_of_a_gguf_file(metadata):
    assert from_gguf(metadata, WHERE).chat_template is None
    metadata["tokenizer.chat_template"] = "{{ messages }}"
    assert from_gguf(metadata, WHERE).chat_template == "{{ messages }}"


def test_words_are_taken_whole_by_llama_alone():
    tokens = [*alphabet(), "bc", "abc"]
    library = assembled(tokens, [("b", "c")], "llama-bpe", ignore_merges=True)
    assert read(library, "llama-bpe", add_bos_token=False).encode("abc") == [257]
    assert read(library, "gpt-2").encode("abc") == [tokens.index("a"), 256]


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        ("gpt-2", ["3333", "+", "33"]),
        ("smollm", ["3", "3", "3", "3", "+", "3", "3"]),
        ("llama-bpe", ["333", "3", "+", "33"]),
        ("qwen2", ["3", "3", "3", "3", "+", "3", "3"]),
    ],
)
def test_digits_go_together_as_far_as_the_pre_tokenizer_lets_them(kind, pieces):
    merges = [("3", "3"), ("33", "33"), ("33", "3")]
    library = assembled([*alphabet(), "33", "3333", "333"], merges, kind)
    ours = read(library, kind)
    assert [ours.vocab[i].decode() for i in ours.encode("3333+33")] == pieces


# ---------------------------------------------------------------- the shipped and the real model


@pytest.mark.real
def test_smollm2_agrees_with_llama_cpp_and_the_library(smollm2_path: Path):
    metadata = gguf.open(smollm2_path).metadata
    ours = from_gguf(metadata, smollm2_path)
    assert (ours.bos_id, ours.eos_id, ours.adds_bos) == (1, 2, False)
    assert ours.stop_ids == {0, 2}
    assert len(ours.vocab) == 49152
    assert len(ours.special_ids) == 17
    assert "<|im_start|>" in ours.chat_template
    for case in json.loads((GOLDEN / "smollm2_q4_1_greedy.json").read_bytes())["cases"]:
        assert ours.encode(case["text"], case["parse_special"]) == case["ids"]
        assert ours.decode(case["greedy"]) == case["greedy_text"]
    for case in json.loads((GOLDEN / "llamacpp_vs_pytorch.json").read_bytes())["cases"]:
        assert ours.encode(case["text"]) == case["ids"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    library = assembled(metadata["tokenizer.ggml.tokens"], merges, "smollm")
    for text in (*fixed_texts(), "<|im_start|>user<|im_end|>"):
        ids = library.encode(text).ids
        assert ours.encode(text) == ids
        assert ours.decode(ids) == library.decode(ids)
    assert ours.encode("<|im_start|>user\n", parse_special=True) == [1, 4093, 198]


def test_tiny_has_one_tokenizer_in_both_of_its_forms(tiny_path: Path):
    by_gguf = from_gguf(gguf.open(tiny_path).metadata, tiny_path)
    path = tiny_path.parent / "tiny" / "tokenizer.json"
    by_json, library = from_json(path), tokenizers.Tokenizer.from_file(str(path))
    assert by_json.vocab == by_gguf.vocab
    for name in ("special_ids", "bos_id", "eos_id", "adds_bos", "stop_ids"):
        assert getattr(by_json, name) == getattr(by_gguf, name), name
    for text in fixed_texts():
        assert by_gguf.encode(text) == by_json.encode(text) == library.encode(text).ids


# ---------------------------------------------------------------- tokenizer.json


def template(single: str) -> processors.TemplateProcessing:
    special = [(BOS, 900), (EOS, 901), (IM_START, 902)]
    return processors.TemplateProcessing(single=single, special_tokens=special)


def test_merges_as_text_and_as_pairs_agree(folder, data):
    pairs = folder(data)
    assert isinstance(data["model"]["merges"][0], list)
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    texts = folder(data)
    source = max(fixed_texts(), key=len)
    assert pairs.encode(source) == texts.encode(source) == with_special("smollm").encode(source).ids
    assert len(texts.encode(source)) < 0.6 * len(source)  # and they are used
    data["model"]["merges"] = []
    bytewise = folder(data).encode(source)
    assert len(bytewise) == len(source.encode()) - 3 * bytewise.count(905)  # four blanks at once


@pytest.mark.parametrize(
    ("single", "front", "bos"),
    [
        (None, [], 902),
        ("$A", [], 902),
        (f"{BOS} $A", [900], 900),
        (f"{BOS} $A {EOS}", [900], 900),  # a prompt is to be continued: its end is left out
        (f"$A {EOS}", [], 902),
    ],
)
def test_a_prompt_gets_what_the_post_processor_puts_in_front(folder, single, front, bos):
    library = with_special("llama-bpe")
    if single is not None:
        library.post_processor = template(single)
    config = {"bos_token": IM_START, "eos_token": EOS}
    ours = folder(library, tokenizer_config=config)
    bare = with_special("llama-bpe").encode("some text").ids
    assert (ours.bos_id, ours.adds_bos) == (bos, bool(front))
    assert ours.encode("some text") == front + bare
    assert ours.encode("") == front
    assert ours.encode("some text", add_bos=False) == bare
    assert ours.encode("some text", add_bos=True) == [bos, *bare]


def test_other_post_processors(folder):
    library = with_special("gpt-2")
    library.post_processor = processors.RobertaProcessing((EOS, 901), (BOS, 900))
    ours = folder(library)
    assert ours.encode("a") == [900, *with_special("gpt-2").encode("a").ids]
    library.post_processor = template(f"{BOS} {IM_START} $A")
    with pytest.raises(UnsupportedError, match="begin with 2 special tokens"):
        folder(library)


def test_truncation_and_padding_are_not_the_models(folder):
    library = with_special("smollm")
    whole = library.encode("one two three").ids
    assert len(whole) > 3
    library.enable_truncation(3)
    assert folder(library).encode("one two three") == whole
    library = with_special("smollm")
    library.enable_padding(length=64, pad_id=901, pad_token=EOS)
    ours = folder(library)
    assert ours.encode("one two three") == whole
    assert not ours.adds_bos


@pytest.mark.parametrize("name", [EOS, {"content": EOS, "special": True}])
def test_special_tokens_are_named_by_text_or_object(folder, name):
    ours = folder(with_special("smollm"), tokenizer_config={"bos_token": name, "eos_token": name})
    assert (ours.bos_id, ours.eos_id) == (901, 901)
    assert ours.stop_ids == {901, 903}


@pytest.mark.parametrize("config", [None, {}, {"bos_token": None, "eos_token": None}])
def test_a_token_without_a_name_is_not_the_word_none(folder, config):
    library = assembled([*alphabet(), "No", "ne", "None"], [("N", "o"), ("n", "e"), ("No", "ne")])
    files = {} if config is None else {"tokenizer_config": config}
    ours = folder(library, **files)
    assert (ours.bos_id, ours.eos_id, ours.stop_ids) == (None, None, frozenset())
    assert ours.encode("None") == [258]


@pytest.mark.parametrize(
    ("ends", "stop_ids"),
    [
        (902, {901, 902, 903}),
        ([902, 900], {900, 901, 902, 903}),
        ([], {901, 903}),
        (None, {901, 903}),
    ],
)
def test_the_generation_config_names_ends_of_an_answer(folder, ends, stop_ids):
    config = {"eos_token": EOS}
    generation = {"eos_token_id": ends}
    library = with_special("smollm")
    ours = folder(library, tokenizer_config=config, generation_config=generation)
    assert ours.stop_ids == stop_ids
    assert ours.eos_id == 901


@pytest.mark.parametrize("ends", ["x", 906, -1, [901, 10**9], {}, [None, [901]], 1.0, True])
def test_an_end_of_an_answer_that_is_no_token(folder, ends):
    with pytest.raises(ModelFileError, match=r"generation_config.json: eos_token_id = .* no token"):
        folder(with_special("smollm"), generation_config={"eos_token_id": ends})


@pytest.mark.parametrize("ends", ["x", 906, -1, [901, 10**9], {}, [None, [901]], 1.0, True])
def test_an_end_of_an_answer_in_the_config_that_is_no_token(folder, ends):
    with pytest.raises(ModelFileError, match=r"/config.json: eos_token_id = .* no token") as caught:
        folder(with_special("smollm"), config={"eos_token_id": ends})
    assert caught.value.fix


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest model with this vocabulary, as transformers saves it."""
    path = tmp_path_factory.mktemp("llama")
    sizes = {"vocab_size": 906, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**sizes, num_attention_heads=1)
    ).save_pretrained(path)
    write_folder(path, with_special("smollm"))
    return path


@pytest.mark.parametrize(
    "generation", [None, {}, *({"eos_token_id": e} for e in (None, 7, [7, 9]))]
)
@pytest.mark.parametrize("config", [None, 5, [5, 8], []])
def test_the_files_name_the_ends_that_transformers_finds_in_them(llama, config, generation):
    settings = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(settings | {"eos_token_id": config}))
    if generation is None:
        (llama / "generation_config.json").unlink(missing_ok=True)
    else:
        (llama / "generation_config.json").write_text(json.dumps(generation))
    theirs = transformers.LlamaForCausalLM.from_pretrained(llama).generation_config.eos_token_id
    expected = theirs if isinstance(theirs, list) else [] if theirs is None else [theirs]
    names = {901, 903}  # what ends an answer by its name
    assert from_json(llama / "tokenizer.json").stop_ids == {*expected} | names


@pytest.mark.parametrize("name", [{}, {"content": None}, ["<s>"], 5, False])
def test_a_special_token_that_is_no_text(folder, name):
    with pytest.raises(ModelFileError, match=r"tokenizer_config.json: eos_token = .* no token"):
        folder(with_special("smollm"), tokenizer_config={"eos_token": name})


def test_where_the_chat_template_comes_from(folder, tmp_path):
    library = with_special("smollm")
    several = [{"name": "tool_use", "template": "B"}, {"name": "default", "template": "C"}]
    for setting, template_found in [
        ("A", "A"),
        (several, "C"),
        (several[:1], None),
        (["A"], None),
        ([{"name": ["default"]}], None),
        (None, None),
    ]:
        ours = folder(library, tokenizer_config={"chat_template": setting})
        assert ours.chat_template == template_found
    assert folder(library, tokenizer_config={}).chat_template is None
    for setting in (5, {"default": "A"}, [{"name": "default", "template": 5}]):
        with pytest.raises(ModelFileError, match=r"tokenizer_config.json: the chat template"):
            folder(library, tokenizer_config={"chat_template": setting})
    file = tmp_path / "model" / "chat_template.jinja"
    file.write_text("Dé\n", encoding="utf-8")
    assert folder(library, tokenizer_config={"chat_template": "A"}).chat_template == "Dé\n"
    file.write_bytes(b"D\xe9")
    with pytest.raises(ModelFileError, match=r"chat_template.jinja: not UTF-8"):
        folder(library)


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer_config", "generation_config"])
@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', "[1, 2]", "\x00"])
def test_a_file_that_is_not_a_json_object(tmp_path, name, content):
    path = write_folder(tmp_path, with_special("smollm"))
    from_json(path)
    (tmp_path / f"{name}.json").write_text(content)
    with pytest.raises(ModelFileError, match=f"{name}.json: (not JSON|JSON, but not an object)"):
        from_json(path)


def test_a_folder_without_the_files(tmp_path):
    with pytest.raises(FileAccessError, match=r"tokenizer.json: no such file"):
        from_json(tmp_path / "tokenizer.json")
    ours = from_json(write_folder(tmp_path, with_special("smollm")))  # alone, it is enough
    assert (ours.bos_id, ours.eos_id, ours.adds_bos) == (None, None, False)
    assert ours.stop_ids == {901, 903}
    assert ours.chat_template is None


def metaspace_bpe() -> tokenizers.Tokenizer:
    """Llama 2's kind: SentencePiece's blanks and bytes as tokens of their own."""
    vocab = {"<unk>": 0, "▁": 1, "a": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    library = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    return library


@pytest.mark.parametrize(
    ("library", "name"),
    [
        (tokenizers.Tokenizer(models.Unigram([("a", -1.0)], None)), "'Unigram'"),
        (tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")), "'WordPiece'"),
        (tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), "'WordLevel'"),
        (metaspace_bpe(), r"'BPE' .*\['Metaspace'\]"),
        (tokenizers.Tokenizer(models.BPE({"a": 0}, [])), r"'BPE' .*\[\]"),
    ],
    ids=["Unigram", "WordPiece", "WordLevel", "Metaspace", "nothing"],
)
def test_another_kind_of_tokenizer_is_refused_by_name(folder, library, name):
    with pytest.raises(UnsupportedError, match=f"{name}.* is not supported"):
        folder(library)


def test_it_is_the_pre_tokenizer_that_must_be_byte_level(folder, data):
    assert data["decoder"]["type"] == "ByteLevel"
    data["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    with pytest.raises(UnsupportedError, match="WhitespaceSplit"):
        folder(data)
    data["pre_tokenizer"] = None
    with pytest.raises(UnsupportedError):
        folder(data)


def test_an_old_file_does_not_name_its_model(folder, data):
    """The library knows it by its merges, and reads it."""
    del data["model"]["type"]
    assert folder(data).encode("a word") == with_special("smollm").encode("a word").ids
    del data["model"]["merges"]
    with pytest.raises(UnsupportedError, match="None tokenizer"):
        folder(data)
    data["model"]["type"] = "Brand new"
    with pytest.raises(UnsupportedError, match="'Brand new'"):
        folder(data)


@pytest.mark.parametrize(
    ("key", "value"),
    [("dropout", 0.5), ("continuing_subword_prefix", "##"), ("end_of_word_suffix", "</w>")],
)
def test_a_setting_of_the_model_that_is_not_implemented(folder, data, key, value):
    data["model"][key] = value
    with pytest.raises(UnsupportedError, match=f"model.{key} = {value!r} is not supported"):
        folder(data)
    data["model"][key] = type(value)()
    assert folder(data).encode("a word") == with_special("smollm").encode("a word").ids


def test_blanks_beside_an_added_token_that_strips(folder):
    library = trained("gpt-2")
    library.add_tokens([AddedToken("<m>", lstrip=True, rstrip=True, normalized=False)])
    ours = folder(library)
    assert [ours.vocab[i] for i in ours.encode("a <m> b<m>")] == [b"a", b"<m>", b"b", b"<m>"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(model=None), "has no model"),
        (lambda d: d.update(model="BPE"), "has no model"),
        (lambda d: d.pop("model"), "has no model"),
        (lambda d: d.update(added_tokens=5), "not a usable tokenizer"),
        (lambda d: d["model"].update(vocab=["a"]), "not a usable tokenizer"),
        (lambda d: d["model"]["vocab"].update(zz=-1), "not a usable tokenizer"),
        (lambda d: d["model"]["vocab"].update({"\ud800": 906}), "not a usable tokenizer"),
        (lambda d: d["model"]["merges"].append(["q", "zzz"]), "out of vocabulary"),
        (lambda d: d["model"]["merges"].append(["q"]), "not a usable tokenizer"),
        (lambda d: d["model"]["vocab"].update(zz=7), "used twice"),
        (lambda d: d["model"]["vocab"].update(zz=2**32 - 1), "out of range"),
        (lambda d: d["added_tokens"][-1].update(id=7), "cannot have id 7"),
        (lambda d: d["added_tokens"][-1].update(id=2**32 - 1), "cannot have id 4294967295"),
        (lambda d: d["added_tokens"][-1].update(content=""), "'' cannot have id 905"),
        (lambda d: d["added_tokens"][-1].update(content=BOS), "cannot have id 905"),
        (lambda d: d["normalizer"].update(type="Unknown"), "not a usable tokenizer"),
    ],
)
def test_a_tokenizer_json_that_contradicts_itself(folder, data, change, message):
    data["normalizer"] = {"type": "NFC"}
    folder(data)
    change(data)
    with pytest.raises(ModelFileError, match=f"tokenizer.json: .*{message}"):
        folder(data)


def test_no_value_of_any_key_of_the_json_ends_in_another_error(folder):
    library = assembled([*alphabet(), "ab"], [("a", "b")], "llama-bpe")
    library.add_special_tokens([BOS])
    library.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, 257)]
    )
    original = json.loads(library.to_str())
    outcomes = set()

    def places(value, path=()):
        if path:
            yield path
        if isinstance(value, dict | list):
            for key in value if isinstance(value, dict) else range(len(value)):
                if path[-1:] != ("vocab",) or key in ("a", "ab"):
                    yield from places(value[key], (*path, key))

    for *path, last in list(places(original)):
        for odd in (None, -1, 3, 2**40, 1e9, True, "", "zz", [], [[]], {}, {"type": "BPE"}):
            data = copy.deepcopy(original)
            target = data
            for key in path:
                target = target[key]
            target[last] = odd
            try:
                folder(data)
            except LlambdaError as error:
                assert error.fix
                outcomes.add(type(error))
            else:
                outcomes.add(Tokenizer)
    assert outcomes == {Tokenizer, ModelFileError, UnsupportedError}


@pytest.mark.parametrize("merge", ["a b", "a z", "z a"])
def test_a_merge_of_what_is_no_token_is_refused(merge: str):
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.ggml.merges": [merge],
    }
    with pytest.raises(ModelFileError, match="of a merge, is out of vocabulary"):
        from_gguf(metadata, Path("x.gguf"))
