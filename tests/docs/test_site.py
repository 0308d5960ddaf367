"""The docs build as a site, without network, and every link of the site leads somewhere."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import rudder_hf

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
# What a browser fetches by itself when it opens a page.
LOADED = {"script": "src", "img": "src", "source": "srcset", "link": "href", "iframe": "src"}


class Page(HTMLParser):
    """Links, loaded files and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in LOADED and LOADED[tag] in found and found.get("rel") != "canonical":
            self.loaded.append(found[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("zensical", "mkdocstrings_handlers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip("zensical and mkdocstrings are not installed: pip install -c constraints.txt '.[docs]'")
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "docs", folder / "docs")
    config = (ROOT / "mkdocs.yml").read_text()
    assert "paths: [.]" in config  # the package is read from where it is installed
    (folder / "mkdocs.yml").write_text(
        config.replace("paths: [.]", f"paths: [{Path(rudder_hf.__file__).parent.parent}]")
    )
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    # A proxy that is not there: whatever asks the network fails.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    environment = {"PATH": str(Path(sys.executable).parent), "HOME": str(folder), **nowhere}
    built = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    said = re.sub(r"\x1b\[[0-9;]*m", "", built.stdout + built.stderr)
    assert built.returncode == 0, said[-3000:]
    return folder / "site"


def test_every_link_leads_somewhere_and_nothing_is_fetched(site: Path) -> None:
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    assert {path.stem for path in PAGES} <= {path.stem for path in pages}
    dead = []
    for path, page in pages.items():
        assert [url for url in page.loaded if urlsplit(url).netloc] == [], path.name
        assert "```" not in path.read_text(encoding="utf-8"), f"a code block of {path.name} is not read as one"
        for link in page.links + page.loaded:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else None
            if not target.is_file() or (url.fragment and anchors is not None and unquote(url.fragment) not in anchors):
                dead.append(f"{path.name}: {link}")
    assert dead == []


def test_the_api_page_has_every_public_name(site: Path) -> None:
    anchors = Page(site / "api.html").anchors
    missing = [name for name in rudder_hf.__all__ if name != "__version__" and f"rudder_hf.{name}" not in anchors]
    assert missing == []


def test_every_page_is_in_the_menu() -> None:
    menu = re.findall(r"[\w-]+\.md", yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(menu) == [path.name for path in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_pages_are_short_and_begin_with_what_the_reader_can_do_afterwards(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert len(lines) <= 200
    beginning = " ".join(lines[1:8])
    assert lines[0].startswith("# ")
    assert "After this page" in beginning, "say what the reader can do after this page"
