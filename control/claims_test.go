package control_test

import (
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
	p.Spec.Method, p.Spec.For = onpath.ByPassword, onpath.Duration(20*time.Second)
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
	for end := time.Now().Add(20 * time.Second); ; s.lead(time.Second) {
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
	for end := time.Now().Add(20 * time.Second); !s.claim().Status.Until.After(first.Status.Until); s.lead(time.Second) {
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

// TestClaimGiven: a claim by the operator's word stands and falls with Tenant.spec.addresses.
func TestClaimGiven(t *testing.T) {
	s := newSite(t)
	defer s.stop()
	p, bob := theClaim(t)
	p.Spec.Method, p.Spec.For = onpath.ByOperator, 0
	state := func(want onpath.ClaimState) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); s.claim().Status.State != want; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("want %s: %+v", want, s.claim().Status)
			}
		}
	}
	s.apply(bob, p)
	state(onpath.ClaimAsked)
	with := onpath.Clone(bob)
	with.Spec.Addresses = []onpath.Prefix{{Prefix: p.Spec.Prefix.Prefix}}
	s.apply(with)
	state(onpath.ClaimProved)
	s.apply(bob)
	state(onpath.ClaimLost)
}
