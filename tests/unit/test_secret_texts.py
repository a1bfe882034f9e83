"""What a bundle shows of a secret in a log: its name, not its value; and that no line keeps the rules busy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from hpcml.runs.secret_texts import RULES, removed

ROOT = Path(__file__).resolve().parents[2]
# Lines with a made-up value between « and »; the rest of the line stays.
FORMS = r"""
https://discord.com/api/webhooks/123456789012345678/«BMKST9OPE261yEzR2Um5sD1Wet1aSXBLsPXE6tjk»
https://discordapp.com/api/v10/webhooks/1234/«BMKST9OPE261yEzR2Um5sD1Wet1aSXBLsPXE6tjk»
https://contoso.webhook.office.com/webhookb2/«11111111-2222-3333@44444444-5555/IncomingWebhook/0a1b2c3d/6666»
https://«gho0123456789abcdefABCDEF0123456789abcd»@github.com/a/b.git
git clone https://«b4ZkqP0x7TsnVw2LmRyE»@git.example/a
client_secret «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»
«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»
wandb login «266ab5e27cec03b40fca2f903fb6ac49f239da2d»
wandb login --relogin --host=https://w.example «266ab5e27cec03b40fca2f903fb6ac49f239da2d» # again
{"username":"bob","key":"«1006d779171cb09ee33b8cc952e16c39»"}
«sl.Bq3X9mNvZ0aLtYk7WcRj2PpEoSdUfHg5TiQ»
pass: «IgfPQIyBhrtJ»
; pass = «xK9vT2mQw1»
pw=«D0Bcn4G6iyQO»
export DB_PASS=«letmein»
SMTP_PASS: «SGR3MhvYYDTFy8»
Passwort: «8gYV59GAgDAe»
Kennwort ist falsch, Kennwort=«8gYV59GAgDAe»
mot de passe : «Zt6kLw0q»
contraseña: «Zt6kLw0q»
PIN: «4711»
Pin code is «904711»
openssl enc -pass pass:«5QJ40TVCUmmu» -in x
openssl rsa -passin pass:«hunter» -in x
rclone copy a b --sftp-pass «obscured» --sftp-user bob
docker login -u bob -p «46vMIAkzBJC0» r
podman login registry.example -p «46vMIAkzBJC0»
smbclient //h/s -U bob%«aIjTB8gVaSJD»
7z x -p«adUMxW4EqZKC» a.7z
htpasswd -b /etc/users bob «vryeheR2Gje»
htpasswd -nb bob «vryeheR2Gje»
echo «Summer» | kinit bob
echo «Summer» | sudo -S id
echo -n «Summer» | docker login -u bob --password-stdin
requests.get(u, auth=('bob', «'vryeheReeR2Gje'»))
requests.get(u, auth=HTTPBasicAuth('bob', «'vryeheReeR2Gje'»))
<password>«Qz0eRQO3N53MMy»</password>
<smtpPassword type="text">«two words»</smtpPassword>
**Password:** «07yMirSwfGvk»
**Password**: «07yMirSwfGvk»
`token`: «07yMirSwfGvk»
using token «07yMirSwfGvk» of bob
machine h login bob password «simple»
Authorization: Token «07yMirSwfGvk»
""".strip().splitlines()
# More than a line each.
LINES = (
    "loading the secret\naws_secret_access_key = «aUnArl63XykWZeiNNCiia3anXn9k3ksu9mI4ROnl»\n",
    "Enter password:\nepoch 3: loss=0.25\n",
    "no authorization:\nepoch=3\n",
    "token=\\\n  «aUnArl63XykW»\nepoch=3\n",
    '"--api-key",\n   «"argument99"»,\n   "--lr",\n   "0.1"\n',
    'password=«"two words»\nepoch=3\n',
)  # fmt: skip
HARMLESS = """
forward pass: 12.5ms, backward pass: 31ms
pass: 3 of 5
second pass: completed
max_new_tokens=2048 tokens/s: 1234.5
tokens per second 4021
Tokenizer loaded in 3 s
Invalid password attempt, Permission denied (publickey,password).
ssh asks for a one-time password (OTP) here
to log in: wandb login again
key: ('sum-0a1b2c3d4e5f60718293a4b5c6d7e8f9', 0)
{"key": "finalize-8e2b0a1b2c3d4e5f60718293a4b5c6d7"}
apptainer exec -p image.sif true
srun -p boost -u python train.py
https://firstname.lastname@host.example/x
usage: train.py <token> more words
echo done | tee log
ssh://git@host/x tls://10.0.0.1:8786
""".strip().splitlines()


def test_the_value_goes_and_the_rest_stays(subtests: pytest.Subtests) -> None:
    for form in (*FORMS, *LINES):
        plain = form.replace("«", "").replace("»", "")
        secret = re.search("«(.*?)»", form)
        with subtests.test(form=form):
            cleaned = removed(f"before\n{plain}\nafter")
            kept = form.partition("«")[0]
            if secret is None:
                assert cleaned == f"before\n{plain}\nafter"
                continue
            assert secret[1] not in cleaned
            assert kept.rstrip('"') in cleaned
            assert cleaned.endswith("\nafter")
            assert cleaned.count("\n") >= plain.count("\n")
            if form in FORMS:
                assert secret[1].strip("'") not in removed(json.dumps({"line": f"x {plain}", "n": 1}))


def test_ordinary_lines_stay_as_they_are(subtests: pytest.Subtests) -> None:
    recorded = [path for path in (ROOT / "tests/fixtures").rglob("*") if path.suffix in (".log", ".txt", ".json")]
    assert len(recorded) > 10
    for text in (*HARMLESS, *(path.read_text() for path in recorded)):
        with subtests.test(text=text[:100]):
            assert removed(text) == text


# -- no line keeps the rules busy -----------------------------------------------------------------------------------------

LIMIT = 4000  # of a repetition after which the rule may fail: the work for a text is so many steps for each character


def too_busy(items: Iterable[Any], fails: bool, inside: bool = False) -> list[str]:
    """Return the repetitions without a limit that are in another one, or after which the rule may fail."""
    found, listed = [], list(items)
    for place, (code, value) in enumerate(listed):
        after = fails or any(may_fail(one) for one in listed[place + 1 :])
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            _, most, part = value
            endless = most > LIMIT
            if endless and (after or inside):
                found.append(str(part))
            found += too_busy(part, after, inside or endless)
        elif code is codes.SUBPATTERN:
            found += too_busy(value[-1], after, inside)
        elif code is codes.BRANCH:
            found += [busy for branch in value[1] for busy in too_busy(branch, after, inside)]
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            found += too_busy(value[1], True, inside)
    return found


def may_fail(item: Any) -> bool:
    """Whether a part of a rule may fail where the text does not fit."""
    return item[0] in (codes.ASSERT, codes.ASSERT_NOT, codes.AT) or parser.SubPattern(parser.State(), [item]).getwidth()[0] > 0  # fmt: skip


def test_the_work_of_each_rule_has_a_limit_for_each_character() -> None:
    for rule in RULES:
        assert too_busy(parser.parse(rule.pattern, rule.flags), fails=False) == [], rule.pattern
    for busy in (r"(?:a+)+", r"a+b", r"api_key[\w-]*=", r"(?:x|y*)*", r"a*(?=b)"):
        assert too_busy(parser.parse(busy), fails=False), busy


def test_a_line_of_a_mebibyte_is_read() -> None:
    end = "\nthe end"
    assert removed("api_key" * ((1 << 20) // 7) + end).endswith(end)
    for word in ("token", "--token", "_PASS", "<password", "docker login", "htpasswd -b", "://", "eyJ"):
        for between in ("", "=", ' "', "\\", ", ", "' for "):
            assert removed((word + between) * (10_000 // len(word + between)) + end).endswith(end), (word, between)
