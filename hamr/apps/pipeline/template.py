"""Jinja template of the pipeline report. All values are escaped."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }} · hamr {{ 'multirun' if kind == 'run' else 'pipeline' }}</title>
<style>{{ style|safe }}</style>
</head>
<body><main>
<header>
<h1>{{ name }}</h1>
<p class="verdict">{{ verdict }}</p>
<p class="facts">{{ facts|join(' · ') }}</p>
</header>

<h2>{{ kind|title }}s</h2>
<p class="lead">Each is a separate command with its own folder.</p>
<div class="panel"><table>
<tr><th></th><th>{{ kind }}</th><th>command</th><th>takes</th><th>state</th><th>time</th><th>produced</th></tr>
{% for s in stages %}<tr><td class="number">{{ s.number }}</td>
<td><b>{% if s.link %}<a href="{{ s.link }}">{{ s.name }}</a>{% else %}{{ s.name }}{% endif %}</b></td>
<td>{{ s.job }}</td><td>{{ s.takes }}</td><td>{{ s.state }}</td><td class="number">{{ s.time }}</td>
<td>{{ s.produced }}</td></tr>
{% endfor %}</table></div>

{% if points %}
<h2>Held-out figures across {{ kind }}s</h2>
<p class="lead">{{ kind|title }}s that train by reward: the policy at the start and at the end. Rewards of
{{ kind }}s with other weights are not one scale; the shares are.</p>
<div class="panel"><table>
<tr><th>{{ kind }}</th><th>policy</th><th>n</th>{% for f in figures %}<th>{{ f }}</th>{% endfor %}</tr>
{% for p in points %}<tr><td><b>{{ p.stage }}</b></td><td>{{ p.when }}</td><td class="number">{{ p.n }}</td>
{% for value in p['values'] %}<td class="number">{{ value }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endif %}

{% if forms %}
<h2>By order of thought and answer</h2>
<p class="lead">Tokens and seconds go to the end of the answer: in post-CoT the rationale follows it.</p>
<div class="panel"><table>
<tr><th>{{ kind }}</th><th>policy</th><th>prompt</th><th>n</th><th>right action</th><th>reward</th><th>tokens to the
answer's end</th><th>seconds</th></tr>
{% for row in forms %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endif %}

{% if losses %}
<h2>Supervised {{ kind }}s</h2>
<p class="lead">Loss on items that were not trained on, nats per token.</p>
<div class="panel"><table>
<tr><th>{{ kind }}</th><th>set</th><th>items</th><th>before</th><th>after</th></tr>
{% for row in losses %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endif %}

{% if data %}
<h2>Data</h2>
<p class="lead">Items that the recipes kept, and dropped by each check.</p>
<div class="facts-grid">
{% for d in data %}<div class="panel"><h3>{{ d.stage }}: {{ d.rows }} rows written</h3><table class="kv">
{% for what, count in d.counts %}<tr><td>{{ what }}</td><td>{{ count }}</td></tr>
{% endfor %}</table></div>
{% endfor %}</div>
{% endif %}

<div class="grid">
{% for p in plots %}<figure class="wide"><h3>{{ p.title }}</h3>
<img alt="Plot: {{ p.title }}" src="data:image/png;base64,{{ p.png }}"></figure>
{% endfor %}</div>

<h2>Commands</h2>
<p class="lead">{{ folder }}</p>
{% for s in stages %}{% if s.command %}<details><summary>{{ s.number }}. {{ s.name }}</summary>
<pre>{{ s.command }}</pre></details>
{% endif %}{% endfor %}
</main></body></html>
"""
