"""One spelling for what LaTeX, Unicode and plain text spell in many ways; no value is ever worked out here."""

from __future__ import annotations

import re

from marft.envs.grading.times_of_day import times_in_digits

SET_OPEN, SET_CLOSE = "⦃", "⦄"  # \{ and \}, told apart from the braces that group
TEXT_OPEN, TEXT_CLOSE = "⟪", "⟫"  # around what stood in \text{…}
ROW = "⏎"  # \\\\ between the rows of a matrix

FRACTIONS = dict(
    zip(
        "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞",
        ["1/2", "1/3", "2/3", "1/4", "3/4", "1/5", "2/5", "3/5", "4/5", "1/6", "5/6", "1/8", "3/8", "5/8", "7/8"],
        strict=True,
    )
)
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
UNICODE = {
    **dict.fromkeys("−–—‐‑", "-"),
    **dict.fromkeys("×·⋅∙", r"\cdot "),
    **dict.fromkeys("\u00a0\u2009\u202f\u200b\ufeff\t\r\n", " "),
    **{digit: str(n) for n, digit in enumerate("０１２３４５６７８９")},
    **{sign: rf"\frac{{{value[0]}}}{{{value[2:]}}}" for sign, value in FRACTIONS.items()},
    "÷": "/", "∕": "/", "⁄": "/", "ℝ": r"\mathbb{R}", "∨": " or ", "∧": " and ", "∩": r"\cap ", "⟨": "(", "⟩": ")",
    "π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "√": r"\sqrt ", "°": r"^\circ ", "±": r"\pm ", "∓": r"\mp ",
    "’": "'", "‘": "'", "≤": "<=", "≥": ">=", "≠": r"\ne ", "∈": r"\in ", "∪": r"\cup ", "∅": r"\emptyset ", "′": "'",
    SET_OPEN: "", SET_CLOSE: "", TEXT_OPEN: "", TEXT_CLOSE: "", ROW: "",
}  # fmt: skip
UNICODE_TABLE = str.maketrans(UNICODE)

LABELLED = r"(?:the |our |my |final |correct )*(?:answer|ans|result|solution)(?: is)?"
UNITS = "cm|mm|km|m|kg|mg|g|ft|in|s|h|min|hr|mi|lb|oz|ml|units?"

