"""Options of `plumbline serve`: one declaration, four sources that agree.

Laws:
    1. A value means the same on the command line, in the environment, in a file and after a round trip as JSON.
    2. The first of command line, environment and file that has an option counts; API keys add up.
    3. A wrong value is an error that names its place, and repeats no secret.
    4. A name that is not an option is named with the nearest one.
    5. The help and docs/reference/options.md have every option; a help text imports only what it needs.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from ast import literal_eval
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from plumbline.cli import main
from plumbline.server.settings import OPTIONS, Option, Settings, SettingsError
from plumbline.server.settings.command_line import add_arguments
from plumbline.server.settings.help import help_text
from plumbline.server.settings.page import page
from plumbline.server.settings.sources import read_settings, unknown_variables

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "options.md"
_PAGES_OF_OPTIONS = """
guides/keys-and-tls guides/models guides/sampling guides/scale-out guides/storage guides/structured-output
reference/engines reference/limits reference/options reference/structured-output
"""
PARSER = argparse.ArgumentParser(add_help=False)
add_arguments(PARSER)
TEXT = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_categories=["C", "Z"]), min_size=1
).filter(lambda text: text.strip(" -~") == text)
WORDS = st.lists(
    TEXT.filter(lambda text: "," not in text and text[0] not in "[#"), min_size=1, max_size=3, unique=True
)


def found(
    arguments: list[str] | None = None, variables: Mapping[str, str] | None = None, **defaults: str
) -> Settings:
    return read_settings(vars(PARSER.parse_args(arguments or [])), variables or {}, **defaults).settings


def texts(option: Option, home: Path) -> st.SearchStrategy[Any]:
    """Values of an option as the command line has them: a text, or a list of texts."""
    certificate, secret = home / "file.pem", "a-secret-of-17-ch"
    special: dict[str, Any] = {
        "host": st.sampled_from(["localhost", "::1", "127.0.0.9"]),
        "lora": st.just(["a=./a", "b=./b=c"]),
        "sampling_defaults": st.sampled_from([['{"top_k": 4}'], ['a={"top_p": 0.5, "top_k": 4}']]),
        "logits_processor": st.just(["a=module:Class"]),
        "allow_mcp": st.just(["mcp.example.com", "127.0.0.1:8001", "[::1]:80"]),
        "public": st.just(["/metrics", "/docs"]),
        "lora_dir": st.just(str(home)),
        "model": st.sampled_from([["./a,b"], ["a=./a", "b=./b=c"]]),
        "model_dir": st.just(str(home)),
        "otlp_traces_endpoint": st.just("http://127.0.0.1:4318/v1/traces"),
        "forwarded_allow_ips": st.sampled_from(["127.0.0.1", "10.0.0.0/8, ::1", "*"]),
        "ssl_certfile": st.just(str(certificate)),
        "ssl_keyfile_password_file": st.just(str(certificate)),
        "sealing_key": st.just(secret),
        "api_servers": st.just("1"),
    }
    if option.name in special:
        chosen: st.SearchStrategy[Any] = special[option.name]
        return chosen
    if option.choices:
        return st.sampled_from(option.choices)
    if option.basic is bool:
        return st.sampled_from(["true", "false"])
    if option.basic is tuple:
        return WORDS
    if option.basic in (int, float):
        return st.integers(1, 60).map(str) if option.name != "device_memory" else st.just("0.25")
    return TEXT


def ways(option: Option, text: Any, home: Path) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Yield each way to give a value: its name, the command line and the environment."""
    several = isinstance(text, list)
    config, named = home / "plumbline.toml", home / "value"
    typed = text if several or option.basic is str else json.loads(text)
    config.write_text(f"{option.name} = {json.dumps(typed, ensure_ascii=False)}\n", "utf-8")
    yield "file", ["--config", str(config)], {}
    yield "file by variable", [], {"PLUMBLINE_CONFIG": str(config)}
    if not (option.about.whole and len(text) > 1):
        yield "variable", [], {option.variable: ",".join(text) if several else text}
    if several:
        yield "variable with JSON", [], {option.variable: json.dumps(text)}
    if not option.about.only_in_file:
        if option.basic is bool:
            flag = [option.flag if text == "true" else option.flag.replace("--", "--no-", 1)]
        elif option.about.spread:
            flag = [option.flag, *text]
        else:
            flag = [f"{option.flag}={each}" for each in (text if several else [text])]
        yield "flag", flag, {}
    if option.about.in_file:
        named.write_text("\n".join(text) if several else text, "utf-8")
        yield "flag of a file", [option.file_option.flag, str(named)], {}
        yield "variable of a file", [], {option.file_option.variable: str(named)}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    (folder / "file.pem").touch()
    return folder


