"""A page made of texts of strangers shows them; it runs none and fetches nothing."""

from __future__ import annotations

import json
import re

from hostile_inputs import ask

from stratadvisor import pipeline, store

MARK = "zqx"
NAMES = [
    f"</script><script>{MARK}(1)</script>",
    f'"><img src=x onerror={MARK}(1)>',
    f"<!--<script>{MARK}",
    f"]]><svg/onload={MARK}(1)>",
    f"javascript:{MARK}(1)",
]


def test_names_in_a_page_are_text(capsys, tmp_path):
    for number, name in enumerate(NAMES):
        profile = pipeline.load_cluster(cluster=None, gpus="2x2xA100-80GB", inter_node="10Gb/s", intra_node=None)
        document = json.loads(store.dump(profile))
        document["name"] = name
        for node in document["nodes"]:
            node["hostname"] = name
            for device in node["devices"]:
                device.update(name=name, catalog_key=None)
        document["verdicts"] = [{"level": "problem", "subject": name, "message": name, "advice": name}]
        cluster, bundle, page = tmp_path / f"{number}.json", tmp_path / f"b{number}", tmp_path / f"{number}.html"
        cluster.write_text(json.dumps(document))
        code, _, err = ask(["recommend", "--model-size", "125M", "--cluster", cluster, "--output", bundle], capsys)
        assert code == 0, err
        for subject in (bundle, cluster):
            code, _, err = ask(["report", subject, "--output", page, "--force"], capsys)
            assert code == 0, err
            text = page.read_text(encoding="utf-8")
            assert MARK in text  # it is shown
            for start in ("<script>", "<img", "<svg/", "<!--<script>", "</script><"):
                assert f"{start}{MARK}" not in text.replace(" src=x onerror=", "")
            assert re.search(rf"<[a-zA-Z][^>]*\son\w+\s*=[^>]*{MARK}", text) is None
            assert re.search(rf"href\s*=\s*[\"']?javascript:{MARK}", text) is None
            assert re.search(r"<(script|link|img|iframe)[^>]+(src|href)\s*=\s*[\"']?https?:", text) is None
