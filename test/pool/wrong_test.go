package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// What fails: a file that is wrong (usage), a name that is not there, and a request that
// cannot be met (no room).
const (
	wrong    = 2
	missing  = 3
	declined = 7
)

// TestWrongFiles: each file is refused with its reason, and changes nothing.
func TestWrongFiles(t *testing.T) {
	s := setUp(t)
	if _, err := s.Pool().Enter(t.Context(), onpath.DefaultTenant, onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 5_000_000, Reference: "transfer 1"}); err != nil {
		t.Fatal(err)
	}
	day := time.Now().Add(24 * time.Hour).UTC().Truncate(time.Hour)
	at := func(hours int) string { return day.Add(time.Duration(hours) * time.Hour).Format(time.RFC3339) }
	const one = "{cpu: 1}"
	slots := func(list ...string) string {
		out := "from: " + at(0) + "\n  slots:\n"
		for _, x := range list {
			out += "  - {" + x + ", capacity: " + one + "}\n"
		}
		return out
	}
	times := func(from, until, capacity string) string {
		return fmt.Sprintf("cloudlet: fra\n  from: %s\n  until: %s\n  capacity: %s\n", from, until, capacity)
	}
	s.apply(reservationFile("kept", times(at(0), at(1), one)))
	before := s.everything()
	for _, c := range []struct {
		name, spec string
		code       int
		want       string
	}{
		{"gap", slots("until: "+at(1), "from: "+at(2)+", until: "+at(3)), wrong, `spec.slots.1..from: leaves a gap`},
		{"overlap", slots("until: "+at(2), "from: "+at(1)+", until: "+at(3)), wrong, `spec.slots.1..from: overlaps`},
		{"reversed", times(at(2), at(1), one), wrong, `spec.until: .* is not after`},
		{"reversed slot", slots("until: "+at(2), "until: "+at(1)), wrong, `spec.slots.1..until: .* is not after`},
		{"past", times(at(-50), at(-49), one), wrong, `spec.until: .* is past`},
		{"past beginning", times(at(-50), at(5), one), wrong, `spec.from: .* is past`},
		{"open slot in the middle", "slots:\n  - {capacity: {cpu: 1}}\n  - {until: " + at(2) + ", capacity: {cpu: 1}}\n", wrong,
			`only the last slot may be open-ended`},
		{"two ends", slots("until: "+at(1)) + "  until: " + at(2) + "\n", wrong, `spec.until: stands beside slots`},
		{"two amounts", slots("until: "+at(1)) + "  capacity: {cpu: 1}\n", wrong, `exactly one of capacity, slots and nodes`},
		{"no amount", "until: " + at(1) + "\n", wrong, `exactly one of capacity, slots and nodes`},
		{"overflow of cores", times(at(0), at(1), "{cpu: 99999999999999999999}"), wrong, `spec.capacity.cpu`},
		{"overflow of bytes", times(at(0), at(1), "{cpu: 1, memory: 99999999999Ti}"), wrong, `spec.capacity.memory`},
		{"overflow of instances", times(at(0), at(1), one) + "  instances: 99999999999\n", wrong, `spec.instances`},
		{"negative", times(at(0), at(1), "{cpu: -1}"), wrong, `spec.capacity.cpu`},
		{"no number", times(at(0), at(1), "{network: fast}"), wrong, `spec.capacity.network`},
		{"a million slots", "slots:\n" + strings.Repeat("  - {until: 2027-01-01T00:00:00Z, capacity: {cpu: 1}}\n", 1_000_000), wrong,
			`larger than 4 MiB`},
		{"too many slots", "slots:\n" + strings.Repeat("  - {until: 2027-01-01T00:00:00Z, capacity: {cpu: 1}}\n", 401), wrong,
			`401 slots are too many; at most 400`},
		{"unknown cloudlet", "cloudlet: nowhere\n  until: " + at(1) + "\n  capacity: {cpu: 1}\n", wrong, `cloudlet nowhere`},
		{"two places", "near: 10.1.0.0/24\n  " + times(at(0), at(1), one), wrong, `spec.near: stands beside cloudlet`},
		{"no prefix", "near: here\n  until: " + at(1) + "\n  capacity: {cpu: 1}\n", wrong, `spec.near`},
		{"time without offset", times("2027-03-28T02:30:00", at(1), one), wrong, `spec.from`},
		{"time of a place", times("2027-03-28T02:30:00 Europe/Berlin", at(1), one), wrong, `spec.from`},
		{"no such day", times("2027-02-30T12:00:00Z", at(1), one), wrong, `spec.from`},
		{"another century", times(at(0), "9999-12-31T23:59:59Z", one), wrong, `spec.until: .* century`},
		{"unknown field", times(at(0), at(1), one) + "  price: 1\n", wrong, `price`},
		{"too dear", times(at(0), at(2), one) + "  maxPrice: 1.999999\n", declined, `2 EUR|costs 2|2\.00`},
		{"empty account", times(at(0), at(6), one), declined, `account of tenant default has .*account credit default`},
		{"more than there is", times(at(0), at(1), "{cpu: 37}"), declined, `lacks 1 of CPU|lacks .* CPU`},
		{"more machines than there are", "cloudlet: fra\n  from: " + at(0) + "\n  until: " + at(1) + "\n  nodes: 3\n", declined, `cloudlet fra`},
	} {
		file := filepath.Join(t.TempDir(), "wrong.yaml")
		if err := os.WriteFile(file, []byte(reservationFile("wrong", c.spec)), 0o644); err != nil {
			t.Fatal(err)
		}
		code, _, said := s.onpath("apply", "-f", file)
		if code != c.code || !regexp.MustCompile(c.want).MatchString(said) {
			t.Errorf("%s: exit code %d, want %d; %.400s", c.name, code, c.code, said)
		}
		if after := s.everything(); after != before {
			t.Errorf("%s changed something: before\n%s\nafter\n%s", c.name, before, after)
			before = after
		}
	}
}

func reservationFile(name, spec string) string {
	return "apiVersion: onpath/v1alpha1\nkind: Reservation\nmetadata: {name: " + name + "}\nspec:\n  " + spec
}

// everything is what a request could have changed.
func (s *server) everything() string {
	s.t.Helper()
	ctx := s.t.Context()
	list, _, err := s.List(ctx, onpath.KindReservation, "")
	account, err2 := s.Pool().Account(ctx, onpath.DefaultTenant)
	check, err3 := s.Pool().CheckLedger(ctx)
	view, err4 := s.Pool().Capacity(ctx, "", time.Now().Add(time.Hour).Truncate(time.Hour), time.Now().AddDate(20, 0, 0).Truncate(24*time.Hour))
	if err := errors.Join(err, err2, err3, err4); err != nil {
		s.t.Fatal(err)
	}
	text, err := json.MarshalIndent([]any{list, account, check, view}, "", " ")
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}
