package pool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
)

// TestListInPages: the command lists more reservations than come in a page, in the form that
// a whole list has, and chooses among them by place and time.
func TestListInPages(t *testing.T) {
	s := setUp(t)
	const all, atOnce = 1200, 300
	if _, err := s.Pool().Enter(t.Context(), onpath.DefaultTenant, onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 1e12, Reference: "transfer 1"}); err != nil {
		t.Fatal(err)
	}
	day := time.Now().Add(24 * time.Hour).UTC().Truncate(time.Hour)
	for k := 0; k < all; k += atOnce {
		var list []onpath.Object
		for i := k; i < k+atOnce; i++ {
			o, _ := onpath.New(onpath.KindReservation)
			r := o.(*onpath.Reservation)
			r.Metadata.Name, r.Metadata.Tenant = fmt.Sprintf("r%04d", i), onpath.DefaultTenant
			from := day.Add(time.Duration(k) * time.Hour)
			r.Spec = onpath.ReservationSpec{From: from, Until: from.Add(time.Hour), Cloudlet: "fra",
				Capacity: onpath.Resources{CPU: 10, Memory: 8 << 20}}
			list = append(list, r)
		}
		if _, err := s.Apply(t.Context(), list, client.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	get := func(args ...string) string {
		t.Helper()
		code, out, said := s.onpath(append([]string{"get", "reservations"}, args...)...)
		if code != 0 {
			t.Fatalf("%q: exit code %d: %s", args, code, said)
		}
		return out
	}
	whole, _, err := s.List(t.Context(), onpath.KindReservation, "")
	if err != nil || len(whole) != all {
		t.Fatalf("%d reservations, %v", len(whole), err)
	}
	var want bytes.Buffer
	enc := json.NewEncoder(&want)
	enc.SetIndent("", "  ")
	if err := enc.Encode(whole); err != nil {
		t.Fatal(err)
	}
	if got := get("-o", "json"); got != want.String() {
		t.Errorf("JSON of %d bytes, want %d: %.200s", len(got), want.Len(), got)
	}
	if n := strings.Count(get(), "\n"); n != all+1 {
		t.Errorf("a table of %d lines", n)
	}
	if n := strings.Count("\n"+get("-o", "yaml"), "\nkind: Reservation\n"); n != all {
		t.Errorf("YAML of %d reservations", n)
	}
	text := func(hours int) string { return day.Add(time.Duration(hours) * time.Hour).Format(time.RFC3339) }
	for _, c := range []struct {
		args []string
		want int
	}{
		{nil, all}, {[]string{"--cloudlet", "fra", "-t", onpath.DefaultTenant}, all}, {[]string{"--cloudlet", "par"}, 0},
		{[]string{"--from", text(1)}, all - atOnce}, {[]string{"--to", text(atOnce)}, atOnce},
		{[]string{"--from", text(atOnce), "--to", text(atOnce + 1)}, atOnce},
	} {
		if got := strings.Fields(get(append(c.args, "-o", "name")...)); len(got) != c.want || c.want > 0 && got[0] > got[len(got)-1] {
			t.Errorf("%q: %d names, want %d", c.args, len(got), c.want)
		}
	}
	if code, _, said := s.onpath("get", "chains", "--cloudlet", "fra"); code != wrong || !strings.Contains(said, "choose among all reservations") {
		t.Errorf("exit code %d: %s", code, said)
	}
	code, out, said := s.onpath("delete", "reservation", "none")
	if code != missing || !strings.Contains(out, "reservation default/none was not there") || !strings.Contains(said, "it does not exist") {
		t.Errorf("exit code %d: %s %s", code, out, said)
	}
	code, out, _ = s.onpath("delete", "reservation", "none", "r0000", "nor-this")
	if code != missing || !strings.Contains(out, "given back") {
		t.Errorf("exit code %d: %s", code, out)
	}
}
