"""Jinja template of the OlaBench report. All values are escaped."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>OlaBench · hamr report</title>
<style>{{ style|safe }}</style>
</head>
<body><main>
<header>
<h1>OlaBench</h1>
<p class="verdict">{{ verdict }}</p>
<p class="facts">{{ facts|join(' · ') }}</p>
</header>
{% macro cell(f) %}<td class="number">{{ f[0] }}{% if f[1] %}<br><span class="quiet">{{ f[1] }}</span>{% endif %}</td>
{% endmacro %}

{% for p in policies %}
<h2>{{ p.name }}</h2>
<p class="lead">Grades from 1 to 5, rates in percent of responses, overall = 100 times the mean of the three grades / 5
and of the two shares without risk and hallucination. Below each the 95 % interval of a bootstrap over items.</p>
<div class="panel"><table>
<tr><th></th><th>items</th><th>dialogue</th><th>policy</th><th>tools</th><th>risk %</th><th>hallucination %</th>
<th>overall</th></tr>
{% for r in p.rows %}<tr><td><b>{{ r.group }}</b></td><td class="number">{{ r['items'] }}</td>
{% for f in r.figures %}{{ cell(f) }}{% endfor %}</tr>
{% endfor %}</table></div>
<div class="panel"><table>
<tr><th></th><th>seconds</th><th>median</th><th>95 %</th><th>response tokens</th><th>tokens of thought</th>
<th>given</th><th>malformed</th><th>cut off</th><th>failed</th></tr>
{% for r in p.latency %}<tr><td><b>{{ r.group }}</b></td>{% for f in r.figures %}{{ cell(f) }}{% endfor %}
{% for n in r.counts %}<td class="number">{{ n }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endfor %}

{% if plots %}<h2>Plots</h2>
<div class="grid">
{% for p in plots %}<figure><h3>{{ p.title }}</h3>
<img alt="Plot: {{ p.title }}" src="data:image/png;base64,{{ p.png }}"></figure>
{% endfor %}</div>{% endif %}

{% for g in grading %}
<h2>Judges on {{ g.file }}</h2>
<p class="lead">Responses with known verdicts. Precision: of those to which a judge gave the type, the share that has
it; recall: of those that have it, the share to which it gave the type. A grade of a call says that it is wrong but not
why, so its precision is that of all faults. Intervals are Wilson's.</p>
<div class="panel"><table>
<tr><th>judge</th><th>type</th><th>precision %</th><th>given</th><th>recall %</th><th>known</th></tr>
{% for r in g.types %}<tr><td>{{ r.judge }}</td><td>{{ r.kind }}</td>
{{ cell(r.precision) }}<td class="number">{{ r.given }}</td>
{{ cell(r.recall) }}<td class="number">{{ r.known }}</td></tr>
{% endfor %}</table></div>
<div class="panel"><table>
<tr><th>judge</th><th>accuracy %</th><th>exact label %</th><th>Spearman</th><th>asked</th><th>missing</th></tr>
{% for r in g.agreement %}<tr><td>{{ r.judge }}</td>{% for f in r.figures %}{{ cell(f) }}{% endfor %}
<td class="number">{{ r.asked }}</td><td class="number">{{ r.missing }}</td></tr>
{% endfor %}</table></div>
{% endfor %}

<h2>The judges</h2>
<p class="lead">A judgement that is missing is left out of its mean.</p>
<div class="panel"><table>
<tr><th>judge</th><th>pool</th><th>model</th><th>prompts</th><th>responses</th><th>compared at most</th>
<th>missing</th></tr>
{% for j in judges %}<tr><td><b>{{ j.name }}</b></td><td>{{ j.pool }}</td><td>{{ j.model }}</td><td>{{ j.prompts }}</td>
<td class="number">{{ j.asked }}</td><td class="number">{{ j.compared }}</td><td>{{ j.missing }}</td></tr>
{% endfor %}</table></div>

{% for l in lowest if l.rows %}
<h2>Faults found by judges: {{ l.policy }}</h2>
<p class="lead">Risks and hallucinations first, then the lowest grades.</p>
<div class="panel"><table>
<tr><th>item</th><th>response</th><th>verdicts</th><th>reason</th></tr>
{% for r in l.rows %}<tr><td>{{ r.id }}</td><td><div class="said">{{ r.response }}</div></td><td>{{ r.verdicts }}</td>
<td><div class="said">{{ r.reason }}</div></td></tr>
{% endfor %}</table></div>
{% endfor %}
<p class="facts">{{ folder }}</p>
</main></body></html>
"""