SPELLINGS = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"(?<=\d)(?:\{,\}|,\\!|\\,)\s*(?=\d{3}(?!\d))", ""),  # 1{,}000  1,\!000  1\,000
        (r"(?<=\d)_(?=\d{3}(?:_\d{3})*(?!\d))", ""),  # 1_000_000
        (r"\\!|\\text\s*\{[\s.,;]*\}", ""),
        (r"\{([:.])\}", r"\1"),
        (r"(?<=[\w)])\*\*(?=\d)", "^"),  # of Python
        (r"(?<=[A-Za-z]) *!= *(?=[-\d\\])", r"\\ne "),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\cdot "),
        (r"(?<=[)\]])\s*(?:U|\\bigcup(?![A-Za-z]))\s*(?=[(\[])", r"\\cup "),
        (r"\\(?:left|right|[bB]igg?[lr]?)\b\.?", " "),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|hspace\s*\{[^{}]*\}|v?phantom\s*\{[^{}]*\})(?![A-Za-z])", " "),
        (r"\\(?:[dtc]|nice|s)frac(?![A-Za-z])", r"\\frac"),
        (r"^([-+\s$\d]+)(?:\.{3}|…)\s*$", r"\1"),  # an answer that trails off
        (r"\\(?:text|math)\w*\s*\{\s*(\\(?:text|math)\w*\s*\{[^{}]*\})\s*\}", r"\1"),
        (r"(?<=\d)(?:\.{3}|…)", r"\\ldots "),
        (rf"{ROW}\s*\[[^\]]*\]|\\cr(?![A-Za-z])", ROW),
        (r"\\div(?![A-Za-z])", "/"),
        (r"\\begin\{array\}\s*\{[^{}]*\}", r"\\begin{matrix}"),
        (r"\\end\{array\}", r"\\end{matrix}"),
        (r"\\(?:begin|end)\{(?:align|aligned|equation|gather)\*?\}", " "),
        (r"\\(?:lor|vee)(?![A-Za-z])", " or "),
        (r"\\(?:land|wedge)(?![A-Za-z])", " and "),
        (r"(?<=\d)\s*/\s*(week|day|hour|hr|month|year|person)(?![A-Za-z])", r" per \1"),
        (r"^\s*([a-z])\s+in\s+(?=[(\[])", r"\1\\in "),
        (r"\^\s*\(([^()]{1,40})\)", r"^{\1}"),
        (r"^\s*\](?=\s*[-\d\\])", "("),  # ]a,b[ is (a,b)
        (r"(?<=\w)\s*\[\s*$", ")"),
        (r"\\(?:colon|ratio)(?![A-Za-z])", ":"),
        (r"\\(?:mid|lvert|rvert|vert)(?![A-Za-z])", "|"),
        (r"\\(?:langle)(?![A-Za-z])", "("),
        (r"\\(?:rangle)(?![A-Za-z])", ")"),
        (r"\\(?:setminus|smallsetminus|backslash)(?![A-Za-z])", r"\\setminus "),
        (r"\\(?:mathbb|Bbb|mathbf)\s*\{?\s*R\s*\}?(?![A-Za-z])|\\R(?![A-Za-z])", r"\\mathbb{R}"),
        (r"\\(?:dot|bar|overline)\s*\{?(\d+)\}?", r"\\overline{\1}"),
        (r"\\(?:blacksquare|square|Box|checkmark|qed)(?![A-Za-z{])[\s$]*$", " "),
        (r"\\(?:leqslant|leq|le)(?![A-Za-z])|=<", "<="),
        (r"\\(?:geqslant|geq|ge)(?![A-Za-z])", ">="),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\neq(?![A-Za-z])|\\not\s*=", r"\\ne "),
        (r"\\(?:times|ast)(?![A-Za-z])", r"\\cdot "),
        (r"\\(?:varnothing|emptyset)(?![A-Za-z])", r"\\emptyset "),
        (r"\\(?:\{|lbrace(?![A-Za-z]))", SET_OPEN),
        (r"\\(?:\}|rbrace(?![A-Za-z]))", SET_CLOSE),
        (r"\\(?:[,;:! >]|q?quad(?![A-Za-z])|thinspace(?![A-Za-z]))|~", " "),
        (r"\\?\$|\*\*|`|\\[()\[\]](?![A-Za-z])|[✓✔✅☑■□∎🎉😊]", " "),  # dollars (money too), Markdown, math delimiters
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z])\s*)|\\degrees?(?![A-Za-z])|(?<=\d)\s*\^\s*(?:o|\{o\})$", "°"),
        (r"\\%", "%"),
        (rf"\\mathrm\s*\{{\s*({UNITS})\s*\}}(\s*\^\s*\{{?[23]\}}?)?\s*$", rf" {TEXT_OPEN}\1{TEXT_CLOSE}\2"),
        (
            r"\\(?:text|textbf|textit|textrm|textsf|texttt|textsc|emph|mbox|textnormal|hbox)\s*\{([^{}]*)\}",
            rf" {TEXT_OPEN}\1{TEXT_CLOSE} ",
        ),
        (
            r"\\(?:mathrm|mathbf|mathit|mathsf|mathtt|operatorname|rm|bf|bm|pmb|boldsymbol|underline|ensuremath)\s*\{((?:[^{}]|\{[^{}]*\})*)\}",
            r" \1 ",
        ),
        (rf"{TEXT_OPEN}\s*([°%])\s*{TEXT_CLOSE}", r"\1"),
        (r"(?<=\d)\{\s*(\\frac\s*\{[^{}]*\}\s*\{[^{}]*\})\s*\}", r"\1"),
        (r"\\(?:textcolor|colorbox)\s*\{\w*\}\s*\{([^{}]*)\}", r" \1 "),
        (
            r"\\(?:color\s*\{\w*\}|(?:bf|rm|it|tt|sf|tiny|small|normalsize|large|Large|LARGE|huge|Huge|bfseries|script(?:script)?style)(?![A-Za-z]))",
            " ",
        ),
        (r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])(pi|sqrt|infty)(?![A-Za-z])", r"\\\1 "),
        (r"(?<![\\A-Za-z])(?:infinity|oo)(?![A-Za-z])", r"\\infty "),
        (r"\*", r"\\cdot "),
        (r"(?<=\d)\s+(?:over|out of|in)\s+(?=\d+$)", "/"),
        (r"(?<=\d)\s+and\s+a\s+half(?![A-Za-z])", r"\\frac{1}{2}"),
        (r"(?<=\d)\s+([1-9]\d*)\s*/\s*(\d+)(?!\d)", r"\\frac{\1}{\2}"),  # 3 1/2
        (rf"{TEXT_OPEN}\s*(and|or)\s*{TEXT_CLOSE}", r" \1 "),
        (rf"{SET_OPEN}\s*{SET_CLOSE}", r"\\emptyset "),
        (
            rf"^\s*(?:{TEXT_OPEN}\s*(?i:{LABELLED})\s*[:=]?\s*{TEXT_CLOSE}|{TEXT_OPEN}?\s*(?i:{LABELLED})\s*[:=]{TEXT_CLOSE}?)",
            " ",
        ),
        (
            rf"^\s*({TEXT_OPEN}?)\s*(?i:an?|the|on|option|choice)\s+(?=[A-Za-z]{{3,}}(?: [A-Za-z]{{3,}})?\s*{TEXT_CLOSE}?[\s.]*$)",
            r"\1",
        ),
        (rf"^\s*({TEXT_OPEN}?)\s*(?i:option|choice)\s+(?=\(?[A-Za-z]\)?\s*{TEXT_CLOSE}?[\s.]*$)", r"\1"),
        (rf"^\s*({TEXT_OPEN}?)\s*(?i:at)\s+(?=\d)", r"\1"),
        (rf"^\s*{TEXT_OPEN}?\s*(?i:minus|negative)\s*{TEXT_CLOSE}?\s*(?=[\d.]|\\frac)", "-"),
        (r"^\s*(?:\\(?:therefore|implies|Rightarrow|Longrightarrow|rightarrow)(?![A-Za-z])|[∴⇒→⟹])", " "),
        (r"(?<=\.)(\d*)\((\d+)\)", r"\1\\overline{\2}"),  # 0.(3)
        (r"\s+", " "),
    )
)
RAISED, LOWERED = re.compile("⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
OVER = re.compile(r"\\over(?![A-Za-z])")
DOUBLED = re.compile(r"\\(?=\\[A-Za-z])")  # \\\\frac, escaped once too often
NEEDS_ARGUMENTS = re.compile(r"\\(frac|sqrt|binom)(?![A-Za-z])\s*")
TOKEN = re.compile(r"\\[A-Za-z]+|[^\s{}\\]")
# \\$5, and $5 with a dollar that closes nothing
MONEY = re.compile(r"^((?:[\s$]*-?)\\\$|\s*[-−]?\$(?=[^$]*$))\s*((?:\d|\{?,\}?\\?!?|\.)*\d)([\s$.]*)$")
# What is about a decimal may mean it; what is about a whole number is no answer.
IS_ABOUT = re.compile(r"^([\s$]*[A-Za-z]?\s*)(?:\\(?:approx|simeq|sim)(?![A-Za-z])|≈)(?!\s*[-−]?\d+(?![\d.,]|\{,))")
ABOUT = re.compile(r"(?<=[^\s$])(?<![A-Za-z])\s*(?:\\(?:approx|simeq)(?![A-Za-z])|≈).*$", re.S)
DANGLING = " .,;:?"  # an exclamation mark is a factorial
SPACE = re.compile(r"(?<![\d.])\s+|\s+(?![\d.\s])")
PRODUCT = re.compile(r"\s*(?:\\cdot(?![A-Za-z])\s*)+")
UNSAID = re.compile(r"(?<=[\w)}\]'!])·(?=[A-Za-z({|\\])(?!(?<=\d·)\\frac)")  # 2·x is 2x; 2·3 is not 23, 2·⅓ not 2⅓


def normalize_latex(text: str) -> str:
    """An answer in our one spelling, spaces kept where they may matter."""
    text = MONEY.sub(r"\1\2\\text{ dollars}\3", times_in_digits(text))
    text = ABOUT.sub(" ", IS_ABOUT.sub(r"\1=", text))  # what is exact stands before the ≈
    return brace_arguments(apply_spellings(text)).strip().rstrip(DANGLING).lstrip(" :=").strip()


def apply_spellings(text: str) -> str:
    text = RAISED.sub(lambda run: f"^{{{run[0].translate(SUPERSCRIPTS)}}}", text)
    text = LOWERED.sub(lambda run: f"_{{{run[0].translate(SUBSCRIPTS)}}}", text)
    text = replace_over(text.translate(UNICODE_TABLE))
    text = text.replace(r"\\", ROW) if r"\begin" in text else DOUBLED.sub("", text)
    for pattern, replacement in SPELLINGS:
        text = pattern.sub(replacement, text)
    return text


def replace_over(text: str) -> str:
    r"""`{3\over4}` → `\frac{3}{4}`; only the first few, as nobody writes many."""
    for _ in range(4):
        found = OVER.search(text)
        if found is None:
            break
        start, end = found.start(), found.end()
        depth = 0
        while start > 0 and not (depth == 0 and text[start - 1] == "{"):
            depth += (text[start - 1] == "}") - (text[start - 1] == "{")
            start -= 1
        close = closing_brace(text, start - 1) if start else len(text)
        if close is None or close < end:
            break
        fraction = rf"\frac{{{text[start : found.start()]}}}{{{text[end:close]}}}"
        text = text[:start] + fraction + text[close:] if start else fraction
    return text


def brace_arguments(text: str) -> str:
    r"""`\frac12` → `\frac{1}{2}`, `\sqrt2` → `\sqrt{2}`."""
    pieces: list[str] = []
    at = 0
    while found := NEEDS_ARGUMENTS.search(text, at):
        pieces.append(text[at : found.start()] + "\\" + found[1])
        at = found.end()
        for _ in range(1 if found[1] == "sqrt" else 2):
            while at < len(text) and text[at] == " ":
                at += 1
            token = TOKEN.match(text, at)
            if token is None or token[0] == "[":  # already in braces, or a root's index
                end = closing_brace(text, at)
                if end is None:
                    break
                inside = text[at + 1 : end]
                pieces.append("{" + brace_arguments(inside) + "}" if "\\" in inside else text[at : end + 1])
                at = end + 1
            else:
                pieces.append("{" + token[0] + "}")
                at = token.end()
    return "".join(pieces) + text[at:]


def closing_brace(text: str, at: int) -> int | None:
    """Where the brace that opens at `at` closes."""
    if not text.startswith("{", at):
        return None
    depth = 0
    for place in range(at, len(text)):
        if text[place] == "\\":
            continue
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return place
    return None


def comparison_key(text: str) -> str:
    """Cleaned text for comparison letter by letter."""
    text = re.sub(rf"[{TEXT_OPEN}{TEXT_CLOSE}]|\{{\}}", "", text)
    return without_spaces(UNSAID.sub("", PRODUCT.sub("·", text)))


def without_spaces(text: str) -> str:
    """Without spaces, but for those between digits: `1 2` is not 12."""
    return SPACE.sub("", text)
