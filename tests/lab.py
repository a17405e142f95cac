"""Lessons in the real JupyterLab, run and photographed. By hand; pytest does not collect this.

    pip install playwright          and a Chromium, found on PATH or named by CHROMIUM
    .venv/bin/python tests/lab.py SCREENSHOTS 00 04

For each lesson it makes a reader's copy, opens it in JupyterLab on this machine alone, runs all
cells, and fails if one ends in an error, writes to stderr, is wider than the page, or if a solution
stands unfolded. What it saw is in SCREENSHOTS/NN-1.png and so on, a screenful each: look at them.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from llambda.course.copies import start_lesson
from llambda.course.lessons import find_lesson

WIDTH, HEIGHT = 1280, 1600
MINUTES = 5  # for a lesson
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SETTINGS = {  # all cells drawn, not only those in view; and no questions asked
    "notebook-extension/tracker": '{"windowingMode": "none"}',
    "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
}
PROMPTS = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]"
BEGUN = f"() => {PROMPTS}.some(prompt => /[*\\d]/.test(prompt.textContent))"
DONE = f"() => {PROMPTS}.every(prompt => /\\d/.test(prompt.textContent))"
PROBLEMS = """() => {
    const all = (what) => [...document.querySelectorAll(what)];
    const text = (node) => node.textContent.trim().slice(0, 200);
    const at = (kind) => all(`[data-mime-type="application/vnd.jupyter.${kind}"]`);
    const wide = all('.jp-OutputArea-output, .jp-RenderedMarkdown').filter(
        node => node.scrollWidth > node.clientWidth + 2);
    return [
        ...at('error').map(node => 'an error: ' + text(node)),
        ...at('stderr').map(node => 'on stderr: ' + text(node)),
        ...wide.map(node => 'wider than the page: ' + text(node)),
        ...all('details[open]').map(node => 'unfolded: ' + text(node)),
    ];
}"""
SCROLL = """(top) => {
    const panel = document.querySelector('.jp-WindowedPanel-outer');
    panel.scrollTop = top;
    return panel.scrollHeight - panel.clientHeight;
}"""


@contextmanager
def jupyter_lab(folder: Path) -> Iterator[str]:
    """JupyterLab on a folder, with settings of its own; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, text in SETTINGS.items():
        file = folder / ".settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    options = {"ip": "127.0.0.1", "port": port, "IdentityProvider.token": "", "root_dir": folder}
    command += [f"--{k if '.' in k else f'ServerApp.{k}'}={v}" for k, v in options.items()]
    environment = os.environ | {"JUPYTERLAB_SETTINGS_DIR": str(folder / ".settings")}
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        for _ in range(300):
            time.sleep(0.2)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield f"http://127.0.0.1:{port}/lab"
    finally:
        server.terminate()
        server.wait()


def run_all(page: Page, address: str) -> None:
    dialog = page.locator(".jp-Dialog")  # whatever it asks: yes
    page.add_locator_handler(dialog, lambda: page.click(".jp-Dialog .jp-mod-accept"))
    page.goto(address)
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=120_000)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=120_000)
    while not page.evaluate(BEGUN):  # on a busy machine a click may come too early
        page.click(".lm-MenuBar-itemLabel:text-is('Run')")
        page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
        page.wait_for_timeout(3000)
    page.wait_for_function(DONE, timeout=MINUTES * 60_000)
    page.wait_for_timeout(2000)


def photograph(page: Page, folder: Path, number: str) -> int:
    """Screenfuls from top to bottom; gives how many."""
    last, count = page.evaluate(SCROLL, 0), 0
    for top in range(0, last + HEIGHT - 150, HEIGHT - 150):
        page.evaluate(SCROLL, top)
        page.wait_for_timeout(300)
        count += 1
        page.screenshot(path=folder / f"{number}-{count}.png")
    return count


def main(screenshots: Path, lessons: list[str]) -> int:
    screenshots.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    problems: list[Any] = []
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as play:
        folder = Path(temporary)
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        with jupyter_lab(folder) as address:
            for number in lessons:
                list(start_lesson(number, folder))
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
                name = find_lesson(number).path.name
                run_all(page, f"{address}/workspaces/{number}/tree/{name}")  # no other open in it
                found = page.evaluate(PROBLEMS)
                pages = photograph(page, screenshots, number)
                print(f"{number}: {pages} screenfuls, {len(found)} problems")
                problems += found
                page.close()
        browser.close()
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
