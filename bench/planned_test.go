package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/ruleset"
)

// TestPlanned: the planner makes of the YAML of cases what they need.
func TestPlanned(t *testing.T) {
	site := gatewayNode(onpath.FastAuto)
	firewall, err := containerCases[2].yaml("images", "any", toSiteServer, gatewayName)
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := containerCases[0].yaml("images", "{hosts: vm1}", "{hosts: vm2}", "vm3")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, yaml string
		instances  map[string]int // by node
		mtu        int            // of the path
	}{
		{"ten hops", site + throughHops(setupVports, netServers.String()), map[string]int{gatewayName: setupVports}, 1500},
		{"eight ebpf functions", site + inlineYAML(countFunction, 8), map[string]int{gatewayName: 8}, 1500},
		{"an engine", site + engineYAML, map[string]int{gatewayName: 1}, 1500},
		{"a firewall", site + firewall, map[string]int{gatewayName: 1}, 1500},
		{"another node", remoteYAML, map[string]int{gatewayName: 0, "far": 1}, remoteMTU},
		{"attached machines", cloudYAML(bridge), map[string]int{"vm1": 0, "vm2": 0, "vm3": 1}, remoteMTU},
		{"churn", churnYAML, map[string]int{gatewayName: 6}, 1500},
	} {
		f, err := planned(c.yaml)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for node, n := range c.instances {
			p := f.Plan(node)
			if len(p.Instances) != n {
				t.Errorf("%s: node %s has %d instances, must have %d", c.name, node, len(p.Instances), n)
			}
			if len(p.Datapath.Paths) != 1 || p.Datapath.Paths[0].MTU != c.mtu {
				t.Errorf("%s: node %s has paths %+v, must have one of MTU %d", c.name, node, p.Datapath.Paths, c.mtu)
			}
			for _, v := range effective(p, true).Vports {
				if v.State != onpath.VportUp {
					t.Errorf("%s: node %s: %+v takes no packets", c.name, node, v)
				}
			}
		}
	}
}

// TestPlannedRules: a table has the rules of a set, in their order.
func TestPlannedRules(t *testing.T) {
	for _, family := range ruleset.Families {
		list, err := ruleset.Make(family, 2500, 1, false)
		if err != nil {
			t.Fatal(err)
		}
		p, err := rulesPlan(list)
		if err != nil {
			t.Fatal(err)
		}
		id := onpath.ClassifierTable(onpath.TierTenant)
		tables := p.Datapath.Tables
		rules := tables[slices.IndexFunc(tables, func(t onpath.Table) bool { return t.ID == id })].Rules
		if len(rules) != len(list) {
			t.Fatalf("%s: there are %d rules, must be %d", family, len(rules), len(list))
		}
		for i, m := range list {
			m.Family = 0
			if got := rules[i].Match; fmt.Sprint(got) != fmt.Sprint(m) {
				t.Fatalf("%s: rule %d is %v, must be %v", family, i, got, m)
			}
		}
	}
}

// TestNothingByHand: no case writes the configuration of a data path itself.
func TestNothingByHand(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, made := range []string{"DatapathConfig{", "Vport{", "Group{", "Table{"} {
			if !strings.HasSuffix(f, "_test.go") && strings.Contains(string(text), "onpath."+made) {
				t.Errorf("%s has onpath.%s…}: write YAML, from which the planner makes it", f, made)
			}
		}
	}
}
