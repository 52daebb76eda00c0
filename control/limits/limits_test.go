package limits

import (
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

func guard(t *testing.T, rules ...onpath.AlertRule) *onpath.Function {
	t.Helper()
	f := &onpath.Function{Metadata: onpath.Metadata{Name: "guard", Tenant: onpath.OperatorTenant}}
	f.Spec.EBPF = &onpath.EBPFSpec{Object: "ratelimit", Config: onpath.Env{"rate": "1 packets"}}
	f.Spec.Alerts = rules
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	return f
}

func alert(instance, level, address string) onpath.Notification {
	return onpath.Notification{Tenant: "shop", Instance: instance, Level: onpath.NotificationLevel(level), Title: "scan",
		Fields: map[string]string{"src_ip": address}}
}

// TestBelieved: only alerts of the deployment that the operator's rule names, of its level, and
// with an address that is not excepted, limit a source.
func TestBelieved(t *testing.T) {
	var except onpath.Prefix
	if err := except.UnmarshalText([]byte("10.0.0.0/8")); err != nil {
		t.Fatal(err)
	}
	f := guard(t, onpath.AlertRule{From: "shop/web-ips", Except: []onpath.Prefix{except}})
	for _, c := range []struct {
		n    onpath.Notification
		want string
	}{
		{alert("web-ips-abcde", "warning", "198.51.100.7"), "198.51.100.7"},
		{alert("web-ips-abcde", "critical", "2001:0db8:0000::7"), "2001:db8::7"},
		{alert("web-ips-abcde", "critical", "::ffff:198.51.100.7"), "198.51.100.7"},
		{alert("web-ips-abcde", "info", "198.51.100.7"), ""},
		{alert("other-ips-abcde", "critical", "198.51.100.7"), ""},
		{alert("web-ips-abcde", "critical", "10.1.2.3"), ""},
		{alert("web-ips-abcde", "critical", "nobody"), ""},
		{alert("x", "critical", "198.51.100.7"), ""},
	} {
		got := ""
		if list := believed(f, []onpath.Notification{c.n}); len(list) == 1 {
			got = list[0].Address.String()
		}
		if got != c.want {
			t.Errorf("%+v: limits %q, must be %q", c.n, got, c.want)
		}
	}
}

// TestTimeOfSources: a source is limited for as long as the rule says after its latest alert,
// and a flood of alerts writes little.
func TestTimeOfSources(t *testing.T) {
	var s onpath.FunctionStatus
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	news := []source{{onpath.LimitedSource{Address: netip.MustParseAddr("198.51.100.7"), Alert: "scan"}, 10 * time.Second}}
	writes := 0
	for range 100 {
		if _, _, changed := limitSources(&s, news, now); changed {
			writes++
		}
		now = now.Add(100 * time.Millisecond)
	}
	if len(s.Limited) != 1 || writes > 11 {
		t.Errorf("%d sources, %d writes", len(s.Limited), writes)
	}
	for now.Before(s.Limited[0].Until) {
		if _, ended, _ := limitSources(&s, nil, now); len(ended) > 0 {
			t.Fatalf("it ends at %s, before its time", now)
		}
		now = now.Add(time.Second)
	}
	if _, ended, changed := limitSources(&s, nil, now); !changed || len(ended) != 1 || len(s.Limited) != 0 {
		t.Errorf("it does not end: %v", s.Limited)
	}
	for i := range onpath.MaxLimitedSources + 10 {
		news[0].Address = netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		limitSources(&s, news, now)
	}
	if len(s.Limited) != onpath.MaxLimitedSources || s.Limited[0].Address.String() != "198.18.0.10" {
		t.Errorf("%d sources, the first is %s", len(s.Limited), s.Limited[0].Address)
	}
}
