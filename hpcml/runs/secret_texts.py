"""Texts that look like secrets, and what is left of them in a bundle: rules by name, by program and by form.

A rule never looks past the end of a line, but for a private key and the next item of a list. No rule's work grows with
the square of a line: a repetition has a limit, or nothing after it can fail.
"""

from __future__ import annotations

import re

HIDDEN = "[removed]"

# -- parts of the rules: each repetition that something must follow has a limit ----------------------------------------

_BLANK, _GAP = r"[ \t]{0,60}", r"[ \t]{1,9}"
_ESCAPED = r"\\{0,9}"  # before a quote, in a text of JSON in a text of JSON
# A value: in quotes, which may be escaped and need not end on the line; or one word.
_QUOTED = (
    rf"""(?:(?<!\\)"(?:[^"\\\n]|\\[^\n])*"?|\\{{1,9}}"(?:[^"\\\n]|\\[^"\n])*(?:\\{{1,9}}")?|{_ESCAPED}'[^'\n]*'?)"""
)
_WORD = rf"""{_ESCAPED}["']?(?:[^\s"'&,;]|[,;](?!\s|\w{{1,40}}[ \t]?[=:])(?=[^\s"']))+"""
_VALUE = rf"(?:{_QUOTED}|{_WORD})"
# Before a value: it is no word and no number, with or without a unit.
_ODD = (
    rf"""(?={_ESCAPED}["']?(?![\d.,:]{{1,20}}[a-zµ%]{{0,3}}(?![\w]))[^\s"']{{8}})"""
    rf"""(?-i:(?=[^\s]{{0,60}}?(?:[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z])))"""
)
_NAME = (
    r"(?:token(?!s\b|i[sz])|secret|passw(?:or)?d|passphrase|passcode|passwort|kennwort|mot de passe|wachtwoord|senha"
    r"|contrase(?:ñ|n|\\{1,9}u00f1)a|credential|signature|\b[mt]?otp\b"
    r"|(?:api|access|account|auth|encryption|private|shared|signing)[_ -]?key)[\w-]{0,40}"
)
_MARKS = r"[*_`]{0,3}"  # of Markdown
# "=", ":", ": ", "=>", '": "', ":** ", " is ", "=\" and a new line
_IS = (
    rf"""(?:{_ESCAPED}["'])?{_MARKS}{_BLANK}(?:[=:]{{1,3}}>?|\b(?:is|are|was)\b[ \t]?:?)"""
    rf"{_MARKS}{_BLANK}(?:\\\n{_BLANK})?"
)
# "password for bob:", "password is": whose it is, and what leads to the value
_OF = (
    r"""(?:[ \t]{1,9}(?:for|of|at|to)[ \t]{1,9}(?:'[^'\n]{0,200}'|"[^"\n]{0,200}"|[^\n:='"]{1,80})"""
    r"""(?=[ \t]{0,9}[:=]|[ \t]{1,9}(?:is|was)[ \t]))?"""
)
# From a word of a command line to the next, also in a list of JSON
_NEXT = rf"""(?:(?:{_ESCAPED}["'])?[ \t=]{{1,60}}|{_ESCAPED}["']{_BLANK},(?:\s|\\n){{0,60}})"""
_BEGINNINGS = (  # of services' keys
    r"AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_\w{16,}|sk-[\w-]{16,}"
    r"|xox[abeprs]-[\w-]{10,}|xapp-[\w-]{10,}|AIza[\w-]{30,}|ya29\.[\w.-]{16,}|npm_\w{20,}|pypi-[\w-]{16,}|dapi[0-9a-f]{32}"
    r"|[srp]k_(?:live|test)_\w{10,}|hvs\.[\w-]{16,}|dckr_pat_[\w-]{16,}|dop_v1_\w{32,}|SG\.[\w-]{16,40}\.[\w-]{16,}"
    r"|AGE-SECRET-KEY-1\w{20,}|\d{6,12}:[\w-]{30,200}(?![\w.:-])|GOCSPX-[\w-]{16,}|(?-i:sl)\.(?:u\.)?[\w-]{30,}"
    r"|(?<!-)eyJ[\w-]{8,2000}\.[\w-]{8,4000}\.[\w-]*"
)
_PROGRAMS = (  # whose option -p, -a or -w has a password
    r"(?:mysql\w{0,20}|mariadb\w{0,20}|sshpass|smbclient|redis-cli|ldap\w{1,20}|7z\w{0,2}"
    r"|(?:docker|podman|helm|oras|apptainer|singularity)\b[^\n]{0,40}? login)\b[^\n]{0,120}?"
)
_READERS = r"(?:kinit|sudo[ \t]{1,9}-S|chpasswd|passwd|cryptsetup|[^\n|]{0,80}--password-stdin)"

