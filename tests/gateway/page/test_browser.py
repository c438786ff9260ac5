"""The page in a real browser: what people see and press, by keyboard too, and what a checker of accessibility finds.

Needs the extra `browser` and Chromium. `BATON_WRITE_PICTURES=1` writes the pictures of docs/page.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from baton_gateway.page.viewer import Viewer
from baton_gateway.requests.tenant import Tenant
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, running_gateway
from baton_testing.gateway.page_data import made_document, with_every_text

playwright_api = pytest.importorskip("playwright.async_api", reason="the extra `browser` is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
    pytest.mark.processes,
]
PICTURES = Path(__file__).parents[3] / "docs/images"
WRITES_PICTURES = "BATON_WRITE_PICTURES" in os.environ
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PANELS = ("overview", "requests", "tenants", "history", "playground")
HOSTILE = "<img src=x onerror=\"document.body.dataset.hacked='1'\"><script>document.body.dataset.hacked='1'</script>"
OpenPage = Callable[..., Awaitable[Any]]


@pytest.fixture
async def open_page() -> AsyncIterator[OpenPage]:
    """Open the page of a gateway. What the browser complains of, and requests elsewhere, fail the test in the end."""
    complaints: list[str] = []
    async with playwright_api.async_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)

        async def open_one(gateway: RunningGateway, panel: str = "overview", **options: Any) -> Any:
            context = await browser.new_context(**({"viewport": DESKTOP, "locale": "en-GB"} | options))
            page = await context.new_page()
            page.on("console", lambda line: complaints.append(line.text) if is_complaint(line) else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            own = gateway.url("/")
            page.on("request", lambda sent: None if sent.url.startswith(own) else complaints.append(sent.url))
            await page.goto(gateway.url(f"/ui/#{panel}"))
            return page

        yield open_one
        await browser.close()
    assert complaints == []


def is_complaint(line: Any) -> bool:
    """A refused key is no fault of the page."""
    return line.type == "error" and "status of 401" not in line.text


def shows(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, document: dict[str, Any]) -> None:
    """Have a gateway answer with made data."""

    async def answer(viewer: Viewer, query: str) -> bytes:
        matches = document["slowest"][3:4] if query else None
        return json.dumps(document | {"found": matches}).encode()

    monkeypatch.setattr(gateway.server.page, "document", answer)


@pytest.fixture
def busy(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> RunningGateway:
    shows(gateway, monkeypatch, made_document())
    return gateway


async def test_a_gateway_without_load_shows_its_workers_and_says_that_nothing_limits(
    gateway: RunningGateway, open_page: OpenPage
) -> None:
    page = await open_page(gateway)
    await page.wait_for_selector("#workers tbody tr")
    assert await page.locator("#workers tbody tr").count() == 2
    assert "Nothing: no request" in await page.inner_text("#answers")
    assert (await page.inner_text("#status")).startswith("Live, all tenants")


async def test_the_overview_answers_the_four_questions(busy: RunningGateway, open_page: OpenPage) -> None:
    page = await open_page(busy)
    await page.wait_for_selector("#answers .card")
    answers = await page.inner_text("#answers")
    for words in ("The decode pool: ", "forecast 18,400 prompt tokens/s", "search: 48.2 % of 110"):
        assert words in answers
    assert "decoding beyond the target" in answers
    assert await page.locator("#attainment svg .mark").count() == 2
    assert "within 500 ms" in await page.inner_text("#attainment")


async def test_a_request_is_opened_and_found_with_the_keyboard_alone(busy: RunningGateway, open_page: OpenPage) -> None:
    page = await open_page(busy, "requests")
    first = page.locator("#request-list button").first
    await first.wait_for()
    await first.focus()
    await page.keyboard.press("Enter")
    assert await page.inner_text("#request-detail h3") == await first.inner_text()
    assert await page.evaluate("document.activeElement.id") == "request-detail"
    assert "decoding" in await page.inner_text("#request-detail")
    await page.focus("#find")
    await page.keyboard.type("req-of-somebody")
    await page.keyboard.press("Enter")
    wanted = made_document()["slowest"][3]["id"]
    await page.wait_for_function("id => document.querySelector('#request-detail h3')?.textContent === id", arg=wanted)


async def test_every_panel_is_reached_by_tab_and_enter(busy: RunningGateway, open_page: OpenPage) -> None:
    page = await open_page(busy, "")
    await page.wait_for_selector("#to-playground:not([hidden])")
    reached = []
    for _ in range(8):
        await page.keyboard.press("Tab")
        reached.append(await page.evaluate("document.activeElement.hash ?? document.activeElement.id"))
    assert [place[1:] for place in reached if place.startswith("#") and place != "#main"] == list(PANELS)
    for panel in PANELS:
        await page.focus(f"nav a[href='#{panel}']")
        await page.keyboard.press("Enter")
        await page.locator(f"section#{panel}").wait_for()
        assert await page.locator("nav a[aria-current]").get_attribute("href") == f"#{panel}"


async def test_no_text_from_elsewhere_is_ever_html(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, open_page: OpenPage
) -> None:
    shows(gateway, monkeypatch, with_every_text(made_document(), lambda text: text + HOSTILE))
    page = await open_page(gateway)
    await page.wait_for_selector("#to-playground:not([hidden])")
    before = await page.locator("img, script").count()
    for panel in PANELS:
        await page.evaluate("panel => { location.hash = panel }", panel)
        await page.locator(f"section#{panel}").wait_for()
        if panel == "requests":
            await page.locator("#request-list button").first.click()
    assert await page.locator("img, script").count() == before
    assert await page.evaluate("document.body.dataset.hacked") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE, {"width": 320, "height": 640}], ids=["desktop", "phone", "small"])
async def test_every_panel_passes_the_checker_and_fits(
    busy: RunningGateway, open_page: OpenPage, scheme: str, viewport: dict[str, int]
) -> None:
    package = find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        pytest.skip("the extra `browser` is not installed")
    page = await open_page(busy, color_scheme=scheme, viewport=viewport, bypass_csp=True, reduced_motion="reduce")
    await page.wait_for_selector("#to-playground:not([hidden])")
    await page.evaluate(Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    for panel in PANELS:
        await page.evaluate("panel => { location.hash = panel }", panel)
        await page.locator(f"section#{panel}").wait_for()
        if panel == "requests":
            await page.locator("#request-list button").first.click()
        results = await page.evaluate("() => axe.run({ resultTypes: ['violations'] })")
        faults = [f"{fault['id']}: {node['html'][:160]}" for fault in results["violations"] for node in fault["nodes"]]
        assert faults == [], panel
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{panel} is too wide"


async def test_a_chat_streams_two_answers_side_by_side_and_leads_to_its_timeline(
    gateway: RunningGateway, open_page: OpenPage
) -> None:
    page = await open_page(gateway, "playground")
    await page.wait_for_selector("#model option", state="attached")
    await page.check("#compare")
    await page.check("#logprobs")
    await page.fill("#prompt", "Hello!")
    await page.fill("#seed-b", "7")
    await page.keyboard.press("Tab")
    sent: list[dict[str, Any]] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    await page.click("#chat-form button[type=submit]")
    for side in "ab":
        await page.wait_for_function(
            "([box, text]) => document.querySelector(box + ' .answer')?.textContent.includes(text)",
            arg=[f"#talk-{side}", ANSWER],
        )
        await page.locator(f"#talk-{side} .note a").wait_for()
    assert [body.get("seed") for body in sent] == [None, 7]
    assert all(body["stream"] and body["logprobs"] for body in sent)
    assert await page.locator("#talk-a .token").count() > 3
    await page.locator("#talk-a .note a").click()
    await page.wait_for_selector("#request-detail h3")
    assert "prefill" in await page.inner_text("#request-detail")


async def test_a_schema_that_is_not_json_is_named_and_nothing_is_sent(
    gateway: RunningGateway, open_page: OpenPage
) -> None:
    page = await open_page(gateway, "playground")
    await page.wait_for_selector("#model option", state="attached")
    await page.click("#playground summary")
    await page.fill("#schema", "{no")
    await page.fill("#prompt", "Hello!")
    await page.click("#chat-form button[type=submit]")
    assert (await page.inner_text("#chat-problem")).startswith("Schema of the answer: this is not JSON")
    assert await page.locator("#talk-a .asked").count() == 0


async def test_a_tenant_gives_its_key_and_sees_its_own(pool: FakePool, tmp_path: Path, open_page: OpenPage) -> None:
    file = tmp_path / "api-keys"
    file.write_text("alice: alices-secret-key-1\n")
    async with running_gateway(pool, f"--api-keys={file}") as gateway:
        await asyncio.sleep(0)
        page = await open_page(gateway)
        await page.locator("#refusal:not([hidden])").wait_for()
        await page.fill("#key", "alices-secret-key-1")
        await page.keyboard.press("Enter")
        await page.wait_for_function("document.querySelector('#status').textContent.startsWith('Live, tenant alice')")
        assert not await page.locator("#workers").is_visible()
        assert not await page.locator("#to-history").is_visible()
        assert "alices-secret" not in await page.content()
        assert "alices-secret" not in page.url
        await page.click("#key-forget")
        await page.locator("#refusal:not([hidden])").wait_for()
        assert not await page.locator("section#overview").is_visible()


async def write_picture(page: Any, name: str) -> None:
    """Write a small picture: 128 colours are enough for it."""
    image = PIL.Image.open(BytesIO(await page.screenshot()))
    image.convert("RGB").quantize(128, dither=PIL.Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


@pytest.mark.skipif(not WRITES_PICTURES, reason="only with BATON_WRITE_PICTURES")
async def test_pictures(busy: RunningGateway, open_page: OpenPage) -> None:
    PICTURES.mkdir(exist_ok=True)
    pictures: list[tuple[str, str, dict[str, Any]]] = [
        ("page-overview", "overview", {}),
        ("page-dark", "overview", {"color_scheme": "dark"}),
        ("page-phone", "overview", {"viewport": PHONE}),
        ("page-request", "requests", {}),
        ("page-tenants-phone", "tenants", {"viewport": PHONE, "color_scheme": "dark"}),
        ("page-history", "history", {"viewport": {"width": 1280, "height": 560}}),
    ]
    for name, panel, options in pictures:
        page = await open_page(busy, panel, timezone_id="UTC", **options)
        await page.wait_for_selector("#to-playground:not([hidden])")
        if panel == "requests":
            await page.locator("#request-list button").first.click()
            await page.evaluate("scrollTo(0, 0)")
        await write_picture(page, name)
    page = await open_page(busy, "playground", timezone_id="UTC")
    await page.wait_for_selector("#model option", state="attached")
    await page.evaluate("document.querySelector('#model').replaceChildren(new Option('tiny'))")
    await page.check("#compare")
    await page.check("#logprobs")
    await page.fill("#prompt", "What is a baton for?")
    await page.click("#chat-form button[type=submit]")
    await page.locator("#talk-b .note a").wait_for()
    await write_picture(page, "page-playground")


def test_a_tenants_document_has_none_of_the_others() -> None:
    document = made_document(Viewer(sees_all=False, tenant=Tenant("support")))
    assert [tenant["name"] for tenant in document["tenants"]] == ["support"]
