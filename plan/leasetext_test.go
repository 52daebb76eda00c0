package plan

import (
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestLeaseText: a lease may have what a request has room for, and no node reports more, whatever
// was believed of the lease before.
func TestLeaseText(t *testing.T) {
	n := &node{name: "edge", obj: &onpath.Node{Spec: onpath.NodeSpec{Leases: &onpath.LeasesSpec{Publishers: onpath.PublisherAny}}}}
	many := func(words string, count int) []string { return strings.Fields(strings.Repeat(words+" ", count)) }
	report := func(change func(*onpath.LeaseReport)) *onpath.LeaseReport {
		r := &onpath.LeaseReport{Name: "web", LeaseSpec: onpath.LeaseSpec{Node: "edge", Publisher: "key-1", Module: "web"}}
		change(r)
		return r
	}
	had := &onpath.Lease{Spec: report(func(*onpath.LeaseReport) {}).LeaseSpec}
	for what, c := range map[string]struct {
		report *onpath.LeaseReport
		ok     bool
	}{
		"a long request": {report(func(r *onpath.LeaseReport) { r.Properties = many("name=value", 1300) }), true},
		"properties":     {report(func(r *onpath.LeaseReport) { r.Properties = many("name=value", 2000) }), false},
		"hosts":          {report(func(r *onpath.LeaseReport) { r.Fetch = many("a.example.com", 2000) }), false},
		"ports":          {report(func(r *onpath.LeaseReport) { r.Serves = make([]onpath.ServedPort, 1000) }), false},
		"prefixes":       {report(func(r *onpath.LeaseReport) { r.To = make([]onpath.Prefix, 10_000) }), false},
	} {
		for _, before := range []*onpath.Lease{nil, had} {
			if why := n.disbelieve(nil, c.report, before); (why == "") != c.ok {
				t.Errorf("%s, known before: %t: %q", what, before != nil, why)
			}
		}
	}
}