_ARGUMENT = r"""[^\s"'-][^\s"']{0,200}"""
_HEADER = rf"""authorization{_ESCAPED}["']?{_BLANK}[=:]{_BLANK}{_ESCAPED}["']?"""
_PRIVATE = r"[A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"

# -- the rules: group 1 stays -----------------------------------------------------------------------------------------

RULES = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        # by name
        rf"({_NAME}{_OF}{_IS}){_VALUE}",
        rf"((?<![\w-])--[\w-]{{0,40}}(?:{_NAME}|pass){_NEXT}){_VALUE}",
        rf"(\b(?:login{_GAP}\S{{1,100}}{_GAP}password|passphrase){_NEXT}){_VALUE}",
        rf"({_NAME}{_GAP}){_ODD}{_VALUE}",
        rf"(\b(?!(?-i:PWD=/))pwd{_IS}){_VALUE}",
        rf"((?-i:[A-Z]_PASS\b){_IS}){_VALUE}",
        rf"((?:\b|_)(?:pass|pw){_IS}){_ODD}{_VALUE}",
        rf"((?-i:\b(?:PIN|Pin))(?: code)?{_IS})\d{{4,8}}\b",
        rf"(<[\w:-]{{0,40}}{_NAME}(?:[ \t][^<>\n]{{0,100}})?>)[^<\n]{{1,500}}(?=</)",
        rf"""(\bkey{_ESCAPED}["']{_BLANK}:{_BLANK}{_ESCAPED}["'])[0-9a-f]{{32,128}}(?={_ESCAPED}["'])""",  # kaggle.json
        # by program and function
        rf"""({_PROGRAMS}[ \t"'](?-i:-[paw])(?:{_NEXT})?){_VALUE}""",
        rf"""((?:^|[\s"'])(?:-u|--user|--proxy-user){_NEXT}["']?[^\s:"'\\]{{0,100}}:)[^\s"'\\]+""",
        rf"""((?:^|[\s"'])(?-i:-U){_NEXT}["']?[^\s%"'\\]{{1,100}}%)[^\s"'\\]+""",
        rf"(\s-pass(?:in|out)?{_NEXT}pass:){_VALUE}",
        rf"(\bwandb{_GAP}login{_GAP}(?:--\S{{1,60}}{_GAP}){{0,4}}){_ODD}{_VALUE}",
        rf"(\bhtpasswd{_GAP}(?-i:-[A-Za-z]{{0,9}}b[A-Za-z]{{0,9}})(?:{_GAP}{_ARGUMENT}){{1,2}}{_GAP}){_VALUE}",
        rf"(\becho{_GAP}(?:-\w{{1,3}}{_GAP})?)[^\s|]{{1,200}}(?={_BLANK}\|{_BLANK}{_READERS})",
        rf"""(auth[ \t]?[=(]{{1,2}}[ \t]?\(?{_ESCAPED}["'][^"'\n]{{0,100}}["']{_BLANK},{_BLANK}){_QUOTED}""",
        # by form
        rf"()-----BEGIN {_PRIVATE}.*?(?:-----END {_PRIVATE}|\Z)",
        rf"""(cookie{_ESCAPED}["']?{_BLANK}[:=]{_BLANK})(?:[^\n"]|"(?![ \t]{{0,9}}(?:[,}}\]\n]|\Z)))+""",
        rf"""({_HEADER}(?:(?:bearer|basic|token|digest|negotiate){_GAP})?)[^\s"'\\]+""",
        rf"(\bbearer{_GAP})[\w.~+/=-]{{8,}}",
        r"(://[^\s/:@]{0,100}:)[^\s/@]{1,500}(?=@)",
        r"(://)(?=[^\s/:@]{0,100}\d)[^\s/:@]{20,500}(?=@)",
        r"(hooks\.slack\.com/services/)[\w/]+",
        r"(discord(?:app)?\.com/api/(?:v\d{1,3}/)?webhooks/\d{1,30}/)[\w-]+",
        r"""(\.webhook\.office\.com/webhookb2/)[^\s"'\\]+""",
        r"""((?:[?&;]sig|X-Amz-(?:Signature|Credential|Security-Token))=)[^\s&"']+""",
        rf"()\b(?:{_BEGINNINGS})",
    )
)


def removed(text: str) -> str:
    """Return a text with what looks like a secret replaced; the names of secrets stay."""
    for rule in RULES:
        text = rule.sub(rf"\1{HIDDEN}", text)
    return text
