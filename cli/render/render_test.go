package render_test

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/render"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", -time.Second: "0s", 119 * time.Second: "119s", 130 * time.Second: "2m10s",
		90 * time.Minute: "90m", 47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := render.Age(now.Add(-d), now); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
	if got := render.Age(time.Time{}, now); got != "" {
		t.Errorf("zero time: %q", got)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 999: "999", 1024: "1Ki", 1536: "1.5Ki", 5 << 30: "5Gi", 1 << 60: "1.05e+06Ti"} {
		if got := render.Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestReaches: a wide table of nodes says how each reaches each other one.
func TestReaches(t *testing.T) {
	n := &onpath.Node{Metadata: onpath.Metadata{Name: "vm1"}}
	for other, c := range map[string]onpath.Condition{
		"vm2": {Status: onpath.True, Reason: onpath.ReasonVXLAN}, "vm3": {Status: onpath.True, Reason: onpath.ReasonWireGuard},
		"vm4": {Status: onpath.False, Reason: onpath.ReasonNoWay}, "vm5": {Status: onpath.False, Reason: onpath.ReasonWireGuard},
	} {
		c.Type = onpath.ConditionTunnel + other
		n.Status.Conditions = append(n.Status.Conditions, c)
	}
	slices.SortFunc(n.Status.Conditions, func(a, b onpath.Condition) int { return strings.Compare(a.Type, b.Type) })
	const want = "vm2=vxlan,vm3=wireguard,vm4=NOT,vm5=NOT"
	if row := render.Row(n, now, true); !slices.Contains(row, want) {
		t.Errorf("row %q lacks %s", row, want)
	}
}

// TestEveryKind checks that rows fit their headings.
func TestEveryKind(t *testing.T) {
	for _, k := range onpath.Kinds() {
		o, err := onpath.New(k)
		if err != nil {
			t.Fatal(err)
		}
		o.Meta().Name, o.Meta().Created = "x", now.Add(-time.Minute)
		var b strings.Builder
		columns := map[bool]int{}
		for _, wide := range []bool{false, true} {
			b.Reset()
			if err := render.Objects(&b, k, []onpath.Object{o}, now, wide); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(b.String()), "\n")
			if len(lines) != 2 || len(lines[0]) == 0 {
				t.Errorf("%s:\n%s", k, b.String())
			}
			head := strings.Fields(lines[0])
			if cells := render.Row(o, now, wide); len(cells) != len(head) {
				t.Errorf("%s, wide %v: %d cells under %d headings", k, wide, len(cells), len(head))
			}
			if i := slices.Index(head, "MESSAGE"); i >= 0 && i != len(head)-1 {
				t.Errorf("%s, wide %v: the message is not the last column: %v", k, wide, head)
			}
			columns[wide] = len(head)
		}
		if more := columns[true] > columns[false]; more == (k == onpath.KindHosts || k == onpath.KindEvent) {
			t.Errorf("%s: %d columns, wide %d", k, columns[false], columns[true])
		}
		b.Reset()
		if err := render.Describe(&b, o, nil, nil, nil, now); err != nil {
			t.Errorf("%s: %v", k, err)
		}
	}
}

