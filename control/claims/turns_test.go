package claims

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestNextClaim: many claims of one tenant keep no other's waiting, and what holds
// something comes before what does not.
func TestNextClaim(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	claim := func(tenant, name string, checked time.Duration) *onpath.PrefixClaim {
		p := &onpath.PrefixClaim{Metadata: onpath.Metadata{Tenant: tenant, Name: name}}
		p.Status.Checked = now.Add(-checked)
		return p
	}
	var due []*onpath.PrefixClaim
	for i := range 1000 {
		due = append(due, claim("flood", fmt.Sprint(i), time.Hour))
	}
	held := claim("acme", "held", time.Second)
	held.Status.State, held.Status.Until = onpath.ClaimProved, now.Add(time.Minute)
	due = append(due, claim("acme", "asked", time.Minute), held)
	busy := map[onpath.Key]bool{onpath.KeyOf(claim("flood", "x", 0)): true}
	if got := nextClaim(due, busy, now); got != held {
		t.Errorf("%s/%s is asked for first", got.Metadata.Tenant, got.Metadata.Name)
	}
}

// TestTurns: a tenant that claims what never answers has few questions a second asked of
// others; its own proved claims and other tenants' do not wait for them. Proved claims are not
// asked for more often, however short they last.
func TestTurns(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	claim := func(tenant string) *onpath.PrefixClaim {
		p := &onpath.PrefixClaim{Metadata: onpath.Metadata{Tenant: tenant}}
		p.Spec.Method, p.Status.Password = onpath.ByPassword, "word"
		return p
	}
	held := claim("flood")
	held.Status.State, held.Status.Until = onpath.ClaimProved, now.Add(time.Minute)
	turns := turns{}
	asked := 0
	for range 1000 {
		if turns.take(claim("flood"), now) {
			asked++
		}
	}
	if asked != askingATenantOnce {
		t.Errorf("%d questions at once", asked)
	}
	if !turns.take(held, now) || !turns.take(claim("acme"), now) {
		t.Error("others wait for it")
	}
	asked = 1
	for range 1000 {
		if turns.take(held, now) {
			asked++
		}
	}
	if asked != askingATenantOnce {
		t.Errorf("%d questions at once for proved claims", asked)
	}
	if !turns.take(claim("flood"), now.Add(time.Second)) {
		t.Error("it is never asked for again")
	}
}

// TestManyProvedClaims: each of a tenant's 100 proved claims with a life of a minute is asked for
// before the life ends, again and again.
func TestManyProvedClaims(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	turns := turns{}
	var claims []*onpath.PrefixClaim
	for i := range 100 {
		p := &onpath.PrefixClaim{Metadata: onpath.Metadata{Tenant: "acme", Name: fmt.Sprint(i)}}
		p.Spec.Method, p.Spec.For, p.Status.Password = onpath.ByPassword, onpath.Duration(time.Minute), "word"
		settleClaim(p, onpath.PasswordAnswer{Proved: true}, now)
		claims = append(claims, p)
	}
	for range 600 {
		now = now.Add(time.Second)
		for _, p := range claims {
			if !p.ProvedAt(now) {
				t.Fatalf("claim %s ran out", p.Metadata.Name)
			}
			if claimDue(p, now) && turns.take(p, now) {
				settleClaim(p, onpath.PasswordAnswer{Proved: true}, now)
			}
		}
	}
}
