"""The HTML template of the report: one self-contained document."""

from __future__ import annotations

from privet.core.format import text

from .script import HASH, SCRIPT

# Okabe and Ito's colours, which most colour-blind readers can distinguish, in two brightnesses.
_LIGHT = ("0072b2", "d55e00", "009e73", "b0528c", "8a6d00", "3f8fc4", "5b5b5b", "7a3b00")
_DARK = ("56b4e9", "ff9a4d", "2fd3a2", "e58fc0", "f0d43a", "9ecbff", "c0c0c0", "d9a066")


def _palette(colours: tuple[str, ...]) -> str:
    return "".join(f"--run-{number}:#{colour};" for number, colour in enumerate(colours))


_STYLE = f"""
:root{{color-scheme:light dark;--ink:#1d2420;--soft:#59645e;--paper:#f7f8f6;--card:#fff;
--grid:#dfe4e0;--edge:#0003;--warn:#9a2c16;--warn-paper:#fdece7;--note-paper:#eef1ef;
--font:system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif;{_palette(_LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{--ink:#e6ebe7;--soft:#a3aea7;--paper:#131714;
--card:#1c211e;--grid:#353d38;--edge:#000a;--warn:#ffb09c;--warn-paper:#3a1f18;--note-paper:#29302c;
{_palette(_DARK)}}}}}
"""

_RULES = r"""
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 var(--font);
-webkit-text-size-adjust:100%}
main{max-width:66rem;margin:0 auto;padding:1.25rem 1rem 3rem}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 .5rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.2rem 0 .7rem}
h3{font-size:1rem;margin:0 0 .35rem;overflow-wrap:anywhere}
p{margin:.4rem 0;max-width:46rem;overflow-wrap:anywhere}
small,.soft{color:var(--soft)}
.outcome{background:var(--card);border:1px solid var(--grid);border-radius:.6rem;
padding:.9rem 1rem;margin:.8rem 0}
.large{display:flex;flex-wrap:wrap;gap:.9rem 2.4rem;margin:.7rem 0}
.large>div{flex:0 1 auto;max-width:24rem;min-width:6rem}
.large dt{font-size:.85rem;color:var(--soft)}
.large dd{margin:0;font-size:2.3rem;line-height:1.15;font-variant-numeric:tabular-nums}
.large dd.soft{font-size:1.6rem;line-height:1.65}
.large dd small{display:block;font-size:.82rem;line-height:1.4}
.tiles{display:flex;flex-wrap:wrap;gap:.15rem 1.6rem;margin:.9rem 0 .5rem;padding-top:.7rem;
border-top:1px solid var(--grid);font-size:.87rem}
.tiles div{display:flex;gap:.4rem;min-width:0}
.tiles dt{color:var(--soft)}
.tiles dd{margin:0;font-variant-numeric:tabular-nums}
.warn{background:var(--warn-paper);color:var(--warn);border-radius:.4rem;padding:.45rem .7rem;
overflow-wrap:anywhere}
.note{background:var(--note-paper);border-radius:.4rem;padding:.45rem .7rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem}
figure{margin:0;background:var(--card);border:1px solid var(--grid);border-radius:.6rem;
padding:.8rem .7rem .5rem;min-width:0}
figure svg{display:block;width:100%;height:auto}
.plots>:last-child:nth-child(odd){grid-column:1/-1}
.plots>figure:last-child:nth-child(odd){max-width:none}
figure:last-child:nth-child(odd)>svg,figure:last-child:nth-child(odd) .over>svg{max-width:36rem;
margin:0 auto}
.beside{align-items:start}
.aside{align-self:center;padding:0 .7rem}
.beside>.aside{align-self:start}
figure svg text{font-family:var(--font)!important}
.curve svg text{font-size:11px}
.narrow{max-width:28rem}
.legend{display:flex;flex-wrap:wrap;gap:.1rem .9rem;list-style:none;margin:0 0 .3rem;padding:0;
font-size:.85rem}
.curves>.legend{position:sticky;top:0;z-index:1;background:var(--paper);padding:.4rem 0}
.legend li{display:flex;align-items:center;gap:.4rem;min-width:0;overflow-wrap:anywhere}
h3>svg,th>svg,.legend svg{flex:none;width:1.9rem;height:.6rem}
th>svg{margin-right:.4rem}
.scroll{overflow-x:auto;border:1px solid var(--grid);border-radius:.6rem;
background:linear-gradient(to left,var(--card) 40%,transparent) right/1.5rem 100% no-repeat local,
linear-gradient(to left,var(--edge),transparent) right/1rem 100% no-repeat scroll,var(--card)}
table{border-collapse:separate;border-spacing:0;width:100%;font-size:.9rem}
th,td{padding:.4rem .7rem;text-align:left;vertical-align:top;border-top:1px solid var(--grid)}
thead th{border-top:0;color:var(--soft);font-weight:600;overflow-wrap:break-word;min-width:7.5rem;
max-width:14rem}
tbody th{font-weight:400;color:var(--soft);overflow-wrap:break-word}
.numbers td{white-space:nowrap;font-variant-numeric:tabular-nums}
.numbers td,.numbers thead th:not(:first-child){text-align:right}
.numbers td small{display:block}
.numbers td.forest{width:45%;min-width:11rem;padding:0 .4rem;vertical-align:middle}
.forest svg{display:block;width:100%;height:2.1rem;stroke:var(--run-0);stroke-width:2}
.forest line{vector-effect:non-scaling-stroke}
.forest .none{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.forest .at{stroke-width:6}
.axis{position:relative;height:1.6rem;color:var(--soft);font-size:.82rem}
.axis span{position:absolute;transform:translateX(-50%)}
.aside thead th,.aside tbody th{min-width:3rem}
.numbers tbody th.level{padding-left:1.7rem}
.scroll+h3,.plots+h3{margin-top:1.4rem}
.numbers tbody th,.settings tbody th{position:sticky;left:0;background:var(--card);
min-width:6.5rem;max-width:11rem}
.settings td{overflow-wrap:anywhere;min-width:7rem}
.account ul{margin:0;padding-left:1.1rem}
.numbers.sortable tbody th{white-space:nowrap;max-width:none}
.sortable thead th{min-width:4.5rem}
.sortable th[aria-sort=ascending] button::after{content:" \2191"}
.sortable th[aria-sort=descending] button::after{content:" \2193"}
th button{all:unset;cursor:pointer}
th button:focus-visible{outline:2px solid var(--run-0);outline-offset:2px}
input[type=search],select{font:inherit;font-size:.9rem;padding:.2rem .4rem;border-radius:.3rem;
border:1px solid var(--grid);background:var(--card);color:var(--ink);max-width:100%}
.controls label{margin-right:1.4rem;white-space:nowrap}
.controls input{vertical-align:middle;width:8rem}
.folders{list-style:none;margin:.2rem 0;padding:0;font-size:.9rem;overflow-wrap:anywhere}
.folders svg{width:1.9rem;height:.6rem;margin-right:.4rem}
.absent{color:var(--soft)}
.best{font-weight:700}
.best::after{content:" \2605";color:var(--run-0)}
.spot{fill:transparent}
.spot:hover{fill:currentColor;fill-opacity:.45}
.controls{font-size:.9rem;margin:.2rem 0 .6rem;color:var(--soft)}
.switch-name{font-size:.9rem}
.over{display:none}
#over-round:checked~* .over-round,#over-clock:checked~* .over-clock,
#over-uploads:checked~* .over-uploads,#over-bytes:checked~* .over-bytes,
#over-seconds:checked~* .over-seconds,#over-epsilon:checked~* .over-epsilon{display:block}
input[name=over]+label{margin-right:.7rem;cursor:pointer}
pre{background:var(--card);border:1px solid var(--grid);border-radius:.4rem;margin:.4rem 0;
padding:.6rem .8rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}
details{margin:.6rem 0}
summary{cursor:pointer;padding:.3rem 0;overflow-wrap:anywhere}
footer{margin-top:2.5rem;color:var(--soft);font-size:.85rem}
@media (max-width:40rem){
.curve svg text{font-size:20px}
table{font-size:.82rem}
th,td{padding:.35rem .4rem}
thead th{min-width:3.2rem}
.aside thead th{min-width:2.5rem}
.numbers tbody th{min-width:5rem;max-width:8rem}
.numbers td.forest,.numbers tr:has(.axis),.numbers:has(.forest) thead th:empty{display:none}
.numbers.sortable tbody th{white-space:normal;min-width:9.5rem;max-width:9.5rem}
.settings tbody th{min-width:5rem;max-width:10rem}
.account thead{display:none}
.account tr{display:block;padding:.5rem .2rem;border-top:1px solid var(--grid)}
.account tr:first-child{border-top:0}
.account th,.account td{display:block;border:0;padding:.15rem .7rem;overflow-wrap:anywhere}
.account tbody th{font-weight:600;color:var(--ink)}
.account td::before{content:attr(data-label) ": ";color:var(--soft)}
}
@media print{body{background:#fff}.plots{display:block}figure{break-inside:avoid}}
"""