@settings(max_examples=4, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_every_source_gives_the_same_settings(home: Path, data: st.DataObject) -> None:
    offenders = []
    for option in OPTIONS:
        text = data.draw(texts(option, home), option.name)
        further = {"PLUMBLINE_SSL_CERTFILE": str(home / "file.pem")} if option.name.startswith("ssl_") else {}
        if option.name == "uds_group":
            further = {"PLUMBLINE_UDS": "socket"}
        if option.name == "proxy_protocol":
            further = {"PLUMBLINE_FORWARDED_ALLOW_IPS": "127.0.0.1"}
        if option.name == "models_memory_bytes":
            further = {"PLUMBLINE_MODEL_DIR": str(home)}
        if option.name in ("ssl_keyfile", "ssl_ca_certs"):
            text = str(home / "file.pem")
        results = {
            name: found(flags, {**further, **variables})
            for name, flags, variables in ways(option, text, home)
        }
        first = results["file"]
        again = msgspec.json.decode(msgspec.json.encode(first), type=Settings)
        value = {str: str, bool: lambda text: text == "true", tuple: tuple}.get(option.basic, float)(text)  # type: ignore[operator]
        if option.name in ("logits_processor", "lora", "model", "sampling_defaults"):
            value = tuple(tuple(one.split("=", 1)) if "=" in one else ("", one) for one in text)
        if any(each != first for each in (*results.values(), again)) or getattr(first, option.field) != value:
            offenders.append((option.name, text, results))
    assert offenders == []


def test_without_options_the_defaults_count() -> None:
    assert found() == Settings()
    assert found([], {"PLUMBLINE_PORT": "", "PLUMBLINE_API_KEY": ""}) == Settings()
    assert found([], {}, store="a.db") == found(["--store", ""], {}, store="a.db") == Settings(store="a.db")


def test_the_first_source_counts(tmp_path: Path) -> None:
    config = tmp_path / "plumbline.toml"
    config.write_text('port = 1\nstrict = true\nserved_model_name = ["file"]\nmax_num_seqs = 3\n', "utf-8")
    variables = {"PLUMBLINE_PORT": "2", "PLUMBLINE_STRICT": "1", "PLUMBLINE_SERVED_MODEL_NAME": "a,b"}

    both = found(["--config", str(config), "--port", "3", "--no-strict"], variables)
    assert (both.port, both.strict, both.max_num_seqs) == (3, False, 3)
    assert both.served_model_names == ("a", "b")
    assert found([], {**variables, "PLUMBLINE_CONFIG": str(config)}).port == 2


def test_api_keys_of_all_sources_count(tmp_path: Path) -> None:
    path, config = tmp_path / "keys", tmp_path / "plumbline.toml"
    path.write_text("# ours\n file-key \n\none\n")
    config.write_text('api_key = ["toml-key", "two"]\nsealing_key = "the key in the file"\n')
    given = ["--api-key", "one", "--api-key=two", "--api-key-file", str(path), "--config", str(config)]

    keys = found(given, {"PLUMBLINE_API_KEY": "env-a, env-b,,"})
    assert keys.api_keys == ("one", "two", "file-key", "env-a", "env-b", "toml-key")
    assert keys.sealing_key == "the key in the file"
    assert (
        found(given, {"PLUMBLINE_SEALING_KEY": " the key from outside "}).sealing_key
        == "the key from outside"
    )


def test_a_sealing_key_has_one_place_in_each_source(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the key in a file", "utf-8")
    key, file = "PLUMBLINE_SEALING_KEY", {"PLUMBLINE_SEALING_KEY_FILE": str(tmp_path / "key")}
    assert found([], file).sealing_key == "the key in a file"
    with pytest.raises(SettingsError, match=rf"is given twice: leave out {key} or {key}_FILE"):
        found([], {**file, key: "another key of 16"})


def test_paths_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "plumbline.toml").write_text('uds = "~/socket"\nlora = ["a=~/a"]\n', "utf-8")

    both = found(["--config", "~/plumbline.toml"])
    assert both.uds == f"{tmp_path}/socket"
    assert both.loras == (("a", f"{tmp_path}/a"),)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no endless file")
def test_an_endless_file_is_refused() -> None:
    for option in ("--config", "--api-key-file"):
        with pytest.raises(SettingsError, match=rf"^{option} names /dev/zero, which .* larger than"):
            found([option, "/dev/zero"])


@pytest.mark.parametrize("content", [None, b"# nothing\n", b"\xff\xfe", b"k" * (1024**2 + 1)])
def test_a_key_file_without_keys_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"^--api-key-file names "):
        found(["--api-key-file", str(path)])
    with pytest.raises(SettingsError, match=r"^PLUMBLINE_API_KEY_FILE names "):
        found([], {"PLUMBLINE_API_KEY_FILE": str(path)})


