package relay

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/cgroup"
)

// TestConfined: the process that reads what strangers send has no more rights than it uses, can
// get none, writes no file, has a bound of memory, and is not spared where memory is short.
func TestConfined(t *testing.T) {
	s := subject(t)
	rt := s.Open(t)
	t.Cleanup(func() {
		if err := rt.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	p, err := rt.Start(t.Context(), onpath.RunSpec{ID: "one", Labels: map[string]string{TenantLabel: "t"}, Spec: s.Spec(nil), NetNS: namespace(t)})
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.Pid(), name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	status := read("status")
	field := func(name string) string {
		m := regexp.MustCompile(name + `:\s+(\S+)`).FindStringSubmatch(status)
		if m == nil {
			return ""
		}
		return m[1]
	}
	if !raced {
		may := 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_NET_BIND_SERVICE
		for _, set := range []string{"CapPrm", "CapEff"} {
			var have int
			if _, err := fmt.Sscanf(field(set), "%x", &have); err != nil || have == 0 || have&^may != 0 {
				t.Errorf("%s is %s, and may be within %x (%v)", set, field(set), may, err)
			}
		}
		for _, set := range []string{"CapBnd", "CapInh", "CapAmb"} {
			if strings.Trim(field(set), "0") != "" {
				t.Errorf("%s is %s: a program that it begins would have rights", set, field(set))
			}
		}
		if field("NoNewPrivs") != "1" {
			t.Error("it may get new privileges")
		}
	}
	if got := strings.TrimSpace(read("oom_score_adj")); got != "0" {
		t.Errorf("oom_score_adj is %s", got)
	}
	d := rt.(*Driver)
	if !strings.Contains(read("cgroup"), d.group()) {
		t.Errorf("it is in no control group of its own:\n%s", read("cgroup"))
	}
	if _, memory, err := cgroup.Open(d.group()).Usage(); err != nil || memory == 0 {
		t.Errorf("its control group counts %d bytes, %v", memory, err)
	}
	if err := p.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if cgroup.Open(d.group()) != nil {
		t.Error("its control group stays without it")
	}
}
