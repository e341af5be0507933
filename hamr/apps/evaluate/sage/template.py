"""Jinja template of the body of a SAGE report."""

PAGE = """
<h2>Scores</h2>
<p class="lead">Overall = 0.8 logic + 0.2 chat; the first three are means of the scenarios, with 95 % bootstrap
intervals over dialogues. Codes: overall per scenario. Unreadable: no JSON that can be parsed;
faults: any contract violation.</p>
<div class="panel"><table>
<tr><th>agent</th><th>overall</th><th>logic</th><th>chat</th>
{% for code in head %}<th>{{ code }}</th>{% endfor %}
<th>labels</th><th>path</th><th>action</th><th>unreadable</th><th>faults</th><th>words</th></tr>
{% for r in rows %}<tr><td><b>{{ r.agent }}</b></td>
{% for value, interval in r.average %}<td class="number">{{ value }}<br><span class="quiet">{{ interval }}</span></td>
{% endfor %}
{% for value in r.scenarios + r.parts + r.format %}<td class="number">{{ value }}</td>{% endfor %}
<td class="number">{{ r.length }}</td></tr>
{% endfor %}</table></div>

<h2>By the customers' own cases</h2>
<p class="lead">Without judges: logic and action at the last turns against each customer's assigned case, by the fields
that decide its path; and the share of those fields that the judges label correctly. Where judges are rarely right, use
this table.</p>
<div class="panel"><table>
<tr><th>agent</th><th>logic</th><th>action</th><th>judges right</th></tr>
{% for r in rows %}<tr><td><b>{{ r.agent }}</b></td>
{% for value in r.case %}<td class="number">{{ value }}</td>{% endfor %}</tr>
{% endfor %}</table></div>

{% for section in sections %}
<h2>{{ section.title }}</h2>
<p class="lead">{{ section.lead }}</p>
<div class="grid">
{% for p in section.plots %}<figure{% if p.wide %} class="wide"{% endif %}><h3>{{ p.title }}</h3>
<img alt="Plot: {{ p.title }}" src="data:image/png;base64,{{ p.png }}"></figure>
{% endfor %}</div>
{% endfor %}

<h2>By turn and by level</h2>
<p class="lead">Turns 1, 5, 10, 15 and the last of each dialogue are judged. Unreadable, faulty: in percent.</p>
<div class="facts-grid">
{% for t in turns + levels %}<div class="panel"><h3>{{ t.agent }}</h3><table>
<tr><th>{{ t.what }}</th>
<th>overall</th><th>logic</th><th>chat</th><th>unreadable</th><th>faulty</th><th>words</th></tr>
{% for row in t.rows %}<tr>{% for cell in row %}<td class="number">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endfor %}</div>

<h2>Dialogues</h2>
<p class="lead">Outcomes, assessed turns, the execution gap (labels minus action, in points), and contract violations as
shares of the assessed turns.</p>
<div class="panel"><table>
<tr><th>agent</th><th>scenario</th><th>ended</th><th>assessed turns</th><th>gap</th><th>faults</th></tr>
{% for d in details %}<tr><td>{{ d.agent }}</td><td>{{ d.scenario }}</td><td>{{ d.dialogues }}</td>
<td class="number">{{ d.turns }}</td><td class="number">{{ d.gap }}</td><td>{{ d.faults }}</td></tr>
{% endfor %}</table></div>

<h2>The judges</h2>
<div class="panel"><table class="kv">
{% for key, value in votes %}<tr><td>{{ key }}</td><td>{{ value }}</td></tr>
{% endfor %}</table></div>

{% if dialogues %}
<h2>Dialogues with the lowest scores</h2>
<p class="lead">The first turns; in brackets the path and the action that the agent named.</p>
{% for d in dialogues %}<div class="panel"><h3>{{ d.title }}</h3><table>
<tr><th colspan="5">{{ d.who }}</th></tr>
<tr><th>customer</th><th>agent</th><th>right</th><th>faults</th><th>logic</th></tr>
{% for user, said, right, faults, logic in d.turns %}<tr><td><div class="said">{{ user }}</div></td>
<td><div class="said">{{ said }}</div></td><td><div class="said quiet">{{ right }}</div></td>
<td>{{ faults }}</td><td class="number">{{ logic }}</td></tr>
{% endfor %}</table></div>
{% endfor %}
{% endif %}

<h2>Coverage</h2>
<p class="lead">Customers per path: some of each intent, then more where a path had too few.</p>
{% for c in coverage %}<details><summary>{{ c.scenario }}: {{ c.rows|length }} paths, {{ c.least }} customers at
least</summary><div class="panel"><table>
<tr><th>path</th><th>action</th><th>customer</th><th>intent</th><th>top-up</th><th>all</th></tr>
{% for row in c.rows %}<tr><td>{{ row.way }}</td><td>{{ row.action }}</td><td class="quiet">{{ row.case }}</td>
{% for n in row.counts %}<td class="number">{{ n }}</td>{% endfor %}</tr>
{% endfor %}</table></div></details>
{% endfor %}
<p class="facts">{{ folder }}</p>
"""
