"""Where the rows of a split come from: a known set, a set on the hub, a file or a folder, and what overrides them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from marft.config.section import nearest
from marft.envs.base import Split
from marft.envs.data.files import is_data_file
from marft.envs.data.hub import split_names
from marft.envs.data.known import KNOWN, HubPart, Kind, KnownSet
from marft.types import MarftError

HUB_NAME = re.compile(r"(?P<hub>[\w-][\w.-]*/[\w-][\w.-]*)(:(?P<config>[\w.-]+))?", re.ASCII)
SPLIT_NAME = re.compile(
    r"((?P<config>[\w.-]+):)?(?P<split>[A-Za-z_]\w*(\[[\d%:-]*\])?(\+[A-Za-z_]\w*(\[[\d%:-]*\])?)*)"
)
SHARD = re.compile(r"-\d+-of-(?P<all>\d+)$")  # train-00000-of-00002
TEST_NAMES = ("test", "validation", "valid", "val", "dev")  # the first that is there is the test split


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """The data of an environment, as its settings give it.

    `data` is a known set, `owner/name[:config]` on the hub, a file or a folder. `train` and `test` say where that split
    comes from instead: a file, a folder, another set, or a split of the hub set such as `train[:500]`. Where there is
    only one split, the share `held_out` of its rows (a tenth, if not given) is kept for test. `prompt` and `answer` name
    the columns where the set's own or the usual names do not fit.
    """

    data: str
    train: str | None = None
    test: str | None = None
    held_out: float | None = None
    prompt: str | None = None
    answer: str | None = None

    def __post_init__(self) -> None:
        for key in ("data", "train", "test", "prompt", "answer"):
            value = getattr(self, key)
            if not (isinstance(value, str) and value.strip()) and not (value is None and key != "data"):
                raise ValueError(f"{key} must be a text that is not empty, not {value!r}")
        share = self.held_out
        if share is not None and (isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1):
            raise ValueError(f"held_out must be a share between 0 and 1, such as 0.1, not {share!r}")

    def require_kind(self, kind: Kind) -> None:
        """ValueError where one of the sets is of another kind."""
        for key in ("data", "train", "test"):
            known = KNOWN.get(getattr(self, key))
            if known is not None and known.kind != kind:
                what = "programs" if known.kind == "code" else "problems without tests"
                raise ValueError(f"{key}: {known.name} is a set of {what}; use env={known.kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Files, or parts of a hub set; the name begins the ids of its tasks."""

    name: str
    known: KnownSet | None = None
    paths: tuple[Path, ...] = ()
    hub: str | None = None
    parts: tuple[HubPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Both splits of a source. The same origin twice, or no test at all, means that one origin serves both."""

    train: Origin | None
    test: Origin | None


def find_origins(source: DataSource) -> Origins:
    """Where both splits come from; nothing is read yet, but the hub may be asked how it calls its splits."""
    train, test = (override_origin(source, split) for split in ("train", "test"))
    if train is None or test is None:
        own = origins_of(source.data)
        train, test = train or own.train, test or own.test
    return Origins(train=train, test=test)


def override_origin(source: DataSource, split: Split) -> Origin | None:
    """Where `train` or `test` of the source says that split comes from; None where it says nothing."""
    text = source.train if split == "train" else source.test
    if text is None:
        return None
    known, on_hub = KNOWN.get(source.data), source.data in KNOWN or is_hub_name(source.data)
    if on_hub and text not in KNOWN and (named := SPLIT_NAME.fullmatch(text)):
        return split_of_hub(source.data, named["config"], named["split"], f"env.{split}={text}")
    if not (text in KNOWN or is_path(text) or is_hub_name(text)):
        raise MarftError(
            f"env.{split}: {text} is no file, no known set and no split of {source.data}; name one that is"
        )
    origins = origins_of(text)
    origin = origins.train if split == "train" else origins.test
    if origin is None:
        raise MarftError(f"env.{split}: {text} has no {split} split; name another set or a file")
    if not origin.paths:
        return origin
    name = file_stem(Path(source.data)) if is_path(source.data) and not on_hub else source.data
    return Origin(name=name, known=known, paths=origin.paths)  # a file has the columns of the set it stands in for


def split_of_hub(data: str, config: str | None, split: str, said: str) -> Origin:
    """One split of the hub set `data`; `said` is quoted where it names several."""
    known = KNOWN.get(data)
    if known is None:
        own = HUB_NAME.fullmatch(data)
        assert own is not None
        part = HubPart(config=config or own["config"], split=split)
        return Origin(name=data, hub=own["hub"], parts=(part,))
    configs = sorted({part.config for part in known.train + known.test if part.config})
    if config is None and len(configs) > 1:
        raise MarftError(f"{said}: {data} is several sets; say which, as CONFIG:{split} with {', '.join(configs)}")
    part = HubPart(config=config or (configs[0] if configs else None), split=split)
    return Origin(name=data, known=known, hub=known.hub, parts=(part,))


def origins_of(text: str) -> Origins:
    """Both splits of a known set, a file, a folder or a hub set; known names win over folders of that name."""
    if known := KNOWN.get(text):
        train, test = (
            Origin(name=text, known=known, hub=known.hub, parts=parts) if parts else None
            for parts in (known.train, known.test)
        )
        return Origins(train=train, test=test)
    if is_path(text):
        return origins_of_path(Path(text).expanduser())
    if named := HUB_NAME.fullmatch(text):
        return origins_on_hub(text, named["hub"], named["config"])
    hint = nearest(text, KNOWN) or f"; use owner/name on the hub, a file, a folder or {', '.join(KNOWN)}"
    raise MarftError(f"env.data: {text} is no known set and no file{hint}")


def is_path(text: str) -> bool:
    """Whether it looks like a file or folder, or is one."""
    path = Path(text).expanduser()
    return is_data_file(path) or text.startswith(("/", "./", "../", "~")) or path.exists()


def is_hub_name(text: str) -> bool:
    """Whether it is `owner/name[:config]` and no path."""
    return HUB_NAME.fullmatch(text) is not None and not is_path(text)


def origins_of_path(path: Path) -> Origins:
    """A file serves both splits; a folder has a file or shards for each."""
    if not path.is_dir():  # reading it says what is wrong, should it not be there
        whole = Origin(name=file_stem(path), paths=(path.resolve(),))
        return Origins(train=whole, test=whole)
    files = sorted(file.resolve() for file in path.iterdir() if file.is_file() and is_data_file(file))
    if len(files) == 1 and not split_in_name(files[0]):
        return origins_of_path(files[0])
    found = {name: split_files(path, name, files) for name in ("train", *TEST_NAMES)}
    train, test = found["train"], next((found[name] for name in TEST_NAMES if found[name]), ())
    if not train and not test:
        raise MarftError(f"{path} holds no file that ends in train or test; name them: env.train=FILE env.test=FILE")
    own, held = (Origin(name=path.resolve().name, paths=paths) if paths else None for paths in (train, test))
    return Origins(train=own, test=held)


def file_stem(path: Path) -> str:
    """The name without what tells the format: `gsm8k_train` of gsm8k_train.jsonl.gz."""
    name = path.name.removesuffix(".gz")
    return Path(name).stem if is_data_file(path) else path.name


def split_in_name(file: Path) -> str | None:
    """`train` of train.jsonl, gsm8k_train.jsonl and train-00000-of-00002.parquet; nothing of contest.csv."""
    last = re.split(r"[^a-z0-9]+", SHARD.sub("", file_stem(file)).lower())[-1]
    return last if last in ("train", *TEST_NAMES) else None


def split_files(folder: Path, split: str, files: list[Path]) -> tuple[Path, ...]:
    """The one file of a split, or all its shards."""
    mine = [file for file in files if split_in_name(file) == split]
    numbered = [SHARD.search(file_stem(file)) for file in mine]
    if len(mine) > 1 and (None in numbered or len({SHARD.sub("", file_stem(file)) for file in mine}) > 1):
        names = ", ".join(file.name for file in mine)
        raise MarftError(f"{folder} holds several files for {split}: {names}; choose with env.train=FILE env.test=FILE")
    if mine and numbered[0] and int(numbered[0]["all"]) != len(mine):
        raise MarftError(
            f"{folder} holds {len(mine)} of the {int(numbered[0]['all'])} files of {split}; fetch the others"
        )
    return tuple(mine)


def origins_on_hub(text: str, hub: str, config: str | None) -> Origins:
    """By the usual names of splits; MarftError where none of them is there."""
    names = split_names(hub, config)
    train = "train" if "train" in names else names[0] if len(names) == 1 and names[0] not in TEST_NAMES else None
    test = next((name for name in TEST_NAMES if name in names), None)
    if train is None and test is None:
        raise MarftError(f"{hub} has the splits {', '.join(names)}; choose: env.train=SPLIT env.test=SPLIT")
    own, held = (
        Origin(name=text, hub=hub, parts=(HubPart(config=config, split=n),)) if n else None for n in (train, test)
    )
    return Origins(train=own, test=held)