func TestChainRow(t *testing.T) {
	c := &onpath.Chain{
		Metadata: onpath.Metadata{Name: "web", Tenant: "acme", Created: now.Add(-3 * time.Second)},
		Spec: onpath.ChainSpec{
			Tier: onpath.TierTenant, From: onpath.Endpoints{Any: true}, To: onpath.Endpoints{Hosts: "website"},
			Through: []onpath.Element{{Function: "firewall"}, {Deployment: "ids", Mode: onpath.ModeMirror}},
		},
		Status: onpath.ChainStatus{
			Elements:   []onpath.ElementStatus{{Deployment: "web-firewall", Ready: 1, Desired: 2}, {Deployment: "ids", Ready: 1, Desired: 1}},
			Conditions: []onpath.Condition{{Type: "Placed", Status: onpath.False, Message: "no node has room"}},
		},
	}
	got := strings.Join(render.Row(c, now, false), "|")
	want := "acme|web|any|website|firewall → (ids)|starting 2/3|3s|no node has room"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestOwnDeployment(t *testing.T) {
	c := &onpath.Chain{
		Metadata: onpath.Metadata{Name: "web", Tenant: "acme", Created: now.Add(-3 * time.Second)},
		Spec:     onpath.ChainSpec{Through: []onpath.Element{{Deployment: "ids"}, {Function: "operator/firewall", Instances: new(2)}}},
		Status:   onpath.ChainStatus{Elements: []onpath.ElementStatus{{}, {Ready: 1, Desired: 2, Message: "no node has room"}}},
	}
	own := c.OwnDeployments()
	if len(own) != 1 {
		t.Fatalf("got %d", len(own))
	}
	if got, want := strings.Join(render.Row(own[0], now, false), "|"), "acme|web-firewall|operator/firewall|web|1/2|3s|no node has room"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if own[0].APIVersion != onpath.APIVersion || own[0].Kind != onpath.KindDeployment {
		t.Errorf("it calls itself %q %q", own[0].APIVersion, own[0].Kind)
	}
	var b strings.Builder
	if err := render.Describe(&b, own[0], nil, nil, nil, now); err != nil || !strings.Contains(b.String(), "part of chain web") {
		t.Errorf("%v:\n%s", err, b.String())
	}
}

func TestTrace(t *testing.T) {
	tr := &onpath.Trace{
		Tuple:  onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("10.1.0.2"), Dst: netip.MustParseAddr("10.9.0.2"), SrcPort: 40000, DstPort: 80},
		Chains: []string{"operator/guard", "default/web"}, Live: true,
		Forward: []onpath.TraceHop{
			{Kind: onpath.HopEdge, Node: "gw1", Name: "uplinks", Live: true, Flow: &onpath.Tally{Packets: 7, Bytes: 2048}},
			{Kind: onpath.HopElement, Node: "c1", Name: "default/fw-x", State: "ready", Element: 0, Live: true, Counters: &onpath.VportCounters{
				In: onpath.Tally{Packets: 9}, Dropped: map[onpath.DropReason]uint64{onpath.DropSpoofed: 1, onpath.DropQuota: 3}}},
			{Kind: onpath.HopElement, Element: 1, Mode: onpath.ModeMirror, Candidates: []string{"a", "b"}},
		},
		Warnings: []onpath.Note{{Text: "the reply bypasses the chain"}},
	}
	var b strings.Builder
	if err := render.Trace(&b, tr, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"10.1.0.2:40000 → 10.9.0.2 tcp/80", "chains operator/guard, then default/web; seen on the path now",
		"forward", "c1    fw-x", "by the plan; one of", "2Ki", "quota 3, spoofed 1", "element 2 mirror", "one of a, b", "! the reply bypasses the chain",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
	_, heading, _ := strings.Cut(b.String(), "HOP")
	if at := strings.Index("HOP"+heading, "NOTE"); at < 0 || at > 76 {
		t.Errorf("the note begins in column %d:\n%s", at, b.String())
	}
	b.Reset()
	if err := render.Trace(&b, tr, true); err != nil || !strings.Contains(b.String(), "live") || !strings.Contains(b.String(), "ALL-IN") {
		t.Errorf("wide: %v\n%s", err, b.String())
	}
	if strings.Contains(b.String(), "reverse") {
		t.Error("shows a way without hops")
	}
}

func TestParseFlow(t *testing.T) {
	for in, want := range map[string]string{
		"10.1.0.2 10.9.0.2 tcp/80":          "{6 10.1.0.2 10.9.0.2 0 80}",
		"10.1.0.2:40000 10.9.0.2:443 tcp":   "{6 10.1.0.2 10.9.0.2 40000 443}",
		"2001:db8::1 2001:db8::2 icmp":      "{58 2001:db8::1 2001:db8::2 0 0}",
		"[2001:db8::1]:9 2001:db8::2 udp/5": "{17 2001:db8::1 2001:db8::2 9 5}",
		"10.1.0.2 10.9.0.2 47":              "{47 10.1.0.2 10.9.0.2 0 0}",
		"10.1.0.2 10.9.0.2 tcp":             "error",
		"10.1.0.2 10.9.0.2 tcp/http":        "error",
		"10.1.0.2 10.9.0.2 300":             "error",
		"10.1.0.2 2001:db8::1 icmp":         "error",
		"client 10.9.0.2 icmp":              "error",
	} {
		f := strings.Fields(in)
		got, err := render.ParseFlow(f[0], f[1], f[2])
		if want == "error" {
			if onpath.CodeOf(err) != onpath.CodeInvalid {
				t.Errorf("%s: got %v, %v", in, got, err)
			}
			continue
		}
		if s := strings.TrimSpace(strings.Join(strings.Fields(sprint(got)), " ")); err != nil || s != want {
			t.Errorf("%s: got %s, %v, want %s", in, s, err, want)
		}
	}
	var e *onpath.Error
	if _, err := render.ParseFlow("a", "b", "c"); !errors.As(err, &e) || e.Remedy == "" {
		t.Errorf("no remedy: %v", err)
	}
}

func TestPreview(t *testing.T) {
	var b strings.Builder
	err := render.Preview(&b, &onpath.Preview{
		Instances: []onpath.InstancePreview{{Action: onpath.PreviewStart, Tenant: "default", Deployment: "web-fw", Node: "c1", Reason: "new"}},
		Rules:     []onpath.RulesPreview{{Node: "gw1", Added: 3}}, Notes: []string{"running connections are passed by"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"start", "default/web-fw", "+3", "-0", "note: running"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
}

func sprint(t onpath.Tuple) string {
	return "{" + strings.Join([]string{num(int(t.Protocol)), t.Src.String(), t.Dst.String(), num(int(t.SrcPort)), num(int(t.DstPort))}, " ") + "}"
}

func num(n int) string { return strconv.Itoa(n) }

// What is wrong stands in a table as it is, before what is only worth knowing,
// whose beginning must do.
func TestMessageInTable(t *testing.T) {
	long := "uplink eth0: steered by tc, not by the faster XDP: eth0 is a virtual device (veth), where XDP slows or breaks TCP; say fast: always"
	n := &onpath.Node{Metadata: onpath.Metadata{Name: "n1"}}
	n.Status.Conditions = []onpath.Condition{{Type: "FastPath/eth0", Status: onpath.Unknown, Reason: onpath.ReasonOrdinaryPath, Message: long}}
	message := func() string {
		row := render.Row(n, time.Now(), false)
		return row[len(row)-1]
	}
	if got := message(); got != "-" && got != "" {
		t.Errorf("the table says %q of what is normal", got)
	}
	n.Status.Conditions[0].Reason = "Other"
	if got, want := message(), "uplink eth0: steered by tc, not by the faster XDP: eth0 is…"; got != want {
		t.Errorf("the table says %q, want %q", got, want)
	}
	n.Status.Conditions = append(n.Status.Conditions, onpath.Condition{Type: "Drained", Status: onpath.False, Message: "cannot move " + long})
	if got := message(); got != "cannot move "+long {
		t.Errorf("the table says %q", got)
	}
	var b strings.Builder
	if err := render.Describe(&b, n, nil, nil, nil, time.Now()); err != nil || !strings.Contains(b.String(), long) {
		t.Errorf("described as %s, %v", b.String(), err)
	}
}

// TestDescribeFound: describe says where a service answers, and what a claim waits for.
func TestDescribeFound(t *testing.T) {
	s := &onpath.Service{Metadata: onpath.Metadata{Name: "cdn", Tenant: "acme"}, Spec: onpath.ServiceSpec{Deployment: "web"}}
	s.Status.Cloudlets = []onpath.ServicePlace{{Cloudlet: "fra", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.2")}, Ready: 2, Serves: true},
		{Cloudlet: "lis"}}
	s.Status.Conditions = []onpath.Condition{{Type: "Active", Status: "False", Message: "lis: no instance is ready"}}
	c := &onpath.PrefixClaim{Metadata: onpath.Metadata{Name: "site", Tenant: "acme"}}
	c.Spec.Prefix = onpath.Prefix{Prefix: netip.MustParsePrefix("2001:db8::1/128")}
	c.Status = onpath.PrefixClaimStatus{State: onpath.ClaimAsked, Password: "onpath-word", Evidence: "no answer within 3s"}
	for _, x := range []struct {
		o    onpath.Object
		want []string
	}{
		{s, []string{"lis: no instance is ready", "fra       203.0.113.2      2  yes", "lis       -                0  no"}},
		{c, []string{"no answer within 3s", "http://[2001:db8::1]:80/.well-known/onpath has to show", "onpath-word"}},
	} {
		o := x.o
		_ = o.Validate() // it fills in defaults
		var b strings.Builder
		if err := render.Describe(&b, o, nil, nil, nil, time.Now()); err != nil {
			t.Fatal(err)
		}
		for _, want := range x.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%q is lacking:\n%s", want, b.String())
			}
		}
	}
	i := &onpath.Instance{Metadata: onpath.Metadata{Tenant: "acme"}, Spec: onpath.InstanceSpec{Deployment: "web"}}
	if !render.Belongs(i, s) {
		t.Error("the instances are not shown")
	}
}
