package control_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

const claimed = "10.2.0.5"

func theClaim(t *testing.T) (*onpath.PrefixClaim, *onpath.Tenant) {
	t.Helper()
	p := &onpath.PrefixClaim{Metadata: onpath.Metadata{Name: "site", Tenant: "bob"}}
	if err := p.Spec.Prefix.UnmarshalText([]byte(claimed)); err != nil {
		t.Fatal(err)
	}
	p.Spec.Method, p.Spec.For = onpath.ByPassword, onpath.Duration(30*time.Second)
	return p, &onpath.Tenant{Metadata: onpath.Metadata{Name: "bob"}}
}

func (s *site) show(where, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shows == nil {
		s.shows = map[string]string{}
	}
	if s.shows[where] = what; what == "" {
		delete(s.shows, where)
	}
}

func (s *site) claim() *onpath.PrefixClaim {
	s.t.Helper()
	o, err := s.store.Get(s.t.Context(), onpath.Key{Kind: onpath.KindPrefixClaim, Tenant: "bob", Name: "site"})
	if err != nil {
		s.t.Fatal(err)
	}
	return o.(*onpath.PrefixClaim)
}

// untilClaim has the clock go on until the claim is in a state.
func (s *site) untilClaim(want onpath.ClaimState) *onpath.PrefixClaim {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); ; s.lead(time.Second) {
		p := s.claim()
		if p.Status.State == want && p.Status.Password != "" {
			return p
		}
		if time.Now().After(end) {
			s.t.Fatalf("the claim is never %s: %+v", want, p.Status)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestClaimLife: a claim is proved by the password that its address shows to gateways of
// two cloudlets, is asked for again, expires, is lost, and is proved again.
func TestClaimLife(t *testing.T) {
	s := newSite(t)
	defer s.stop()
	s.join("gw1", "fra1", 1, true)
	s.join("gw2", "ams1", 2, true)
	p, bob := theClaim(t)
	s.apply(bob, p)
	s.untilClaim(onpath.ClaimAsked)
	s.show(claimed, "onpath-forged")
	if p := s.untilClaim(onpath.ClaimRefused); p.ProvedAt(s.now()) {
		t.Errorf("another word proves it: %+v", p.Status)
	}
	s.show("gw1 "+claimed, p.Status.Password)
	word := s.claim().Status.Password
	s.show("gw1 "+claimed, word) // the second cloudlet sees another one: somebody is on the way of the first
	for range 3 {
		s.lead(time.Second)
		time.Sleep(300 * time.Millisecond)
	}
	if p := s.claim(); p.Status.State == onpath.ClaimProved {
		t.Errorf("one of two cloudlets proves it: %+v", p.Status)
	}
	s.show(claimed, word)
	first := s.untilClaim(onpath.ClaimProved)
	if !strings.Contains(first.Status.Evidence, "gw1") || !strings.Contains(first.Status.Evidence, "gw2") {
		t.Errorf("evidence: %s", first.Status.Evidence)
	}
	for end := time.Now().Add(time.Minute); !s.claim().Status.Until.After(first.Status.Until); s.lead(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("it is not renewed: %+v", s.claim().Status)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if again := s.claim(); !again.Status.Since.Equal(first.Status.Since) {
		t.Errorf("a renewal made the claim younger: %+v", again.Status)
	}
	s.show(claimed, "")
	s.show("gw1 "+claimed, "")
	if p := s.untilClaim(onpath.ClaimExpiring); !p.ProvedAt(s.now()) {
		t.Errorf("one failure takes it away at once: %+v", p.Status)
	}
	if p := s.untilClaim(onpath.ClaimLost); p.ProvedAt(s.now()) {
		t.Errorf("lost, and counts: %+v", p.Status)
	}
	s.show(claimed, word)
	if p := s.untilClaim(onpath.ClaimProved); !p.Status.Since.After(first.Status.Since) {
		t.Errorf("a claim that was lost kept its age: %+v", p.Status)
	}
}

// TestClaimAnew: neither another prefix in a claim that is proved nor a claim made anew
// stands on the old proof.
func TestClaimAnew(t *testing.T) {
	s := newSite(t)
	defer s.stop()
	s.join("gw1", "fra1", 1, true)
	p, bob := theClaim(t)
	s.apply(bob, p)
	word := s.untilClaim(onpath.ClaimAsked).Status.Password
	s.show(claimed, word)
	s.untilClaim(onpath.ClaimProved)

	other := onpath.Clone(s.claim())
	if err := other.Spec.Prefix.UnmarshalText([]byte("10.9.0.7")); err != nil {
		t.Fatal(err)
	}
	if other.ProvedAt(s.now()) {
		t.Error("the proof of one address is taken for another")
	}
	s.apply(other)
	s.show("10.9.0.7", word) // what was good for the first
	if p := s.untilClaim(onpath.ClaimRefused); p.Status.Password == word {
		t.Error("the password of the old prefix goes on")
	}

	s.write([]onpath.Change{{Key: onpath.KeyOf(other), Version: onpath.AnyVersion}})
	fresh, _ := theClaim(t)
	s.apply(fresh)
	if p := s.untilClaim(onpath.ClaimRefused); p.Status.Password == word {
		t.Error("a claim made anew has the password of the one before")
	}
}

// TestClaimByOwnChain: where a tenant's chain may answer in place of the address, the
// gateway itself must hear the address.
func TestClaimByOwnChain(t *testing.T) {
	s := newSite(t)
	defer s.stop()
	for i, cloudlet := range []string{"fra1", "ams1", "nyc1"} {
		s.join("gw"+fmt.Sprint(i+1), cloudlet, byte(i+1), true)
	}
	p, bob := theClaim(t)
	s.apply(bob, p)
	word := s.untilClaim(onpath.ClaimAsked).Status.Password
	s.show(claimed, word)
	s.untilClaim(onpath.ClaimProved)

	fw, c := function("fw"), web(1)
	fw.Metadata.Tenant, c.Metadata.Tenant = "bob", "bob"
	fw.Spec.Container.Image = "registry.example/fw:1"
	c.Spec.To.Prefixes, c.Spec.At.Cloudlets = []onpath.Prefix{p.Spec.Prefix}, []string{"nyc1"}
	s.apply(fw, c)
	s.show("gw3 "+claimed, "somebody else's") // the others' packets pass gw3, and bob's instance
	if p := s.untilClaim(onpath.ClaimLost); !strings.Contains(p.Status.Evidence, "gw3") {
		t.Errorf("evidence: %s", p.Status.Evidence)
	}
	s.show("gw3 "+claimed, word)
	s.untilClaim(onpath.ClaimProved)

	// What a machine itself sends a chain may take: it is not asked.
	host := s.join("vm1", "oslo1", 4, true)
	host.spec.Uplinks = []onpath.Uplink{{Name: "core", Device: "eth0", Attach: onpath.AttachHost}} // the controller holds the others
	host.connect()
	s.show("vm1 "+claimed, "somebody else's")
	c.Spec.At.Cloudlets = nil
	s.apply(c)
	first := s.claim().Status.Until
	for end := time.Now().Add(time.Minute); !s.claim().Status.Until.After(first); s.lead(time.Second) {
		if time.Now().After(end) {
			t.Fatalf("it is not renewed: %+v", s.claim().Status)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if e := s.claim().Status.Evidence; strings.Contains(e, "vm1") || strings.Count(e, "node gw") != 3 {
		t.Errorf("evidence: %s", e)
	}
}

// TestClaimGiven: a claim by the operator's word stands and falls with Tenant.spec.addresses.
func TestClaimGiven(t *testing.T) {
	s := newSite(t)
	defer s.stop()
	p, bob := theClaim(t)
	p.Spec.Method, p.Spec.For = onpath.ByOperator, 0
	if err := errors.Join(p.Validate(), bob.Validate()); err != nil {
		t.Fatal(err)
	}
	state := func(want onpath.ClaimState) *onpath.PrefixClaim {
		t.Helper()
		for end := time.Now().Add(time.Minute); s.claim().Status.State != want; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("want %s: %+v", want, s.claim().Status)
			}
		}
		return s.claim()
	}
	give := func(list ...string) {
		t.Helper()
		with := onpath.Clone(bob)
		for _, a := range list {
			with.Spec.Addresses = append(with.Spec.Addresses, onpath.Prefix{Prefix: netip.MustParsePrefix(a)})
		}
		s.apply(with)
	}
	neighbour := &onpath.Tenant{Metadata: onpath.Metadata{Name: "alice"}}
	neighbour.Spec.Addresses = []onpath.Prefix{{Prefix: netip.MustParsePrefix(claimed + "/32")}}
	forged := onpath.Clone(p)
	forged.Status = onpath.PrefixClaimStatus{State: onpath.ClaimProved, Prefix: p.Spec.Prefix, Since: s.now()}
	s.apply(bob, neighbour, forged) // as a faulty store would have it
	state(onpath.ClaimLost)
	s.write([]onpath.Change{{Key: onpath.KeyOf(p), Version: onpath.AnyVersion}})
	s.apply(p)
	state(onpath.ClaimAsked) // it is a neighbour's
	give(claimed + "/32")
	first := state(onpath.ClaimProved)
	give("10.2.0.0/24", "10.3.0.0/24") // still within
	s.lead(10 * time.Second)
	time.Sleep(600 * time.Millisecond) // two looks at all claims
	if again := state(onpath.ClaimProved); !again.Status.Since.Equal(first.Status.Since) {
		t.Errorf("it became younger: %+v, was %+v", again.Status, first.Status)
	}
	give("10.3.0.0/24")
	state(onpath.ClaimLost)
	s.write([]onpath.Change{{Key: onpath.KeyOf(p), Version: onpath.AnyVersion}})
	s.apply(p) // made anew
	state(onpath.ClaimAsked)
	give(claimed + "/32")
	state(onpath.ClaimProved)
	give()
	state(onpath.ClaimLost)
}