def document(title: str, body: str, *, refresh: int = 0) -> str:
    """Return the complete document; the title is escaped, the body is HTML.

    ``refresh`` is the interval in seconds at which a browser reloads it, 0 for never.
    """
    again = f'<meta http-equiv="refresh" content="{refresh}">\n' if refresh else ""
    return _whole(title, f"{body}\n<script>{SCRIPT}</script>", f"{_STYLE}{_RULES}", again, HASH)


def _whole(title: str, body: str, style: str, head: str = "", script: str = "") -> str:
    allowed = f"; script-src 'sha256-{script}'" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src 'unsafe-inline'{allowed}\">\n"
        f"{head}<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


_PRINTED = """
@page{margin:13mm 16mm}
body{margin:0;background:#fff;color:#000;font:9.5pt/1.32 Georgia,"Liberation Serif",serif}
main{max-width:178mm;margin:0 auto;padding:0}
h1{font-size:16pt;margin:0 0 3mm}
table{border-collapse:collapse;width:100%;margin:0 0 4mm}
tr{break-inside:avoid}
th,td{border-top:.3pt solid #888;padding:.9mm 2mm;text-align:left;vertical-align:top;
overflow-wrap:anywhere}
th{width:32mm;font-weight:600}
ul{margin:0;padding-left:4mm}
.sign{break-inside:avoid;margin-top:5mm}
.sign td{height:11mm;border-bottom:.6pt solid #000}
@media screen{main{padding:8mm 4mm}}
@media screen and (max-width:40rem){th{width:20mm}}
"""


def printed(title: str, body: str) -> str:
    """Return a document for paper, black on white; the title is escaped, the body is HTML."""
    return _whole(title, body, _PRINTED)
