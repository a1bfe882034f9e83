"""The report's page as a Jinja2 template, with its style and the script that shows values under the pointer.

In the style ``LIGHT_PARTS`` and ``DARK_PARTS`` are the places of the colours of the parts of the hours.
"""

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #59636e; --rule: #d8dee4; --panel: #f6f8fa;
  --good: #1a7f37; --bad: #b42318; --mild: #9a6700; --none: #e6e9ed;
  --c0: #1f6feb; --c1: #d1570b; --c2: #1a7f37; --c3: #a333c8; --c4: #b58900; --c5: #c2255c; --c6: #0c8599; --c7: #6b7280;
  LIGHT_PARTS --heat: 31 111 235; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --soft: #9198a1; --rule: #30363d;
  --panel: #161b22; --good: #3fb950; --bad: #ff7b72; --mild: #d29922; --none: #21262d;
  --c0: #58a6ff; --c1: #f0883e; --c2: #3fb950; --c3: #d2a8ff; --c4: #e3b341; --c5: #ff7eb6; --c6: #39c5cf; --c7: #9198a1;
  DARK_PARTS --heat: 88 166 255; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 20px 24px 48px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 34px 0 8px; }
h3 { font-size: 14px; margin: 16px 0 2px; font-weight: 600; }
p { margin: 6px 0; } .soft, dt, th, figcaption { color: var(--soft); }
.lead { font-size: 17px; } .good { color: var(--good); } .bad { color: var(--bad); } .mild { color: var(--mild); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); gap: 10px; margin: 16px 0 0; }
.card { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: 8px 14px; }
.card b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; } .card span { color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; } th { text-align: left; font-weight: 500; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--rule); vertical-align: top; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: 8px 12px; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; margin: 4px 0; }
figure { margin: 0; } svg { display: block; width: 100%; height: auto; overflow: visible; }
.advice { border-left: 4px solid var(--script); background: var(--panel); padding: 6px 14px; margin: 8px 0; }
.wide { overflow-x: auto; } .wide th, .wide td { overflow-wrap: normal; } code { font-size: 14px; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 4px 28px; }
.charts p { margin: 0; font-size: 13px; } .charts .heat { grid-column: 1 / -1; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); gap: 14px; margin: 8px 0; }
.pictures img { display: block; max-width: 100%; max-height: 480px; background: #fff; border: 1px solid var(--rule); border-radius: 6px; }
.hours td:not(.soft) { border: 0; } .hours td.soft { padding-top: 0; font-size: 13px; }
.versions span { display: inline-block; margin-right: 16px; } figcaption { font-size: 13px; overflow-wrap: anywhere; } a { color: var(--c0); }
svg.bar { height: 26px; border-radius: 4px; margin: 6px 0 10px; }
svg text { font-size: 20px; fill: var(--soft); font-family: inherit; dominant-baseline: hanging; } svg text.up { dominant-baseline: auto; }
circle.best { stroke: var(--c1); stroke-width: 6; }
.grid { stroke: var(--rule); stroke-width: 1; vector-effect: non-scaling-stroke; }
.limit { stroke: var(--bad); stroke-width: 1.2; stroke-dasharray: 6 4; vector-effect: non-scaling-stroke; }
polyline { fill: none; stroke-width: 1.4; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin: 0 5px 0 0; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 13px; color: var(--soft); margin: 2px 0; }
.cursor { stroke: var(--soft); stroke-width: 1; vector-effect: non-scaling-stroke; pointer-events: none; }
#tip { position: absolute; display: none; pointer-events: none; background: var(--back); border: 1px solid var(--rule);
  border-radius: 6px; padding: 5px 9px; font-size: 12px; line-height: 1.4; white-space: pre; font-variant-numeric: tabular-nums; }
