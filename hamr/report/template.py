"""HTML report of a run: style of all reports, and the page's body as a Jinja template."""

STYLE = """
:root { --ink: #1f2933; --muted: #616e7c; --line: #e4e7eb; --paper: #fff; --ground: #f5f7fa; --blue: #0072b2;
  --good: #00734f; --bad: #b34700; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 80px; }
header h1 { font-size: 34px; line-height: 1.15; letter-spacing: -0.02em; margin: 0 0 10px; }
header .verdict { font-size: 19px; color: var(--ink); max-width: 46em; margin: 0 0 8px; }
header .facts { color: var(--muted); margin: 0; font-size: 14px; }
h2 { font-size: 22px; letter-spacing: -0.01em; margin: 52px 0 4px; }
h2 + p.lead { color: var(--muted); margin: 0 0 16px; max-width: 48em; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(235px, 1fr)); gap: 16px; margin: 30px 0 16px; }
.card, figure, .panel { background: var(--paper); border: 1px solid var(--line); border-radius: 12px; }
.card { padding: 18px 20px 16px; }
.card h3 { margin: 0; font-size: 14px; font-weight: 600; color: var(--muted); }
.card .big { font-size: 40px; font-weight: 650; letter-spacing: -0.03em; line-height: 1.2;
  font-variant-numeric: tabular-nums; }
.card .change { font-size: 14.5px; font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); } .same { color: var(--muted); }
.card .path { display: flex; justify-content: space-between; margin-top: 12px; padding-top: 10px; font-size: 12.5px;
  border-top: 1px solid var(--line); color: var(--muted); font-variant-numeric: tabular-nums; }
.card .path b { display: block; color: var(--ink); font-weight: 600; font-size: 14.5px; }
.grid { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
.wide { grid-column: 1 / -1; }
figure { margin: 0; padding: 16px 18px 12px; }
figure h3 { margin: 0 0 6px; font-size: 15px; }
figure img { width: 100%; height: auto; display: block; }
figcaption { color: var(--muted); font-size: 13.5px; margin-top: 6px; }
@media (max-width: 820px) { .grid { grid-template-columns: 1fr; } }
.panel { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--muted); font-weight: 600; font-size: 13px; }
th, td { padding: 10px 14px; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child > td { border-bottom: 0; }
table.even { table-layout: fixed; min-width: 760px; }
td.number { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
td .said { max-width: 30em; overflow-wrap: anywhere; }
td .quiet { color: var(--muted); }
.tag { display: inline-block; border-radius: 99px; padding: 1px 10px; font-size: 12.5px; font-weight: 600;
  background: #e4e7eb; white-space: nowrap; }
.tag.best { background: #d3f0e3; color: #00513a; } .tag.worst { background: #fde3d0; color: #7a3200; }
.parts { display: grid; grid-template-columns: auto 74px auto; gap: 1px 8px; align-items: center; font-size: 12.5px;
  font-variant-numeric: tabular-nums; }
.parts .bar { height: 7px; border-radius: 4px; background: var(--line); overflow: hidden; }
.parts .bar i { display: block; height: 100%; background: var(--blue); }
.parts .bar i.minus { background: var(--bad); }
.facts-grid { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
@media (max-width: 820px) { .facts-grid { grid-template-columns: 1fr; } }
.panel h3 { margin: 14px 16px 4px; font-size: 15px; }
.panel table.kv td:first-child { color: var(--muted); white-space: nowrap; width: 1%; }
.kv td { padding: 5px 16px; border: 0; overflow-wrap: anywhere; } .kv { margin-bottom: 10px; }
details { margin-top: 16px; } summary { cursor: pointer; font-weight: 600; padding: 4px 0; }
pre { background: var(--paper); border: 1px solid var(--line); border-radius: 12px; padding: 16px; overflow-x: auto;
  font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
"""

