package reference

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Process is a role of the program that serves metrics.
type Process struct {
	Name    string
	Where   string // they are served
	Metrics []prometheus.Collector
}

// described takes apart what a prometheus.Desc prints, which is its only way to
// tell.
var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "([^"]*)", .*constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}`)

// Metrics is the reference of all metrics, in Markdown.
func Metrics(all []Process) string {
	var b strings.Builder
	b.WriteString("# Metrics\n\nIn Prometheus' format. Generated from the program; beside these each process serves those of every Go program (`go_…`, `process_…`).\n")
	for _, p := range all {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", p.Name, p.Where)
		var rows []string
		for _, c := range p.Metrics {
			for _, d := range descriptions(c) {
				rows = append(rows, metricRow(c, d))
			}
		}
		slices.Sort(rows)
		b.WriteString(strings.Join(rows, ""))
	}
	return b.String()
}

func descriptions(c prometheus.Collector) (all []string) {
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		c.Describe(ch)
	}()
	for d := range ch {
		all = append(all, d.String())
	}
	return all
}

func metricRow(c prometheus.Collector, desc string) string {
	m := described.FindStringSubmatch(desc)
	if m == nil {
		panic("not the form of a description: " + desc)
	}
	name, help, labels := m[1], m[2], strings.Split(m[3], ",")
	for i, l := range labels {
		if labels[i] = "`" + l + "`"; l == "" {
			labels[i] = "–"
		}
	}
	kind := "gauge"
	switch c.(type) {
	case prometheus.Histogram, *prometheus.HistogramVec:
		kind = "histogram"
	default:
		if strings.HasSuffix(name, "_total") {
			kind = "counter"
		}
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind, strings.Join(labels, ", "), strings.ReplaceAll(help, "|", "\\|"))
}