def test_a_wrong_value_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    config = tmp_path / "plumbline.toml"
    offenders = []
    for option in OPTIONS:
        for value in ({"s3cret": 1}, [["s3cret"]], "s3cret", -(10**30), 10**30, float("nan"), float("inf")):
            if isinstance(value, str) and option.basic in (str, tuple) and not option.choices:
                continue
            inline = (
                "{ s3cret = 1 }"
                if isinstance(value, dict)
                else json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
            )
            config.write_text(f"{option.name} = {inline}\n", "utf-8")
            places: list[tuple[str, list[str], dict[str, str]]] = [
                (f"{option.name} in {config} ", ["--config", str(config)], {})
            ]
            if not isinstance(value, dict | list) and (option.basic is not str or option.choices):
                places += [(f"{option.variable} ", [], {option.variable: str(value)})] * (
                    option.basic is not tuple
                )
                places += [(f"{option.flag} ", [f"{option.flag}={value}"], {})] * (
                    option.basic not in (bool, tuple)
                )
            for place, flags, variables in places:
                try:
                    offenders.append((option.name, value, found(flags, variables)))
                except SettingsError as error:
                    shows = option.about.secret and "s3cret" in str(error)
                    if not str(error).startswith(f"{place}must be ") or shows or "\n" in str(error):
                        offenders.append((option.name, value, str(error)))  # type: ignore[arg-type]
    assert offenders == []