@media (max-width: 640px) { body { padding: 14px 12px 32px; } h1 { font-size: 20px; }
  th, td { padding-right: 6px; } svg text { font-size: 31px; } svg text.often { display: none; } .lead { font-size: 16px; }
  .attempts, .attempts tbody { display: block; } .attempts tr { display: grid; border-bottom: 1px solid var(--rule);
    font-size: 12px;
    grid-template-columns: 4.2em 4.6em 6.4em 4.2em 1fr 3.4em; } .attempts th, .attempts td { border: 0; padding: 4px 6px 0 0; }
  .attempts td:last-child { grid-column: 1 / -1; padding: 0 0 4px; } .attempts th:last-child { display: none; } }
@media print { :root { --back: #fff; --text: #000; --soft: #444; --rule: #bbb; --panel: #fff; --good: #1a7f37; --bad: #b42318; --mild: #9a6700;
  --none: #e6e9ed; --c0: #1f6feb; --c1: #d1570b; --c2: #1a7f37; --c3: #a333c8; --c4: #b58900; --c5: #c2255c; --c6: #0c8599;
  --c7: #6b7280; --heat: 31 111 235; LIGHT_PARTS }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } body { max-width: none; padding: 0; font-size: 12px; }
  figure, tr, .advice, .card { break-inside: avoid; } h2, h3 { break-after: avoid; } .wide { overflow: visible; } }
"""

SCRIPT = """
const tip = document.getElementById("tip");
function clock(s) {
  s = Math.round(s); const p = n => String(n).padStart(2, "0");
  return s < 60 ? s + " s" : s < 3600 ? Math.floor(s / 60) + ":" + p(s % 60)
    : Math.floor(s / 3600) + ":" + p(Math.floor(s / 60) % 60) + ":" + p(s % 60);
}
for (const svg of document.querySelectorAll("svg.lines")) {
  const top = +svg.dataset.top, height = +svg.dataset.height, seconds = +svg.dataset.seconds, left = 84, right = 992;
  let groups = null, cursor = null;
  const read = () => [...svg.querySelectorAll("g")].map(g => [g.dataset.title, [...g.querySelectorAll("polyline")].map(
    p => p.getAttribute("points").split(" ").map(q => q.split(",").map(Number)))]);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), x = Math.min(right, Math.max(left, (event.clientX - box.left) / box.width * 1000));
    groups = groups || read();
    if (!cursor) {
      cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
      cursor.setAttribute("class", "cursor"); cursor.setAttribute("y1", 4); cursor.setAttribute("y2", height); svg.append(cursor);
    }
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.style.display = "";
    const rows = [clock((x - left) / (right - left) * seconds)];
    for (const [title, parts] of groups) for (const part of parts) {
      if (x < part[0][0] - 2 || x > part[part.length - 1][0] + 2) continue;
      let low = 0, high = part.length - 1;
      while (high - low > 1) { const m = (low + high) >> 1; if (part[m][0] < x) low = m; else high = m; }
      const near = x - part[low][0] < part[high][0] - x ? part[low] : part[high];
      rows.push(title + "  " + +((height - near[1]) / (height - 8) * top).toPrecision(3) + " " + svg.dataset.unit);
      break;
    }
    tip.textContent = rows.join("\\n"); tip.style.display = "block";
    const over = event.pageX + tip.offsetWidth + 24 > document.documentElement.clientWidth;
    tip.style.left = (over ? event.pageX - tip.offsetWidth - 14 : event.pageX + 14) + "px";
    tip.style.top = (event.pageY + 14) + "px";
  });
  svg.addEventListener("pointerleave", () => { tip.style.display = "none"; if (cursor) cursor.style.display = "none"; });
}
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{{ report.run.run }}: {{ report.course.ending.end.state }}</title>
<style>{{ style }}</style>
</head>
<body>
<header>
<h1>{{ report.run.run }}</h1>
{% if report.run.script %}<p><code>{{ report.run.script }}</code></p>{% endif %}
<p class="soft">{% for fact in (nodes, "job " ~ report.run.job if report.run.job, "site " ~ report.run.site, report.course.began | moment) if fact %}{{ fact }}{{ " · " if not loop.last }}{% endfor %}</p>
<p class="soft">{% if requested %}Requested: {{ requested }}. {% endif %}Results: <code>{{ report.results.folder }}</code></p>
<p class="lead"><b class="{{ state_class }}">{{ report.course.ending.end.state }}</b>:
{{ report.course.ending.end.message }}{% if shows_status %} (exit status {{ report.course.ending.end.exit_status }}){% endif %}</p>
</header>
{% if shows_cause %}
<section><h2>Why</h2>
<p class="lead">{{ report.course.ending.cause }}</p>
{% for line in report.course.ending.evidence %}
<p class="soft">{{ line.file }}{% if line.number %}, line {{ line.number }}{% endif %}{% if line.time %}, {{ line.time | moment }}{% endif %}
{%- if line.node %}, on {{ line.node }}{% endif %}</p>
<pre>{{ line.text }}</pre>
{% endfor %}
{% if report.course.ending.followed %}<p class="soft">What followed:</p>
{% for line in report.course.ending.followed %}<pre>{{ line.text }}</pre>{% endfor %}{% endif %}
{% if report.course.ending.next_step %}<p>Next: {{ report.course.ending.next_step }}</p>{% endif %}
{% if report.course.ending.again %}<pre>{{ report.course.ending.again }}</pre>{% endif %}
</section>
{% endif %}
{% if report.points.sweep %}
<section><h2>Sweep {{ report.points.sweep }}</h2>
<p>{{ report.points.ended | length }} points ended{% if report.points.others %}, {{ report.points.others }} are not in this report{% endif %}.
{% if report.points.ended | length > 100 %}The table shows the first 100.{% endif %}
{% if report.points.metric %}Best first: the {{ "largest" if report.points.maximize else "smallest" }} {{ report.points.metric }}.{% endif %} {% if panels %}A ring marks the best point of each picture.{% endif %}</p>
<div class="charts">{% for name, picture in panels %}<figure><h3>{{ report.points.metric }} by {{ name }}</h3>{{ picture }}</figure>
{% endfor %}</div>
<div class="wide"><table><tr>{% for name in columns[0] %}<th>{{ name }}</th>{% endfor %}{% for name in columns[1] %}<th class="n">{{ name }}</th>{% endfor %}<th>state</th><th class="n">time</th><th>cause</th></tr>
{% for point in report.points.ended[:100] %}<tr>{% for name in columns[0] %}<td>{{ point.values.get(name, "") }}</td>{% endfor %}
{% for name in columns[1] %}<td class="n">{% if name in point.metrics %}{{ "%.6g" | format(point.metrics[name]) }}{% endif %}</td>{% endfor %}
<td>{{ point.state }}</td><td class="n">{{ point.seconds | short }}</td><td>{{ point.cause }}</td></tr>
{% endfor %}</table></div></section>
{% endif %}
{% if report.findings.advice %}
<section><h2>What to change</h2>
{% for advice in report.findings.advice %}<p class="advice">{{ advice.sentence }}</p>
{% endfor %}</section>
{% elif good %}
<p class="soft">{% if short %}A run below 5 minutes is too short for advice on time, memory and cores.{% else %}No advice: this run used what it paid for.{% endif %}</p>
{% endif %}
<div class="cards">
{% for title, value in cards %}<div class="card"><b>{{ value }}</b><span>{{ title }}</span></div>
{% endfor %}</div>
{% if report.findings.script_alone is not none or report.findings.functions %}
<section><h2>What the script and its tasks did</h2>
<p>The script ran for {{ report.findings.script_seconds | short }}.{% if report.findings.script_alone is not none %} For {{ report.findings.script_alone | short }} of them,
{{ (100 * report.findings.script_alone / (report.course.end - report.course.began)) | percent }} of the job's time, no task ran: only the script itself worked.
{% if unit == "core" %}<span class="soft">The table of core-hours counts the cores that the script used as useful.</span>{% endif %}{% endif %}</p>
{% if report.findings.functions %}<table><tr><th>Function</th><th class="n">tasks</th><th class="n">total</th><th class="n">mean</th><th class="n">longest</th></tr>
{% if report.findings.script_alone is not none %}<tr><td>the script itself</td><td class="n"></td><td class="n">{{ report.findings.script_alone | short }}</td><td class="n"></td><td class="n"></td></tr>{% endif %}
{% for function in functions %}<tr><td>{{ function.name | e | replace("_", "_<wbr>" | safe) }}</td><td class="n">{{ function.tasks | count }}</td><td class="n">{{ function.seconds | short }}</td>
<td class="n">{{ (function.seconds / function.tasks) | short }}</td><td class="n">{{ function.longest | short if function.tasks == 1 or function.longest > function.seconds / function.tasks else "–" }}</td></tr>
{% endfor %}</table>
<p class="soft">Total adds the times of all tasks. Tasks run at the same time. The time of a task includes waits for a core.</p>{% endif %}</section>
{% endif %}
{% if ledger %}
<section><h2>Where the {{ unit }}-hours went</h2>
<p>{{ report.hours.ledger.number | count }} {{ unit }}{{ "s" if report.hours.ledger.number != 1 }} for {{ (report.course.end - report.course.began) | duration }}:
{{ report.hours.ledger.paid | hours(decimals) }} {{ unit }}-hours.
<span class="soft">{% for phase in report.course.phases if phase.end - phase.begin >= 0.5 %}{{ phase.title }} {{ (phase.end - phase.begin) | duration }}{{ ", " if not loop.last else "." }}{% endfor %}</span></p>
<figure>{{ ledger }}</figure>
<table class="hours"><tr><th>Part</th><th class="n">{{ unit }}-hours</th><th class="n">share</th>{% if several %}<th class="n">all attempts</th>{% endif %}</tr>
{% for row in parts %}<tr><td>{% for kind in row.kinds %}<i class="key k-{{ kind }}"></i>{% endfor %}{{ row.title }}</td>
<td class="n">{{ row.hours | hours(decimals) }}</td><td class="n">{{ "%.1f" | format(row.share) }} %</td>
{%- if several %}<td class="n">{{ row.total | hours(decimals) }}</td>{% endif %}</tr><tr><td colspan="4" class="soft">{{ row.text }}</td></tr>
{% endfor %}</table></section>
{% endif %}
{% if report.results.files %}
<section><h2>Results</h2>
<div class="pictures">{% for file in report.results.files if file.picture %}<figure><img alt="{{ file.name }}" src="{{ file.picture }}"><figcaption><a href="{{ file.link }}">{{ file.name }}</a></figcaption></figure>
{% endfor %}</div>
<table>{% for file in report.results.files if not file.picture %}<tr><td><a href="{{ file.link }}">{{ file.name }}</a></td><td class="n">{{ file.size | size }}</td></tr>
{% endfor %}</table>
<p class="soft">The links need the run's folder <code>out</code>.{% if report.results.others %} {{ report.results.others }} more files are in this folder.{% endif %}</p></section>
{% endif %}
{% if several %}
<section><h2>All attempts</h2>
<p>{{ report.hours.attempts | length }} attempts ran for {{ report.hours.attempts | sum(attribute="seconds") | duration }}: {{ total | hours(decimals) }} {{ unit }}-hours,
of them {{ report.hours.total.useful | hours(decimals) }} useful. The rest of this page shows the last one.</p>
<div class="wide"><table class="attempts"><tr><th>Attempt</th><th>job</th><th>began</th><th class="n">lasted</th><th class="n">{{ unit }}-hours</th><th class="n">useful</th><th>ended</th></tr>
{% for attempt in report.hours.attempts %}<tr><td>{{ attempt.number }}</td><td>{{ attempt.job }}</td><td>{{ attempt.begin | moment }}</td>
<td class="n">{{ attempt.seconds | duration }}</td><td class="n">{% if attempt.hours is none %}–{% else %}{{ attempt.hours | hours(decimals) }}{% endif %}</td>
<td class="n">{{ attempt.useful | percent }}</td><td><b>{{ attempt.outcome }}</b> {{ attempt.message }}</td></tr>
{% endfor %}</table></div></section>
{% endif %}
{% if pictures %}
<section><h2>Over time</h2><div class="charts">
{% for title, note, picture, legend in pictures %}
<figure><h3>{{ title }}</h3>{% if note %}<p class="soft">{{ note }}</p>{% endif %}
{{ picture }}
{% if legend | length > 1 %}<div class="legend">{% for name in legend %}<span><i class="key k{{ loop.index0 % 8 }}"></i>{{ name }}</span>{% endfor %}</div>{% endif %}
</figure>
{% endfor %}</div></section>
{% endif %}
{% if report.machines.devices %}
<section><h2>GPUs</h2><div class="wide"><table><tr><th>GPU</th><th>model</th><th class="n">mean use</th><th class="n">highest memory use</th>
<th class="n">mean power</th><th class="n">energy</th></tr>
{% for gpu in report.machines.devices[:256] %}<tr><td>{{ gpu.label }}{% if gpu.process %}, {{ gpu.process }}{% endif %}</td><td>{{ gpu.name }}</td><td class="n">{{ gpu.use | percent }}</td>
<td class="n">{{ gpu.memory | size }}{% if gpu.memory_size %} of {{ gpu.memory_size | size }}{% endif %}</td>
<td class="n">{% if gpu.power is none %}–{% else %}{{ "%.0f" | format(gpu.power) }} W{% endif %}</td>
<td class="n">{% if gpu.energy is none %}–{% else %}{{ "%.3f" | format(gpu.energy) }} kWh{% endif %}</td></tr>
{% endfor %}</table></div>
<p class="soft">Use is the share of the job's time in which a CUDA kernel ran, as the driver measures it.</p></section>
{% endif %}
<section><h2>Requested and used</h2><table><tr><th></th><th>requested</th><th>used</th></tr>
{% for what, asked, used in report.findings.asked %}<tr><td>{{ what }}</td><td>{{ asked }}</td><td>{{ used }}</td></tr>{% endfor %}</table></section>
{% if report.interconnect.interconnect %}
<section><h2>Interconnect</h2><p><b class="{{ 'good' if report.interconnect.interconnect_ok else 'bad' }}">{{ "✓" if report.interconnect.interconnect_ok else "✗" }}</b> {{ report.interconnect.interconnect }}</p>
{% if report.interconnect.interconnect_remedy and not report.interconnect.interconnect_ok %}<p>Remedy: {{ report.interconnect.interconnect_remedy }}</p>{% endif %}</section>
{% endif %}
{% if report.machines.topology %}
<section><h2>Nodes</h2><table>{% for name, text in report.machines.topology[:256] %}<tr><td>{{ name }}</td><td>{{ text }}</td></tr>{% endfor %}</table></section>
{% endif %}
{% if report.findings.profiles %}
<section><h2>Profiler output</h2><p class="soft">These commands open it:</p>
{% for line in report.findings.profiles %}<pre>{{ line }}</pre>{% endfor %}</section>
{% endif %}
{% if report.findings.processes %}
<section><h2>Where the processes were before the end</h2>{% for text in report.findings.processes %}<p>{{ text }}</p>{% endfor %}</section>
{% endif %}
{% if report.findings.happened %}
<section><h2>Events on the nodes</h2>{% for text in report.findings.happened %}<p>{{ text }}</p>{% endfor %}</section>
{% endif %}
{% if report.course.ending.end.warnings %}
<section><h2>Warnings</h2>{% for text in report.course.ending.end.warnings %}<p>{{ text }}</p>{% endfor %}</section>
{% endif %}
{% if report.machines.versions %}
<section><h2>Versions</h2><p class="soft versions">{% for name, version in report.machines.versions %}<span>{{ name }} {{ version }}</span> {% endfor %}</p>
{% for name, decision in report.machines.repairs %}<p class="soft">Repair {{ decision.sentence(name) }}.</p>{% endfor %}</section>
{% endif %}
{% if report.findings.unknown %}
<section><h2>Not known</h2>{% for text in report.findings.unknown %}<p>{{ text }}</p>{% endfor %}</section>
{% endif %}
<p class="soft">hpcml {{ report.run.version }} wrote this report of attempt {{ report.run.attempt }} on {{ report.made | moment }}. Times in charts count from the start of the job.</p>
<div id="tip" role="status"></div>
<script>{{ script }}</script>
</body>
</html>
"""