PAGE = """
{% if cards %}<section class="cards">
{% for c in cards %}<div class="card"><h3>{{ c.title }}</h3>
<div class="big">{{ c.value }}</div>
{% if c.change %}<div class="change {{ c.tone }}">{{ c.change }}</div>
<div class="path">
{% for stage, value in c.path %}<span>{{ stage }} <b>{{ value }}</b></span>
{% endfor %}</div>{% endif %}
</div>
{% endfor %}</section>{% endif %}

{% for section in sections %}
<h2>{{ section.title }}</h2>
<p class="lead">{{ section.lead }}</p>
{% if section.plots %}<div class="grid">
{% for p in section.plots %}<figure{% if p.wide %} class="wide"{% endif %}><h3>{{ p.title }}</h3>
<img alt="{{ p.alt }}" src="data:image/png;base64,{{ p.png }}">
{% if p.caption %}<figcaption>{{ p.caption }}</figcaption>{% endif %}</figure>
{% endfor %}</div>{% endif %}
{% endfor %}

{% if dialogues %}
<h2>Whole dialogues</h2>
<p class="lead">SAGE with simulated customers; each stage's own report is sage/&lt;stage&gt;/report.html.</p>
<div class="panel"><table>
<tr><th></th>{% for name in dialogue_columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in dialogues %}<tr>{% for cell in row %}<td class="number">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endif %}

{% if comparisons %}
<h2>Responses to the same message by stage</h2>
<p class="lead">Responses to held-out messages; each with its total reward.</p>
<div class="panel"><table class="even">
<tr><th>customer</th>{% for stage in comparison_stages %}<th>{{ stage }}</th>{% endfor %}<th>a reference</th></tr>
{% for c in comparisons %}<tr><td><div class="said">{{ c.customer }}</div></td>
{% for text, total in c.said %}<td><div class="said">{{ text }}</div><span class="quiet">{{ total }}</span></td>
{% endfor %}
<td><div class="said quiet">{{ c.reference }}</div></td></tr>
{% endfor %}</table></div>
{% endif %}

{% if examples %}
<h2>Responses and their rewards</h2>
<p class="lead">From the last third of the RL steps: the best, the worst, and a random selection.</p>
<div class="panel"><table>
<tr><th></th><th>step</th><th>customer</th><th>response</th><th>reward</th><th>components</th></tr>
{% for e in examples %}<tr><td><span class="tag {{ e.kind }}">{{ e.kind }}</span></td>
<td class="number">{{ e.step }}</td>
<td><div class="said">{{ e.customer }}</div></td>
<td><div class="said">{{ e.response }}</div>
{% if e.reference %}<div class="said quiet">reference: {{ e.reference }}</div>{% endif %}</td>
<td class="number"><b>{{ e.total }}</b></td>
<td><div class="parts">{% for p in e.parts %}<span>{{ p.name }}</span>
<span class="bar"><i class="{{ 'minus' if p.minus }}" style="width: {{ p.width }}%"></i></span>
<span>{{ p.value }}</span>{% endfor %}</div>
<div class="quiet">{{ e.route }}</div></td></tr>
{% endfor %}</table></div>
{% endif %}

<h2>The run</h2>
<p class="lead">{{ folder }}</p>
<div class="facts-grid">
{% for title, rows in tables %}<div class="panel"><h3>{{ title }}</h3><table class="kv">
{% for key, value in rows %}<tr><td>{{ key }}</td><td>{{ value }}</td></tr>
{% endfor %}</table></div>
{% endfor %}</div>
<details><summary>Configuration</summary><pre>{{ config }}</pre></details>
<details><summary>Glossary of the metrics</summary><div class="panel"><table>
<tr><th>metric</th><th>meaning</th><th>unit</th><th>better</th></tr>
{% for m in glossary %}<tr><td>{{ m.pattern }}</td><td>{{ m.meaning }}</td>
<td>{{ m.unit }}</td><td>{{ m.better }}</td></tr>
{% endfor %}</table></div></details>
"""
