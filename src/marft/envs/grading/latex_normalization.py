"""One spelling for what LaTeX, Unicode and plain text spell in many ways; no value is ever worked out here."""

from __future__ import annotations

import re
from unicodedata import normalize

from marft.envs.grading.times_of_day import times_in_digits

SET_OPEN, SET_CLOSE = "⦃", "⦄"  # \{ and \}, told apart from the braces that group
TEXT_OPEN, TEXT_CLOSE = "⟪", "⟫"  # around what stood in \text{…}
ROW = "⏎"  # \\\\ between the rows of a matrix

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
UNICODE = {
    **dict.fromkeys("−–—‐‑", "-"),
    **dict.fromkeys("×·⋅∙", r"\cdot "),
    **dict.fromkeys("\u00a0\u2009\u202f\u200b\ufeff\t\r\n", " "),
    **{digit: str(n) for n, digit in enumerate("０１２３４５６７８９")},
    **{sign: re.sub("(.+)⁄(.+)", r"\\frac{\1}{\2}", normalize("NFKC", sign)) for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"},
    "÷": "/", "∕": "/", "⁄": "/", "ℝ": r"\mathbb{R}", "∨": " or ", "∧": " and ", "∩": r"\cap ", "⟨": "(", "⟩": ")",
    "π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "√": r"\sqrt ", "°": r"^\circ ", "±": r"\pm ", "∓": r"\mp ",
    "’": "'", "‘": "'", "≤": "<=", "≥": ">=", "≠": r"\ne ", "∈": r"\in ", "∪": r"\cup ", "∅": r"\emptyset ", "′": "'",
    SET_OPEN: "", SET_CLOSE: "", TEXT_OPEN: "", TEXT_CLOSE: "", ROW: "",
}  # fmt: skip
UNICODE_TABLE = str.maketrans(UNICODE)

SYNONYMS = {
    "dfrac tfrac cfrac nicefrac sfrac": r"\frac", "times ast": r"\cdot ", "div": "/", "neq": r"\ne ", "lt": "<", "gt": ">",
    "leqslant leq le": "<=", "geqslant geq ge": ">=", "lor vee": " or ", "land wedge": " and ", "colon ratio": ":",
    "mid lvert rvert vert": "|", "langle": "(", "rangle": ")", "lbrace": SET_OPEN, "rbrace": SET_CLOSE,
    "smallsetminus backslash setminus": r"\setminus ", "varnothing emptyset": r"\emptyset ",
    "displaystyle textstyle limits nolimits quad qquad thinspace": " ",
}  # fmt: skip
COMMANDS = {command: text for commands, text in SYNONYMS.items() for command in commands.split()}
COMMAND = re.compile(r"\\([A-Za-z]+)")
LABELLED = r"(?:the |our |my |final |correct )*(?:answer|ans|result|solution)(?: is)?"
TEXT = "text|textbf|textit|textrm|textsf|texttt|textsc|emph|mbox|textnormal|hbox"
FONT = "mathrm|mathbf|mathit|mathsf|mathtt|operatorname|rm|bf|bm|pmb|boldsymbol|underline|ensuremath"
SIZE = "bf|rm|it|tt|sf|tiny|small|normalsize|large|Large|LARGE|huge|Huge|bfseries|script(?:script)?style"
UNITS = "cm|mm|km|m|kg|mg|g|ft|in|s|h|min|hr|mi|lb|oz|ml|units?"

NESTED = r"((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)"
SPELLINGS = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (rf"\{{{NESTED}\\over(?![A-Za-z]){NESTED}\}}", r"{\\frac{\1}{\2}}"),
        (rf"\A{NESTED}\\over(?![A-Za-z]){NESTED}\Z", r"\\frac{\1}{\2}"),
        (r"(?<=\d)(?:\{,\}|,\\!|\\,)\s*(?=\d{3}(?!\d))", ""),  # 1{,}000  1,\!000  1\,000
        (r"(?<=\d)_(?=\d{3}(?:_\d{3})*(?!\d))", ""),  # 1_000_000
        (r"\\!|\\text\s*\{[\s.,;]*\}", ""),
        (r"\{([:.])\}", r"\1"),
        (r"(?<=[\w)])\*\*(?=\d)", "^"),  # of Python
        (r"(?<=[A-Za-z]) *!= *(?=[-\d\\])", r"\\ne "),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\cdot "),
        (r"(?<=[)\]])\s*(?:U|\\bigcup(?![A-Za-z]))\s*(?=[(\[])", r"\\cup "),
        (r"\\(?:left|right|[bB]igg?[lr]?)\b\.?", " "),
        (r"\\(?:hspace|v?phantom)\s*\{[^{}]*\}(?![A-Za-z])", " "),
        (r"^([-+\s$\d]+)(?:\.{3}|…)\s*$", r"\1"),  # an answer that trails off
        (r"\\(?:text|math)\w*\s*\{\s*(\\(?:text|math)\w*\s*\{[^{}]*\})\s*\}", r"\1"),
        (r"(?<=\d)(?:\.{3}|…)", r"\\ldots "),
        (rf"{ROW}\s*\[[^\]]*\]|\\cr(?![A-Za-z])", ROW),
        (r"\\begin\{array\}\s*\{[^{}]*\}", r"\\begin{matrix}"),
        (r"\\end\{array\}", r"\\end{matrix}"),
        (r"\\(?:begin|end)\{(?:align|aligned|equation|gather)\*?\}", " "),
        (r"(?<=\d)\s*/\s*(week|day|hour|hr|month|year|person)(?![A-Za-z])", r" per \1"),
        (r"^\s*([a-z])\s+in\s+(?=[(\[])", r"\1\\in "),
        (r"\^\s*\(([^()]{1,40})\)", r"^{\1}"),
        (r"^\s*\](?=\s*[-\d\\])", "("),  # ]a,b[ is (a,b)
        (r"(?<=\w)\s*\[\s*$", ")"),
        (r"\\(?:mathbb|Bbb|mathbf)\s*\{?\s*R\s*\}?(?![A-Za-z])|\\R(?![A-Za-z])", r"\\mathbb{R}"),
        (r"\\(?:dot|bar|overline)\s*\{?(\d+)\}?", r"\\overline{\1}"),
        (r"\\(?:blacksquare|square|Box|checkmark|qed)(?![A-Za-z{])[\s$]*$", " "),
        (r"=<(?!=)", "<="),
        (r"\\not\s*=", r"\\ne "),
        (r"\\\{", SET_OPEN),
        (r"\\\}", SET_CLOSE),
        (r"\\[,;:! >]|~", " "),
        (r"\\?\$|\*\*|`|\\[()\[\]](?![A-Za-z])|[✓✔✅☑■□∎🎉😊]", " "),  # dollars (money too), Markdown, math delimiters
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z])\s*)|\\degrees?(?![A-Za-z])|(?<=\d)\s*\^\s*(?:o|\{o\})$", "°"),
        (r"\\%", "%"),
        (rf"\\mathrm\s*\{{\s*({UNITS})\s*\}}(\s*\^\s*\{{?[23]\}}?)?\s*$", rf" {TEXT_OPEN}\1{TEXT_CLOSE}\2"),
        (rf"\\(?:{TEXT})\s*\{{([^{{}}]*)\}}", rf" {TEXT_OPEN}\1{TEXT_CLOSE} "),
        (rf"\\(?:{FONT})\s*\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}", r" \1 "),
        (rf"{TEXT_OPEN}\s*([°%])\s*{TEXT_CLOSE}", r"\1"),
        (r"(?<=\d)\{\s*(\\frac\s*\{[^{}]*\}\s*\{[^{}]*\})\s*\}", r"\1"),
        (r"\\(?:textcolor|colorbox)\s*\{\w*\}\s*\{([^{}]*)\}", r" \1 "),
        (rf"\\(?:color\s*\{{\w*\}}|(?:{SIZE})(?![A-Za-z]))", " "),
        (r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])(pi|sqrt|infty)(?![A-Za-z])", r"\\\1 "),
        (r"(?<![\\A-Za-z])(?:infinity|oo)(?![A-Za-z])", r"\\infty "),
        (r"\*", r"\\cdot "),
        (r"(?<=\d)\s+(?:over|out of|in)\s+(?=\d+$)", "/"),
        (r"(?<=\d)\s+and\s+a\s+half(?![A-Za-z])", r"\\frac{1}{2}"),
        (r"(?<=\d)\s+([1-9]\d*)\s*/\s*(\d+)(?!\d)", r"\\frac{\1}{\2}"),  # 3 1/2
        (rf"{TEXT_OPEN}\s*(and|or)\s*{TEXT_CLOSE}", r" \1 "),
        (rf"{SET_OPEN}\s*{SET_CLOSE}", r"\\emptyset "),
        (rf"^\s*(?:⟪\s*(?i:{LABELLED})\s*[:=]?\s*⟫|⟪?\s*(?i:{LABELLED})\s*[:=]⟫?)", " "),
        (r"^\s*(⟪?)\s*(?i:an?|the|on|option|choice)\s+(?=[A-Za-z]{3,}(?: [A-Za-z]{3,})?\s*⟫?[\s.]*$)", r"\1"),
        (r"^\s*(⟪?)\s*(?i:option|choice)\s+(?=\(?[A-Za-z]\)?\s*⟫?[\s.]*$)", r"\1"),
        (rf"^\s*({TEXT_OPEN}?)\s*(?i:at)\s+(?=\d)", r"\1"),
        (rf"^\s*{TEXT_OPEN}?\s*(?i:minus|negative)\s*{TEXT_CLOSE}?\s*(?=[\d.]|\\frac)", "-"),
        (r"^\s*(?:\\(?:therefore|implies|Rightarrow|Longrightarrow|rightarrow)(?![A-Za-z])|[∴⇒→⟹])", " "),
        (r"(?<=\.)(\d*)\((\d+)\)", r"\1\\overline{\2}"),  # 0.(3)
        (r"\s+", " "),
    )
)
RAISED, LOWERED = re.compile("⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
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
    """A text with every command, sign and word in our one spelling."""
    text = RAISED.sub(lambda run: f"^{{{run[0].translate(SUPERSCRIPTS)}}}", text)
    text = LOWERED.sub(lambda run: f"_{{{run[0].translate(SUBSCRIPTS)}}}", text)
    text = text.translate(UNICODE_TABLE)
    text = text.replace(r"\\", ROW) if r"\begin" in text else DOUBLED.sub("", text)
    text = COMMAND.sub(lambda found: COMMANDS.get(found[1], found[0]), text)
    for pattern, replacement in SPELLINGS:
        text = pattern.sub(replacement, text)
    return text


def brace_arguments(text: str) -> str:
    r"""`\frac12` → `\frac{1}{2}`, `\sqrt2` → `\sqrt{2}`."""
    pieces: list[str] = []
    ends, at = brace_ends(text), 0
    while found := NEEDS_ARGUMENTS.search(text, at):
        pieces.append(text[at : found.start()] + "\\" + found[1])
        at = found.end()
        for _ in range(1 if found[1] == "sqrt" else 2):
            while at < len(text) and text[at] == " ":
                at += 1
            token = TOKEN.match(text, at)
            if token is None or token[0] == "[":  # already in braces, or a root's index
                if (end := ends.get(at)) is None:
                    break
                inside = text[at + 1 : end]
                pieces.append("{" + brace_arguments(inside) + "}" if "\\" in inside else text[at : end + 1])
                at = end + 1
            else:
                pieces.append("{" + token[0] + "}")
                at = token.end()
    return "".join(pieces) + text[at:]


def brace_ends(text: str) -> dict[int, int]:
    """Where each brace that opens and closes does so; escaped braces are letters."""
    opened: list[int] = []
    ends: dict[int, int] = {}
    for found in re.finditer(r"\\.|[{}]", text, re.S):
        if found[0] == "{":
            opened.append(found.start())
        elif found[0] == "}" and opened:
            ends[opened.pop()] = found.start()
    return ends


def comparison_key(text: str) -> str:
    """Cleaned text for comparison letter by letter."""
    text = re.sub(rf"[{TEXT_OPEN}{TEXT_CLOSE}]|\{{\}}", "", text)
    return without_spaces(UNSAID.sub("", PRODUCT.sub("·", text)))


def without_spaces(text: str) -> str:
    """Without spaces, but for those between digits: `1 2` is not 12."""
    return SPACE.sub("", text)