def test_a_contradiction_names_the_place_of_the_value(tmp_path: Path) -> None:
    config = tmp_path / "plumbline.toml"
    config.write_text('host = "0.0.0.0"\n', "utf-8")
    with pytest.raises(SettingsError, match=f"^host in {re.escape(str(config))} is 0.0.0.0"):
        found(["--config", str(config)])
    with pytest.raises(SettingsError, match=r"^PLUMBLINE_HOST is 0\.0\.0\.0"):
        found([], {"PLUMBLINE_HOST": "0.0.0.0"})
    with pytest.raises(SettingsError, match=r"^PLUMBLINE_SEALING_KEY must") as caught:
        found([], {"PLUMBLINE_SEALING_KEY": "s3cret"})
    assert "s3cret" not in str(caught.value)
    with pytest.raises(SettingsError, match="PLUMBLINE_PORT is the address of a Kubernetes Service"):
        found([], {"PLUMBLINE_PORT": "tcp://10.0.0.1:8000"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"port = 1\nport = 2\n", "not valid TOML"),
        (b"port = \n", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"\x7fELF\x00\x00", "not valid TOML"),
        (b"a = " + b"[" * 100_000, "TOML|nested"),
        (b"port = " + b"9" * 5000, "cannot be read"),
        (b"#" * (1024**2 + 1), "larger than"),
        (b"prot = 1", r"prot \(did you mean port\?\)"),
        (b"max-num-seqs = 1", r"did you mean max_num_seqs\?"),
        (b"[server]\nport = 1", "not in tables"),
        (b'"\\u001b[31m" = 1', r"x1b\[31m"),
        (b"\n".join(b"k%d = 1" % number for number in range(50_000)), "k0.*…"),
        (None, "cannot be read: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path
    if content is not None:
        path = tmp_path / "plumbline.toml"
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=words) as caught:
        found(["--config", str(path)])
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400 + len(str(path))


def test_an_unknown_variable_is_named_with_the_nearest_option() -> None:
    known = {option.variable: "1" for option in OPTIONS} | {
        "PLUMBLINE_CONFIG": "f",
        "PATH": "/",
        "PLUMBLINE_LAWS": "",
    }
    assert unknown_variables({**known, "PLUMBLINE_API_KEY_FILE": "f"}) == ""
    line = unknown_variables({"PLUMBLINE_PROT": "s3cret", "PLUMBLINE_MAX_NUM_SEQ": "1"})
    assert "PLUMBLINE_PROT (did you mean PLUMBLINE_PORT?)" in line
    assert "PLUMBLINE_MAX_NUM_SEQ (did you mean PLUMBLINE_MAX_NUM_SEQS?)" in line
    assert "s3cret" not in line


def test_an_unknown_flag_does_not_repeat_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["--api-keyz", "s3cret"],
        ["--api-keyz=s3cret"],
        ["--api-ke=s3cret"],
        ["model", "s3cret"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["serve", *arguments])
        assert ended.value.code == 2
        assert "s3cret" not in capsys.readouterr().err


def test_the_help_and_the_page_have_every_option(tmp_path: Path) -> None:
    printed = help_text(PARSER, "all") or ""
    names = {
        each.flag
        for option in OPTIONS
        for each in (option, option.file_option)[: 1 + bool(option.about.in_file)]
    }
    names -= {option.flag for option in OPTIONS if option.about.only_in_file}

    assert [name for name in names if not re.search(rf"{name}\b(?!-)", printed)] == []
    assert PAGE.read_text("utf-8") == page(), "run `nox -s generate`"
    for name in _PAGES_OF_OPTIONS.split():
        text = (PAGE.parents[1] / f"{name}.md").read_text("utf-8")
        documented = set(re.findall(r"`(--[a-z][a-z-]+)|serve [^`\n]*(--[a-z-]+)", text))
        switches = {option.flag.replace("--", "--no-", 1) for option in OPTIONS if option.basic is bool}
        assert {each for pair in documented for each in pair if each} - names - switches <= {"--config"}, name
    config = tmp_path / "plumbline.toml"
    config.write_text(PAGE.read_text("utf-8").split("```")[1].removeprefix("toml\n"), "utf-8")
    assert found(["--config", str(config)]).max_num_seqs == 64


def test_the_help_comes_in_parts_of_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    for group in {option.about.group for option in OPTIONS}:
        printed = help_text(PARSER, group) or ""
        assert len(printed.splitlines()) <= 60, group
        for option in OPTIONS:
            flag = (option.file_option if option.about.only_in_file else option).flag
            found = re.search(rf"^  (-h.*)?{flag}\b(?!-)", printed, re.MULTILINE)
            assert (found is not None) is (option.about.group == group), (group, flag)
    assert "--kv-cache-bytes" in (help_text(PARSER, "cache") or "")
    for arguments, status, words in (
        (["--help"], 0, "common options"),
        (["--help", "nix"], 2, "finds nothing"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["serve", *arguments])
        printed = "".join(capsys.readouterr())
        assert ended.value.code == status
        assert words in printed
        assert len(printed.splitlines()) <= 75


def test_fields_have_distinct_names() -> None:
    names = [option.name for option in OPTIONS]
    assert len(set(names)) == len(names) == len(msgspec.structs.fields(Settings))


def test_a_help_text_imports_only_what_it_needs() -> None:
    """`plumbline serve --help` must start in 0.2 s, and work where the packages of the server are not installed."""
    code = "import sys; from plumbline.cli import main\ntry: main({})\nexcept SystemExit: print(sorted(sys.modules))"
    for arguments, allowed in ((["--help"], set()), (["serve", "--help"], {"msgspec"})):
        command = [sys.executable, "-c", code.format(arguments)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        modules = {name.partition(".")[0] for name in literal_eval(printed.splitlines()[-1])}
        slow = {"asyncio", "httpx2", "jinja2", "litestar", "msgspec", "numpy", "pydantic", "rich", "torch"}
        assert modules & slow == allowed
        assert "usage: plumbline" in printed
