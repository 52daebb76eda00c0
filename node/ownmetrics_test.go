package node_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/runtime/fake"
)

// TestOwnMetrics: what instances tell is exported with their names, and nothing that one tells
// keeps the agent's own metrics, or another one's, from being read.
func TestOwnMetrics(t *testing.T) {
	b := newFixture(t)
	texts := map[string]string{
		"good": "# TYPE queries_total counter\nqueries_total{type=\"A\"} 7\nqueries_total{type=\"AAAA\",instance=\"x\"} 2\n",
		"same": "# TYPE queries_total gauge\n# HELP queries_total other words\nqueries_total 1\n",
		"sly":  "onpath_node_instances{state=\"ready\"} 99\ngo_goroutines 1\nmine 3\n",
		"twin": "twins{exported_instance=\"a\"} 1\ntwins{exported_instance=\"b\"} 2\n" +
			"more{instance=\"x\",exported_instance=\"a\"} 3\nmore{instance=\"x\",exported_instance=\"b\"} 4\n",
		"text": "this is no metric\n",
		"long": strings.Repeat("a 1\n", 100_000),
	}
	b.machine.Set(fake.Knobs{Exec: func(_ context.Context, id string, e onpath.ExecSpec) (int, error) {
		for name, text := range texts {
			if len(e.Command) == 2 && e.Command[1] == name {
				_, err := io.WriteString(e.Stdout, text)
				return 0, err
			}
		}
		return 1, nil
	}})
	r := b.run()
	var plans []onpath.InstancePlan
	vport := onpath.VportID(16)
	for _, name := range []string{"good", "same", "sly", "twin", "text", "long", "none"} {
		in := routed(name, vport)
		in.Spec.Metrics.Exec = []string{"tell", name}
		plans, vport = append(plans, in), vport+1
	}
	r.plan(planOf(1, plans...))
	for _, p := range plans {
		r.untilState(p.Name, onpath.InstanceReady)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := r.Register(reg); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			got[fmt.Sprint(f.GetName(), labels)] = m.GetUntyped().GetValue() + m.GetGauge().GetValue()
		}
	}
	for want, n := range map[string]float64{
		"queries_total[instance=acme/good type=A]":                        7,
		"queries_total[exported_instance=x instance=acme/good type=AAAA]": 2,
		"queries_total[instance=acme/same]":                               1,
		"mine[instance=acme/sly]":                                         3,
		"twins[exported_instance=b instance=acme/twin]":                   2,
		"more[exported_instance=x instance=acme/twin]":                    3,
		"onpath_node_instances[state=ready]":                              7,
		"onpath_instance_metrics_read[instance=acme/good]":                1,
		"onpath_instance_metrics_read[instance=acme/text]":                0,
		"onpath_instance_metrics_read[instance=acme/long]":                0,
		"onpath_instance_metrics_read[instance=acme/none]":                0,
	} {
		if v, ok := got[want]; !ok || v != n {
			t.Errorf("%s: %v (%v), must be %v", want, v, ok, n)
		}
	}
	if _, ok := got["go_goroutines[instance=acme/sly]"]; ok {
		t.Error("an instance told a metric of the agent's process")
	}
}
