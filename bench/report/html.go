package report

import (
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/onpath/onpath/bench"
)

// HTML writes the results as one page with pictures, which loads nothing.
func HTML(w io.Writer, r *bench.Results) error {
	var parts []htmlSection
	for _, s := range sections(r) {
		parts = append(parts, newHTMLSection(s))
	}
	if err := page.Execute(w, map[string]any{"Machine": r.Machine, "Sections": parts, "Missed": missed(parts), "Judged": judged(parts)}); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

type htmlSection struct {
	Name, Question string
	Seconds        float64
	Verdicts       []htmlVerdict
	Charts         []htmlChart
	Rows           []htmlRow
	Skipped        []bench.Skip
	Profiles       []bench.Profile
}

type htmlVerdict struct {
	Contestant, Text, Got, Class, Word string
	Measured, Baseline                 string // median and quartiles
	Why                                string
}

type htmlChart struct {
	Metric string
	SVG    template.HTML
}

type htmlRow struct {
	Case, Metric, Contestant, Value, Low, High, Unit, Ratios string
}

func newHTMLSection(s section) htmlSection {
	h := htmlSection{Name: s.name, Question: s.question, Seconds: s.seconds, Skipped: s.skipped, Profiles: s.profiles}
	for _, v := range s.verdicts {
		h.Verdicts = append(h.Verdicts, newHTMLVerdict(v))
	}
	for _, c := range s.charts() {
		h.Charts = append(h.Charts, htmlChart{c.metric, template.HTML(c.svg())}) // escaped where it was made
	}
	for _, r := range s.records {
		f := scaleOf(r)
		h.Rows = append(h.Rows, htmlRow{r.Case, r.Metric, r.Contestant, f.format(r.Value), f.format(r.Low), f.format(r.High), f.unit, ratios(r)})
	}
	return h
}

func newHTMLVerdict(v bench.Verdict) htmlVerdict {
	h := htmlVerdict{Contestant: v.Target.Contestant, Text: v.Target.Text, Class: "missed", Word: "missed"}
	switch {
	case !v.Measured:
		h.Class, h.Word = "open", "not measured"
		return h
	case v.Reached:
		h.Class, h.Word = "reached", "reached"
	}
	h.Got, h.Measured = fmt.Sprintf("%.3g", v.Got), spread(v.Record)
	if v.Baseline != nil {
		h.Baseline = v.Baseline.Contestant + ": " + spread(*v.Baseline)
	}
	if !v.Reached {
		h.Why = v.Target.Why
	}
	return h
}

// spread is the median of a record, and its quartiles.
func spread(r bench.Record) string {
	s := scaleOf(r)
	return fmt.Sprintf("%s %s (%s – %s)", s.format(r.Value), s.unit, s.format(r.Low), s.format(r.High))
}

func judged(list []htmlSection) (n int) {
	for _, s := range list {
		for _, v := range s.Verdicts {
			if v.Class != "open" {
				n++
			}
		}
	}
	return n
}

func missed(list []htmlSection) (n int) {
	for _, s := range list {
		for _, v := range s.Verdicts {
			if v.Class == "missed" {
				n++
			}
		}
	}
	return n
}

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"gib":     func(b int64) string { return fmt.Sprintf("%.0f GiB", float64(b)/(1<<30)) },
	"percent": percent,
	"id":      func(s string) string { return strings.ReplaceAll(s, " ", "-") },
}).Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>onpath bench</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #f5f7fa; margin: 0; }
main { max-width: 860px; margin: 0 auto; padding: 32px 24px; }
section, header { background: #fff; border: 1px solid #e4e7eb; border-radius: 6px; padding: 20px 24px; margin-bottom: 20px; }
h1 { margin: 0 0 4px; font-size: 24px; } h2 { margin: 0; font-size: 19px; } h3 { margin: 20px 0 4px; font-size: 15px; }
p { margin: 4px 0 12px; } nav a { margin-right: 12px; } a { color: #0b6e99; }
table { border-collapse: collapse; width: 100%; font-size: 13px; } th, td { text-align: left; padding: 3px 10px 3px 0; border-bottom: 1px solid #e4e7eb; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 12px 0; } dt { color: #616e7c; } dd { margin: 0; }
svg { max-width: 100%; height: auto; } .reached { color: #1b7f4b; } .missed { color: #b42318; font-weight: 600; } .open { color: #616e7c; }
details { margin-top: 12px; } summary { cursor: pointer; color: #0b6e99; }
</style>
</head>
<body><main>
<header>
<h1>onpath bench</h1>
{{if .Machine.Quick}}<p class="missed">A quick run: it shows that everything works, and its figures mean nothing.</p>
{{else}}<p>{{.Judged}} targets were measured, {{.Missed}} of them missed.</p>{{end}}
<dl>
<dt>when</dt><dd>{{.Machine.Started.Format "2006-01-02 15:04 MST"}}</dd>
<dt>onpath</dt><dd>{{.Machine.Onpath}}</dd>
<dt>machine</dt><dd>{{.Machine.CPU}}, {{.Machine.CPUs}} CPUs, {{gib .Machine.Memory}}, Linux {{.Machine.Kernel}} ({{.Machine.Arch}})</dd>
<dt>method</dt><dd>source, contestant and sink on CPU {{.Machine.ForwardingCPU}}; loss-free means at most {{.Machine.LossTolerance}} lost; contestants in ABBA order; bars are medians over rounds, lines go from the lower to the upper quartile, ratios are paired round by round</dd>
</dl>
<nav>{{range .Sections}}<a href="#{{id .Name}}">{{.Name}}</a>{{end}}</nav>
</header>
{{range .Sections}}<section id="{{id .Name}}">
<h2>{{.Name}}</h2>
<p>{{.Question}}</p>
{{if .Verdicts}}<table><tr><th>contestant</th><th>to reach</th><th class="n">is</th><th class="n">median (quartiles)</th><th class="n">baseline</th><th></th></tr>
{{range .Verdicts}}<tr><td>{{.Contestant}}</td><td>{{.Text}}</td><td class="n">{{.Got}}</td><td class="n">{{.Measured}}</td><td class="n">{{.Baseline}}</td><td class="{{.Class}}">{{.Word}}</td></tr>
{{end}}</table>{{end}}
{{range .Verdicts}}{{if .Why}}<p>Missed: {{.Text}}. {{.Why}}</p>
{{end}}{{end}}
{{range .Charts}}<h3>{{.Metric}}</h3>
{{.SVG}}
{{end}}
{{range .Skipped}}<p class="open">{{.Contestant}} did not take part: {{.Why}}</p>
{{end}}{{range .Profiles}}<details><summary>Where the time of {{.Contestant}} goes: {{.Case}}</summary>
<table><tr><th>function</th><th class="n">share</th></tr>
{{range .Shares}}<tr><td>{{.Function}}</td><td class="n">{{percent .Share}}</td></tr>
{{end}}</table></details>
{{end}}<details><summary>All figures ({{printf "%.0f" .Seconds}} s)</summary>
<table><tr><th>case</th><th>metric</th><th>contestant</th><th class="n">median</th><th class="n">low</th><th class="n">high</th><th>unit</th><th>of others</th></tr>
{{range .Rows}}<tr><td>{{.Case}}</td><td>{{.Metric}}</td><td>{{.Contestant}}</td><td class="n">{{.Value}}</td><td class="n">{{.Low}}</td><td class="n">{{.High}}</td><td>{{.Unit}}</td><td>{{.Ratios}}</td></tr>
{{end}}</table></details>
</section>
{{end}}</main></body></html>
`))
