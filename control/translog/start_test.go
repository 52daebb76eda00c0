package translog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
	"github.com/onpath/onpath/store/mem"
)

// counted is a store that counts reads, and can fail them.
type counted struct {
	onpath.Store
	lists, gets atomic.Int64
	fails       atomic.Int64 // so many reads of records
}

func (c *counted) List(ctx context.Context, k onpath.Kind, tenant string) ([]onpath.Object, int64, error) {
	c.lists.Add(1)
	return c.Store.List(ctx, k, tenant)
}

func (c *counted) Get(ctx context.Context, k onpath.Key) (onpath.Object, error) {
	c.gets.Add(1)
	return c.Store.Get(ctx, k)
}

func (c *counted) Records(ctx context.Context, r onpath.RecordRange) (onpath.RecordPage, error) {
	if c.fails.Add(-1) >= 0 {
		return onpath.RecordPage{}, errors.New("it does not answer")
	}
	return c.Store.Records(ctx, r)
}

// TestStartReadsEachKindOnce: however many chains there are, a start lists each kind once; a
// chain that begins lists nothing.
func TestStartReadsEachKindOnce(t *testing.T) {
	inner := &counted{Store: mem.New(mem.Options{})}
	n := 1
	chain := func(i int) *onpath.Chain {
		c := applied(t, &onpath.Chain{Metadata: onpath.Metadata{Name: fmt.Sprintf("web%d", i), Tenant: "acme"}, Spec: onpath.ChainSpec{
			From: onpath.Endpoints{Any: true}, To: onpath.Endpoints{Prefixes: []onpath.Prefix{prefix(t, "198.51.100.10")}},
			Through: []onpath.Element{{Function: "fw", Instances: &n}}}}, nil).(*onpath.Chain)
		c.Status.Cloudlets = []string{"fra1"}
		return c
	}
	write := func(s onpath.Store, o onpath.Object) {
		t.Helper()
		if _, err := s.Write(store.FollowUp(t.Context()), onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(o), Object: o}}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		write(inner, chain(i))
	}
	s := newStore(t, inner)
	if l, g := inner.lists.Load(), inner.gets.Load(); l != int64(len(entryKinds)) || g != 0 {
		t.Errorf("a start with 50 chains lists %d times and reads %d objects", l, g)
	}
	claim := applied(t, &onpath.PrefixClaim{Metadata: onpath.Metadata{Name: "mine", Tenant: "acme"},
		Spec: onpath.PrefixClaimSpec{Prefix: prefix(t, "198.51.100.10/32"), Method: onpath.ByPassword}}, nil).(*onpath.PrefixClaim)
	claim.Status = onpath.PrefixClaimStatus{State: onpath.ClaimProved, Prefix: claim.Spec.Prefix, Since: time.Now(), Until: time.Now().Add(time.Hour)}
	write(s, claim)
	before := inner.lists.Load()
	c := chain(50)
	write(s, c)
	if l := inner.lists.Load() - before; l != 0 {
		t.Errorf("a chain that begins lists %d kinds", l)
	}
	if got := s.known(onpath.KeyOf(c)).begun.Method; got != onpath.ByPassword {
		t.Errorf("it intercepts by %s", got)
	}
}

// TestSignsOnceTheStoreAnswers: a store that does not answer at the start leaves the log
// unsigned only until it does.
func TestSignsOnceTheStoreAnswers(t *testing.T) {
	t.Parallel()
	inner := &counted{Store: mem.New(mem.Options{})}
	s := newStore(t, inner)
	l := openLog(t, t.TempDir())
	fill(t, l, s, 0, 3)
	inner.fails.Store(1)
	go func() { _ = l.Run(t.Context(), s, slog.New(slog.DiscardHandler)) }()
	if err := s.Note(t.Context(), entry(7)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); l.sizeNow() < 4; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d entries are signed", l.sizeNow())
		}
	}
}
