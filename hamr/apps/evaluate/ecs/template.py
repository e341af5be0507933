"""Jinja template of the body of an ECS report."""

PAGE = """
<h2>Scores</h2>
<p class="lead">Per response the mean of the judges' votes on each reference, then the highest of them: over all
references (Multi), and on the logged one alone (Single). Call-tool accuracy: of the responses where a tool call was
logged (or, where nothing was, all references are tool calls) those that are exactly one of the references.
Means of samples, with 95 % bootstrap intervals over them.</p>
<div class="panel"><table>
<tr><th>policy</th>{% for name in names %}<th>{{ name }}</th>{% endfor %}
<th>samples</th><th>responses</th><th>unscored</th><th>without a logged reference</th>
<th>replies</th><th>tool calls</th><th>wrong type</th><th>malformed</th><th>missing votes</th></tr>
{% for p in policies %}<tr><td><b>{{ p.name }}</b></td>
{% for value, interval in p['values'] %}<td class="number">{{ value }}<br><span class="quiet">{{ interval }}</span></td>
{% endfor %}
{% for n in p.counts + p.kinds %}<td class="number">{{ n }}</td>{% endfor %}
<td class="number">{{ p.missing }}</td></tr>
{% endfor %}</table></div>

{% if comparison %}
<h2>{{ comparison.a }} minus {{ comparison.b }}</h2>
<p class="lead">On the same samples; p is that of a two-sided paired permutation test.</p>
<div class="panel"><table>
<tr><th></th><th>difference</th><th>p</th><th>better</th><th>equal</th><th>worse</th><th>left out</th></tr>
{% for r in comparison.rows %}<tr><td>{{ r.name }}</td>
<td class="number">{{ r.difference[0] }}<br><span class="quiet">{{ r.difference[1] }}</span></td>
<td class="number">{{ r.p }}</td>{% for n in r.counts %}<td class="number">{{ n }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endif %}

<h2>Plots</h2>
<div class="grid">
{% for p in plots %}<figure><h3>{{ p.title }}</h3>
<img alt="Plot: {{ p.title }}" src="data:image/png;base64,{{ p.png }}"></figure>
{% endfor %}</div>

<h2>The judges</h2>
<p class="lead">A missing vote is left out of its mean.</p>
<div class="panel"><table>
<tr><th>judge</th><th>model</th><th>prompt</th><th>questions</th><th>yes</th><th>part</th><th>no</th><th>mean</th>
<th>missing</th></tr>
{% for j in judges %}<tr><td><b>{{ j.name }}</b></td><td>{{ j.model }}</td><td>{{ j.prompt }}</td>
<td class="number">{{ j.asked }}</td>{% for n in j.levels %}<td class="number">{{ n }}</td>{% endfor %}
<td class="number">{{ j.mean }}</td><td>{{ j.missing }}</td></tr>
{% endfor %}</table></div>
{% if pairs %}<div class="panel"><table>
<tr><th>judge</th><th>judge</th><th>both answered</th><th>same level</th><th>Cohen's kappa</th></tr>
{% for a, b, n, same, kappa in pairs %}<tr><td>{{ a }}</td><td>{{ b }}</td><td class="number">{{ n }}</td>
<td class="number">{{ same }}</td><td class="number">{{ kappa }}</td></tr>
{% endfor %}</table></div>{% endif %}

{% if people %}
<h2>Agreement with people</h2>
<p class="lead">On {{ people.pairs }} labelled pairs. Accuracy: the same of three levels; clear pairs: on the right side
of one half, where people said consistent or inconsistent.</p>
<div class="panel"><table>
<tr><th>judge</th><th>accuracy</th><th>clear pairs</th><th>Cohen's kappa</th><th>Spearman</th><th>missing</th></tr>
{% for r in people.rows %}<tr><td><b>{{ r.name }}</b></td>
{% for value, interval in r.shares %}<td class="number">{{ value }}<br><span class="quiet">{{ interval }}</span></td>
{% endfor %}<td class="number">{{ r.kappa }}</td>
<td class="number">{{ r.rho[0] }}<br><span class="quiet">{{ r.rho[1] }}</span></td>
<td class="number">{{ r.missing }}</td></tr>
{% endfor %}</table></div>
{% endif %}

{% for l in lowest if l.rows %}
<h2>Farthest from any reference: {{ l.policy }}</h2>
<p class="lead">Votes: one per judge, references separated by semicolons.</p>
<div class="panel"><table>
<tr><th>sample</th><th>response</th><th>taken as</th><th>votes</th><th>Multi-ECS</th></tr>
{% for r in l.rows %}<tr><td>{{ r.id }}</td><td><div class="said">{{ r.response }}</div></td><td>{{ r.kind }}</td>
<td>{{ r.votes }}</td><td class="number">{{ r.multi }}</td></tr>
{% endfor %}</table></div>
{% endfor %}
<p class="facts">{{ folder }}</p>
"""
