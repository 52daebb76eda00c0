package instance

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/onpath/onpath"
)

// TestHalfIsTold: variables and file name the partner and the secret, and what the chain
// sets by itself stays.
func TestHalfIsTold(t *testing.T) {
	p := &onpath.InstancePlan{Addresses: []netip.Prefix{netip.MustParsePrefix("100.100.0.1/16"), netip.MustParsePrefix("fd00::1/64")},
		Pair: &onpath.Pair{Number: 2, Side: onpath.PairB, Partner: "x-1", Secret: "beef", MTU: 1450,
			Addresses: []netip.Addr{netip.MustParseAddr("100.100.0.9"), netip.MustParseAddr("fd00::9")}}}
	s := onpath.FunctionSpec{Container: &onpath.ContainerSpec{Env: onpath.Env{"ONPATH_PAIR_MTU": "1300"}}}
	got := paired(s, p).Container
	for name, want := range map[string]string{
		"ONPATH_PAIR_NUMBER": "2", "ONPATH_PAIR_SIDE": "b", "ONPATH_PAIR_SECRET": "beef", "ONPATH_PAIR_DEVICE": "pair0", "ONPATH_PAIR_MTU": "1300",
		"ONPATH_PAIR_ADDRESSES": "100.100.0.1 fd00::1", "ONPATH_PAIR_PARTNER": "100.100.0.9 fd00::9",
	} {
		if got.Env[name] != want {
			t.Errorf("%s is %q, must be %q", name, got.Env[name], want)
		}
	}
	var n pairNews
	if err := json.Unmarshal([]byte(got.Files[pairFile].Content), &n); err != nil || n.Secret != "beef" || len(n.Partner.Addresses) != 2 || got.Files[pairFile].Mode != 0o600 {
		t.Errorf("%s has %+v (%v)", pairFile, n, err)
	}
	if other := paired(s, &onpath.InstancePlan{}).Container; len(other.Files) > 0 {
		t.Error("an instance of no pair is told of a partner")
	}
}
